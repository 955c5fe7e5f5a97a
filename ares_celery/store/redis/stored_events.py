"""Events as the bytes of a stream entry, and back.

An entry's id is ``<version>-0``; its field ``d`` holds the event as JSON, ``t`` the microsecond of its storing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec

from ares_celery.clock import to_datetime
from ares_celery.errors import EventIntegrityError, EventTooLargeError, UnserialisableError
from ares_celery.ids import Version
from ares_celery.model.event import NO_METADATA, Event, NewEvent
from ares_celery.store.redis.json_values import encode_json
from ares_celery.store.redis.records import safe_text

__all__ = ["EncodedEvent", "decode_entry", "encode_events", "lifecycle_events"]


class _Written(msgspec.Struct, omit_defaults=True):
    id: str
    type: str
    payload: msgspec.Raw
    epoch: int = 0
    metadata: msgspec.Raw = msgspec.Raw(b"")


class _Read(msgspec.Struct):
    id: str
    type: str
    payload: dict[str, Any]
    epoch: int = 0
    metadata: dict[str, Any] = {}


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(_Read)


@dataclass(frozen=True, slots=True)
class EncodedEvent:
    """An event that is ready to be sent: its bytes, and what a reader will get."""

    data: bytes
    id: str
    type: str
    payload: Mapping[str, Any]
    epoch: int
    metadata: Mapping[str, Any]

    def stored(self, stream_id: str, version: int, micros: int) -> Event:
        """The event as it was stored."""
        time = to_datetime(micros)
        return Event(
            self.id,
            stream_id,
            Version(version),
            self.type,
            self.payload,
            time,
            epoch=self.epoch,
            metadata=self.metadata,
        )


def encode_events(stream_id: str, events: Sequence[NewEvent], *, epoch: int, limit: int) -> tuple[EncodedEvent, ...]:
    """Writes events as bytes, all before any is sent.

    Args:
        stream_id: Whose they are, for the errors.
        events: The events.
        epoch: The incarnation that writes them; 0 for others.
        limit: Most bytes of a payload, and of the metadata.

    Raises:
        UnserialisableError: A payload is no plain JSON object, or something is no event.
        EventTooLargeError: A payload has more bytes.
    """
    return tuple(_encode(stream_id, event, number, epoch, limit) for number, event in enumerate(events))


def _encode(stream_id: str, event: NewEvent, number: int, epoch: int, limit: int) -> EncodedEvent:
    if not isinstance(cast("object", event), NewEvent):
        problem = f"it is a {type(event).__name__}, not a NewEvent"
        raise UnserialisableError(what=f"event number {number}", agent_id=stream_id, problem=problem)
    kind, event_id = str(event.type), event.id or os.urandom(16).hex()
    if not kind or not kind.isprintable():
        problem = "its type is empty or not printable"
        raise UnserialisableError(what=f"event number {number}", agent_id=stream_id, problem=problem)
    raw, payload = _object(stream_id, event.payload, f"the payload of event {kind!r}", kind, limit)
    written = _Written(event_id, kind, msgspec.Raw(raw), epoch)
    metadata: Mapping[str, Any] = NO_METADATA
    if event.metadata:
        raw, metadata = _object(stream_id, event.metadata, f"the metadata of event {kind!r}", kind, limit)
        written.metadata = msgspec.Raw(raw)
    return EncodedEvent(_encoder.encode(written), event_id, kind, payload, epoch, metadata)


def _object(stream_id: str, value: object, what: str, kind: str, limit: int) -> tuple[bytes, Mapping[str, Any]]:
    if not isinstance(value, Mapping):
        problem = f"it is a {type(value).__name__}, not a mapping"
        raise UnserialisableError(what=what, agent_id=stream_id, problem=problem)
    data, decoded = encode_json(cast("object", value), what=what, agent_id=stream_id)
    if len(data) > limit:
        raise EventTooLargeError(type=kind, agent_id=stream_id, size=len(data), limit=limit)
    return data, decoded


def lifecycle_events(events: Iterable[NewEvent]) -> tuple[NewEvent, ...]:
    """The runtime's own events with texts that can be stored: no message of an exception may stop a verdict."""
    return tuple(
        NewEvent(
            event.type,
            {name: safe_text(value) if isinstance(value, str) else value for name, value in event.payload.items()},
            event.metadata,
            event.id,
        )
        for event in events
    )


def _pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def decode_entry(stream_id: str, entry: Sequence[Any]) -> Event:
    """Reads one stream entry: from a script (flat field list) or from the driver (dict).

    Raises:
        EventIntegrityError: Its bytes are damaged; names the version.
    """
    name, fields = entry
    version = int(name.partition(b"-")[0])
    values = cast("dict[bytes, bytes]", fields) if isinstance(fields, dict) else _pairs(fields)
    try:
        read = _decoder.decode(values[b"d"])
        time = to_datetime(int(values[b"t"]))
    except (KeyError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise EventIntegrityError(agent_id=stream_id, version=version, problem=str(error)) from error
    metadata = read.metadata or NO_METADATA
    return Event(
        read.id, stream_id, Version(version), read.type, read.payload, time, epoch=read.epoch, metadata=metadata
    )
