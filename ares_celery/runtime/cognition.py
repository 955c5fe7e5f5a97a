"""What recovery learns of an agent's conversation, where no snapshot tells: from its events and a memory manager."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Final, cast

from ares_celery.model.command import Finding
from ares_celery.model.conversation import ConversationMessage
from ares_celery.model.event import EventType
from ares_celery.runtime.bounded import LOOKUP_LIMIT, BoundedCalls
from ares_celery.store.base import EventStore, MemoryManager

__all__ = ["SESSION_CREATED", "Cognition", "build_cognitive_state"]

log = logging.getLogger(__name__)
#: The event of an agent that says which session it is in, in ``session_id``; the last one counts.
SESSION_CREATED: Final = "session.created"
#: Messages of one session that recovery hands over; whoever gives more, perhaps without end, gives none.
_MOST_MESSAGES: Final = 100_000


class Cognition:
    """A memory manager that may be anybody's: asked for a limited time, and believed only what it can mean."""

    def __init__(
        self,
        memory: MemoryManager,
        events: EventStore,
        *,
        taker: Callable[[EventStore], object] | None = None,
        limit: float = LOOKUP_LIMIT,
    ) -> None:
        """Hands the event store to a manager that takes one, on a thread of its own.

        Args:
            memory: The manager.
            events: The namespace's streams.
            taker: Of the manager: gets the streams before anything is asked.
            limit: Seconds that each lookup may take.
        """
        self._memory = memory
        self._name = f"{type(memory).__module__}.{type(memory).__qualname__}"
        self._calls = BoundedCalls(limit)
        self._handed_over = threading.Event()
        if taker is not None:
            threading.Thread(target=self._hand_over, args=(taker, events), name="ares-memory", daemon=True).start()
        else:
            self._handed_over.set()

    def _hand_over(self, taker: Callable[[EventStore], object], events: EventStore) -> None:
        _, problem = self._calls.call(taker, events)
        if problem:
            log.error("memory manager %s did not take the event store: %s", self._name, problem)
        self._handed_over.set()

    def latest_session(self, agent_id: str, found: list[Finding]) -> str | None:
        """The session that began last; None when there is none, or nobody can tell."""
        session = self._ask("latest_session", found, agent_id)
        if session is None or (isinstance(session, str) and session):
            return session
        self._degraded("latest_session", f"it returned a {type(session).__name__}, not the id of a session", found)
        return None

    def history(self, agent_id: str, session_id: str, found: list[Finding]) -> list[dict[str, Any]]:
        """The session's messages as JSON values; empty when there are none, or nobody can tell."""
        return self._ask("messages", found, agent_id, session_id, read=_messages) or []

    def _ask(
        self, method: str, found: list[Finding], *args: str, read: Callable[[Any], Any] = lambda given: given
    ) -> Any:  # noqa: ANN401 - a user's code gives anything
        self._handed_over.wait(self._calls.limit)
        # Read on the call's own thread: what it gives may be lazy, and then reading it is somebody else's code too.
        value, problem = self._calls.call(lambda: read(getattr(self._memory, method)(*args)))
        if problem:
            self._degraded(method, problem, found)
        return value

    def _degraded(self, method: str, problem: str, found: list[Finding]) -> None:
        log.error("memory manager %s: %s: %s; recovery goes on without", self._name, method, problem)
        payload = {"part": "memory", "name": self._name, "operation": method, "problem": problem}
        found.append(Finding(EventType.RECOVERY_DEGRADED, payload, "memory_failures"))


def _messages(given: Iterable[object] | None) -> list[dict[str, Any]]:
    """The messages as JSON values. Raises TypeError, ValueError: they are none."""
    found = [_as_state(message) for message in islice(given or (), _MOST_MESSAGES + 1)]
    if len(found) > _MOST_MESSAGES:
        raise ValueError(f"it returned more than {_MOST_MESSAGES} messages")
    return found


def _as_state(message: object) -> dict[str, Any]:
    if isinstance(message, ConversationMessage):
        return message.as_state()
    kind = type(message).__name__
    given = dict(cast("Mapping[str, Any]", message)) if isinstance(message, Mapping) else {}
    if not isinstance(given.get("role"), str):
        raise TypeError(f"a {kind} is no ConversationMessage and no mapping with a role")
    return given


def build_cognitive_state(
    agent_id: str, session_id: str | None, cognition: Cognition | None, found: list[Finding]
) -> dict[str, Any]:
    """What ``restore_state`` gets where there is no snapshot: ``session_id`` and ``conversation_history``, if any.

    Args:
        agent_id: Whose.
        session_id: The session that its events name; it is kept whatever the memory manager says.
        cognition: The memory manager; without a session in the events it knows the latest one.
        found: Gets what the manager failed to tell.
    """
    state: dict[str, Any] = {"session_id": session_id} if session_id else {}
    if cognition is None:
        return state
    session = session_id or cognition.latest_session(agent_id, found)
    history = cognition.history(agent_id, session, found) if session else []
    return {"session_id": session, "conversation_history": history} if history else state
