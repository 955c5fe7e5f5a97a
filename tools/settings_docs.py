"""Writes docs/reference/settings.md from ares_celery/config.py: `python -m tools.settings_docs`."""

from __future__ import annotations

import inspect
import re
from datetime import timedelta
from pathlib import Path
from typing import Final

from ares_celery.config import ProcessSettings, RuntimeConfig
from ares_celery.model.durations import format_duration

PAGE: Final = Path(__file__).parents[1] / "docs" / "reference" / "settings.md"

HEAD: Final = """\
# Settings

Made from `ares_celery/config.py` by `python -m tools.settings_docs`; do not edit.

Durations are seconds or text: `500ms`, `10s`, `2m`, `1h`. Sizes are bytes or text: `64KiB`, `1MiB`. A bad value is an
error that names the field.
"""

PROCESS: Final = {
    "ARES_REDIS_URL": (
        "redis://127.0.0.1:6379/0",
        "Where the store is: `redis://`, `rediss://`, `unix://`, or `sentinel://[user:pw@]h1:26379,h2:26379/name/0`.",
    ),
    "ARES_BROKER_URL": ("the same store", "Where Celery's messages go."),
    "ARES_RESULT_URL": ("the same store", "Where Celery's results go."),
    "ARES_NAMESPACE": ("ares", "Part of every key, queue and message; two namespaces never meet."),
    "ARES_AGENT_MODULES": (
        "workers.agents",
        (
            "Modules, separated by commas, that a worker imports to learn agent types. The default may be missing, a "
            "named one may not."
        ),
    ),
    "ARES_APP": ("workers.app, else a built-in one", "The Celery app of the `ares` command."),
    "ARES_CLOCK_FILE": (
        "none",
        (
            "Of a worker: the file through which the action `clock_offset` of a scenario moves its wall clock. Needs "
            "the extra `clock`."
        ),
    ),
}


def _comments() -> dict[str, str]:
    """The `#:` line above each field."""
    source = inspect.getsource(RuntimeConfig)
    return {name: text for text, name in re.findall(r"#: (.+)\n    (\w+):", source)}


def _shown(value: object) -> str:
    if isinstance(value, timedelta):
        return format_duration(value)
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def render() -> str:
    """The page's text."""
    lines = [
        HEAD,
        "## Of a process\n",
        "From the environment, or the constructor.\n",
        "| variable | default | meaning |",
    ]
    lines += ["|---|---|---|"]
    lines += [f"| `{name}` | {default} | {meaning} |" for name, (default, meaning) in PROCESS.items()]
    lines += [
        "\n## Of a namespace\n",
        "Stored when the namespace is made, from its creator's RuntimeConfig or from `ARES_<FIELD>`, and the same for",
        "everyone. A process whose own values differ logs one warning and never wins. `ares config get` shows them,",
        "[`ares config set`](../howto/change-settings.md) changes them while everything runs.\n",
        "| field | default | meaning |",
        "|---|---|---|",
    ]
    comments = _comments()
    for name, value in RuntimeConfig().model_dump().items():
        lines.append(f"| `{name}` | {_shown(value)} | {comments[name]} |")
    return "\n".join(lines) + "\n"


def settings_without_words() -> set[str]:
    """Process settings that the page does not explain."""
    return {f"ARES_{name.upper()}" for name in ProcessSettings.model_fields} - set(PROCESS)


if __name__ == "__main__":
    PAGE.write_text(render())
    print(f"wrote {PAGE.name}")
