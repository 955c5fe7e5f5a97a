"""A snapshot: state at a version; a shortcut, never the truth."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from ares_celery.ids import Epoch, Instant, Version

__all__ = ["Snapshot", "changed_since", "state_origin", "type_digest"]

#: Characters of one part of an origin.
_PART: Final = 8


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of an agent after ``version`` of its stream was applied.

    Attributes:
        state: What the agent's ``snapshot()`` returned, as JSON values.
        version: The last event that it covers.
        epoch: The incarnation that took it; 0 when it was saved from outside.
        schema: The agent type's state schema version; 0 when it was saved from outside.
        time: When it was taken, by the clock of Redis.
        origin: What took it, see :func:`state_origin`; empty when nobody knows.
    """

    state: Mapping[str, Any]
    version: Version
    epoch: Epoch
    schema: int
    time: Instant
    origin: str = ""


def type_digest(agent_type: str) -> str:
    """An agent type in eight characters.

    Example:
        >>> type_digest("counter")
        'efe899c7'
    """
    return _digest(agent_type)


def state_origin(*, agent_type: str, factory: str, config: Mapping[str, Any]) -> str:
    """Agent type, factory and config as a text of fixed length: equal ones give equal texts, in every process.

    Example:
        >>> before = state_origin(agent_type="counter", factory="shop.Counter", config={"step": 1})
        >>> after = state_origin(agent_type="counter", factory="shop.Counter", config={"step": 2})
        >>> changed_since(before, after)
        ('config',)
    """
    return type_digest(agent_type) + _digest(factory) + _digest(json.dumps(config, sort_keys=True))


def changed_since(before: str, after: str) -> tuple[str, ...]:
    """What differs between two origins: type, factory, config. Nothing when one of them is unknown."""
    if len(before) != len(after):
        return ()
    names = ("type", "factory", "config")
    parts = (slice(number * _PART, (number + 1) * _PART) for number in range(len(names)))
    return tuple(name for name, part in zip(names, parts, strict=True) if before[part] != after[part])


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:_PART]
