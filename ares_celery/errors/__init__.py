"""Every error that leaves the product, and the signals that end an agent's code.

One tree, rooted at :class:`AresError`. Each error carries its data in one JSON-able dict, its only positional argument,
so that nothing is lost on the way through Celery's JSON results: a caller without this package reads
``exc.args[0]["code"]``, a caller with it gets the class back.

Example:
    >>> error = AgentNotFoundError(agent_id="counter-1")
    >>> error.code, error.args[0]["agent_id"]
    ('agent_not_found', 'counter-1')
    >>> str(AgentNotFoundError(error.args[0])) == str(error)
    True
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from ares_celery.errors.arena import (
    ActivityFailedError,
    ArenaBusyError,
    InvalidScenarioError,
    RunNotCompletedError,
    ScenarioNotFoundError,
    TooFewReportsError,
)
from ares_celery.errors.base import AresError, NotFoundError
from ares_celery.errors.budgets import BudgetExceededError
from ares_celery.errors.events import (
    EventGapError,
    EventIntegrityError,
    EventStoreClosedError,
    InvalidCursorError,
)
from ares_celery.errors.executions import (
    CheckpointSchemaVersionError,
    ExecutionLimitError,
    ExecutionNotFoundError,
    ExecutionStateError,
    InvalidExecutionIdError,
    UnreadableCheckpointError,
)
from ares_celery.errors.family import ChildLimitError
from ares_celery.errors.faults import FaultLimitError, FaultNotFoundError, MemoryCorruptedError, WorkerNotFoundError
from ares_celery.errors.forks import AgentForkingError, ForkVersionError
from ares_celery.errors.messages import (
    MailboxFullError,
    MessageIdReusedError,
    MessageNotFoundError,
    MessagePoisonedError,
    ProcessTimeoutError,
    StreamCancelledError,
    StreamGapError,
)
from ares_celery.errors.parking import AgentNotParkedError, AgentParkedError
from ares_celery.errors.plugins import (
    DuplicatePluginError,
    InvalidPluginError,
    PluginError,
    PluginNotFoundError,
    PluginTimeoutError,
)
from ares_celery.errors.runtime_state import RuntimeAlreadyStartedError, RuntimePermissionError, RuntimeStoppedError
from ares_celery.errors.settling import StepIntentNotFoundError, StepSettledError, StepsUnsettledError
from ares_celery.errors.shared import (
    LLMUnavailableError,
    MCPConnectionLostError,
    MCPServerError,
    ToolError,
    ToolTimeoutError,
    WorkerResourceError,
)
from ares_celery.errors.signals import AgentSignal, FencedSignal, StopSignal, WaitSignal
from ares_celery.errors.state import NewerStateError, SnapshotStoreError, StateUpcastError, WorkerHookError
from ares_celery.errors.steps import (
    AwaitMissingError,
    InvalidStepIdError,
    SecretsHookError,
    StepChangedError,
    StepFailedError,
    StepIdReusedError,
    StepLimitError,
    StepOutcomeUnknownError,
    StepResultTooLargeError,
    StepSignatureError,
    StepThreadError,
    StepTimeoutError,
)
from ares_celery.errors.store import (
    NamespaceMismatchError,
    NotConfirmedError,
    OperationIdReusedError,
    StoreUnavailableError,
    UnreadableGroupError,
    UnreadableRecordError,
    UnsupportedServerError,
)
from ares_celery.errors.testing import AgentStuckError, DidNotHappenError
from ares_celery.errors.waits import (
    ApprovalTimeoutError,
    InterruptLimitError,
    InterruptNotFoundError,
    InterruptOpenError,
    InterruptResolvedError,
    StepRejectedError,
)

__all__ = [
    "ActivityFailedError",
    "AgentAlreadyRegisteredError",
    "AgentFailedError",
    "AgentForkingError",
    "AgentNotFoundError",
    "AgentNotParkedError",
    "AgentNotRunningError",
    "AgentParkedError",
    "AgentSignal",
    "AgentStuckError",
    "AgentTypeError",
    "ApprovalTimeoutError",
    "ArenaBusyError",
    "AresError",
    "AwaitMissingError",
    "BudgetExceededError",
    "ChaosDisabledError",
    "CheckpointSchemaVersionError",
    "ChildLimitError",
    "DagRefusedError",
    "DidNotHappenError",
    "DuplicatePluginError",
    "EventGapError",
    "EventIntegrityError",
    "EventStoreClosedError",
    "EventTooLargeError",
    "ExecutionLimitError",
    "ExecutionNotFoundError",
    "ExecutionStateError",
    "FaultLimitError",
    "FaultNotFoundError",
    "FencedError",
    "FencedSignal",
    "ForkVersionError",
    "GroupNotFoundError",
    "InterruptLimitError",
    "InterruptNotFoundError",
    "InterruptOpenError",
    "InterruptResolvedError",
    "InvalidAgentIdError",
    "InvalidConfigError",
    "InvalidCursorError",
    "InvalidExecutionIdError",
    "InvalidPluginError",
    "InvalidScenarioError",
    "InvalidSettingError",
    "InvalidStepIdError",
    "LLMUnavailableError",
    "LeaseLostError",
    "MCPConnectionLostError",
    "MCPServerError",
    "MailboxFullError",
    "MemoryCorruptedError",
    "MessageIdReusedError",
    "MessageNotFoundError",
    "MessagePoisonedError",
    "NamespaceMismatchError",
    "NewerStateError",
    "NilAgentError",
    "NilFactoryError",
    "NotConfirmedError",
    "NotFoundError",
    "OperationIdReusedError",
    "OperationNotSupportedError",
    "PluginError",
    "PluginNotFoundError",
    "PluginTimeoutError",
    "ProcessTimeoutError",
    "RunNotCompletedError",
    "RuntimeAlreadyStartedError",
    "RuntimePermissionError",
    "RuntimeStoppedError",
    "ScenarioNotFoundError",
    "SecretsHookError",
    "SessionNotFoundError",
    "SnapshotStoreError",
    "SnapshotTooLargeError",
    "StateUpcastError",
    "StepChangedError",
    "StepFailedError",
    "StepIdReusedError",
    "StepIntentNotFoundError",
    "StepLimitError",
    "StepOutcomeUnknownError",
    "StepRejectedError",
    "StepResultTooLargeError",
    "StepSettledError",
    "StepSignatureError",
    "StepThreadError",
    "StepTimeoutError",
    "StepsUnsettledError",
    "StopSignal",
    "StoreUnavailableError",
    "StreamCancelledError",
    "StreamGapError",
    "StreamNotFoundError",
    "TooFewReportsError",
    "ToolError",
    "ToolTimeoutError",
    "UnknownAgentTypeError",
    "UnreadableCheckpointError",
    "UnreadableGroupError",
    "UnreadableRecordError",
    "UnserialisableError",
    "UnsupportedServerError",
    "VersionConflictError",
    "WaitSignal",
    "WaitTimeoutError",
    "WorkerHookError",
    "WorkerNotFoundError",
    "WorkerResourceError",
    "error_from_wire",
]


class AgentNotFoundError(NotFoundError):
    """No agent of this id exists in the namespace."""

    code = "agent_not_found"
    template = "agent {agent_id!r} does not exist; `ares agents ls` lists those that do"


class GroupNotFoundError(NotFoundError):
    """Nobody has defined a supervision group of this name."""

    code = "group_not_found"
    template = (
        "supervision group {name!r} is not defined; call define_group({name!r}, strategy=…) first, or leave `group` out"
    )


class StreamNotFoundError(NotFoundError):
    """The event stream was not named, or cannot exist."""

    code = "stream_not_found"
    template = "stream {stream_id!r} cannot exist; a stream is named by its agent's id"


class SessionNotFoundError(NotFoundError):
    """The agent has no session of this id."""

    code = "session_not_found"
    template = "agent {agent_id!r} has no session {session_id!r}; open_session begins one"


class AgentAlreadyRegisteredError(AresError):
    """The agent is already meant to run; `if_exists` says what to do instead."""

    code = "agent_already_registered"
    template = (
        "agent {agent_id!r} exists and is meant to be {desired} (state {state}); pass if_exists='return', 'restart' or "
        "'update', or stop it first"
    )


class AgentNotRunningError(AresError):
    """The agent is in a state that this operation does not accept."""

    code = "agent_not_running"
    template = "agent {agent_id!r} is {state}, so {operation} is not possible; start_agent starts it"


class AgentFailedError(AresError):
    """The agent's own code raised; type, message and traceback are those of its exception."""

    code = "agent_failed"
    template = "agent {agent_id!r} failed: {type}: {error}"

    @override
    def __repr__(self) -> str:
        """With what was raised, as operators see it in Flower; not where it answers a message: that is private."""
        if self.fields.get("message_id"):
            return super().__repr__()
        return f"AgentFailedError({self.fields['message']!r:.500})"


