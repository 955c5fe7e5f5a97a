"""Summaries as bytes, and back: ``<first version>|<last version>|<time µs>|<summary as JSON>``, and as events."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import msgspec

from ares_celery.clock import to_datetime
from ares_celery.model.event import RUNTIME_MODULE, Event, EventType
from ares_celery.model.summary import Summary

__all__ = ["decode_summary", "encode_summary", "last_summarised", "summary_event"]

_PARTS: Final = 4
_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Summary)


def encode_summary(summary: Summary) -> bytes:
    """The JSON of a summary; the store adds the rest."""
    return _encoder.encode(summary)


def decode_summary(blob: bytes) -> Summary | None:
    """Reads a summary; None when its bytes are damaged."""
    parts = blob.split(b"|", _PARTS - 1)
    if len(parts) != _PARTS:
        return None
    try:
        return dataclasses.replace(_decoder.decode(parts[-1]), created_at=to_datetime(int(parts[2])))
    except (ValueError, OverflowError, msgspec.MsgspecError):
        return None


def last_summarised(blob: bytes) -> int:
    """The last version that a stored summary covers, also of one whose JSON is damaged; 0 when nobody can tell."""
    parts = blob.split(b"|", 2)
    return int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 0


def summary_event(summary: Summary) -> Event:
    """A summary in place of the events that it covers: what readers of a fully trimmed stream get."""
    payload: dict[str, Any] = msgspec.to_builtins(summary)
    return Event(
        id=summary.id,
        stream_id=summary.stream_id,
        version=summary.end_version,
        type=EventType.EVENT_SUMMARY.value,
        payload=payload,
        time=summary.end_time,
        metadata={"module": RUNTIME_MODULE},
    )
