"""Events as bytes: what a reader will get is known before anything is sent, and what would be bent is refused."""

from __future__ import annotations

import json
import math
from types import MappingProxyType
from typing import Any

import pytest

from ares_celery.errors import EventTooLargeError, UnserialisableError
from ares_celery.ids import Version
from ares_celery.model.event import NO_METADATA, NewEvent
from ares_celery.store.redis.stored_events import EncodedEvent, decode_entry, encode_events


def encoded(event: NewEvent, limit: int = 1_000) -> EncodedEvent:
    """One event as bytes."""
    (found,) = encode_events("a", [event], epoch=7, limit=limit)
    return found


def test_a_reader_gets_what_the_writer_was_told() -> None:
    """Id, type, payload, metadata, epoch and time, from the bytes as from the append itself."""
    event = encoded(NewEvent("a.b", {"n": [1, {"deep": None}]}, {"by": "me"}, "my-id"))
    stored = event.stored("a", Version(3), 1_790_000_000_123_456)
    flat = [b"d", event.data, b"t", b"1790000000123456"]
    assert decode_entry("a", (b"3-0", flat)) == stored
    assert decode_entry("a", (b"3-0", dict(zip(flat[::2], flat[1::2], strict=True)))) == stored
    assert (stored.id, stored.metadata, stored.epoch) == ("my-id", {"by": "me"}, 7)


def test_an_event_without_metadata_stores_none() -> None:
    """Whatever mapping its payload is."""
    event = encoded(NewEvent("a", MappingProxyType({"n": 1}), id="x"))
    assert json.loads(event.data) == {"id": "x", "type": "a", "payload": {"n": 1}, "epoch": 7}
    assert event.metadata is NO_METADATA
    assert decode_entry("a", (b"1-0", [b"d", event.data, b"t", b"1"])).metadata is NO_METADATA


def test_ids_differ() -> None:
    """Of events that are equal otherwise."""
    events = encode_events("a", [NewEvent("a", {})] * 100, epoch=1, limit=10)
    assert len({event.id for event in events}) == 100


@pytest.mark.parametrize(
    ("event", "what", "problem"),
    [
        (NewEvent("a", {"x": {"y": math.nan}}), "the payload of event 'a'", "nan at 'x.y' is no JSON number"),
        (NewEvent("a", {"x": (1,)}), "the payload of event 'a'", "at 'x' is a tuple"),
        (NewEvent("a", {}, {"x": {1}}), "the metadata of event 'a'", "at 'x' is a set"),
        (NewEvent("a", {"x": math.inf}, {"x": {1}}), "the payload of event 'a'", "inf at 'x' is no JSON number"),
        (NewEvent("a", {}, id="\ud800"), "the id of event 'a'", "holds half of a surrogate pair"),
    ],
)
def test_the_part_that_json_cannot_hold_is_named(event: NewEvent, what: str, problem: str) -> None:
    """Payload, metadata or id, and the place in it."""
    with pytest.raises(UnserialisableError) as refused:
        encoded(event)
    assert refused.value.what == what
    assert problem in refused.value.problem


@pytest.mark.parametrize("value", [[1], "text", 5, None])
def test_a_payload_that_is_no_mapping_is_refused(value: Any) -> None:
    """By name of its kind."""
    with pytest.raises(UnserialisableError, match=f"it is a {type(value).__name__}, not a mapping"):
        encoded(NewEvent("a", value))


@pytest.mark.parametrize("part", ["payload", "metadata"])
def test_each_part_may_be_as_large_as_the_limit(part: str) -> None:
    """The event around it does not count; one byte more is refused."""
    fits, large = ({"t": "x" * (100 - len('{"t":""}') + more)} for more in (0, 1))
    encoded(NewEvent("a", {}, fits) if part == "metadata" else NewEvent("a", fits), limit=100)
    with pytest.raises(EventTooLargeError) as refused:
        encoded(NewEvent("a", {}, large) if part == "metadata" else NewEvent("a", large), limit=100)
    assert (refused.value.size, refused.value.limit, refused.value.type) == (101, 100, "a")
