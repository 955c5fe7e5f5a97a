"""Calls about answers that come in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from ares_celery.errors import MessageNotFoundError, StreamGapError, error_from_wire
from ares_celery.ids import AgentId
from ares_celery.model.message import Chunk
from ares_celery.store.base import InboxMessage
from ares_celery.store.redis.call import Call, Word
from ares_celery.store.redis.json_values import decode_json
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.mailbox_calls import Waiting, parse_answer, resting
from ares_celery.store.redis.replies import entry_fields, fenced, unknown_reply

__all__ = ["CALLER_LEASE", "MOST_BYTES", "MOST_CHUNKS", "await_chunks", "cancel", "read_chunks", "write_chunks"]

#: How long chunks are kept after the last one.
CHUNKS_TTL: Final = timedelta(minutes=10)
#: Chunks of one stream that are kept, the newest.
MOST_CHUNKS: Final = 10_000
#: Bytes of one stream that are kept.
MOST_BYTES: Final = 8 << 20
#: A caller that has not looked for so long has left.
CALLER_LEASE: Final = timedelta(seconds=10)
#: Most that the time between two looks of the host counts of that: the server may have been away, for both of them.
#: Longer than any pause that is meant, and short enough that it and a caller's signs of life make no lease.
LONGEST_LOOK: Final = timedelta(seconds=4)
#: Chunks of one read.
PAGE: Final = 200


def write_chunks(
    keys: Keys, *, agent_id: AgentId, fence: str, message: InboxMessage, first: int, pieces: Sequence[bytes]
) -> Call[int | None]:
    """Stores the pieces from seq ``first`` on, those that are not stored yet; without any it only asks.

    Returns the last seq that is stored; None when the caller of the stream has left.
    """
    args: tuple[Word, ...] = (
        fence,
        first,
        int(CHUNKS_TTL.total_seconds()),
        MOST_CHUNKS,
        MOST_BYTES,
        int(CALLER_LEASE.total_seconds() * 1_000_000),
        int(LONGEST_LOOK.total_seconds() * 1_000_000),
        f"{agent_id}|{message.message_id}",
        *pieces,
    )
    return Call(
        lambda outcome: _parse_write(agent_id, fence, outcome),
        script="write_chunks",
        keys=(
            keys.agent(agent_id),
            keys.message(agent_id, message.message_id),
            keys.chunks(agent_id, message.message_id),
        ),
        args=args,
    )


def _parse_write(agent_id: AgentId, fence: str, outcome: Sequence[bytes]) -> int | None:
    match outcome:
        case [b"done", last]:
            return int(last)
        case [b"left" | b"unknown"]:
            # Unknown: nobody has looked for it for a week.
            return None
        case [b"fenced"]:
            raise fenced(agent_id, fence)
        case _:
            raise unknown_reply("write_chunks", outcome)


def read_chunks(
    keys: Keys, *, agent_id: AgentId, message_id: str, after: int, caller: str = ""
) -> Call[tuple[Chunk, ...] | Waiting]:
    """Reads the chunks behind seq ``after``; raises when none may come: the agent rests, or nobody knows of the stream.

    Empty: there will be none, as the stream is over.
    """
    return Call(
        lambda answer: _parse_read(agent_id, message_id, after, answer),
        script="read_chunks",
        keys=(
            keys.agent(agent_id),
            keys.message(agent_id, message_id),
            keys.chunks(agent_id, message_id),
            keys.rest(agent_id),
            keys.reply(agent_id, message_id),
        ),
        args=(after, PAGE, caller, int(CHUNKS_TTL.total_seconds())),
    )


def _parse_read(agent_id: AgentId, message_id: str, after: int, answer: Sequence[Any]) -> tuple[Chunk, ...] | Waiting:
    match answer:
        case [b"chunks", found]:
            return _chunks(agent_id, message_id, after, found)
        case [b"gap", last]:
            raise _gap(agent_id, message_id, after + 1, int(last))
        case [b"over"]:
            return ()
        case [b"unknown"]:
            raise MessageNotFoundError(agent_id=agent_id, message_id=message_id)
        case [b"wait", mark]:
            return Waiting(mark.decode())
        case other:
            raise resting("read_chunks", agent_id, other)


def await_chunks(keys: Keys, *, agent_id: AgentId, message_id: str, after: int, mark: str, block_ms: int) -> Call[bool]:
    """Waits on the server for the next chunk, or for news of the agent. Needs a connection of its own."""
    chunks = keys.chunks(agent_id, message_id)
    return Call(
        bool,
        args=(
            "XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", chunks, keys.rest(agent_id), f"{after}-0", mark
        ),
    )  # fmt: skip


def _chunks(agent_id: AgentId, message_id: str, after: int, found: Sequence[Any]) -> tuple[Chunk, ...]:
    """The chunks as far as they are good; an error that ended the stream is raised once it is the first of them."""
    chunks: list[Chunk] = []
    for entry, given in found:
        seq, fields = int(entry.partition(b"-")[0]), entry_fields(given)
        if seq != after + 1 + len(chunks):
            if chunks:
                break
            raise _gap(agent_id, message_id, after + 1, seq - 1)
        if b"f" not in fields:
            chunks.append(Chunk(seq, decode_json(fields[b"d"]), final=False))
            continue
        end = parse_answer(message_id, fields[b"f"])
        if end.error is None:
            chunks.append(Chunk(seq, end.value, final=True))
        elif not chunks:
            raise error_from_wire(end.error)
        break
    return tuple(chunks)


def _gap(agent_id: AgentId, message_id: str, first: int, last: int) -> StreamGapError:
    count = last - first + 1
    return StreamGapError(agent_id=agent_id, message_id=message_id, first=first, last=last, count=count)


def cancel(keys: Keys, *, agent_id: AgentId, message_id: str) -> Call[None]:
    """Notes that the caller of a stream has left."""
    return Call(
        lambda _: None,
        script="cancel",
        keys=(keys.agent(agent_id), keys.message(agent_id, message_id)),
        args=(agent_id, message_id, keys.wake_prefix),
    )
