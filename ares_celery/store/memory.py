"""The port to what agents said and were told; recovery asks it for what no event tells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ares_celery.model.conversation import ConversationMessage

__all__ = ["MemoryManager"]


class MemoryManager(Protocol):
    """Sessions of agents and their messages. A user may bring another one.

    Recovery calls ``latest_session`` and ``messages`` only, each for five seconds at most; whatever they raise costs
    the agent its conversation, never its life. A method ``set_event_store(events)``, if there is one, is called once
    before that, with the namespace's :class:`~ares_celery.store.base.EventStore`.
    """

    def open_session(self, agent_id: str, session_id: str | None = None) -> str:
        """Begins a session, or finds it begun; returns its id, a fresh one for None."""
        ...

    def latest_session(self, agent_id: str) -> str | None:
        """The id of the session that began last; None when there is none."""
        ...

    def add_message(
        self, agent_id: str, session_id: str, message: ConversationMessage, *, message_id: str = ""
    ) -> None:
        """Adds a message to a session; the same ``message_id`` again changes nothing."""
        ...

    def messages(self, agent_id: str, session_id: str) -> Sequence[ConversationMessage]:
        """The messages of a session, oldest first; none of an unknown one."""
        ...
