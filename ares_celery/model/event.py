"""Events: the ordered facts of one agent."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Literal, NewType, cast

import msgspec

from ares_celery.errors import InvalidSettingError
from ares_celery.ids import Version
from ares_celery.model.arguments import as_shown

__all__ = [
    "ANY",
    "BEGINNING",
    "EMPTY",
    "NO_METADATA",
    "RUNTIME_MODULE",
    "Event",
    "EventFilter",
    "EventType",
    "ExpectedVersion",
    "NewEvent",
    "ReadOptions",
    "is_runtime_event",
    "why_reserved",
]

ExpectedVersion = NewType("ExpectedVersion", int)
#: Append whatever the stream holds; zero and negatives mean the same.
ANY: Final = ExpectedVersion(0)
#: Append only to a stream without events.
EMPTY: Final = ExpectedVersion(-(2**31))

#: The cursor before all events that are kept.
BEGINNING: Final = "beginning"

NO_METADATA: Final[Mapping[str, Any]] = MappingProxyType({})


def _no_metadata() -> Mapping[str, Any]:
    return NO_METADATA


#: ``metadata["module"]`` of the runtime's own events; agents' own have none.
RUNTIME_MODULE: Final = "runtime"


class EventType(StrEnum):
    """The runtime's own event types so far; agents emit any other name."""

    AGENT_STARTED = "agent.started"
    AGENT_STOPPED = "agent.stopped"
    AGENT_COMPLETED = "agent.completed"
    AGENT_EXHAUSTED = "agent.exhausted"
    AGENT_PARKED = "agent.parked"
    BUDGET_EXCEEDED = "budget.exceeded"
    CHILD_SPAWNED = "child.spawned"
    CHILD_REPORT_DROPPED = "child.report_dropped"
    FAILOVER_TRIGGERED = "failover.triggered"
    FAILOVER_COMPLETED = "failover.completed"
    FAILOVER_FAILED = "failover.failed"
    FAILOVER_ABORTED = "failover.aborted"
    EXECUTION_COMPLETED = "execution.completed"
    EXECUTION_FAILED = "execution.failed"
    EXECUTION_EXPIRED = "execution.expired"
    STEP_STARTED = "step.started"
    STEP_COMPLETED = "step.completed"
    STEP_FAILED = "step.failed"
    STEP_RECOVERY_STARTED = "step.recovery.started"
    STEP_RECOVERY_COMPLETED = "step.recovery.completed"
    STEP_RECOVERY_FAILED = "step.recovery.failed"
    STEP_REFUSED = "step.refused"
    STEP_MIGRATED = "step.migrated"
    INTERRUPT_CREATED = "interrupt.created"
    INTERRUPT_RESOLVED = "interrupt.resolved"
    STEP_RECONCILED = "step.reconciled"
    MCP_DISCONNECTED = "mcp.disconnected"
    MCP_CONNECTED = "mcp.connected"
    SNAPSHOT_FAILED = "snapshot.failed"
    SNAPSHOT_DAMAGED = "snapshot.damaged"
    AGENT_CONFIG_CHANGED = "agent.config_changed"
    AGENT_FORKED = "agent.forked"
    INTEGRITY_VIOLATED = "integrity.violated"
    REPLAY_TRUNCATED = "replay.truncated"
    RECOVERY_DEGRADED = "recovery.degraded"
    STORE_ROLLED_BACK = "store.rolled_back"
    EVENT_SUMMARY = "event.summary"
    PLUGIN_STARTED = "plugin.started"
    PLUGIN_STOPPED = "plugin.stopped"
    PLUGIN_FAILED = "plugin.failed"
    MESSAGE_DEAD_LETTERED = "message.dead_lettered"
    FAULT_INJECTED = "fault.injected"
    FAULT_HEALED = "fault.healed"
    FAULT_ENDED = "fault.ended"
    CHAOS_ENABLED = "chaos.enabled"
    CHAOS_DISABLED = "chaos.disabled"


@dataclass(frozen=True, slots=True)
class Event:
    """One stored fact.

    Attributes:
        id: Unique; only the fork of an agent has it again, at the same version.
        stream_id: The agent it belongs to.
        version: Position in the stream, from 1.
        type: What happened.
        payload: JSON values; the same values live and on replay.
        time: When Redis stored it, aware UTC.
        epoch: The incarnation that wrote it; 0 for the runtime's own.
        metadata: What the writer added; ``{"module": "runtime"}`` on the runtime's own events.
    """

    id: str
    stream_id: str
    version: Version
    type: str
    payload: Mapping[str, Any]
    time: datetime
    epoch: int = 0
    metadata: Mapping[str, Any] = field(default_factory=_no_metadata)


