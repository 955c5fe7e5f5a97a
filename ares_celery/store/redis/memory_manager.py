"""What agents said and were told, in Redis."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import msgspec

from ares_celery.clock import to_datetime
from ares_celery.errors import EventTooLargeError, SessionNotFoundError
from ares_celery.model.conversation import ConversationMessage
from ares_celery.store.redis import state_calls
from ares_celery.store.redis.bound import Part
from ares_celery.store.redis.json_values import encode_json

__all__ = ["RedisMemoryManager"]

_decoder: Final = msgspec.json.Decoder(ConversationMessage)


class RedisMemoryManager(Part):
    """Implements :class:`~ares_celery.store.memory.MemoryManager`; the agent must exist, its delete forgets all of it.

    The newest 100 sessions of an agent are kept, and of each the newest 1,000 messages.
    """

    def open_session(self, agent_id: str, session_id: str | None = None) -> str:
        """Begins a session, or finds it begun; returns its id, a fresh one for None.

        Raises:
            AgentNotFoundError: Nobody owns it.
        """
        opened = uuid.uuid4().hex if session_id is None else session_id
        if not opened:
            raise SessionNotFoundError(agent_id=agent_id, session_id=opened)
        self._bound.client.run(state_calls.open_session(self._bound.keys, agent_id=agent_id, session_id=opened))
        return opened

    def latest_session(self, agent_id: str) -> str | None:
        """The id of the session that began last; None when there is none."""
        return self._bound.client.run(state_calls.latest_session(self._bound.keys, agent_id=agent_id))

    def add_message(
        self, agent_id: str, session_id: str, message: ConversationMessage, *, message_id: str = ""
    ) -> None:
        """Adds a message to a session; the same ``message_id`` again changes nothing.

        Raises:
            AgentNotFoundError, SessionNotFoundError: Open the session first.
            UnserialisableError, EventTooLargeError: Nothing was stored.
        """
        what = f"a message of session {session_id!r}"
        data, _ = encode_json(message.as_state(), what=what, agent_id=agent_id)
        limit = self._bound.config.max_event_bytes
        if len(data) > limit:
            raise EventTooLargeError(type=what, agent_id=agent_id, size=len(data), limit=limit)
        call = state_calls.add_message(
            self._bound.keys,
            agent_id=agent_id,
            session_id=session_id,
            message_id=message_id or uuid.uuid4().hex,
            data=data,
        )
        self._bound.client.run(call)

    def messages(self, agent_id: str, session_id: str) -> Sequence[ConversationMessage]:
        """The messages of a session, oldest first; none of an unknown one."""
        call = state_calls.read_messages(self._bound.keys, agent_id=agent_id, session_id=session_id)
        return [_decode(micros, data) for micros, data in self._bound.client.run(call)]


def _decode(micros: int, data: bytes) -> ConversationMessage:
    message = _decoder.decode(data)
    return message if message.time is not None else replace(message, time=to_datetime(micros))
