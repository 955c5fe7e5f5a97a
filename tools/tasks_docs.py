"""Writes docs/reference/tasks.md from the table of control tasks: `python -m tools.tasks_docs`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ares_celery.celery_app.control_tasks import CONTROLS, WITHOUT_TASK, Control, parameters_of
from ares_celery.manager import CoreManager

PAGE: Final = Path(__file__).parents[1] / "docs" / "reference" / "tasks.md"

HEAD: Final = """\
# Tasks by name

Made from `ares_celery/celery_app/control_tasks.py` by `python -m tools.tasks_docs`; do not edit.

What a service may send that has Celery and not this package: [Call from another
service](../howto/call-from-another-service.md) shows how. Arguments and results are JSON. Queues carry the namespace in
front: `ares.control` by default, `shop.control` for namespace `shop`.

* A parameter with `=` may be left out. `op` is the operation id: a call that is repeated with it acts once; by default
  it is the task's id, so the same message acts once however often it comes; `message_id` likewise. `reason` and `actor`
  are kept with the change.
* A control task takes a second at most. What is not ready by then answers `{"pending": …}`: send the same call again.
  It waits less while other commands wait for its slot. A store that does not answer: `store_unavailable`, and the same
  call again, with the same `op`, is safe. `timeout` and `wait` are left out without a word.
* An error has one argument, an object with `code`, `message` and what belongs to it: `exc.args[0]["code"]`.
* Times are ISO 8601 texts in UTC, durations `PT1.5S`. `AgentInfo` and the like are objects with the fields that
  [Every public name](api.md) lists. New fields may come, none goes.

## Control queue

| task | parameters | result | what it does |
|---|---|---|---|
"""

OTHERS: Final = """
## Supervision queue

| task | parameters | result | what it does |
|---|---|---|---|
| `ares.notify_agent_dead` | `agent_id`, `reason`, `epoch=null`, `actor`, `op` | null | Reports a death. |
| `ares.health_check` | none | counts of what it did | One sweep; what beat sends. |

## Agents queue

`ares.run_agent(agent_id, epoch)` and `ares.resurrect_agent(agent_id, epoch)` are sent by the runtime alone. One that
names an epoch which is not the agent's does nothing.

## What has no task

| of the Manager | why |
|---|---|
"""


def _parameters(control: Control) -> str:
    shown: list[str] = []
    for name, one in parameters_of(control).items():
        empty = one.default is inspect.Parameter.empty
        # Left out is then not the same as any value.
        default = "" if one.default is ... else json.dumps(None if empty else one.default)
        shown.append(f"`{name}`" if empty else f"`{name}={default}`")
    return ", ".join(shown) or "none"


def _says(control: Control) -> str:
    """The first sentence of what explains it."""
    said = inspect.getdoc(control.parameters or getattr(CoreManager, control.method)) or ""
    return said.partition("\n\n")[0].replace("\n", " ").replace("|", "\\|").replace("``", "`")


def _rows() -> Iterator[str]:
    for control in CONTROLS:
        cells = (f"`ares.{control.method}`", _parameters(control), control.answers, _says(control))
        yield f"| {' | '.join(cells)} |\n"


def render() -> str:
    """The page's text."""
    without = "".join(f"| `{name}` | {why} |\n" for name, why in WITHOUT_TASK.items())
    return HEAD + "".join(_rows()) + OTHERS + without


if __name__ == "__main__":
    PAGE.write_text(render())
    print(f"wrote {PAGE.name}")
