"""Writes docs/reference/events.md from the catalogue of events: `python -m tools.events_docs`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ares_celery.model.event import EventType
from ares_celery.model.event_catalogue import CATALOGUE

PAGE: Final = Path(__file__).parents[1] / "docs" / "reference" / "events.md"

HEAD: Final = """\
# The runtime's own events

Made from `ares_celery/model/event_catalogue.py` by `python -m tools.events_docs`; do not edit.

They stand in the stream of the agent that they are about, between the events that the agent emits, and carry
`{"module": "runtime"}` as metadata. Their names are reserved: an agent that emits one of them gets an error.
[Read and follow events](../howto/read-and-follow-events.md) shows how to get at them.
"""


def _section(kind: EventType) -> Iterator[str]:
    facts = CATALOGUE[kind]
    yield f"\n## {kind.value}\n"
    yield f"{facts.meaning} Written by {facts.by}.\n"
    yield "| payload | holds |"
    yield "|---|---|"
    for name, meaning in facts.payload.items():
        yield f"| `{name}` | {meaning} |"


def render() -> str:
    """The page's text."""
    lines = [HEAD.rstrip("\n")]
    for kind in EventType:
        lines.extend(_section(kind))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render())
    print(f"wrote {PAGE.name}")
