"""Writes docs/reference/lifecycle.md from the transition table: `python -m tools.lifecycle_docs`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ares_celery.model.agent import AgentState, agent_status
from ares_celery.model.command import Operation
from ares_celery.model.lifecycle import TABLE, Rule

PAGE: Final = Path(__file__).parents[1] / "docs" / "reference" / "lifecycle.md"

HEAD: Final = """\
# The life of an agent

Made from `ares_celery/model/lifecycle.py` by `python -m tools.lifecycle_docs`; do not edit.

An agent is in exactly one state. Every operation has a rule for every state; a rule either gives a plan, which the
store applies as a whole or not at all, or raises a documented error. What leads nowhere else leaves the state as it is.
"""

#: The operations by who brings them up.
CHAPTERS: Final[tuple[tuple[str, tuple[Operation, ...]], ...]] = (
    (
        "What people ask",
        (
            Operation.REGISTER,
            Operation.START,
            Operation.SPAWN,
            Operation.STOP,
            Operation.PAUSE,
            Operation.RESUME,
            Operation.RESTART,
            Operation.UNPARK,
            Operation.RESTORE,
            Operation.UPDATE,
            Operation.DELETE,
            Operation.FORK,
            Operation.FORK_DONE,
        ),
    ),
    (
        "What incarnations say",
        (
            Operation.CLAIM,
            Operation.MARK_RUNNING,
            Operation.RELEASE,
            Operation.COMPLETE,
            Operation.PARK,
            Operation.WAIT,
            Operation.ATTEMPT_FAILED,
        ),
    ),
    (
        "What is found out",
        (
            Operation.DIE,
            Operation.OWNER_EXITED,
            Operation.LEASE_DUE,
            Operation.STOP_DUE,
            Operation.HANG_DUE,
            Operation.NUDGE_DUE,
            Operation.ATTEMPT_DUE,
            Operation.WAIT_DUE,
            Operation.RESUME_DUE,
            Operation.RECONCILE,
        ),
    ),
    (
        "What its group asks",
        (
            Operation.GROUP_STOP,
            Operation.GROUP_GO,
            Operation.GROUP_PARK,
            Operation.GROUP_DUE,
        ),
    ),
    (
        "What it has to do with those that it spawned",
        (
            Operation.CHILDREN_DUE,
            Operation.REPORT_DUE,
        ),
    ),
)


def _leads_to(state: AgentState, rule: Rule) -> str:
    return ", ".join("stays" if target is state else target.value for target in rule.to)


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def _states() -> Iterator[str]:
    yield "\n## States\n"
    yield _row(("State", "Shown as"))
    yield "|---|---|"
    for state in AgentState:
        yield _row((state.value, agent_status(state)))


def _operation(operation: Operation) -> Iterator[str]:
    yield f"\n### {operation.value}\n"
    yield _row(("In state", "What is done", "Leads to"))
    yield "|---|---|---|"
    states: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for state, rule in TABLE[operation].items():
        states[rule.does, _leads_to(state, rule)].append(state.value)
    for (does, to), names in states.items():
        yield _row((", ".join(names), does, to))


def render() -> str:
    """The whole page."""
    lines = [HEAD.rstrip("\n"), *_states()]
    for title, operations in CHAPTERS:
        lines.append(f"\n## {title}")
        for operation in operations:
            lines.extend(_operation(operation))
    return "\n".join(lines) + "\n"


def main() -> None:
    """Writes the page."""
    PAGE.write_text(render())
    print(f"wrote {PAGE.name}")


if __name__ == "__main__":
    main()
