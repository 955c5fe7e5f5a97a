"""Snapshots as bytes, and back: ``<version>|<epoch>|<schema>|<time µs>|<sha256 of all the rest>|<state as JSON>``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, cast

from ares_celery.errors import SnapshotTooLargeError, UnserialisableError
from ares_celery.ids import Epoch, Instant, Version
from ares_celery.model.snapshot import Snapshot
from ares_celery.store.base import DamagedSnapshot
from ares_celery.store.redis.json_values import decode_json, encode_json

__all__ = ["LARGEST_STATE", "EncodedState", "decode_snapshot", "encode_snapshot", "encode_state"]

#: Bytes; a snapshot is copied in Redis' only thread, so that one of this size already stops everybody for milliseconds.
LARGEST_STATE: Final = 16 << 20

_PARTS: Final = 6


@dataclass(frozen=True, slots=True)
class EncodedState:
    """A state that is ready to be stored."""

    data: bytes
    version: Version
    epoch: Epoch
    schema: int

    @property
    def head(self) -> bytes:
        """What tells one snapshot of an agent from another."""
        return b"%d|%d|" % (self.version, self.epoch)


def encode_state(
    agent_id: str, state: Mapping[str, Any], *, version: Version, epoch: Epoch, schema: int
) -> EncodedState:
    """Writes a state as JSON.

    Raises:
        UnserialisableError: It is no plain JSON object.
        SnapshotTooLargeError: It has more than ``LARGEST_STATE`` bytes.
    """
    if not isinstance(cast("object", state), Mapping):
        problem = f"it is a {type(state).__name__}, not a mapping"
        raise UnserialisableError(what="the snapshot", agent_id=agent_id, problem=problem)
    data, _ = encode_json(state, what="the snapshot", agent_id=agent_id)
    if len(data) > LARGEST_STATE:
        raise SnapshotTooLargeError(agent_id=agent_id, size=len(data), limit=LARGEST_STATE)
    return EncodedState(data, version, epoch, schema)


def encode_snapshot(state: EncodedState, now: Instant) -> bytes:
    """The bytes of a snapshot that was taken at ``now``."""
    about = b"%s%d|%d|" % (state.head, state.schema, now)
    return b"%s%s|%s" % (about, _checksum(about, state.data), state.data)


def decode_snapshot(blob: bytes) -> Snapshot | DamagedSnapshot:
    """Reads a snapshot; one whose bytes do not fit its checksum comes back as it is."""
    parts = blob.split(b"|", _PARTS - 1)
    if len(parts) != _PARTS:
        return DamagedSnapshot("it is cut off", blob)
    *numbers, checksum, data = parts
    about = b"|".join(numbers) + b"|"
    if _checksum(about, data) != checksum:
        return DamagedSnapshot("its checksum does not fit", blob)
    version, epoch, schema, now = map(int, numbers)
    return Snapshot(decode_json(data), Version(version), Epoch(epoch), schema, Instant(now))


def _checksum(about: bytes, data: bytes) -> bytes:
    digest = sha256(about)
    digest.update(data)
    return digest.hexdigest().encode()
