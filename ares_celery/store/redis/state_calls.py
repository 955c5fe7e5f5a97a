"""Calls about stored states: snapshots, and what agents said and were told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote, unquote

from ares_celery.errors import AgentNotFoundError, MemoryCorruptedError, SessionNotFoundError
from ares_celery.model.snapshot import Snapshot, type_digest
from ares_celery.store.base import DamagedSnapshot
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.records import safe_text
from ares_celery.store.redis.replies import fenced, unknown_reply
from ares_celery.store.redis.stored_snapshots import EncodedState, decode_snapshot

__all__ = [
    "MOST_DAMAGED",
    "MOST_MESSAGES",
    "MOST_SESSIONS",
    "add_message",
    "delete_snapshots",
    "latest_session",
    "note_degraded",
    "note_limited",
    "note_state",
    "open_session",
    "read_damaged",
    "read_messages",
    "read_snapshots",
    "save_snapshot",
    "set_aside",
]

#: Damaged snapshots kept of one agent: evidence, each as large as a state.
MOST_DAMAGED: Final = 10
#: Sessions kept of one agent; the oldest go first, with their messages.
MOST_SESSIONS: Final = 100
#: Messages kept of one session: what recovery hands over at once.
MOST_MESSAGES: Final = 1_000

_TYPE: Final = len(type_digest(""))


def save_snapshot(
    keys: Keys, *, agent_id: str, fence: str | None, state: EncodedState, blob: bytes, kept: int
) -> Call[None]:
    """Stores a snapshot; ``fence`` None means that nobody's fence is demanded."""
    return Call(
        lambda reply: _parse_fenced("save_snapshot", agent_id, fence or "", reply),
        script="save_snapshot",
        keys=(
            keys.agent(agent_id),
            keys.snapshots(agent_id),
            keys.faults(agent_id),
            keys.deadlines(keys.shard_of(agent_id)),
        ),
        args=(
            int(fence is not None),
            fence or "",
            state.head,
            blob,
            kept,
            state.origin[:_TYPE],
            state.schema,
            agent_id,
        ),
    )


def note_state(keys: Keys, *, agent_id: str, fence: str, origin: str, schema: int, saved: str) -> Call[None]:
    """Notes what a state is that is saved elsewhere."""
    return Call(
        lambda reply: _parse_fenced("note_state", agent_id, fence, reply),
        script="note_state",
        keys=(keys.agent(agent_id), keys.faults(agent_id), keys.deadlines(keys.shard_of(agent_id))),
        args=(fence, origin[:_TYPE], schema, saved, agent_id),
    )


def note_degraded(keys: Keys, *, agent_id: str, fence: str, text: str) -> Call[None]:
    """Notes what an incarnation has to do without; empty: nothing."""
    return Call(
        lambda reply: _parse_fenced("note_degraded", agent_id, fence, reply),
        script="note_degraded",
        keys=(keys.agent(agent_id),),
        args=(fence, safe_text(text)),
    )


def note_limited(keys: Keys, *, agent_id: str, fence: str, name: str) -> Call[None]:
    """Notes which limit an incarnation waits for; empty: none."""
    return Call(
        lambda reply: _parse_fenced("note_limited", agent_id, fence, reply),
        script="note_limited",
        keys=(keys.agent(agent_id),),
        args=(fence, safe_text(name)),
    )


def _parse_fenced(script: str, agent_id: str, fence: str, reply: Sequence[Any]) -> None:
    match reply:
        case [b"done", *_]:
            return
        case [b"fenced"]:
            raise fenced(agent_id, fence)
        case [b"corrupt", bytes(fault)]:
            raise MemoryCorruptedError(agent_id=agent_id, fault=fault.decode())
        case _:
            raise unknown_reply(script, reply)


def read_snapshots(keys: Keys, *, agent_id: str) -> Call[list[Snapshot | DamagedSnapshot]]:
    """Reads all kept snapshots, newest first."""
    return Call(
        lambda reply: [decode_snapshot(blob) for blob in reply], args=("LRANGE", keys.snapshots(agent_id), 0, -1)
    )


