"""Events as the bytes of a stream entry, and back.

An entry's id is ``<version>-0``; its field ``d`` holds the event as JSON, ``t`` the microsecond of its storing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from ares_celery.clock import to_datetime
from ares_celery.errors import EventIntegrityError, EventTooLargeError, UnserialisableError
from ares_celery.ids import Version
from ares_celery.model.event import NO_METADATA, RUNTIME_MODULE, Event, EventType, NewEvent
from ares_celery.model.json_words import as_dict
from ares_celery.store.redis.json_values import JSON_ERRORS, exact_json, unserialisable
from ares_celery.store.redis.records import safe_text
from ares_celery.store.redis.replies import entry_fields

__all__ = ["EncodedEvent", "decode_entry", "encode_events", "encode_own", "lifecycle_events"]


#: The metadata of the runtime's own events.
RUNTIME_METADATA: Final = {"module": RUNTIME_MODULE}
#: Characters of an event's type or id: both are copied, into the feed and into cursors of those who follow.
_LONGEST_NAME: Final = 1_000


class _Written(msgspec.Struct, omit_defaults=True):
    id: str
    type: str
    payload: Mapping[str, Any]
    epoch: int = 0
    metadata: Mapping[str, Any] | None = None


class _Read(msgspec.Struct):
    id: str
    type: str
    payload: dict[str, Any]
    epoch: int = 0
    metadata: dict[str, Any] | None = None


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(_Read)


class EncodedEvent(msgspec.Struct, frozen=True):
    """An event that is ready to be sent: its bytes, and what a reader will get."""

    data: bytes
    id: str
    type: str
    payload: Mapping[str, Any]
    epoch: int
    metadata: Mapping[str, Any]

    def stored(self, stream_id: str, version: Version, micros: int) -> Event:
        """The event as it was stored."""
        time = to_datetime(micros)
        return Event(self.id, stream_id, version, self.type, self.payload, time, self.epoch, self.metadata)


def encode_events(stream_id: str, events: Sequence[NewEvent], *, epoch: int, limit: int) -> list[EncodedEvent]:
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
    return [_encode(stream_id, event, number, epoch, limit) for number, event in enumerate(events)]


def _encode(stream_id: str, event: object, number: int, epoch: int, limit: int) -> EncodedEvent:
    if not isinstance(event, NewEvent):
        problem = f"it is a {type(event).__name__}, not a NewEvent"
        raise UnserialisableError(what=f"event number {number}", agent_id=stream_id, problem=problem)
    kind, event_id = str(event.type), event.id or os.urandom(16).hex()
    if not kind or not kind.isprintable():
        problem = "its type is empty or not printable"
        raise UnserialisableError(what=f"event number {number}", agent_id=stream_id, problem=problem)
    if max(len(kind), len(str(event_id))) > _LONGEST_NAME:
        problem = f"its type or id has more than {_LONGEST_NAME} characters; put what is long into the payload"
        raise UnserialisableError(what=f"event number {number}", agent_id=stream_id, problem=problem)
    metadata = as_dict(event.metadata) if event.metadata else None
    exact = _exact(_Written(event_id, kind, as_dict(event.payload), epoch, metadata))
    if exact is None:
        raise _refused(stream_id, event)
    data, read = exact
    if len(data) > limit:
        _demand_size(stream_id, event, limit)
    return EncodedEvent(data, event_id, kind, read.payload, epoch, read.metadata or NO_METADATA)


def _exact(written: _Written) -> tuple[bytes, _Read] | None:
    """What :func:`exact_json` does, for both parts of an event in one go."""
    try:
        data = _encoder.encode(written)
        read = _decoder.decode(data)
        faithful = read.payload == written.payload and read.metadata == written.metadata
    except JSON_ERRORS:
        return None
    return (data, read) if faithful else None


def _parts(event: NewEvent) -> list[tuple[str, Mapping[str, Any]]]:
    """What a user puts into an event, with its name."""
    return [("payload", event.payload), ("metadata", event.metadata or {})]


def _refused(stream_id: str, event: NewEvent) -> UnserialisableError:
    """The error for an event with a part that is no plain JSON object."""
    for name, part in _parts(event):
        what = f"the {name} of event {str(event.type)!r}"
        if not isinstance(cast("object", part), Mapping):
            problem = f"it is a {type(part).__name__}, not a mapping"
            return UnserialisableError(what=what, agent_id=stream_id, problem=problem)
        if exact_json(part) is None:
            return unserialisable(part, what=what, agent_id=stream_id)
    return unserialisable(event.id, what=f"the id of event {str(event.type)!r}", agent_id=stream_id)


def _demand_size(stream_id: str, event: NewEvent, limit: int) -> None:
    """Raises EventTooLargeError for a part that is larger than allowed; the event around it does not count."""
    for _, part in _parts(event):
        size = len(_encoder.encode(as_dict(part)))
        if size > limit:
            raise EventTooLargeError(type=str(event.type), agent_id=stream_id, size=size, limit=limit)


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


def encode_own(event_id: str, kind: EventType, payload: Mapping[str, Any], *, epoch: int) -> bytes:
    """The bytes of one of the runtime's own events on a hot path, without the checks that users' events need.

    Args:
        event_id: Its id.
        kind: Its type.
        payload: Texts that can be stored, and numbers.
        epoch: The incarnation that writes it.
    """
    return _encoder.encode(_Written(event_id, kind, payload, epoch, RUNTIME_METADATA))


def decode_entry(stream_id: str, entry: Sequence[Any]) -> Event:
    """Reads one stream entry, as a script or the driver gives it.

    Raises:
        EventIntegrityError: Its bytes are damaged; names the version.
    """
    name, fields = entry
    version = int(name.partition(b"-")[0])
    values = entry_fields(fields)
    try:
        read = _decoder.decode(values[b"d"])
        time = to_datetime(int(values[b"t"]))
    except (KeyError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise EventIntegrityError(agent_id=stream_id, version=version, problem=str(error)) from error
    metadata = read.metadata or NO_METADATA
    return Event(
        read.id, stream_id, Version(version), read.type, read.payload, time, epoch=read.epoch, metadata=metadata
    )
