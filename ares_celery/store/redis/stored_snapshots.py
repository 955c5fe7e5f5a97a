"""Snapshots as bytes, and back.

``<version>|<epoch>|<schema>|<time µs>|<sha256 of all the rest>|<state as JSON><origin>``. The origin is written in
blanks, which JSON allows there: workers of the first release, which knew of none, read the same snapshot as whole. One
with the origin before the checksum is read too.
"""

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

#: Numbers before the checksum.
_NUMBERS: Final = 4
#: Characters of a checksum; an origin is shorter.
_CHECKSUM: Final = 64
#: Two bits each.
_BLANKS: Final = b" \t\n\r"


@dataclass(frozen=True, slots=True)
class EncodedState:
    """A state that is ready to be stored."""

    data: bytes
    version: Version
    epoch: Epoch
    schema: int
    origin: str = ""

    @property
    def head(self) -> bytes:
        """What tells one snapshot of an agent from another."""
        return b"%d|%d|" % (self.version, self.epoch)


def encode_state(
    agent_id: str, state: Mapping[str, Any], *, version: Version, epoch: Epoch, schema: int, origin: str = ""
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
    return EncodedState(data, version, epoch, schema, origin)


def encode_snapshot(state: EncodedState, now: Instant) -> bytes:
    """The bytes of a snapshot that was taken at ``now``."""
    about = b"%s%d|%d|" % (state.head, state.schema, now)
    data = state.data + _in_blanks(state.origin)
    return b"%s%s|%s" % (about, _checksum(about, data), data)


def decode_snapshot(blob: bytes) -> Snapshot | DamagedSnapshot:
    """Reads a snapshot; one whose bytes do not fit its checksum comes back as it is."""
    *numbers, rest = blob.split(b"|", _NUMBERS)
    checksum, bar, data = rest.partition(b"|")
    if len(numbers) != _NUMBERS or not bar:
        return DamagedSnapshot("it is cut off", blob)
    about, origin = b"|".join(numbers) + b"|", b""
    if len(checksum) != _CHECKSUM:
        origin = checksum
        about += origin + b"|"
        checksum, _, data = data.partition(b"|")
    if _checksum(about, data) != checksum:
        return DamagedSnapshot("its checksum does not fit", blob)
    version, epoch, schema, now = map(int, numbers)
    origin = origin or _from_blanks(data[len(data.rstrip(_BLANKS)) :])
    return Snapshot(
        decode_json(data), Version(version), Epoch(epoch), schema, Instant(now), origin.decode(errors="replace")
    )


def _in_blanks(text: str) -> bytes:
    return bytes(_BLANKS[byte >> bits & 3] for byte in text.encode() for bits in (6, 4, 2, 0))


def _from_blanks(blanks: bytes) -> bytes:
    digits = iter([_BLANKS.index(blank) for blank in blanks])
    return bytes(a << 6 | b << 4 | c << 2 | d for a, b, c, d in zip(digits, digits, digits, digits, strict=False))


def _checksum(about: bytes, data: bytes) -> bytes:
    digest = sha256(about)
    digest.update(data)
    return digest.hexdigest().encode()
