"""An agent as a record: what it is, what it should do, what it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from ares_celery.errors import InvalidAgentIdError, InvalidConfigError
from ares_celery.ids import AgentId, Epoch, Instant, Version, check_agent_id, invalid_agent_id
from ares_celery.model.birth import Birth
from ares_celery.model.budget import Limits, Spending, Spent, check_budget
from ares_celery.model.durations import OptionalDuration
from ares_celery.model.waits import Waiting

__all__ = [
    "AT_REST",
    "HOSTED",
    "LIVE",
    "AgentInfo",
    "AgentRecord",
    "AgentSpec",
    "AgentState",
    "Desired",
    "Held",
    "Owner",
    "Request",
    "RestartType",
    "RuntimeState",
    "agent_status",
    "refused_spec",
]


class AgentState(StrEnum):
    """What an agent does now; exactly one of these at any time."""

    REGISTERED = "registered"
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    WAITING = "waiting"
    STOPPING = "stopping"
    STOPPED = "stopped"
    RESURRECTING = "resurrecting"
    COMPLETED = "completed"
    PARKED = "parked"


class Desired(StrEnum):
    """What its operator wants; nothing but a person or a finished agent changes it."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


class RestartType(StrEnum):
    """Which endings bring an agent back, in OTP's words."""

    PERMANENT = "permanent"
    TRANSIENT = "transient"
    TEMPORARY = "temporary"


RestartName = Literal["permanent", "transient", "temporary"]


class RuntimeState(StrEnum):
    """The state of a whole namespace."""

    NEW = "new"
    RUNNING = "running"
    STOPPED = "stopped"
    FROZEN = "frozen"


class Request(StrEnum):
    """What the incarnation was asked to do before anybody ends it by force."""

    NONE = ""
    STOP = "stop"
    PAUSE = "pause"
    RESTART = "restart"
    RESTORE = "restore"
    SHUTDOWN = "shutdown"
    DIE = "die"
    GROUP = "group"


class Held(StrEnum):
    """Why an agent that nobody hosts waits for its group before it may be claimed."""

    NO = ""
    #: It died; its group says who is started again, and in which order.
    DIED = "died"
    #: Its group stopped it because another member died.
    ASKED = "asked"


_ZERO: Final = timedelta(0)
#: States in which an incarnation may hold the fence.
HOSTED: Final = frozenset({AgentState.STARTING, AgentState.RUNNING, AgentState.STOPPING, AgentState.RESURRECTING})
#: States in which an agent takes no messages: somebody has to start it first.
AT_REST: Final = frozenset({AgentState.REGISTERED, AgentState.STOPPED, AgentState.COMPLETED, AgentState.PARKED})
#: States that count as active.
LIVE: Final = frozenset({AgentState.STARTING, AgentState.RUNNING, AgentState.STOPPING, AgentState.RESURRECTING})


class AgentSpec(BaseModel):
    """What an agent is: its id, its type, and how its life is supervised.

    Durations are timedeltas or seconds; a policy field that is None takes the namespace's value.

    Example:
        >>> AgentSpec(id="counter-1", type="counter", config={"step": 2}).restart.value
        'transient'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Annotated[str, AfterValidator(check_agent_id)]
    type: Annotated[str, Field(min_length=1, max_length=200)]
    config: dict[str, JsonValue] = {}
    queue: Annotated[str, Field(pattern=r"^[A-Za-z0-9._\-]{1,100}$")] | None = None
    restart: RestartType = RestartType.TRANSIENT
    max_restarts: Annotated[int, Field(ge=0)] | None = None
    restart_period: OptionalDuration = None
    restore_attempts: Annotated[int, Field(ge=1)] | None = None
    backoff: OptionalDuration = None
    backoff_max: OptionalDuration = None
    jitter: Annotated[float, Field(ge=0, le=1)] | None = None
    stable_after: OptionalDuration = None
    hang_timeout: OptionalDuration = None
    group: str | None = None
    tenant: str | None = None
    labels: dict[str, str] = {}
    budget: dict[str, float] | None = None
    parent: Annotated[str, AfterValidator(check_agent_id)] | None = None
    replay_lifecycle: bool = False

    if TYPE_CHECKING:
        # What may be passed, which is more than what the fields then hold.
        def __init__(  # noqa: PLR0913 - one parameter a field
            self,
            *,
            id: str,  # noqa: A002 - the field's name
            type: str,  # noqa: A002 - the field's name
            config: Mapping[str, Any] = ...,
            queue: str | None = ...,
            restart: RestartType | RestartName = ...,
            max_restarts: int | None = ...,
            restart_period: timedelta | float | str | None = ...,
            restore_attempts: int | None = ...,
            backoff: timedelta | float | str | None = ...,
            backoff_max: timedelta | float | str | None = ...,
            jitter: float | None = ...,
            stable_after: timedelta | float | str | None = ...,
            hang_timeout: timedelta | float | str | None = ...,
            group: str | None = ...,
            tenant: str | None = ...,
            labels: Mapping[str, str] = ...,
            budget: Mapping[str, float] | None = ...,
            parent: str | None = ...,
            replay_lifecycle: bool = ...,
        ) -> None: ...
    else:

        def __init__(self, **values: object) -> None:
            """Makes a spec.

            Raises:
                InvalidAgentIdError: ``id`` or ``parent`` is not acceptable.
                InvalidConfigError: Another field is wrong; the text names it.
            """
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise refused_spec(error, values) from error

        # Says to pydantic that this is its own way in, so that model_validate goes past it and keeps its own error,
        # which has each wrong field with its place.
        __init__.__pydantic_base_init__ = True

    @field_validator("budget", mode="before")
    @classmethod
    def _limits(cls, value: object) -> dict[str, float] | None:
        return check_budget(value)

    @field_validator("restart_period", "backoff", "backoff_max", "stable_after", "hang_timeout", mode="after")
    @classmethod
    def _positive(cls, value: timedelta | None, info: ValidationInfo) -> timedelta | None:
        least = _ZERO if info.field_name == "restart_period" else timedelta(microseconds=1)
        if value is not None and value < least:
            raise ValueError("must be longer than zero, or None for the namespace's value")
        return value


def refused_spec(error: ValidationError, values: Mapping[str, Any]) -> InvalidAgentIdError | InvalidConfigError:
    """The product's own error for the first field that is wrong."""
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    given = values.get(field)
    if field in {"id", "parent"}:
        return invalid_agent_id(given)
    problem = f"{field}: {str(first['msg']).removeprefix('Value error, ')}"
    if first["type"] == "missing":
        problem = f"{field} is missing"
    elif first["type"] == "extra_forbidden":
        problem = f"{field}: there is no such field; there are {', '.join(AgentSpec.model_fields)}"
    agent_id, kind = str(values.get("id")), values.get("type")
    told: dict[str, str] = {} if field.startswith("config") else {"message": f"spec of agent {agent_id!r}: {problem}"}
    return InvalidConfigError(
        agent_id=agent_id,
        type=ascii(kind)[1:-1][:250] if isinstance(kind, str) else "",
        problem=problem,
        field=field,
        **told,
    )