class NewEvent(msgspec.Struct, frozen=True):
    """A fact that is to be stored; the store gives it version, time and, where absent, an id."""

    type: str
    payload: Mapping[str, Any]
    metadata: Mapping[str, Any] = NO_METADATA
    id: str = ""


#: What every number of an event, and every limit, is below.
LARGEST_VERSION: Final = 2**53
_DIRECTIONS: Final = ("ascending", "descending")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Which part of a stream to read.

    Attributes:
        from_version: First version wanted, inclusive; 0 = from the start.
        to_version: Last version wanted, inclusive; 0 = to the end.
        limit: At most so many events; 0 = all.
        direction: ascending (default) or descending by version.
        since: Only events of this time or later, inclusive.
        summaries: A stream whose events were all trimmed gives its summaries instead, as ``event.summary`` events.
    """

    from_version: int = 0
    to_version: int = 0
    limit: int = 0
    direction: Literal["ascending", "descending"] = "ascending"
    since: datetime | None = None
    summaries: bool = True

    def __post_init__(self) -> None:
        """Refuses what would be read as something else, and a time without zone: another moment on each machine."""
        for name in ("from_version", "to_version", "limit"):
            value: object = getattr(self, name)
            if not isinstance(value, int) or value > LARGEST_VERSION:
                problem = f"give a whole number up to {LARGEST_VERSION}"
                raise InvalidSettingError(field=name, value=as_shown(value), problem=problem)
        if self.direction not in _DIRECTIONS:
            problem = f"give {' or '.join(_DIRECTIONS)}"
            raise InvalidSettingError(field="direction", value=as_shown(self.direction), problem=problem)
        _demand_zone(self.since)


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events a subscriber wants to see; what is left out does not matter.

    Attributes:
        streams: Ids of streams (agents); None = all.
        types: Types of events, by their whole name; None = all.
        since: Only events of this time or later, inclusive.

    Raises:
        InvalidSettingError: A text instead of a collection, an empty collection, or a time without zone.

    Example:
        >>> EventFilter(streams=["counter-1"], types=[EventType.AGENT_STOPPED]).types
        frozenset({<EventType.AGENT_STOPPED: 'agent.stopped'>})
    """

    streams: Collection[str] | None = None
    types: Collection[str] | None = None
    since: datetime | None = None

    def __post_init__(self) -> None:
        """Takes copies, so that nobody changes the filter later."""
        for name in ("streams", "types"):
            value = cast("Collection[str] | None", getattr(self, name))
            if isinstance(value, str):
                problem = f"a text is no collection; for one name write [{value!r}]"
                raise InvalidSettingError(field=name, value=value, problem=problem)
            if value is None:
                continue
            if not value:
                problem = "it is empty, so nothing would ever come; None means all"
                raise InvalidSettingError(field=name, value="[]", problem=problem)
            names = frozenset(value)
            foreign = next((one for one in names if not isinstance(cast("object", one), str)), None)
            if foreign is not None:
                raise InvalidSettingError(field=name, value=as_shown(foreign), problem="give texts")
            object.__setattr__(self, name, names)
        _demand_zone(self.since)


def _demand_zone(since: datetime | None) -> None:
    if since is not None and not isinstance(cast("object", since), datetime):
        raise InvalidSettingError(field="since", value=as_shown(since), problem="give a datetime")
    if since is not None and since.utcoffset() is None:
        raise InvalidSettingError(field="since", value=str(since), problem="a time needs its zone, such as UTC")


#: What only the runtime writes: these events must be true.
_RESERVED: Final = frozenset(kind.value for kind in EventType)


def why_reserved(kind: str, metadata: Mapping[str, Any]) -> str:
    """Why nobody but the runtime may write an event like this; empty when everybody may.

    Example:
        >>> why_reserved("agent.started", {}), why_reserved("order.placed", {})
        ("type 'agent.started' is the runtime's own word; choose another", '')
    """
    if isinstance(cast("object", metadata), Mapping) and "module" in metadata:
        return "the key 'module' of metadata is the runtime's own; choose another"
    return f"type {kind!r} is the runtime's own word; choose another" if kind in _RESERVED else ""


def is_runtime_event(event: Event) -> bool:
    """The event was written by the runtime about the agent, not by the agent."""
    return event.metadata.get("module") == RUNTIME_MODULE
