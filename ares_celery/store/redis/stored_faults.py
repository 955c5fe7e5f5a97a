"""Faults as a hash holds them, and back.

``<kind>|<since>|<epoch>|<seen>|<used>|<draw>|<count>|<threshold>|<JSON of the rest>``; when one ends is the score
of its deadline, which moves with a step of the server's clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from ares_celery.clock import to_datetime
from ares_celery.ids import Instant
from ares_celery.model.fault import Draw, Fault, FaultKind, Injection, by_precedence
from ares_celery.store.redis.records import safe_text
from ares_celery.store.redis.replies import instant

__all__ = ["decode_fault", "decode_faults", "decode_listed", "encode_fault"]

#: Fields before the JSON.
_FIELDS: Final = 8
#: Characters of a reason or an actor that are kept with a fault.
_LONGEST: Final = 1_000


class _Rest(msgspec.Struct, omit_defaults=True):
    probability: float = 1.0
    seed: int = 0
    delay: float = 0.0
    timeout: float = 0.0
    error_type: str = ""
    retry_after: float | None = None
    server: str = ""
    reason: str = ""
    actor: str = ""


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(_Rest)


def encode_fault(injection: Injection, *, reason: str, actor: str) -> bytes:
    """What a fault holds behind the number of calls that it has affected."""
    rest = _Rest(
        injection.probability,
        injection.seed,
        injection.delay,
        injection.timeout,
        injection.error_type,
        injection.retry_after,
        injection.server,
        safe_text(reason, _LONGEST),
        safe_text(actor, _LONGEST),
    )
    threshold = repr(injection.probability * Draw.MODULUS)
    head = f"{Draw.first(injection.seed)}|{injection.count or 0}|{threshold}|"
    return head.encode() + _encoder.encode(rest)


def decode_fault(agent_id: str, fault_id: str, until: Instant, stored: bytes) -> Fault | None:
    """A fault as it was stored; None for a kind that a newer version knows."""
    kind, since, epoch, _, used, _, count, _, data = stored.split(b"|", _FIELDS)
    if kind.decode() not in set(FaultKind):
        return None
    rest = _decoder.decode(data)
    return Fault(
        fault_id,
        agent_id,
        FaultKind(kind.decode()),
        since=to_datetime(instant(since)),
        until=to_datetime(until),
        count=int(count) or None,
        probability=rest.probability,
        seed=rest.seed,
        used=int(used),
        delay=rest.delay,
        timeout=rest.timeout,
        error_type=rest.error_type,
        retry_after=rest.retry_after,
        server=rest.server,
        epoch=int(epoch),
        reason=rest.reason,
        actor=rest.actor,
    )


def decode_faults(agent_id: str, reply: Sequence[bytes]) -> tuple[Fault, ...]:
    """Those of a flat list of id, end and value, as they are felt."""
    parts = zip(reply[::3], reply[1::3], reply[2::3], strict=True)
    found = (decode_fault(agent_id, name.decode(), instant(until), stored) for name, until, stored in parts)
    return tuple(sorted((fault for fault in found if fault is not None), key=by_precedence))


def decode_listed(agent_id: str, listed: bytes) -> tuple[Fault, ...]:
    """Those of a list whose parts stand behind their lengths."""
    return decode_faults(agent_id, list(_parts(listed)))


def _parts(listed: bytes) -> Iterator[Any]:
    while listed:
        size, _, rest = listed.partition(b":")
        yield rest[: int(size)]
        listed = rest[int(size) :]