@dataclass(frozen=True, slots=True)
class Owner:
    """Who hosts an incarnation: the process, Celery's name for its worker, and the message that brought it."""

    identity: str
    worker: str
    task_id: str


def _no_counts() -> Mapping[str, int]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """One agent as Redis holds it; a value, changed only by a commit of a Plan.

    ``fence`` is empty when nobody holds the agent, else ``<epoch>|<token>``; every write of an incarnation shows it.
    """

    spec: AgentSpec
    desired: Desired = Desired.STOPPED
    state: AgentState = AgentState.REGISTERED
    epoch: Epoch = Epoch(0)
    fence: str = ""
    revision: int = 0
    version: Version = Version(0)
    incarnation: int = 0
    owner: Owner | None = None
    #: What the incarnation was asked to do; grows ``signal`` so that the keeper's renewal notices.
    request: Request = Request.NONE
    request_reason: str = ""
    signal: int = 0
    #: Why it is in this state, and who said so.
    reason: str = ""
    actor: str = ""
    cause: str = ""
    #: Counters: every resurrection; deaths that the cap looks at; restarts by hand; failures in a row.
    restarts: int = 0
    charged: int = 0
    manual_restarts: int = 0
    failures: int = 0
    #: Tries of the failover at hand, counted by the claim.
    attempt: int = 0
    charged_at: tuple[int, ...] = ()
    #: Deaths by cause, charged or not.
    deaths: Mapping[str, int] = field(default_factory=_no_counts)
    #: Instants of losses of a host with several tenants, as far as they may still count.
    lost_together: tuple[int, ...] = ()
    #: A failover.triggered was written and not yet closed.
    failover: bool = False
    #: Why the next incarnation starts: the reason of its agent.started.
    start_reason: str = "start"
    #: The next claim must wait until then, as the process of the last one was not seen to end.
    claimable_after: Instant = Instant(0)
    #: It waits for its group; nothing of it is claimable meanwhile.
    held: Held = Held.NO
    #: When the next attempt is due, while a resurrection waits for it; 0 = it does not wait.
    next_attempt_at: Instant = Instant(0)
    #: Times that a nudge was sent, or found to wait still, since the incarnation became claimable; their spacing grows.
    nudges: int = 0
    #: The message that Celery's retry will bring, and its count; empty when the next message is a fresh one.
    task_id: str = ""
    retries: int = 0
    created_at: Instant = Instant(0)
    changed_at: Instant = Instant(0)
    claimed_at: Instant = Instant(0)
    running_since: Instant = Instant(0)
    #: When it was started again after it had completed; 0 = never. What it did before then is an earlier run's.
    begun_at: Instant = Instant(0)
    died_at: Instant = Instant(0)
    last_progress: Instant = Instant(0)
    #: Unfinished executions; counted by the store.
    executions: int = 0
    #: Steps that were begun, must not be repeated, and have no outcome yet; counted by the store.
    intents: int = 0
    #: The step that its incarnation was in when its lease was last renewed, and since when; empty: in none.
    step: str = ""
    step_since: Instant = Instant(0)
    result: str = ""
    last_error: str = ""
    #: Of the newest state that an incarnation saved: its type (as digest) and its schema; a claim looks at them.
    state_of: str = ""
    state_schema: int = 0
    #: ``<version>|<epoch>`` of the newest state that is safe in a snapshot store of the user's own.
    state_saved: str = ""
    #: Events up to this version may be missing or damaged: somebody has accepted that they are lost.
    accepted_version: Version = Version(0)
    #: No incarnation has run since then: whatever snapshots are damaged now are given up with them.
    begin_anew: bool = False
    #: What it waits for without being hosted.
    waiting: Waiting | None = None
    decisions: int = 0  # of people about what it asked; counted by the store
    rejected: str = ""  # the question whose no has parked it; whoever un-parks it has it asked anew
    #: Which timers its present or next incarnation has been woken for: until when, how many in a row, and when it was.
    woken_until: Instant = Instant(0)
    woken_sleeps: int = 0
    woken_at: Instant = Instant(0)
    #: The agent at the top of its tree, whose budget it shares; empty: it has no parent.
    root: str = ""
    #: What it has spent itself, counted by the store: restarts, stops and a new start keep it. Money in millionths.
    spent_tokens: int = 0
    spent_usd: int = 0
    spent_steps: int = 0
    #: What the members of its tree have spent, counted by the store.
    shared_tokens: int = 0
    shared_usd: int = 0
    shared_steps: int = 0
    #: ``<why>|<epoch>``: a worker could not take the incarnation of this epoch, and left it to another one.
    refused: str = ""
    #: Of a fork: where its history comes from, see :class:`~ares_celery.model.fork.ForkOrigin`.
    forked_from: str = ""
    #: ``<version>|<copied>`` while a fork's history is copied up to that version; nothing of it may start meanwhile.
    forking: str = ""
    #: How it came to be, when another agent spawned it.
    birth: Birth | None = None
    #: Agents that it spawned, and times that it was started and stopped; the first is counted by the store.
    children: int = 0
    starts: int = 0
    stops: int = 0
    faults: int = 0  # active ones at the last change of them; these three are the store's own
    degraded: str = ""  # what its incarnation does without
    limited: str = ""  # the limit of the fleet that it waits for

    @property
    def id(self) -> AgentId:
        """The agent's id."""
        return AgentId(self.spec.id)

    @property
    def hosted(self) -> bool:
        """An incarnation holds the fence."""
        return bool(self.fence)

    @property
    def spending(self) -> Spending:
        """What it and its tree have spent, and what they may."""
        return Spending(
            Spent(self.spent_tokens, self.spent_usd, self.spent_steps),
            Spent(self.shared_tokens, self.shared_usd, self.shared_steps),
            Limits.of(self.spec.budget),
        )


