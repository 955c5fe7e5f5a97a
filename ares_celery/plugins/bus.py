"""The bus of one process: registers, starts, asks and stops plug-ins, and passes events on."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar, cast

from ares_celery.clock import Clock, SystemClock
from ares_celery.errors import (
    AresError,
    DuplicatePluginError,
    InvalidPluginError,
    OperationNotSupportedError,
    PluginError,
    PluginNotFoundError,
    PluginTimeoutError,
)
from ares_celery.model.event import Event, EventType
from ares_celery.plugins.announcer import Announcer
from ares_celery.plugins.asking import Asking
from ares_celery.plugins.caller import PluginCaller, is_plugin_thread
from ares_celery.plugins.contract import (
    Capability,
    Description,
    PluginContext,
    RuntimePlugin,
    StepCall,
    StepResult,
    WorkflowHook,
    check_hook,
    describe,
)
from ares_celery.plugins.ledger import Counters
from ares_celery.plugins.members import Hook, Member, is_factory, label_of
from ares_celery.plugins.subscription import BusSubscription

__all__ = ["CALL_LIMIT", "PluginBus"]

T = TypeVar("T")
log: Final = logging.getLogger(__name__)

#: Longest time that one call of a plug-in may take.
CALL_LIMIT: Final = timedelta(seconds=30)
#: How long the end of a bus waits until its last events are stored.
_FLUSH: Final = timedelta(seconds=2)
#: Seconds that each plug-in has for its stop, if at all possible, also when the one before it uses up the time.
_LEAST: Final = 0.25
_MODULE: Final = {"module": "plugins"}


class PluginBus(Asking):
    """Implements :class:`~ares_celery.plugins.contract.EventBus`.

    Whatever a plug-in raises, returns or does not return is contained, logged with its name, and counted
    (``plugin_failures``, ``plugin_timeouts``, ``plugin_events_dropped`` among the namespace's counters).

    Args:
        context: What plug-ins get; its event store also takes plugin.started, plugin.stopped and plugin.failed.
        counters: Where failures are counted; None = only in :attr:`counts`.
        call_limit: Longest time of one call.
        clock: Injected in tests.

    Example:
        >>> class Bell:
        ...     name, capabilities = "bell", ()
        ...     def start(self, ctx, bus): print("ding")
        ...     def stop(self): print("dong")
        >>> bus = PluginBus()
        >>> bus.register(Bell).name
        'bell'
        >>> bus.start(); bus.stop()
        ding
        dong
    """

    def __init__(
        self,
        context: PluginContext | None = None,
        *,
        counters: Counters | None = None,
        call_limit: timedelta = CALL_LIMIT,
        clock: Clock | None = None,
    ) -> None:
        self._context = context or PluginContext()
        self._clock = clock or SystemClock()
        self._limit = call_limit
        self._announcer = Announcer(self._context, counters, self._clock)
        #: Guards what follows; never held while a plug-in is called.
        self._lock = threading.Lock()
        self._members: dict[str, Member] = {}
        self._hooks: tuple[Hook, ...] = ()
        self._left: dict[str, PluginCaller] = {}
        #: One change of the set of plug-ins at a time; held while they are called.
        self._changing = threading.Lock()
        self._is_running = False
        self._has_started = threading.Event()

    # -- the set of plug-ins ------------------------------------------------------------------------------------------

    def register(self, plugin: RuntimePlugin | Callable[[], RuntimePlugin], /, *, label: str = "") -> RuntimePlugin:
        """Adds a plug-in, or what a factory makes; see :meth:`EventBus.register`. ``label`` names a factory in errors.

        Raises:
            InvalidPluginError, DuplicatePluginError, PluginError, PluginTimeoutError: Nothing of it stays registered.
        """
        if cast("object", plugin) is None:
            raise InvalidPluginError(plugin=None, problem="pass a plug-in, its class or a function that makes one")
        with self._change("register a plug-in"):
            shown = label or label_of(plugin)
            try:
                member = self._made(plugin, shown)
            except AresError as error:
                self._announcer.note_failure(shown, "register", error)
                raise
            if member.name in self._members:
                self._announcer.count("plugin_failures")
                raise DuplicatePluginError(plugin=member.name)
            with self._lock:
                self._members[member.name] = member
                if member.about.hook is not None:
                    self._hooks += (Hook(member.name, member.about.hook, member.caller, member),)
            failed = self._start(member) if self._is_running else None
            if failed is not None:
                self._remove(member)
                raise failed
            return member.plugin

    def refuse_shared(self, label: str) -> None:
        """Notes that a plug-in was given as an object where processes fork.

        Raises:
            InvalidPluginError: Always; it says what to give instead.
        """
        problem = "it is an object, which forked processes would share; give its class or a function that makes it"
        error = InvalidPluginError(plugin=label, problem=problem)
        self._announcer.note_failure(label, "register", error)
        raise error

    def unregister(self, name: str, /) -> RuntimePlugin:
        """Stops a plug-in and removes it with its hooks and capabilities. See :meth:`EventBus.unregister`."""
        with self._change("unregister a plug-in"):
            with self._lock:
                member = self._members.get(name)
                known = sorted(self._members)
            if member is None:
                raise PluginNotFoundError(plugin=name, known=known)
            error = self._stop(member, self._limit)
            self._remove(member)
            if error is not None:
                raise error
            return member.plugin

    def register_hook(self, name: str, hook: WorkflowHook, /) -> None:
        """Adds a hook of its own, or one more of the plug-in of this name; it runs while the bus does.

        Raises:
            InvalidPluginError: It is no hook.
        """
        check_hook(hook, name)
        with self._lock:
            owner = self._members.get(name)
            caller = owner.caller if owner is not None else PluginCaller(name, self._clock)
            self._hooks += (Hook(name, hook, caller, owner),)

    def plugins_by_capability(self, capability: Capability | str, /) -> list[RuntimePlugin]:
        """The plug-ins that declare a capability, in order of registration; a copy."""
        wanted = str(capability)
        with self._lock:
            return [
                one.plugin for one in self._members.values() if wanted in one.about.capabilities and not one.has_failed
            ]

    @property
    def names(self) -> list[str]:
        """All registered plug-ins, in order."""
        with self._lock:
            return list(self._members)

    @property
    def running(self) -> list[str]:
        """The plug-ins that have started and not stopped, in order."""
        with self._lock:
            return [one.name for one in self._members.values() if one.is_started]

    @property
    def hooks(self) -> list[str]:
        """The names of the hooks that a step would run, in order."""
        return [hook.name for hook in self._active_hooks()]

    @property
    def counts(self) -> dict[str, int]:
        """What was counted in this process: plugin_failures, plugin_timeouts, plugin_events_dropped; a copy."""
        return self._announcer.counts

    def _made(self, plugin: object, label: str) -> Member:
        """Makes the plug-in if a factory was given, and asks it about itself; both are a user's code."""
        self._refuse_while_hanging(label, "make")
        caller = PluginCaller(label, self._clock)
        try:
            made: object = caller.call("make", cast("Any", plugin), limit=self._limit) if is_factory(plugin) else plugin
            about = cast(
                "Description | InvalidPluginError", caller.call("describe", _described, made, limit=self._limit)
            )
        finally:
            self._let_go(label, caller)
        if isinstance(about, InvalidPluginError):
            raise about
        self._refuse_while_hanging(about.name, "start")
        return Member(cast("RuntimePlugin", made), about, PluginCaller(about.name, self._clock))

    def _refuse_while_hanging(self, name: str, call: str) -> None:
        """Each try to register what hangs from the last time would cost another thread."""
        left = self._left.get(name)
        if left is not None and left.hangs:
            raise PluginTimeoutError(plugin=name, call=call, limit=self._limit.total_seconds())
        self._left.pop(name, None)

    def _let_go(self, name: str, caller: PluginCaller) -> None:
        caller.close()
        if caller.hangs:
            self._left[name] = caller

    def _remove(self, member: Member) -> None:
        with self._lock:
            self._members.pop(member.name, None)
            self._hooks = tuple(hook for hook in self._hooks if hook.owner is not member)
        self._let_go(member.name, member.caller)

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts all plug-ins in order of registration, also past failures.

        Raises:
            PluginError: Those that failed, all named; the others run.
            OperationNotSupportedError: The bus runs already.
        """
        with self._change("start the bus"):
            if self._is_running:
                raise OperationNotSupportedError(operation="starting the bus", reason="it runs already; stop it first")
            self._is_running = True
            with self._lock:
                members = list(self._members.values())
            failed = PluginError.join([error for one in members if (error := self._start(one)) is not None])
            self._has_started.set()
        if failed is not None:
            raise failed

    def stop(self, *, within: timedelta | None = None) -> None:
        """Stops all plug-ins in reverse order, also past failures, then ends the subscriptions; again: no effect.

        Args:
            within: How long all of it may take; what is then not stopped counts as one that took too long.

        Raises:
            PluginError: Those that failed to stop, all named.
        """
        until = None if within is None else self._clock.monotonic() + within.total_seconds()
        with self._change("stop the bus", within):
            if not self._is_running:
                return
            self._is_running = False
            with self._lock:
                members = list(reversed(self._members.values()))
            errors: list[PluginError] = []
            for others, member in enumerate(members, 1 - len(members)):
                error = self._stop(member, self._left_of(until, -others))
                errors += [] if error is None else [error]
            with self._lock:
                for caller in {*(one.caller for one in members), *(hook.caller for hook in self._hooks)}:
                    caller.close()
                # Hooks of their own end with the bus; those of plug-ins come back with their plug-in.
                self._hooks = tuple(hook for hook in self._hooks if hook.owner is not None)
            self._announcer.end(min(_FLUSH, self._left_of(until)))
        failed = PluginError.join(errors)
        if failed is not None:
            raise failed

    def wait_started(self, timeout: timedelta) -> bool:
        """Waits until the bus was started for the first time; False when it was not in time."""
        return self._has_started.is_set() or self._clock.wait(self._has_started, timeout.total_seconds())

    def _left_of(self, until: float | None, others: int = 0) -> timedelta:
        """How long one call may take so that ``others`` still have a little time, too."""
        if until is None:
            return self._limit
        left = until - self._clock.monotonic()
        fair = min(_LEAST, max(0.0, left) / (others + 1))
        return min(self._limit, timedelta(seconds=max(fair, left - others * _LEAST)))

    def _start(self, member: Member) -> PluginError | None:
        try:
            member.caller.call("start", lambda: member.plugin.start(self._context, self), limit=self._limit)
        except PluginError as error:
            member.has_failed = True
            self._announcer.note_failure(member.name, "start", error)
            if isinstance(error, PluginTimeoutError):
                self._free(member)
            return error
        member.has_failed, member.is_started = False, True
        capabilities = sorted(member.about.capabilities)
        self._announcer.tell(EventType.PLUGIN_STARTED, member.name, plugin_capabilities=capabilities)
        return None

    def _free(self, member: Member) -> None:
        """Asks a plug-in whose start hangs to stop: it may be what frees it."""
        limit = min(self._limit, timedelta(seconds=5))
        with contextlib.suppress(PluginError):
            member.caller.call("stop", _stop_plugin, member.plugin, limit=limit, even_if_it_hangs=True)

    def _stop(self, member: Member, limit: timedelta) -> PluginError | None:
        if not member.is_started:
            return None
        # From here on its hooks are silent, whatever becomes of the call.
        member.is_started = False
        try:
            member.caller.call("stop", _stop_plugin, member.plugin, limit=limit, even_if_it_hangs=True)
        except PluginError as error:
            self._announcer.note_failure(member.name, "stop", error)
            return error
        self._announcer.tell(EventType.PLUGIN_STOPPED, member.name)
        return None

    @contextlib.contextmanager
    def _change(self, operation: str, within: timedelta | None = None) -> Generator[None]:
        if is_plugin_thread():
            raise OperationNotSupportedError(
                operation=operation,
                reason="a call of a plug-in would wait for itself; do it on a thread of its own, or register both",
            )
        if not self._changing.acquire(timeout=-1 if within is None else within.total_seconds()):
            raise OperationNotSupportedError(operation=operation, reason="plug-ins are still being started or stopped")
        try:
            yield
        finally:
            self._changing.release()

    # -- events -------------------------------------------------------------------------------------------------------

    @property
    def wants_events(self) -> bool:
        """Somebody listens."""
        return self._announcer.wants_events

    def subscribe(self, *types: str, buffer: int = 64, name: str = "") -> BusSubscription:
        """Listens to events from now on; see :meth:`EventBus.subscribe`."""
        return self._announcer.subscribe(types, buffer, name)

    def publish(self, events: Sequence[Event]) -> None:
        """Passes on events that this process has stored; never waits. Without subscribers it costs nothing."""
        self._announcer.publish(events)

    def emit(self, type: str, payload: Mapping[str, Any], /) -> None:  # noqa: A002 - the public name
        """Tells subscribers of this process something; it is not stored."""
        self._announcer.emit(type, payload)

    # -- asking -------------------------------------------------------------------------------------------------------

    def before_step(self, step: StepCall) -> PluginError | None:
        """Runs all hooks, one after the other; what they raised comes back joined, and stops neither hooks nor step."""
        return self._run_hooks("before_step", lambda hook: hook.before_step(step))

    def after_step(self, step: StepCall, result: StepResult) -> PluginError | None:
        """As :meth:`before_step`, when the step has run."""
        return self._run_hooks("after_step", lambda hook: hook.after_step(step, result))

    def _active_hooks(self) -> list[Hook]:
        return [hook for hook in self._hooks if (hook.owner.is_started if hook.owner else self._is_running)]

    def _run_hooks(self, call: str, method: Callable[[WorkflowHook], None]) -> PluginError | None:
        errors: list[PluginError] = []
        for one in self._active_hooks():
            try:
                one.caller.call(call, method, one.hook, limit=self._limit)
            except PluginError as error:
                self._announcer.note_failure(one.name, call, error)
                errors.append(error)
        return PluginError.join(errors)


def _stop_plugin(plugin: RuntimePlugin) -> None:
    """On the plug-in's thread, as looking up its method is its code, too."""
    plugin.stop()


def _described(plugin: object) -> Description | InvalidPluginError:
    """What breaks the contract is an answer, not a failure of the plug-in's own code."""
    try:
        return describe(plugin)
    except InvalidPluginError as error:
        return error
