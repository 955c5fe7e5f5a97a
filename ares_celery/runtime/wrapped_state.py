"""A state with what has to be known of it, for a snapshot store that keeps a mapping and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final, cast

import msgspec

from ares_celery.errors import UnserialisableError
from ares_celery.ids import Epoch, Instant, Version
from ares_celery.model.snapshot import Snapshot
from ares_celery.store.base import DamagedSnapshot

__all__ = ["RESERVED", "unwrap_state", "wrap_state"]

#: The one key that a state in somebody's store has more than the agent gave.
RESERVED: Final = "__ares__"
_FAILURES: Final = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)


def wrap_state(agent_id: str, state: Mapping[str, Any], about: Snapshot) -> dict[str, Any]:
    """A deep copy of the state, with version, epoch, schema, origin and a checksum beside it.

    Args:
        agent_id: Whose state, for the errors.
        state: What ``snapshot()`` gave.
        about: What is known of it; its own state does not count.

    Raises:
        UnserialisableError: It is no plain JSON object, or has the reserved key itself.
    """
    if not isinstance(cast("object", state), Mapping):
        problem = f"it is a {type(state).__name__}, not a mapping"
        raise UnserialisableError(what="the snapshot", agent_id=agent_id, problem=problem)
    if RESERVED in state:
        problem = f"its key {RESERVED!r} is the runtime's own word; choose another"
        raise UnserialisableError(what="the snapshot", agent_id=agent_id, problem=problem)
    try:
        copy: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(dict(state)))
        faithful = copy == dict(state)
    except _FAILURES as error:
        raise UnserialisableError(what="the snapshot", agent_id=agent_id, problem=str(error)) from error
    if not faithful:
        problem = "what JSON makes of it is something else"
        raise UnserialisableError(what="the snapshot", agent_id=agent_id, problem=problem)
    facts = _facts(about.version, about.epoch, about.schema, about.origin)
    return {**copy, RESERVED: {**facts, "checksum": _checksum(copy, facts)}}


def unwrap_state(found: Mapping[str, Any]) -> Snapshot | DamagedSnapshot | None:
    """The state that was wrapped; None for a mapping that somebody else has written."""
    if RESERVED not in found:
        return None
    state = {name: value for name, value in found.items() if name != RESERVED}
    try:
        about = dict(found[RESERVED])
        checksum = about.pop("checksum")
        facts = _facts(about["version"], about["epoch"], about["schema"], about["origin"])
        if about != facts or _checksum(state, facts) != checksum:
            return DamagedSnapshot("its checksum does not fit", _bytes(found))
    except (*_FAILURES, KeyError) as error:
        return DamagedSnapshot(f"it cannot be read: {type(error).__name__}: {error}", _bytes(found))
    return Snapshot(
        state,
        Version(facts["version"]),
        Epoch(facts["epoch"]),
        int(facts["schema"]),
        Instant(0),
        str(facts["origin"]),
    )


def _facts(version: int, epoch: int, schema: int, origin: str) -> dict[str, Any]:
    return {"version": version, "epoch": epoch, "schema": schema, "origin": origin}


def _checksum(state: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    return sha256(msgspec.json.encode([facts, state], order="deterministic")).hexdigest()


def _bytes(found: Mapping[str, Any]) -> bytes:
    """What was found, as far as it can be kept."""
    try:
        return msgspec.json.encode(dict(found))
    except _FAILURES:
        return repr(found).encode("utf-8", "backslashreplace")
