"""Small readers that several calls share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

from ares_celery.errors import AresError, FencedError, VersionConflictError
from ares_celery.ids import AgentId, Epoch, Instant, Version

__all__ = ["as_it_is", "as_texts", "entry_fields", "epoch_of", "fenced", "instant", "rolled_back", "unknown_reply"]


def as_it_is(reply: Any) -> Any:  # noqa: ANN401 - what the driver gave
    """The answer, unread."""
    return reply


def as_texts(reply: Sequence[bytes]) -> list[str]:
    """A list of texts."""
    return [item.decode() for item in reply]


def entry_fields(fields: Any) -> dict[bytes, bytes]:  # noqa: ANN401 - what the driver gave
    """The fields of a stream's entry: scripts and the lean client give a flat list, redis-py itself a dict."""
    if isinstance(fields, dict):
        return cast("dict[bytes, bytes]", fields)
    return dict(zip(fields[::2], fields[1::2], strict=True))


def instant(reply: bytes | None) -> Instant:
    """A moment, from microseconds or a sorted set's score (``1.79e+15`` and ``1790000000000000.0`` are ones too)."""
    if reply is None:
        return Instant(0)
    return Instant(int(reply) if reply.isdigit() else int(float(reply)))


def fenced(agent_id: str, fence: str) -> FencedError:
    """The error for the holder of a fence whose incarnation is over."""
    return FencedError(agent_id=agent_id, epoch=fence.partition("|")[0])


def rolled_back(agent_id: str, *, actual: int, expected: Version) -> VersionConflictError:
    """The error for a writer that has seen more than the store has: it came back older, after a crash or a failover."""
    return VersionConflictError(
        subject=f"agent {agent_id!r}", actual=actual, expected=expected, agent_id=agent_id, rolled_back=True
    )


@lru_cache(maxsize=10_000)  # one for each agent that this process hosts
def epoch_of(agent_id: AgentId, fence: str) -> Epoch:
    """The epoch that a fence shows. An empty fence is nobody's: a record without one must not equal it."""
    epoch, bar, _ = fence.partition("|")
    if not bar or not epoch.isdecimal():
        raise fenced(agent_id, fence)
    return Epoch(int(epoch))


def unknown_reply(script: str, reply: object) -> AresError:
    """The error for a script that answered what its caller does not know: a bug."""
    return AresError(message=f"script {script!r} answered {reply!r:.200}, which this version does not know")