def delete_snapshots(keys: Keys, *, agent_id: str) -> Call[None]:
    """Forgets all snapshots but the damaged ones."""
    return Call(
        lambda _: None, script="delete_snapshots", keys=(keys.agent(agent_id), keys.snapshots(agent_id)), args=()
    )


def set_aside(keys: Keys, *, agent_id: str, fence: str, blobs: Sequence[bytes], copies: bool) -> Call[int]:
    """Moves damaged snapshots, given newest first, out of the way of later ones; ``copies`` come from elsewhere."""
    return Call(
        lambda reply: _parse_moved(agent_id, fence, reply),
        script="set_aside",
        keys=(keys.agent(agent_id), keys.snapshots(agent_id), keys.damaged(agent_id)),
        args=(fence, MOST_DAMAGED, int(copies), *reversed(blobs)),
    )


def _parse_moved(agent_id: str, fence: str, reply: Sequence[Any]) -> int:
    _parse_fenced("set_aside", agent_id, fence, reply)
    return int(reply[1])


def read_damaged(keys: Keys, *, agent_id: str) -> Call[list[DamagedSnapshot]]:
    """Reads the damaged snapshots that were set aside, newest first."""
    return Call(_parse_damaged, args=("LRANGE", keys.damaged(agent_id), 0, -1))


def _parse_damaged(reply: Sequence[bytes]) -> list[DamagedSnapshot]:
    decoded = ((blob, decode_snapshot(blob)) for blob in reply)
    return [
        found if isinstance(found, DamagedSnapshot) else DamagedSnapshot("it was damaged when it was read", blob)
        for blob, found in decoded
    ]


# -- sessions and messages --------------------------------------------------------------------------------------------


def open_session(keys: Keys, *, agent_id: str, session_id: str) -> Call[None]:
    """Begins a session, or finds it begun."""
    return Call(
        lambda reply: _parse_known("open_session", agent_id, session_id, reply),
        script="open_session",
        keys=(keys.agent(agent_id), keys.sessions(agent_id), keys.memory(agent_id)),
        args=(_safe(session_id), MOST_SESSIONS),
    )


def add_message(keys: Keys, *, agent_id: str, session_id: str, message_id: str, data: bytes) -> Call[None]:
    """Adds a message, once for each id."""
    return Call(
        lambda reply: _parse_known("add_message", agent_id, session_id, reply),
        script="add_message",
        keys=(keys.agent(agent_id), keys.sessions(agent_id), keys.memory(agent_id)),
        args=(_safe(session_id), _safe(message_id), data, MOST_MESSAGES),
    )


def _parse_known(script: str, agent_id: str, session_id: str, reply: Sequence[bytes]) -> None:
    match reply:
        case [b"done" | b"repeated", *_]:
            return
        case [b"unknown", b"session"]:
            raise SessionNotFoundError(agent_id=agent_id, session_id=session_id)
        case [b"unknown", *_]:
            raise AgentNotFoundError(agent_id=agent_id)
        case _:
            raise unknown_reply(script, reply)


def latest_session(keys: Keys, *, agent_id: str) -> Call[str | None]:
    """Reads the id of the session that began last."""
    return Call(_parse_session, args=("ZREVRANGE", keys.sessions(agent_id), 0, 0))


def _parse_session(reply: Sequence[bytes]) -> str | None:
    return unquote(reply[0].decode()) if reply else None


def read_messages(keys: Keys, *, agent_id: str, session_id: str) -> Call[list[tuple[int, bytes]]]:
    """Reads the messages of a session, oldest first, each with the microsecond of its storing."""
    return Call(
        lambda reply: [_parse_message(entry) for entry in reply],
        script="read_messages",
        keys=(keys.memory(agent_id),),
        args=(_safe(session_id),),
    )


def _parse_message(entry: bytes) -> tuple[int, bytes]:
    _, now, data = entry.split(b"|", 2)
    return int(now), data


def _safe(text: str) -> str:
    """An id without the bars that fields are made of."""
    return quote(text, safe="")
