"""A supervised, durable runtime for long-running agents on Celery and Redis.

Everything public is here; names are loaded on first use, so that ``import ares_celery`` costs next to nothing.

Example:
    >>> from ares_celery import AgentSpec
    >>> AgentSpec(id="counter-1", type="counter").id
    'counter-1'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ares_celery.agents.children import ChildHandle, SyncChildHandle
    from ares_celery.agents.context import AgentContext, SyncAgentContext
    from ares_celery.agents.contract import (
        Agent,
        AgentFactory,
        Applier,
        Heartbeater,
        MessageHandler,
        Replayer,
        StatefulAgent,
        StreamHandler,
    )
    from ares_celery.agents.dead_letters import dead_letter_handler
    from ares_celery.agents.mcp_servers import mcp_server, override_mcp
    from ares_celery.agents.registry import agent
    from ares_celery.agents.resources import override_resource, worker_resource
    from ares_celery.agents.secrets import StoredPlace, secrets_hook
    from ares_celery.agents.sharing import MCPHandle, SyncMCPHandle, ToolCall
    from ares_celery.agents.steps import ExecutionScope, StepCaller, SyncStepCaller, step
    from ares_celery.agents.summariser import Summariser, summariser
    from ares_celery.agents.tools import override_tool, tool
    from ares_celery.agents.upcasting import upcaster
    from ares_celery.arena.loading import load_scenario, parse_scenario, ready_scenarios
    from ares_celery.arena.runner import ScenarioRun, run_scenario
    from ares_celery.arena.scenario import Scenario
    from ares_celery.arena.survival import SurvivalRun, plan_survival
    from ares_celery.arena.verdict.journal import ActivityReport, RunStatus, ScenarioReport
    from ares_celery.arena.verdict.judge import judged
    from ares_celery.arena.verdict.scores import go_score
    from ares_celery.arena.verdict.verdict import Verdict
    from ares_celery.async_manager.handle import AsyncAgentHandle
    from ares_celery.celery_app.async_client import AsyncManager
    from ares_celery.celery_app.client import Manager, connect
    from ares_celery.celery_app.factory import create_app
    from ares_celery.celery_app.install import install
    from ares_celery.config import ProcessSettings, RuntimeConfig, default_config
    from ares_celery.errors import (
        ActivityFailedError,
        AgentAlreadyRegisteredError,
        AgentFailedError,
        AgentForkingError,
        AgentNotFoundError,
        AgentNotParkedError,
        AgentNotRunningError,
        AgentParkedError,
        AgentSignal,
        AgentStuckError,
        AgentTypeError,
        ApprovalTimeoutError,
        ArenaBusyError,
        AresError,
        AwaitMissingError,
        BudgetExceededError,
        ChaosDisabledError,
        CheckpointSchemaVersionError,
        ChildLimitError,
        DagRefusedError,
        DidNotHappenError,
        DuplicatePluginError,
        EventGapError,
        EventIntegrityError,
        EventStoreClosedError,
        EventTooLargeError,
        ExecutionLimitError,
        ExecutionNotFoundError,
        ExecutionStateError,
        FaultLimitError,
        FaultNotFoundError,
        FencedError,
        FencedSignal,
        ForkVersionError,
        GroupNotFoundError,
        InterruptLimitError,
        InterruptNotFoundError,
        InterruptOpenError,
        InterruptResolvedError,
        InvalidAgentIdError,
        InvalidConfigError,
        InvalidCursorError,
        InvalidExecutionIdError,
        InvalidPluginError,
        InvalidScenarioError,
        InvalidSettingError,
        InvalidStepIdError,
        LeaseLostError,
        LLMUnavailableError,
        MailboxFullError,
        MCPConnectionLostError,
        MCPServerError,
        MemoryCorruptedError,
        MessageIdReusedError,
        MessageNotFoundError,
        MessagePoisonedError,
        NamespaceMismatchError,
        NewerStateError,
        NilAgentError,
        NilFactoryError,
        NotConfirmedError,
        NotFoundError,
        OperationIdReusedError,
        OperationNotSupportedError,
        PluginError,
        PluginNotFoundError,
        PluginTimeoutError,
        ProcessTimeoutError,
        RunNotCompletedError,
        RuntimeAlreadyStartedError,
        RuntimePermissionError,
        RuntimeStoppedError,
        ScenarioNotFoundError,
        SecretsHookError,
        SessionNotFoundError,
        SnapshotStoreError,
        SnapshotTooLargeError,
        StateUpcastError,
        StepChangedError,
        StepFailedError,
        StepIdReusedError,
        StepIntentNotFoundError,
        StepLimitError,
        StepOutcomeUnknownError,
        StepRejectedError,
        StepResultTooLargeError,
        StepSettledError,
        StepSignatureError,
        StepsUnsettledError,
        StepThreadError,
        StepTimeoutError,
        StopSignal,
        StoreUnavailableError,
        StreamCancelledError,
        StreamGapError,
        StreamNotFoundError,
        TooFewReportsError,
        ToolError,
        ToolTimeoutError,
        UnknownAgentTypeError,
        UnreadableCheckpointError,
        UnreadableGroupError,
        UnreadableRecordError,
        UnserialisableError,
        UnsupportedServerError,
        VersionConflictError,
        WaitSignal,
        WaitTimeoutError,
        WorkerHookError,
        WorkerNotFoundError,
        WorkerResourceError,
        error_from_wire,
    )
    from ares_celery.local import LocalManager
    from ares_celery.model.agent import AgentInfo, AgentSpec, AgentState, Desired, RestartType, RuntimeState
    from ares_celery.model.arena import ArenaHold
    from ares_celery.model.audit import AuditEntry
    from ares_celery.model.checkpoint import CheckpointEnvelope, decode_checkpoint, encode_checkpoint
    from ares_celery.model.conversation import ConversationMessage
    from ares_celery.model.event import (
        ANY,
        BEGINNING,
        EMPTY,
        Event,
        EventFilter,
        EventType,
        ExpectedVersion,
        NewEvent,
        ReadOptions,
    )
    from ares_celery.model.execution import Execution, ExecutionState, RetryPolicy
    from ares_celery.model.failure import Failure
    from ares_celery.model.fault import LLM_ERRORS, Fault, FaultKind
    from ares_celery.model.group import GroupInfo, Strategy
    from ares_celery.model.introspection import Activity, RuntimeSnapshot
    from ares_celery.model.limits import ClosedLimit
    from ares_celery.model.message import Chunk, DeadLetter, DeadReason, MessageKind, StreamResult
    from ares_celery.model.snapshot import Snapshot
    from ares_celery.model.stats import RuntimeStats
    from ares_celery.model.step import StepIntent, StepRecord
    from ares_celery.model.summary import Outcome, Summary
    from ares_celery.model.waits import Approval, InterruptInfo, InterruptState
    from ares_celery.plugins.basic_recovery import BasicRecoveryPlugin
    from ares_celery.plugins.bus import PluginBus
    from ares_celery.plugins.contract import (
        Capability,
        EventBus,
        PluginContext,
        RecoveryPlugin,
        RuntimePlugin,
        StepCall,
        StepResult,
        WorkflowHook,
    )
    from ares_celery.plugins.interrupt import InterruptPlugin
    from ares_celery.plugins.loop import LoopPlugin
    from ares_celery.plugins.observer import ObserverPlugin
    from ares_celery.plugins.registry import register_plugin
    from ares_celery.plugins.subscription import BusSubscription
    from ares_celery.plugins.tools import ToolPlugin, ToolRecord
    from ares_celery.runtime.chunk_stream import ChunkStream
    from ares_celery.runtime.compaction import CompactionReport
    from ares_celery.runtime.contract import Runtime
    from ares_celery.runtime.handle import AgentHandle
    from ares_celery.runtime.integrity import Violation, find_violations, integrity_digest
    from ares_celery.runtime.recovery import recover_snapshot_or_events
    from ares_celery.runtime.worker_hooks import worker_memory, worker_snapshot_store
    from ares_celery.store.async_access import AsyncSubscription
    from ares_celery.store.base import EventStore, MemoryManager, SnapshotStore
    from ares_celery.store.checkpoints import CheckpointStore
    from ares_celery.store.faults import ChaosState
    from ares_celery.store.subscriptions import Subscription

__all__ = [  # noqa: RUF022 - grouped by use
    # Writing an agent
    "agent",
    "Agent",
    "AgentContext",
    "AgentFactory",
    "Applier",
    "Approval",
    "Event",
    "Heartbeater",
    "MessageHandler",
    "Replayer",
    "StatefulAgent",
    "StreamHandler",
    "StreamResult",
    "SyncAgentContext",
    "dead_letter_handler",
    "upcaster",
    # Durable steps
    "ExecutionScope",
    "StepCaller",
    "StoredPlace",
    "SyncStepCaller",
    "secrets_hook",
    "step",
    # Shared by the agents of a process
    "MCPHandle",
    "SyncMCPHandle",
    "ChildHandle",
    "SyncChildHandle",
    "ToolCall",
    "mcp_server",
    "override_mcp",
    "override_resource",
    "override_tool",
    "tool",
    "worker_resource",
    # Running agents
    "Activity",
    "AgentHandle",
    "AgentInfo",
    "AgentSpec",
    "AgentState",
    "AsyncAgentHandle",
    "AsyncManager",
    "AuditEntry",
    "ChaosState",
    "Chunk",
    "ChunkStream",
    "ClosedLimit",
    "DeadLetter",
    "DeadReason",
    "Desired",
    "Fault",
    "FaultKind",
    "GroupInfo",
    "InterruptInfo",
    "InterruptState",
    "LLM_ERRORS",
    "LocalManager",
    "Manager",
    "MessageKind",
    "RestartType",
    "Runtime",
    "RuntimeSnapshot",
    "RuntimeState",
    "RuntimeStats",
    "Strategy",
    "connect",
    "create_app",
    "install",
    # Settings
    "ProcessSettings",
    "RuntimeConfig",
    "default_config",
    # Stores
    "ANY",
    "CheckpointEnvelope",
    "CheckpointStore",
    "BEGINNING",
    "EMPTY",
    "CompactionReport",
    "EventFilter",
    "EventStore",
    "EventType",
    "Execution",
    "ExecutionState",
    "ExpectedVersion",
    "NewEvent",
    "Outcome",
    "ReadOptions",
    "RetryPolicy",
    "Snapshot",
    "StepIntent",
    "StepRecord",
    "ConversationMessage",
    "MemoryManager",
    "SnapshotStore",
    "Violation",
    "find_violations",
    "integrity_digest",
    "decode_checkpoint",
    "encode_checkpoint",
    "recover_snapshot_or_events",
    "worker_memory",
    "worker_snapshot_store",
    "AsyncSubscription",
    "Subscription",
    "Summariser",
    "Summary",
    "summariser",
    # Faults on purpose
    "ActivityReport",
    "ArenaHold",
    "RunStatus",
    "Scenario",
    "ScenarioReport",
    "ScenarioRun",
    "SurvivalRun",
    "Verdict",
    "go_score",
    "judged",
    "load_scenario",
    "parse_scenario",
    "plan_survival",
    "ready_scenarios",
    "run_scenario",
    # Plug-ins
    "BasicRecoveryPlugin",
    "BusSubscription",
    "Capability",
    "EventBus",
    "Failure",
    "InterruptPlugin",
    "LoopPlugin",
    "ObserverPlugin",
    "PluginBus",
    "PluginContext",
    "RecoveryPlugin",
    "RuntimePlugin",
    "StepCall",
    "StepResult",
    "ToolPlugin",
    "ToolRecord",
    "WorkflowHook",
    "register_plugin",
    # Errors
    "ActivityFailedError",
    "AgentAlreadyRegisteredError",
    "AgentFailedError",
    "AgentForkingError",
    "AgentNotFoundError",
    "AgentNotParkedError",
    "AgentNotRunningError",
    "AgentParkedError",
    "AgentStuckError",
    "AgentTypeError",
    "ApprovalTimeoutError",
    "ArenaBusyError",
    "AresError",
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
    "ForkVersionError",
    "GroupNotFoundError",
    "InterruptLimitError",
    "InterruptNotFoundError",
    "InterruptOpenError",
    "InterruptResolvedError",
    "InvalidAgentIdError",
    "InvalidConfigError",
    "InvalidExecutionIdError",
    "InvalidCursorError",
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
    "StepResultTooLargeError",
    "StepSettledError",
    "StepSignatureError",
    "AwaitMissingError",
    "StepThreadError",
    "StepTimeoutError",
    "StepRejectedError",
    "StepsUnsettledError",
    "StoreUnavailableError",
    "StreamCancelledError",
    "StreamGapError",
    "StreamNotFoundError",
    "TooFewReportsError",
    "ToolError",
    "ToolTimeoutError",
    "UnknownAgentTypeError",
    "UnreadableCheckpointError",
    "UnserialisableError",
    "UnreadableGroupError",
    "UnreadableRecordError",
    "UnsupportedServerError",
    "VersionConflictError",
    "WaitTimeoutError",
    "WorkerHookError",
    "WorkerNotFoundError",
    "WorkerResourceError",
    "error_from_wire",
    # Signals
    "AgentSignal",
    "FencedSignal",
    "StopSignal",
    "WaitSignal",
]

_HOMES: Final = {
    "ares_celery.agents.context": ("AgentContext", "SyncAgentContext"),
    "ares_celery.agents.contract": (
        "Agent",
        "AgentFactory",
        "Applier",
        "Heartbeater",
        "MessageHandler",
        "Replayer",
        "StatefulAgent",
        "StreamHandler",
    ),
    "ares_celery.agents.dead_letters": ("dead_letter_handler",),
    "ares_celery.agents.mcp_servers": ("mcp_server", "override_mcp"),
    "ares_celery.agents.registry": ("agent",),
    "ares_celery.agents.resources": ("override_resource", "worker_resource"),
    "ares_celery.agents.children": ("ChildHandle", "SyncChildHandle"),
    "ares_celery.agents.secrets": ("StoredPlace", "secrets_hook"),
    "ares_celery.agents.steps": ("ExecutionScope", "StepCaller", "SyncStepCaller", "step"),
    "ares_celery.agents.sharing": ("MCPHandle", "SyncMCPHandle", "ToolCall"),
    "ares_celery.agents.tools": ("override_tool", "tool"),
    "ares_celery.agents.upcasting": ("upcaster",),
    "ares_celery.agents.summariser": ("Summariser", "summariser"),
    "ares_celery.arena.loading": ("load_scenario", "parse_scenario", "ready_scenarios"),
    "ares_celery.arena.runner": ("ScenarioRun", "run_scenario"),
    "ares_celery.arena.scenario": ("Scenario",),
    "ares_celery.arena.survival": ("SurvivalRun", "plan_survival"),
    "ares_celery.arena.verdict.journal": ("ActivityReport", "RunStatus", "ScenarioReport"),
    "ares_celery.arena.verdict.judge": ("judged",),
    "ares_celery.arena.verdict.scores": ("go_score",),
    "ares_celery.arena.verdict.verdict": ("Verdict",),
    "ares_celery.async_manager.handle": ("AsyncAgentHandle",),
    "ares_celery.celery_app.async_client": ("AsyncManager",),
    "ares_celery.celery_app.client": ("Manager", "connect"),
    "ares_celery.celery_app.factory": ("create_app",),
    "ares_celery.celery_app.install": ("install",),
    "ares_celery.config": ("ProcessSettings", "RuntimeConfig", "default_config"),
    "ares_celery.local": ("LocalManager",),
    "ares_celery.model.agent": ("AgentInfo", "AgentSpec", "AgentState", "Desired", "RestartType", "RuntimeState"),
    "ares_celery.model.arena": ("ArenaHold",),
    "ares_celery.model.audit": ("AuditEntry",),
    "ares_celery.model.conversation": ("ConversationMessage",),
    "ares_celery.model.event": (
        "ANY",
        "BEGINNING",
        "EMPTY",
        "Event",
        "EventFilter",
        "EventType",
        "ExpectedVersion",
        "NewEvent",
        "ReadOptions",
    ),
    "ares_celery.model.checkpoint": ("CheckpointEnvelope", "decode_checkpoint", "encode_checkpoint"),
    "ares_celery.model.execution": ("Execution", "ExecutionState", "RetryPolicy"),
    "ares_celery.model.introspection": ("Activity", "RuntimeSnapshot"),
    "ares_celery.model.limits": ("ClosedLimit",),
    "ares_celery.model.message": ("Chunk", "DeadLetter", "DeadReason", "MessageKind", "StreamResult"),
    "ares_celery.model.failure": ("Failure",),
    "ares_celery.model.fault": ("LLM_ERRORS", "Fault", "FaultKind"),
    "ares_celery.model.group": ("GroupInfo", "Strategy"),
    "ares_celery.model.snapshot": ("Snapshot",),
    "ares_celery.model.stats": ("RuntimeStats",),
    "ares_celery.model.step": ("StepIntent", "StepRecord"),
    "ares_celery.model.summary": ("Outcome", "Summary"),
    "ares_celery.model.waits": ("Approval", "InterruptInfo", "InterruptState"),
    "ares_celery.runtime.compaction": ("CompactionReport",),
    "ares_celery.runtime.chunk_stream": ("ChunkStream",),
    "ares_celery.runtime.contract": ("Runtime",),
    "ares_celery.plugins.basic_recovery": ("BasicRecoveryPlugin",),
    "ares_celery.plugins.bus": ("PluginBus",),
    "ares_celery.plugins.contract": (
        "Capability",
        "EventBus",
        "PluginContext",
        "RecoveryPlugin",
        "RuntimePlugin",
        "StepCall",
        "StepResult",
        "WorkflowHook",
    ),
    "ares_celery.plugins.interrupt": ("InterruptPlugin",),
    "ares_celery.plugins.loop": ("LoopPlugin",),
    "ares_celery.plugins.observer": ("ObserverPlugin",),
    "ares_celery.plugins.registry": ("register_plugin",),
    "ares_celery.plugins.subscription": ("BusSubscription",),
    "ares_celery.plugins.tools": ("ToolPlugin", "ToolRecord"),
    "ares_celery.runtime.handle": ("AgentHandle",),
    "ares_celery.runtime.integrity": ("Violation", "find_violations", "integrity_digest"),
    "ares_celery.runtime.recovery": ("recover_snapshot_or_events",),
    "ares_celery.runtime.worker_hooks": ("worker_memory", "worker_snapshot_store"),
    "ares_celery.store.async_access": ("AsyncSubscription",),
    "ares_celery.store.base": ("EventStore", "MemoryManager", "SnapshotStore"),
    "ares_celery.store.checkpoints": ("CheckpointStore",),
    "ares_celery.store.faults": ("ChaosState",),
    "ares_celery.store.subscriptions": ("Subscription",),
}
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names}

# At once, as it costs little: Celery rebuilds the error of a result from its class only where that is loaded already.
import_module("ares_celery.errors")


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    """Loads a public name on first use (PEP 562)."""
    if name not in __all__:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(import_module(_HOME_OF.get(name, "ares_celery.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