class WaitTimeoutError(AresError, TimeoutError):
    """The agent did not reach the state that was waited for; what was asked stays asked."""

    code = "wait_timeout"
    template = "agent {agent_id!r} did not become {wanted} within {timeout} s (now {state}); the request stands"


class VersionConflictError(AresError):
    """Somebody else changed it in between; read again and decide again."""

    code = "version_conflict"
    template = "{subject} is at version {actual}, not at {expected}; read it again"


class EventTooLargeError(AresError, ValueError):
    """The event is larger than the namespace allows; nothing was stored."""

    code = "event_too_large"
    template = (
        "{type!r} of agent {agent_id!r} has {size} bytes, the limit is {limit} (max_event_bytes); store the bulk "
        "elsewhere and pass a reference"
    )


class SnapshotTooLargeError(AresError, ValueError):
    """The snapshot is larger than the store takes; the previous one stays."""

    code = "snapshot_too_large"
    template = "the snapshot of agent {agent_id!r} has {size} bytes, the limit is {limit}; keep less in snapshot()"


class UnserialisableError(AresError, TypeError):
    """A payload, state or message is not plain JSON; nothing was stored."""

    code = "unserialisable"
    template = (
        "{what} of agent {agent_id!r} is not plain JSON: {problem}; use dict, list, str, int, float, bool and None"
    )


