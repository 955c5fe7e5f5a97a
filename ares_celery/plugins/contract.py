"""What a plug-in is, what it gets, and what the runtime asks of it."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Protocol, cast, runtime_checkable

from ares_celery.errors import InvalidPluginError
from ares_celery.model.failure import Failure
from ares_celery.plugins.subscription import BusSubscription
from ares_celery.store.base import EventStore

__all__ = [
    "PLUGIN_STREAM",
    "ApprovalWish",
    "Capability",
    "Description",
    "EventBus",
    "InterruptingPlugin",
    "PluginContext",
    "RecoveryPlugin",
    "RuntimePlugin",
    "StepCall",
    "StepResult",
    "WorkflowHook",
    "check_hook",
    "describe",
    "plugin_stream",
]

#: What the stream of a plug-in's events begins with; no agent's id may have the mark.
PLUGIN_STREAM: Final = "@plugin:"
_NAME: Final = re.compile(r"[A-Za-z0-9._:\-]{1,200}", re.ASCII)
_NO_METADATA: Final[Mapping[str, Any]] = MappingProxyType({})


def _no_metadata() -> Mapping[str, Any]:
    return _NO_METADATA


def plugin_stream(name: str) -> str:
    """The stream that holds plugin.started, plugin.stopped and plugin.failed of a plug-in.

    Example:
        >>> plugin_stream("audit")
        '@plugin:audit'
    """
    return PLUGIN_STREAM + name


class Capability(StrEnum):
    """What a plug-in is good for; others find it by this."""

    OBSERVER = "observer"
    ROUTER = "router"
    LOOP = "loop"
    TOOL = "tool"
    RECOVERY = "recovery"
    INTERRUPT = "interrupt"


@dataclass(frozen=True, slots=True)
class PluginContext:
    """What a plug-in gets when it starts.

    Attributes:
        namespace: Which namespace this process works for.
        worker: Celery's node name of the worker, ``agents@host``.
        hosts_agents: The process may host agents.
        supervises: The process judges deaths and sweeps; a child of a prefork pool does not.
        events: Streams of events; None where there is no store (in unit tests of a plug-in).
        logger: For the plug-in's own lines.
    """

    namespace: str = "ares"
    worker: str = ""
    hosts_agents: bool = False
    supervises: bool = False
    events: EventStore | None = None
    logger: logging.Logger = field(default_factory=lambda: logging.getLogger("ares_celery.plugins"))


@dataclass(frozen=True, slots=True)
class StepCall:
    """A step of an agent, as hooks see it.

    Attributes:
        agent_id: The agent.
        agent_type: Its type.
        execution: Which execution of the agent the step belongs to.
        step_id: The step.
        tool: The tool that it calls; empty when it calls none.
        attempt: Which try this is, from 1.
        metadata: What the caller added.
    """

    agent_id: str
    step_id: str
    agent_type: str = ""
    execution: str = ""
    tool: str = ""
    attempt: int = 1
    metadata: Mapping[str, Any] = field(default_factory=_no_metadata)


@dataclass(frozen=True, slots=True)
class StepResult:
    """How a step ended: with a value, or with an error as text."""

    value: object = None
    error: str = ""
    took: timedelta = timedelta(0)

    @property
    def ok(self) -> bool:
        """It ended without an error."""
        return not self.error


@dataclass(frozen=True, slots=True)
class ApprovalWish:
    """A plug-in wants a person's word before a step runs.

    Attributes:
        plugin: Which one.
        payload: What the person is told.
        release_slot: The agent gives its slot back while it waits.
        timeout: How long it waits; None = as long as it takes.
    """

    plugin: str
    payload: Mapping[str, Any]
    release_slot: bool = False
    timeout: timedelta | None = None


class EventBus(Protocol):
    """The bus of one process: its plug-ins, their hooks, and who listens to events. Safe to share between threads."""

    def register(self, plugin: RuntimePlugin | Callable[[], RuntimePlugin], /) -> RuntimePlugin:
        """Adds a plug-in, or what a factory makes; on a running bus it starts at once, or is not added.

        Raises:
            InvalidPluginError: It is none; the text says what is missing.
            DuplicatePluginError: Its name is taken.
            PluginError, PluginTimeoutError: It did not start; nothing of it stays registered.
        """
        ...

    def unregister(self, name: str, /) -> RuntimePlugin:
        """Stops a plug-in and removes it with its hooks and capabilities.

        Raises:
            PluginNotFoundError: There is none.
            PluginError: It is removed, but its stop failed.
        """
        ...

    def register_hook(self, name: str, hook: WorkflowHook, /) -> None:
        """Adds a hook that is no plug-in of its own, or one more of the plug-in of this name."""
        ...

    def plugins_by_capability(self, capability: Capability | str, /) -> list[RuntimePlugin]:
        """The plug-ins that declare a capability, in order of registration; a copy. Those that failed to start: not."""
        ...

    def subscribe(self, *types: str, buffer: int = 64, name: str = "") -> BusSubscription:
        """Listens to events that this process stores from now on, and to those of the bus.

        Args:
            types: Exact types, or beginnings such as ``agent.*``; none = all.
            buffer: Most events that wait for the subscriber; what comes then is dropped and counted.
            name: Shown when events are dropped.
        """
        ...

    def emit(self, type: str, payload: Mapping[str, Any], /) -> None:  # noqa: A002 - the public name
        """Tells subscribers of this process something; it is not stored."""
        ...

    def start(self) -> None:
        """Starts all plug-ins in order of registration; past failures, too.

        Raises:
            PluginError: Those that failed, all named; the others run.
            OperationNotSupportedError: It runs already.
        """
        ...

    def stop(self) -> None:
        """Stops all plug-ins in reverse order, then ends the subscriptions; a second call changes nothing.

        Raises:
            PluginError: Those that failed to stop, all named.
        """
        ...


@runtime_checkable
class RuntimePlugin(Protocol):
    """An extension of the runtime, one object a process.

    All methods are plain (no ``async``), are called on a thread of the plug-in's own, one at a time, and have 30
    seconds unless something else is said. Whatever they raise is contained, named and counted.

    Example:
        >>> class Greeter:
        ...     name = "greeter"
        ...     capabilities = (Capability.OBSERVER,)
        ...     def start(self, ctx: PluginContext, bus: EventBus) -> None:
        ...         ctx.logger.info("hello %s", ctx.worker)
        ...     def stop(self) -> None: ...
        >>> isinstance(Greeter(), RuntimePlugin)
        True
    """

    @property
    def name(self) -> str:
        """Unique on a bus; letters, digits and the marks . _ : - only."""
        ...

    @property
    def capabilities(self) -> Collection[Capability | str]:
        """What it is good for; may be empty."""
        ...

    def start(self, ctx: PluginContext, bus: EventBus, /) -> None:
        """Begins. Returns soon: what goes on runs on threads of its own."""
        ...

    def stop(self) -> None:
        """Ends what ``start`` began, also half of it: after a start that took too long it is called, too."""
        ...


@runtime_checkable
class WorkflowHook(Protocol):
    """Is told before and after each step; only looks on: what it raises is returned to the caller and stops nothing."""

    def before_step(self, step: StepCall, /) -> None:
        """The step is about to run."""
        ...

    def after_step(self, step: StepCall, result: StepResult, /) -> None:
        """The step has run."""
        ...


@runtime_checkable
class RecoveryPlugin(Protocol):
    """Says whether what failed shall come back; declares ``Capability.RECOVERY``."""

    def should_recover(self, failure: Failure, /) -> bool:
        """False leaves the agent to a person. Has at most a second or a few; no answer in time means True."""
        ...


@runtime_checkable
class InterruptingPlugin(Protocol):
    """Says which steps need a person's word; declares ``Capability.INTERRUPT``.

    Attributes ``release_slot`` (bool) and ``timeout`` (timedelta or None) say how is waited; without them, in process
    and without end.
    """

    def wants_approval(self, step: StepCall, /) -> Mapping[str, Any] | None:
        """What a person is to be told, or None when the step needs no word. Asked before each try of a step.

        When it raises, or does not answer in time, the step is not run: it fails with the plug-in's error.
        """
        ...


@dataclass(frozen=True, slots=True)
class Description:
    """What a plug-in said of itself when it was registered."""

    name: str
    capabilities: frozenset[str]
    hook: WorkflowHook | None
    recovery: RecoveryPlugin | None
    interrupts: InterruptingPlugin | None = None


#: The methods of each part, with what they are called with.
_PLUGIN: Final = {"start": ("ctx", "bus"), "stop": ()}
_HOOK: Final = {"before_step": ("step",), "after_step": ("step", "result")}
_RECOVERY: Final = {"should_recover": ("failure",)}
_INTERRUPT: Final = {"wants_approval": ("step",)}


def describe(plugin: object) -> Description:
    """Checks an object against the plug-in contract, before any of it is used.

    Raises:
        InvalidPluginError: It breaks the contract; the text says how, and what to do.
    """
    shown = type(plugin).__name__
    if plugin is None:
        raise InvalidPluginError(plugin=None, problem="pass a plug-in, its class or a function that makes one")
    name: object = getattr(plugin, "name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        problem = f"its name {name!r} is not 1 to 200 ASCII letters, digits and the marks . _ : -"
        raise InvalidPluginError(plugin=shown, problem=problem[:500])
    _check_methods(plugin, name, _PLUGIN)
    capabilities = _capabilities(plugin, name)
    hook = None
    if any(hasattr(plugin, method) for method in _HOOK):
        check_hook(plugin, name)
        hook = cast("WorkflowHook", plugin)
    recovers = _has_part(plugin, name, _RECOVERY, Capability.RECOVERY, capabilities)
    interrupts = _has_part(plugin, name, _INTERRUPT, Capability.INTERRUPT, capabilities)
    return Description(
        name,
        capabilities,
        hook,
        cast("RecoveryPlugin", plugin) if recovers else None,
        cast("InterruptingPlugin", plugin) if interrupts else None,
    )


def _has_part(
    plugin: object, name: str, methods: Mapping[str, tuple[str, ...]], declares: Capability, found: frozenset[str]
) -> bool:
    """Whether it has what it declares; one without the other is a mistake."""
    (method,) = methods
    asked = hasattr(plugin, method)
    if asked != (declares in found):
        problem = (
            f"a plug-in with {method} declares Capability.{declares.name}, and one that declares it has the method"
        )
        raise InvalidPluginError(plugin=name, problem=problem)
    if asked:
        _check_methods(plugin, name, methods)
    return asked


def check_hook(hook: object, name: str) -> None:
    """Checks the methods of a hook. Raises InvalidPluginError."""
    if not _NAME.fullmatch(name):
        raise InvalidPluginError(plugin=name[:200], problem="a name has 1 to 200 ASCII letters, digits or . _ : -")
    _check_methods(hook, name, _HOOK)


def _capabilities(plugin: object, name: str) -> frozenset[str]:
    given: object = getattr(plugin, "capabilities", None)
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidPluginError(plugin=name, problem=f"capabilities is {given!r}; give a tuple, () when there is none")
    found = cast("Iterable[object]", given)
    known = {capability.value for capability in Capability}
    texts = [str(capability) for capability in found]
    unknown = [text for text in texts if text not in known]
    if unknown:
        problem = f"it declares {', '.join(map(repr, unknown))}; capabilities are {', '.join(sorted(known))}"
        raise InvalidPluginError(plugin=name, problem=problem)
    return frozenset(texts)


def _check_methods(plugin: object, name: str, wanted: Mapping[str, tuple[str, ...]]) -> None:
    for method, arguments in wanted.items():
        function = getattr(plugin, method, None)
        shown = f"def {method}({', '.join(('self', *arguments))})"
        if not callable(function):
            raise InvalidPluginError(plugin=name, problem=f"it has no method {method}; write {shown}")
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise InvalidPluginError(plugin=name, problem=f"{method} must be plain, not async; write {shown}")
        try:
            inspect.signature(function).bind(*arguments)
        except TypeError as error:
            raise InvalidPluginError(plugin=name, problem=f"write {shown}: {error}") from error
        except ValueError:
            continue  # a builtin that does not tell its signature
