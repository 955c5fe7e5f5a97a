"""``ares agents events --follow``: the newest events, then each as it comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ares_celery.cli.interrupts import catch_interrupts
from ares_celery.cli.output import say

if TYPE_CHECKING:
    from ares_celery.cli.apps import Session
    from ares_celery.model.event import Event

__all__ = ["check_stream_exists", "follow_events"]

#: Seconds between two looks at whether somebody pressed Ctrl-C.
_LOOK: Final = 0.25


def check_stream_exists(session: Session, name: str) -> None:
    """Refuses a stream without events, unless it is that of an agent.

    Raises:
        AgentNotFoundError: There is no such agent. StreamNotFoundError: It has another stream's mark.
    """
    from ares_celery.errors import AgentNotFoundError, StreamNotFoundError

    if name.startswith("@"):
        raise StreamNotFoundError(stream_id=name, message=f"stream {name!r} has no events")
    if session.manager.get_agent_info(name) is None:
        raise AgentNotFoundError(agent_id=name)


def follow_events(session: Session, agent_id: str, *, last: int, show: Callable[[Event], None]) -> None:
    """Shows the last so many events of an agent, then those that come, until Ctrl-C.

    Args:
        session: Whose namespace.
        agent_id: Which agent, which need not have emitted anything yet, or which other stream.
        last: How many of those that are there; 0 = all.
        show: Shows one.

    Raises:
        AgentNotFoundError: It does not exist, and has no events. StreamNotFoundError: The same of another stream.
    """
    from ares_celery.errors import EventGapError, EventIntegrityError
    from ares_celery.model.event import EventFilter, ReadOptions

    events = session.manager.events
    with catch_interrupts() as interrupts, events.subscribe(EventFilter(streams=[agent_id])) as subscription:
        there = events.read(agent_id, ReadOptions(limit=last, direction="descending"))
        if not there:
            check_stream_exists(session, agent_id)
        for event in reversed(there):
            show(event)
        newest = there[0].version if there else 0
        while not interrupts.stop.is_set():
            try:
                found = subscription.poll(_LOOK)
            except (EventGapError, EventIntegrityError) as error:
                say(str(error))
                continue
            # What came between subscribing and reading was shown already; a smaller version later is a new agent.
            if found is not None and not (found.version <= newest and found in there):
                show(found)
