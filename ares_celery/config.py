"""Settings: those of the process, from the environment, and those of the namespace, which Redis holds."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from ares_celery.errors import InvalidSettingError
from ares_celery.ids import check_namespace
from ares_celery.model.agent import AgentSpec
from ares_celery.model.durations import Duration, OptionalDuration, Size, format_duration
from ares_celery.model.restart import LifecyclePolicy

__all__ = ["ConfigSource", "ProcessSettings", "RuntimeConfig", "config_source", "default_config"]

_ZERO = timedelta(0)
#: Duration fields in which zero has a meaning.
_MAY_BE_ZERO = frozenset({"startup_grace", "restart_period", "summary_ttl"})


class RuntimeConfig(BaseModel):
    """Settings of a namespace: the same for everyone, stored when the namespace is made.

    Durations are timedeltas, seconds, or text such as ``500ms``, ``10s``, ``2m``, ``1h``; sizes bytes or ``1MiB``.

    Raises:
        InvalidSettingError: A value cannot work; the error names the field (via :meth:`parse`; the constructor raises
            pydantic's ValidationError, which names it too).

    Example:
        >>> RuntimeConfig(heartbeat_interval="500ms", lease_ttl=2).lease_ttl.total_seconds()
        2.0
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: How often beat asks for a sweep and agents' is_alive is judged.
    health_check_interval: Duration = timedelta(seconds=10)
    #: Charged deaths of one agent until it is parked; 0 = unlimited.
    max_restarts_per_agent: Annotated[int, Field(ge=0)] = 10
    #: Events after a snapshot that recovery reads in one go; above it, `replay_overflow` decides.
    max_replay_events: int = 10_000
    #: How long an agent may take to end after it was asked to.
    agent_stop_timeout: Duration = timedelta(seconds=10)
    #: How long stop() of the whole runtime may take.
    overall_stop_timeout: Duration = timedelta(seconds=30)
    #: How long one attempt of a recovery may take.
    restore_timeout: Duration = timedelta(seconds=60)
    #: How often an incarnation renews its lease.
    heartbeat_interval: Duration = timedelta(seconds=2)
    #: How long a lease holds without renewal; at least two heartbeats.
    lease_ttl: Duration = timedelta(seconds=8)
    #: How long an incarnation may take from its claim until its code runs.
    start_timeout: Duration = timedelta(seconds=60)
    #: Recoveries in a row that may fail until the agent is parked.
    restore_attempts: Annotated[int, Field(ge=1)] = 5
    #: Wait before the second try; doubled each time.
    restore_backoff: Duration = timedelta(seconds=1)
    #: Longest wait between tries.
    restore_backoff_max: Duration = timedelta(seconds=30)
    #: Fraction of a wait that chance may take away.
    restore_jitter: Annotated[float, Field(ge=0, le=1)] = 0.0
    #: Deaths older than this no longer count; None = all count for ever.
    restart_period: OptionalDuration = None
    #: Longest sleep of the sweep thread.
    sweep_interval: Duration = timedelta(milliseconds=250)
    #: Running that long forgets failures in a row.
    stable_after: Duration = timedelta(seconds=10)
    #: No liveness verdict this long after a start.
    startup_grace: Duration = _ZERO
    #: False answers of is_alive in a row that are forgiven.
    allowed_misses: Annotated[int, Field(ge=0)] = 0
    #: How often a running agent is snapshotted; at most this much is replayed by time.
    snapshot_interval: Duration = timedelta(seconds=60)
    #: Events after which a snapshot is taken; below max_replay_events.
    snapshot_every_events: Annotated[int, Field(ge=1)] = 1_000
    #: Snapshots kept, newest first.
    snapshots_kept: Annotated[int, Field(ge=1, le=100)] = 3
    #: Longer histories: "full" replays all, "newest" only the last max_replay_events.
    replay_overflow: Annotated[str, Field(pattern="^(full|newest)$")] = "full"
    #: A gap or a damaged event: "fail" parks the agent, "warn" goes on with an event.
    integrity: Annotated[str, Field(pattern="^(fail|warn)$")] = "fail"
    #: How long a worker that shuts down waits for its agents.
    drain_timeout: Duration = timedelta(seconds=20)
    #: Messages that an agent's inbox holds; with more, senders get MailboxFullError.
    max_inbox: Annotated[int, Field(ge=1)] = 1_000
    #: Deaths of an agent while it handles one message, after which the message is skipped.
    poison_after: Annotated[int, Field(ge=1)] = 3
    #: Largest event payload in bytes.
    max_event_bytes: Annotated[Size, Field(ge=1)] = 1 << 20
    #: Events of a stream that are not in a summary yet; with more, all but the newest are summarised.
    compaction_threshold: int = 500
    #: The newest events, which stay out of summaries; below compaction_threshold.
    compaction_keep: Annotated[int, Field(ge=0)] = 100
    #: Summaries of one stream that are kept, the newest.
    summaries_kept: Annotated[int, Field(ge=1, le=1000)] = 50
    #: How long a summary is kept; 0 = for ever. The newest of a stream is always kept.
    summary_ttl: Duration = timedelta(days=30)
    #: Summarised events are removed, of an agent those up to its oldest kept snapshot.
    trim_events: bool = False
    #: How long finished checkpoints are kept.
    checkpoint_retention: Duration = timedelta(hours=24)
    #: An event tells each recorded step; off: only failures and steps that are never repeated.
    step_events: bool = True
    #: Replicas that must have what must not be lost, before it counts: intents of steps that are never repeated,
    #: decisions of people, what people ask of agents and of the runtime (WAIT). 0: the one server's word is enough.
    confirm_replicas: Annotated[int, Field(ge=0)] = 0
    #: And it must be on the server's disk (WAITAOF: Redis 7.2 with an append-only file).
    confirm_fsync: bool = False
    #: How long that is waited for; below the five seconds that a call may take.
    confirm_timeout: Annotated[Duration, Field(le=timedelta(seconds=4))] = timedelta(seconds=2)
    #: Parts the keys are spread over; fixed when the namespace is made.
    shards: Annotated[int, Field(ge=1, le=1024)] = 16
    #: Faults may be injected.
    chaos: bool = False

    if TYPE_CHECKING:
        # What may be passed, which is more than what the fields then hold.
        def __init__(  # noqa: PLR0913 - one parameter a field
            self,
            *,
            health_check_interval: timedelta | float | str = ...,
            max_restarts_per_agent: int = ...,
            max_replay_events: int = ...,
            agent_stop_timeout: timedelta | float | str = ...,
            overall_stop_timeout: timedelta | float | str = ...,
            restore_timeout: timedelta | float | str = ...,
            heartbeat_interval: timedelta | float | str = ...,
            lease_ttl: timedelta | float | str = ...,
            start_timeout: timedelta | float | str = ...,
            restore_attempts: int = ...,
            restore_backoff: timedelta | float | str = ...,
            restore_backoff_max: timedelta | float | str = ...,
            restore_jitter: float = ...,
            restart_period: timedelta | float | str | None = ...,
            sweep_interval: timedelta | float | str = ...,
            stable_after: timedelta | float | str = ...,
            startup_grace: timedelta | float | str = ...,
            allowed_misses: int = ...,
            snapshot_interval: timedelta | float | str = ...,
            snapshot_every_events: int = ...,
            snapshots_kept: int = ...,
            replay_overflow: str = ...,
            integrity: str = ...,
            drain_timeout: timedelta | float | str = ...,
            max_inbox: int = ...,
            poison_after: int = ...,
            max_event_bytes: int | str = ...,
            compaction_threshold: int = ...,
            compaction_keep: int = ...,
            summaries_kept: int = ...,
            summary_ttl: timedelta | float | str = ...,
            trim_events: bool = ...,
            checkpoint_retention: timedelta | float | str = ...,
            step_events: bool = ...,
            confirm_replicas: int = ...,
            confirm_fsync: bool = ...,
            confirm_timeout: timedelta | float | str = ...,
            shards: int = ...,
            chaos: bool = ...,
        ) -> None: ...

    @field_validator("summary_ttl", mode="after")
    @classmethod
    def _kept_for_ever(cls, value: timedelta) -> timedelta:
        return max(value, _ZERO)

    @field_validator("compaction_threshold", mode="after")
    @classmethod
    def _threshold_default(cls, value: int) -> int:
        return value if value > 0 else 500

    @field_validator("*", mode="after")
    @classmethod
    def _positive(cls, value: Any, info: Any) -> Any:  # noqa: ANN401 - pydantic hands every field in
        if isinstance(value, timedelta) and (value < _ZERO or (value == _ZERO and info.field_name not in _MAY_BE_ZERO)):
            message = "must be longer than zero"
            raise ValueError(message)
        return value

    @field_validator("max_replay_events", mode="after")
    @classmethod
    def _replay_default(cls, value: int) -> int:
        return value if value > 0 else 10_000

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.lease_ttl < 2 * self.heartbeat_interval:
            shown = format_duration(self.heartbeat_interval)
            raise _misfit(
                "lease_ttl", format_duration(self.lease_ttl), f"must be at least two heartbeat_intervals ({shown} each)"
            )
        if self.snapshot_every_events >= self.max_replay_events:
            problem = f"must stay below max_replay_events ({self.max_replay_events})"
            raise _misfit("snapshot_every_events", self.snapshot_every_events, problem)
        if self.compaction_keep >= self.compaction_threshold:
            problem = f"must stay below compaction_threshold ({self.compaction_threshold})"
            raise _misfit("compaction_keep", self.compaction_keep, problem)
        return self

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> RuntimeConfig:
        """Builds a config from untyped values.

        Raises:
            InvalidSettingError: With the first field that is wrong, its value and why.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise _as_setting(error) from error

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> RuntimeConfig:
        """Reads ``ARES_<FIELD>`` for every field; absent ones keep their default.

        Example:
            >>> RuntimeConfig.from_env({"ARES_LEASE_TTL": "5s"}).lease_ttl.total_seconds()
            5.0
        """
        source = os.environ if environ is None else environ
        found = {name: source[f"ARES_{name.upper()}"] for name in cls.model_fields if f"ARES_{name.upper()}" in source}
        return cls.parse(found)

    def policy_for(self, spec: AgentSpec | None) -> LifecyclePolicy:
        """The numbers that decide the life of an agent with this spec; the spec's own win."""
        own = spec or AgentSpec(id="-", type="-")
        cap = own.max_restarts if own.max_restarts is not None else self.max_restarts_per_agent
        return LifecyclePolicy(
            restart=own.restart,
            max_restarts=cap,
            restart_period=own.restart_period or self.restart_period or None,
            restore_attempts=own.restore_attempts or self.restore_attempts,
            backoff=own.backoff or self.restore_backoff,
            backoff_max=own.backoff_max or self.restore_backoff_max,
            jitter=self.restore_jitter if own.jitter is None else own.jitter,
            stable_after=own.stable_after or self.stable_after,
            agent_stop_timeout=self.agent_stop_timeout,
            start_timeout=self.start_timeout,
            restore_timeout=self.restore_timeout,
            lease_ttl=self.lease_ttl,
        )


#: Gives the settings as they are now: they may change while a process runs.
ConfigSource = Callable[[], RuntimeConfig]


def config_source(config: RuntimeConfig | ConfigSource) -> ConfigSource:
    """Settings that stay as they are, as a source; a source stays one.

    Example:
        >>> config_source(RuntimeConfig(shards=4))().shards
        4
    """
    return (lambda: config) if isinstance(config, RuntimeConfig) else config


def default_config() -> RuntimeConfig:
    """The settings of a namespace that nobody configured.

    Example:
        >>> default_config().max_restarts_per_agent
        10
    """
    return RuntimeConfig()


def _misfit(field: str, value: object, problem: str) -> PydanticCustomError:
    """A value that does not fit another field's; it names its own field, which pydantic does not know here."""
    return PydanticCustomError("misfit", "{problem}", {"field": field, "value": value, "problem": problem})


def _as_setting(error: ValidationError) -> InvalidSettingError:
    first = error.errors()[0]
    told = first.get("ctx", {})
    name = str(told.get("field") or ".".join(str(part) for part in first["loc"]) or "settings")
    value = told.get("value", first.get("input"))
    is_shown = isinstance(value, (str, int, bool, type(None))) or (isinstance(value, float) and math.isfinite(value))
    shown = value if is_shown else str(value) if isinstance(value, float) else type(value).__name__
    return InvalidSettingError(field=name, value=shown, problem=str(first["msg"]).removeprefix("Value error, "))


class ProcessSettings(BaseModel):
    """Where this process finds its namespace; from ``ARES_*`` or given.

    Example:
        >>> ProcessSettings.from_env({"ARES_NAMESPACE": "shop"}).namespace
        'shop'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    redis_url: str = "redis://127.0.0.1:6379/0"
    broker_url: str | None = None
    result_url: str | None = None
    namespace: Annotated[str, Field(min_length=1)] = "ares"
    #: None = the default `workers.agents`, which may be missing; a named module may not.
    agent_modules: tuple[str, ...] | None = None
    app: str | None = None
    #: Of a worker whose clock may be moved: see `chaos/moved_clock.py`.
    clock_file: str | None = None

    @field_validator("namespace")
    @classmethod
    def _namespace(cls, value: str) -> str:
        return check_namespace(value)

    @field_validator("agent_modules", mode="before")
    @classmethod
    def _modules(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **given: Any) -> ProcessSettings:  # noqa: ANN401
        """Reads ``ARES_REDIS_URL`` and its like; a given value that is not None wins."""
        source = os.environ if environ is None else environ
        values: dict[str, Any] = {
            name: source[f"ARES_{name.upper()}"] for name in cls.model_fields if source.get(f"ARES_{name.upper()}")
        }
        values.update({name: value for name, value in given.items() if value is not None})
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise _as_setting(error) from error