class DagRefusedError(AresError, ValueError):
    """The DAG cannot be stored; the one that was registered before stays."""

    code = "dag_refused"
    template = "DAG {key!r} cannot be stored: {problem}"


class FencedError(AresError):
    """The write came from an incarnation that is over; nothing was stored."""

    code = "fenced"
    template = "incarnation {epoch} of agent {agent_id!r} is over; its write was refused"


class LeaseLostError(AresError):
    """The incarnation lost its right to run."""

    code = "lease_lost"
    template = "the lease of agent {agent_id!r} (incarnation {epoch}) is lost"


class ChaosDisabledError(AresError):
    """Faults are not allowed in this namespace."""

    code = "chaos_disabled"
    template = (
        "{operation} is refused: chaos is off in namespace {namespace!r}; `ares chaos enable --for 1h` allows it for a "
        "time, `ares config set chaos true` for good, as does ARES_CHAOS=true when it is made"
    )


class OperationNotSupportedError(AresError):
    """The operation is not possible here."""

    code = "operation_not_supported"
    template = "{operation} is not supported: {reason}"


class InvalidSettingError(AresError, ValueError):
    """A setting has a value that cannot work."""

    code = "invalid_setting"
    template = "{field}={value!r} is not valid: {problem}"


class NilAgentError(AresError, ValueError):
    """No agent was given."""

    code = "nil_agent"
    template = "an agent is needed: pass an AgentSpec, an agent or the id of a registered one, not None"


class NilFactoryError(AresError, ValueError):
    """No factory was given, and none is registered for the type."""

    code = "nil_factory"
    template = "agent {agent_id!r} needs a factory: register its type with @agent or pass one"


class InvalidAgentIdError(AresError, ValueError):
    """The agent id is not acceptable."""

    code = "invalid_agent_id"
    template = (
        "agent id {agent_id!r} is not valid: 1 to 200 characters of ASCII letters, digits and the four marks . _ : -"
    )


class UnknownAgentTypeError(AresError, ValueError):
    """No factory is known for this agent type."""

    code = "unknown_agent_type"
    template = "agent type {type!r} is not registered here; known: {known}; name its module in ARES_AGENT_MODULES"


class AgentTypeError(AresError, TypeError):
    """An agent class breaks the agent contract."""

    code = "agent_type"
    template = "agent type {type!r} cannot be used: {problem}"


class InvalidConfigError(AresError, ValueError):
    """The spec's config does not fit the agent's constructor."""

    code = "invalid_config"
    template = "config of agent {agent_id!r} does not fit type {type!r}: {problem}"


def _tree(root: type[AresError]) -> dict[str, type[AresError]]:
    # A subclass without a code of its own must not stand in for its parent.
    found = {root.code: root} if "code" in vars(root) else {}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


def error_from_wire(data: Mapping[str, Any]) -> AresError:
    """Rebuilds the error that a task raised elsewhere; an unknown code gives a plain :class:`AresError`.

    Example:
        >>> error_from_wire({"code": "agent_not_found", "agent_id": "a"})
        AgentNotFoundError(agent_id='a')
    """
    return _tree(AresError).get(str(data.get("code")), AresError)(data)