class AgentInfo(BaseModel):
    """What a person sees of an agent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    type: str
    state: AgentState
    status: str
    desired: Desired
    paused: bool
    restarts: int
    charged: int
    max_restarts: int | None = None
    #: Deaths by cause, charged or not; since the agent was started.
    deaths: dict[str, int] = {}
    manual_restarts: int
    incarnation: int
    epoch: int
    worker: str | None
    queue: str | None
    group: str | None = None
    parent: str | None = None  # the agent that spawned it
    reason: str
    actor: str
    cause: str
    pid: int | None = None
    waiting_on: str | None = None
    #: When a wait ends in any case; None: it waits for nothing, or for as long as it takes.
    waiting_until: datetime | None = None
    next_attempt: datetime | None = None
    last_progress: datetime | None = None
    #: The step that it was in a heartbeat ago at most, and since when.
    step: str | None = None
    step_since: datetime | None = None
    #: Steps that were begun, must not be repeated, and have no outcome yet: a person settles them.
    intents: int = 0
    last_error: str = ""
    #: Losses of its history up to this version were accepted by `unpark_agent`; 0: none.
    accepted_version: int = 0
    #: ``<agent id>@<version>`` of a fork: whose history it begins with, and up to where.
    forked_from: str = ""
    result: Any = None
    labels: dict[str, str] = {}
    #: Faults on purpose that disturb it; list_faults shows them.
    faults: int = 0
    degraded: str = ""  # what it does without, as an MCP server was not connected at its last call
    #: What it and the agents below it may spend: tokens, usd, steps; None: as much as comes.
    budget: dict[str, int | float] | None = None
    #: What it has spent itself, in all its lives.
    spent: dict[str, int | float] = {}
    #: What the agents below it have spent, as far as they have told; None: there are none that did.
    spent_below: dict[str, int | float] | None = None


def agent_status(state: AgentState) -> str:
    """The seed's word for a state: starting, ready, busy, stopping or offline.

    Example:
        >>> agent_status(AgentState.RUNNING), agent_status(AgentState.PARKED)
        ('ready', 'offline')
    """
    match state:
        case AgentState.STARTING | AgentState.RESURRECTING:
            return "starting"
        case AgentState.RUNNING | AgentState.WAITING:
            return "ready"
        case AgentState.STOPPING:
            return "stopping"
        case _:
            return "offline"
