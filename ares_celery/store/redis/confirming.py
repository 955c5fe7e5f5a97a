"""Waiting until replicas, or the disk, have what was written: for the writes that must not be lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from ares_celery.config import RuntimeConfig
from ares_celery.errors import AresError, InvalidSettingError, NotConfirmedError, UnsupportedServerError
from ares_celery.store.redis.bound import Bound
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.client import AsyncRedisClient, RedisClient

__all__ = ["check_can_confirm", "confirm", "confirm_async"]

T = TypeVar("T")

#: Seconds for which the key of a confirmation is kept.
_KEPT: Final = 3600


def confirm(bound: Bound, shard: int) -> None:
    """Returns when everything written before in a shard, by any connection, is where the namespace wants it.

    Nothing is asked where ``confirm_replicas`` is 0 and ``confirm_fsync`` is off.

    Raises:
        NotConfirmedError: It is not within ``confirm_timeout``.
        UnsupportedServerError: The server has no WAITAOF, or no append-only file.
    """
    calls = _calls(bound, shard)
    if not calls:
        return
    try:
        # Not by the client that renews leases: this one waits on the server.
        answers = bound.waiting.run_many(calls)
    except AresError as error:
        raise _explained(error) from error
    _demand(bound.config, answers)


async def confirm_async(bound: Bound, client: AsyncRedisClient, shard: int) -> None:
    """See :func:`confirm`."""
    calls = _calls(bound, shard)
    if not calls:
        return
    try:
        answers = await client.run_many(calls)
    except AresError as error:
        raise _explained(error) from error
    _demand(bound.config, answers)


def check_can_confirm(client: RedisClient, config: RuntimeConfig) -> None:
    """Refuses a setting that the server cannot keep.

    Raises:
        InvalidSettingError: ``confirm_fsync`` on a server without WAITAOF or without an append-only file.
    """
    if not config.confirm_fsync:
        return
    try:
        client.run(Call(_local, args=("WAITAOF", 1, 0, 1)))
    except AresError as error:
        problem = _problem(error)
        if not problem:
            raise
        raise InvalidSettingError(field="confirm_fsync", value="true", problem=f"cannot be kept: {problem}") from error


def _calls(bound: Bound, shard: int) -> list[Call[int]]:
    config = bound.config
    if not config.confirm_replicas and not config.confirm_fsync:
        return []
    limit = max(1, int(config.confirm_timeout.total_seconds() * 1_000))
    # WAIT looks at the writes of its own connection alone. All writes are one sequence: where this one has come, there
    # is all that was written before it, too.
    calls = [Call(_nothing, args=("SET", bound.keys.confirmed(shard), "1", "EX", _KEPT))]
    if config.confirm_replicas:
        calls.append(Call(int, args=("WAIT", config.confirm_replicas, limit)))
    if config.confirm_fsync:
        calls.append(Call(_local, args=("WAITAOF", 1, 0, limit)))
    return calls


def _nothing(_: object) -> int:
    return 0


def _local(answer: Any) -> int:  # noqa: ANN401 - what the driver gives
    """How many servers' own files have it: of the two numbers of WAITAOF the first."""
    return int(answer[0])


def _demand(config: RuntimeConfig, answers: Sequence[int]) -> None:
    found = list(answers[1:])
    replicas = found.pop(0) if config.confirm_replicas else 0
    missing: list[str] = []
    if replicas < config.confirm_replicas:
        missing.append(f"{replicas} of {config.confirm_replicas} replicas have it")
    if config.confirm_fsync and not found[0]:
        missing.append("it is not on the server's disk yet")
    if missing:
        seconds = config.confirm_timeout.total_seconds()
        raise NotConfirmedError(problem=" and ".join(missing), seconds=round(seconds, 3))


def _problem(error: AresError) -> str:
    """What the server lacks; empty where something else went wrong."""
    text = str(error).lower()
    if "unknown command" in text:
        return "this server has no WAITAOF (Redis 7.2 and later have)"
    return "this server keeps no append-only file (appendonly no)" if "appendonly" in text else ""


def _explained(error: AresError) -> AresError:
    problem = _problem(error)
    if not problem:
        return error
    cure = "`ares config set confirm_fsync false`, or another server"
    return UnsupportedServerError(
        message=f"confirm_fsync is on, and {problem}; {cure}", url=error.fields.get("url", "")
    )
