"""The bus: order, containment, hot-plug, hooks, subscriptions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, cast

import pytest
from typing_extensions import override

from ares_celery.clock import SystemClock
from ares_celery.errors import (
    DuplicatePluginError,
    InvalidPluginError,
    OperationNotSupportedError,
    PluginError,
    PluginNotFoundError,
    PluginTimeoutError,
)
from ares_celery.model.event import NewEvent
from ares_celery.plugins.bus import CALL_LIMIT, PluginBus
from ares_celery.plugins.contract import Capability, EventBus, PluginContext, StepCall, StepResult
from ares_celery.plugins.ledger import Ledger
from ares_celery.plugins.subscription import BusSubscription
from tests.unit.plugins.sample import Fake, FakeHook, Gate, Memory, event, make_bus
from tests.wait import wait_until

SHORT = timedelta(milliseconds=400)
STEP = StepCall("counter-1", "charge")


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A call that hangs until the test is over."""
    made = Gate()
    yield made
    made.open()


def boom(*_: object) -> None:
    """Raises."""
    raise ValueError("boom")


def panic(*_: object) -> None:
    """Raises what `except Exception` does not catch."""
    raise SystemExit(7)


@pytest.mark.spec(127)
def test_plugins_start_in_order_of_registration_stop_in_reverse_and_are_found_by_capability() -> None:
    """Listed by capability as a copy: what a caller does to the list touches nobody."""
    told: list[str] = []
    memory = Memory()
    bus = make_bus(memory)
    plugins = [
        bus.register(Fake("one", told, [Capability.OBSERVER, Capability.TOOL])),
        bus.register(Fake("two", told, [Capability.LOOP])),
        bus.register(Fake("three", told, [Capability.OBSERVER])),
    ]
    assert told == []
    bus.start()
    assert told == ["start one", "start two", "start three"]
    assert bus.running == ["one", "two", "three"]
    assert bus.plugins_by_capability(Capability.OBSERVER) == [plugins[0], plugins[2]]
    assert bus.plugins_by_capability("tool") == [plugins[0]]
    assert bus.plugins_by_capability(Capability.RECOVERY) == []
    bus.plugins_by_capability("observer").clear()
    assert bus.plugins_by_capability("observer") == [plugins[0], plugins[2]]
    assert memory.until("one", "plugin.started") == [
        {"plugin_name": "one", "plugin_capabilities": ["observer", "tool"], "worker": "w@host"}
    ]
    bus.stop()
    assert told[3:] == ["stop three", "stop two", "stop one"]
    assert bus.running == []
    assert memory.until("one", "plugin.started", "plugin.stopped")[1] == {"plugin_name": "one", "worker": "w@host"}
    bus.stop()
    assert len(told) == 6, "a second stop changes nothing"


def test_a_bus_that_runs_is_not_started_again_and_one_that_was_stopped_may_be() -> None:
    """The plug-ins stay registered."""
    told: list[str] = []
    bus = make_bus()
    bus.register(FakeHook("again", told))
    bus.start()
    with pytest.raises(OperationNotSupportedError, match="runs already"):
        bus.start()
    bus.stop()
    bus.start()
    assert told == ["start again", "stop again", "start again"]
    assert bus.hooks == ["again"]
    bus.stop()
    wait_until(lambda: not any(t.name == "ares-plugin-again" for t in threading.enumerate()), "its threads to end")


@pytest.mark.spec(128)
def test_a_taken_name_and_an_absent_plugin_are_refused() -> None:
    """The first of two stays; nothing becomes nobody."""
    bus = make_bus()
    first = bus.register(Fake("one", capabilities=["tool"]))
    with pytest.raises(DuplicatePluginError) as duplicate:
        bus.register(Fake("one", capabilities=["tool"]))
    assert duplicate.value.code == "duplicate_plugin"
    assert duplicate.value.plugin == "one"
    nobody: Any = None
    with pytest.raises(InvalidPluginError, match="pass a plug-in"):
        bus.register(nobody)
    with pytest.raises(PluginNotFoundError) as unknown:
        bus.unregister("two")
    assert unknown.value.fields["known"] == ["one"]
    assert bus.plugins_by_capability("tool") == [first]


class NoStop:
    name, capabilities = "no-stop", ()

    def start(self, ctx: PluginContext, bus: EventBus) -> None: ...


class AsyncStart(NoStop):
    async def begin(self, ctx: PluginContext, bus: EventBus) -> None: ...

    start: Any = begin

    def stop(self) -> None: ...


class Narrow(AsyncStart):
    start: Any = AsyncStart.stop


class HalfHook(Fake):
    def before_step(self, step: StepCall) -> None: ...


class Undeclared(Fake):
    def should_recover(self, failure: object) -> bool:
        return True


@pytest.mark.parametrize(
    ("plugin", "said"),
    [
        (object(), "name None"),
        (Fake("no good"), "'no good' is not"),
        (Fake("x" * 201), "is not 1 to 200"),
        (NoStop(), r"no method stop; write def stop\(self\)"),
        (AsyncStart(), "start must be plain"),
        (Narrow(), r"write def start\(self, ctx, bus\)"),
        (HalfHook("a"), "no method after_step"),
        (Undeclared("a"), "declares Capability.RECOVERY"),
        (Fake("a", capabilities=["recovery"]), "declares Capability.RECOVERY"),
        (Fake("a", capabilities=["flying"]), "'flying'; capabilities are interrupt, loop, observer"),
        (lambda: None, "pass a plug-in"),
    ],
)
def test_what_breaks_the_contract_is_refused_when_it_is_registered(plugin: Any, said: str) -> None:
    """With a sentence that says what to write, and nothing of it stays."""
    bus = make_bus()
    with pytest.raises(InvalidPluginError, match=said):
        bus.register(plugin)
    assert bus.names == []


def test_capabilities_that_are_no_list_are_refused() -> None:
    """A lone text would be taken letter by letter."""
    plugin: Any = Fake("a")
    for rubbish in ("tool", None, 3):
        plugin.capabilities = rubbish
        with pytest.raises(InvalidPluginError, match="give a tuple"):
            make_bus().register(plugin)


@pytest.mark.spec(129)
@pytest.mark.parametrize(
    ("does", "kind", "error", "counter"),
    [
        (boom, PluginError, "ValueError: boom", "plugin_failures"),
        (panic, PluginError, "SystemExit: 7", "plugin_failures"),
        (None, PluginTimeoutError, "did not return from start", "plugin_timeouts"),
    ],
)
def test_a_plugin_that_fails_to_start_is_named_and_the_others_start(
    does: Callable[..., None] | None, kind: type[PluginError], error: str, counter: str, gate: Gate
) -> None:
    """Raising, panicking and exceeding its limit alike: plugin.failed is written and counted."""
    told: list[str] = []
    memory = Memory()
    bus = make_bus(memory, call_limit=SHORT)
    bus.register(Fake("first", told))
    bus.register(Fake("bad", told, ["tool"], start=does or gate))
    bus.register(Fake("last", told))
    with pytest.raises(kind) as failed:
        bus.start()
    assert [one["plugin"] for one in failed.value.failures] == ["bad"]
    assert "bad" in str(failed.value)
    assert error in str(failed.value)
    assert [line for line in told if line.startswith("start")] == ["start first", "start bad", "start last"]
    assert bus.running == ["first", "last"]
    assert bus.plugins_by_capability("tool") == []
    (payload,) = memory.until("bad", "plugin.failed")
    assert payload["plugin_name"] == "bad"
    assert payload["call"] == "start"
    assert error in payload["error"]
    memory.until("last", "plugin.started")
    wait_until(lambda: memory.counted == {counter: 1}, f"the counter, not {memory.counted}")
    assert bus.counts == {counter: 1}
    bus.stop()
    assert told[-2:] == ["stop last", "stop first"], "what did not start is not stopped"


@pytest.mark.spec(129)
def test_the_joined_error_names_every_plugin_that_failed() -> None:
    """Two of three fail: one error with both, in order of registration."""
    bus = make_bus()
    bus.register(Fake("one", start=boom))
    bus.register(Fake("two"))
    bus.register(Fake("three", start=panic))
    with pytest.raises(PluginError) as failed:
        bus.start()
    assert failed.value.failures == [
        {"plugin": "one", "call": "start", "type": "ValueError", "error": "boom"},
        {"plugin": "three", "call": "start", "type": "SystemExit", "error": "7"},
    ]
    assert "'one'" in str(failed.value)
    assert "'three'" in str(failed.value)


def test_stopping_goes_past_failures_and_joins_them() -> None:
    """Each plug-in gets its stop."""
    told: list[str] = []
    memory = Memory()
    bus = make_bus(memory)
    bus.register(Fake("one", told, stop=boom))
    bus.register(Fake("two", told))
    bus.register(Fake("three", told, stop=panic))
    bus.start()
    with pytest.raises(PluginError) as failed:
        bus.stop()
    assert [one["plugin"] for one in failed.value.failures] == ["three", "one"]
    assert told[3:] == ["stop three", "stop two", "stop one"]
    assert [kind for kind, _ in memory.told("one")] == ["plugin.started", "plugin.failed"]
    assert [kind for kind, _ in memory.told("two")] == ["plugin.started", "plugin.stopped"]


def test_a_call_may_take_thirty_seconds() -> None:
    """The seed's limit."""
    assert timedelta(seconds=30) == CALL_LIMIT


def test_a_plugin_whose_start_hangs_is_asked_to_stop_and_costs_two_threads_at_most(gate: Gate) -> None:
    """However often it is called or registered again."""
    bus = make_bus(call_limit=SHORT)
    bus.start()
    plugin = Fake("stuck", start=gate, stop=gate)

    def threads() -> int:
        return sum("stuck" in thread.name for thread in threading.enumerate())

    for _ in range(5):
        with pytest.raises(PluginTimeoutError):
            bus.register(plugin)
    assert plugin.told == ["start stuck", "stop stuck"]
    assert threads() == 2
    gate.open()
    wait_until(lambda: threads() == 0, "its threads to end")
    plugin.does.clear()
    assert bus.register(plugin) is plugin
    bus.stop()


def test_a_plugin_that_comes_back_late_is_called_again(gate: Gate) -> None:
    """Refused at once while it hangs, so a step never waits twice."""
    bus = make_bus(call_limit=SHORT)
    hook = FakeHook("slow", before=gate)
    bus.register(hook)
    bus.start()
    assert isinstance(bus.before_step(STEP), PluginTimeoutError)
    for _ in range(3):
        assert isinstance(bus.before_step(STEP), PluginTimeoutError)
    assert hook.told == ["start slow", "before slow"]
    gate.open()
    wait_until(lambda: bus.before_step(STEP) is None, "the hook to be called again")
    bus.stop()
    assert hook.told == ["start slow", "before slow", "before slow", "stop slow"], "what was refused is not made up for"


def test_a_plugin_that_hangs_in_a_hook_can_still_be_stopped(gate: Gate) -> None:
    """Its stop may be what frees it."""
    bus = make_bus(call_limit=SHORT)
    hook = FakeHook("slow", before=gate, stop=gate.open)
    bus.register(hook)
    bus.start()
    assert isinstance(bus.before_step(STEP), PluginTimeoutError)
    bus.stop()
    assert hook.told == ["start slow", "before slow", "stop slow"]


# -- hooks ------------------------------------------------------------------------------------------------------------


def test_all_hooks_run_in_order_and_what_they_raise_comes_back_joined() -> None:
    """There is no veto: the caller gets the error and goes on. Hooks of plug-ins and hooks alone share one order."""
    told: list[str] = []
    seen: list[object] = []
    memory = Memory()

    def note(*args: object) -> None:
        seen.extend(args)

    bus = make_bus(memory)
    bus.register(FakeHook("one", told, before=boom))
    bus.register_hook("alone", FakeHook("alone", told, after=note))
    bus.register(FakeHook("two", told, before=panic))
    bus.register_hook("two", FakeHook("two-more", told))
    assert bus.before_step(STEP) is None, "hooks are silent until the bus runs"
    bus.start()
    assert bus.hooks == ["one", "alone", "two", "two"]
    del told[:]
    failed = bus.before_step(STEP)
    assert told == ["before one", "before alone", "before two", "before two-more"]
    assert failed is not None
    assert [(one["plugin"], one["call"]) for one in failed.failures] == [("one", "before_step"), ("two", "before_step")]
    result = StepResult(error="ValueError: no")
    assert bus.after_step(STEP, result) is None
    assert seen == [STEP, result]
    for _ in range(3):
        bus.before_step(STEP)
    wait_until(lambda: memory.counted == {"plugin_failures": 8}, "every failure to be counted")
    assert [kind for kind, _ in memory.told("one")] == ["plugin.started", "plugin.failed"], "an event for the first"
    bus.stop()
    bus.stop()


@pytest.mark.spec(131)
def test_a_plugin_registered_while_the_bus_runs_starts_at_once() -> None:
    """Hot-plug: hooks and capabilities are there with it; unregister and stop remove them."""
    told: list[str] = []
    memory = Memory()
    bus = make_bus(memory)
    bus.start()
    plugin = bus.register(FakeHook("late", told, ["tool"]))
    assert told == ["start late"]
    memory.until("late", "plugin.started")
    assert bus.hooks == ["late"]
    assert bus.plugins_by_capability("tool") == [plugin]
    bus.register_hook("late", FakeHook("more", told))
    assert bus.unregister("late") is plugin
    assert told == ["start late", "stop late"]
    assert bus.hooks == []
    assert bus._hooks == (), "forgotten, not only silent"
    assert bus.plugins_by_capability("tool") == []
    assert bus.before_step(STEP) is None
    assert told == ["start late", "stop late"], "no hook of it is left"
    memory.until("late", "plugin.started", "plugin.stopped")
    bus.register(FakeHook("other", told))
    bus.register_hook("alone", FakeHook("alone", told))
    assert bus.hooks == ["other", "alone"]
    bus.stop()
    assert bus.hooks == []
    assert bus.before_step(STEP) is None
    bus.start()
    assert bus.hooks == ["other"], "a hook of its own ends with the bus, that of a plug-in comes back with it"
    bus.stop()


@pytest.mark.spec(131)
@pytest.mark.parametrize("does", [boom, panic, None])
def test_a_plugin_that_fails_to_start_while_the_bus_runs_is_rolled_back(
    does: Callable[..., None] | None, gate: Gate
) -> None:
    """Nothing of it stays: name, capability and hooks are free again."""
    told: list[str] = []
    memory = Memory()
    bus = make_bus(memory, call_limit=SHORT)
    bus.start()
    with pytest.raises(PluginError, match="late"):
        bus.register(FakeHook("late", told, ["tool"], start=does or gate))
    assert bus.names == []
    assert bus.running == []
    assert bus.hooks == []
    assert bus.plugins_by_capability("tool") == []
    memory.until("late", "plugin.failed")
    gate.open()
    wait_until(lambda: _registers(bus, FakeHook("late", told, ["tool"])), "the name to be free again")
    assert bus.hooks == ["late"]
    bus.stop()


def _registers(bus: PluginBus, plugin: Fake) -> bool:
    try:
        bus.register(plugin)
    except PluginTimeoutError:
        return False
    return True


def test_unregistering_a_plugin_whose_stop_fails_removes_it_and_says_so() -> None:
    """It may not stay half registered."""
    bus = make_bus()
    bus.register(FakeHook("bad", stop=boom))
    bus.start()
    with pytest.raises(PluginError, match="boom"):
        bus.unregister("bad")
    assert bus.names == []
    assert bus.hooks == []


def test_a_plugin_cannot_change_the_bus_from_inside_its_call() -> None:
    """It would wait for itself; the error says what to do instead, and reaches it as its own."""
    bus = make_bus()

    def meddle(ctx: PluginContext, given: EventBus) -> None:
        given.subscribe("agent.*")
        given.emit("meddler.was-here", {})
        given.register(Fake("friend"))

    bus.register(Fake("meddler", start=meddle))
    with pytest.raises(PluginError, match="would wait for itself"):
        bus.start()
    bus.stop()


def test_a_factory_is_called_once_for_each_bus() -> None:
    """A class, or a function; its own failure is contained like that of a start."""
    bus, broken = make_bus(), cast("Any", boom)

    class Made(Fake):
        def __init__(self) -> None:
            super().__init__("made")

    assert isinstance(bus.register(Made), Made)
    with pytest.raises(PluginError, match="boom"):
        bus.register(broken, label="broken")
    assert bus.names == ["made"]


def test_a_property_that_raises_is_contained() -> None:
    """Even the name is a plug-in's code."""

    class Nasty:
        @property
        def name(self) -> str:
            raise KeyboardInterrupt

    nasty: Any = Nasty()
    with pytest.raises(PluginError, match="KeyboardInterrupt"):
        make_bus().register(nasty)


def test_methods_that_are_properties_which_raise_are_contained_as_calls_are() -> None:
    """Looking a method up is the plug-in's code, too: all others start and stop, and the step goes on."""

    class Moody(FakeHook):
        moody = False

        @override
        def __getattribute__(self, name: str) -> Any:
            if name in ("start", "stop", "before_step") and type(self).moody:
                raise SystemExit(f"no {name} today")
            return super().__getattribute__(name)

    told: list[str] = []
    bus = make_bus()
    for plugin in (Fake("first", told), Moody("moody"), Fake("last", told)):
        bus.register(plugin)
    bus.start()
    Moody.moody = True
    error = bus.before_step(STEP)
    assert "SystemExit: no before_step today" in str(error)
    with pytest.raises(PluginError, match="no stop today"):
        bus.stop()
    assert told == ["start first", "start last", "stop last", "stop first"]
    with pytest.raises(PluginError, match="no start today"):
        bus.start()
    assert bus.running == ["first", "last"]
    assert bus.wait_started(timedelta(0))
    bus.unregister("moody")
    bus.stop()


def test_an_exception_whose_text_hangs_or_raises_is_contained(gate: Gate) -> None:
    """The text of an exception is the plug-in's code as well."""

    class Silent(Exception):
        @override
        def __str__(self) -> str:
            gate()
            return ""

    class Loud(Exception):
        @override
        def __str__(self) -> str:
            raise SystemExit(4)

    def raises(error: type[Exception]) -> Callable[..., None]:
        def call(*_: object) -> None:
            raise error

        return call

    bus = make_bus(call_limit=SHORT)
    bus.start()
    with pytest.raises(PluginTimeoutError):
        bus.register(Fake("silent", start=raises(Silent)))
    with pytest.raises(PluginError, match=r"Loud: \(its text cannot be had: SystemExit\)"):
        bus.register(Fake("loud", start=raises(Loud)))
    bus.stop()


def test_a_plugin_that_raises_an_error_of_ours_is_named_like_any_other() -> None:
    """It may not pass for what the bus itself says."""

    def lie(*_: object) -> None:
        raise InvalidPluginError(plugin="other", problem="none")

    bus = make_bus()
    bus.register(FakeHook("liar", before=lie))
    bus.start()
    failed = bus.before_step(STEP)
    assert failed is not None
    assert (failed.plugin, failed.type) == ("liar", "InvalidPluginError")
    assert "in lie" in failed.traceback
    bus.stop()


# -- subscriptions ----------------------------------------------------------------------------------------------------


@pytest.mark.spec(132)
def test_subscribers_get_plugin_stopped_before_their_stream_ends() -> None:
    """Also those whose queue is full, and then the iteration ends by itself."""
    bus = make_bus()
    bus.register(Fake("one"))
    bus.register(Fake("two"))
    bus.start()
    quick, full = bus.subscribe(), bus.subscribe(buffer=1)
    seen: list[str] = []
    reader = threading.Thread(target=lambda: seen.extend(f"{e.type} {e.stream_id}" for e in quick))
    reader.start()
    bus.publish([event("tick"), event("tick", version=2)])
    bus.stop()
    reader.join(5)
    assert not reader.is_alive(), "the stream has ended"
    assert seen == ["tick a", "tick a", "plugin.stopped @plugin:two", "plugin.stopped @plugin:one"]
    assert [e.type for e in full] == ["tick", "plugin.stopped", "plugin.stopped"]
    assert full.dropped == 1


def test_a_slow_subscriber_loses_events_that_are_counted_and_nobody_waits() -> None:
    """64 wait by default; what is lost is seen at the subscription and among the counters."""
    memory = Memory()
    bus = make_bus(memory)
    bus.start()
    slow: BusSubscription = bus.subscribe("tick")
    bus.publish([event("tick", version=n) for n in range(1, 101)])
    assert slow.dropped == 36
    assert [e.version for e in slow.take(1_000)] == list(range(1, 65))
    assert bus.counts == {"plugin_events_dropped": 36}
    wait_until(lambda: memory.counted == {"plugin_events_dropped": 36}, "the counter")
    bus.publish([event("tick", version=101)])
    found = slow.get()
    assert found is not None
    assert found.version == 101
    bus.stop()


def test_a_subscription_takes_the_types_it_asked_for_until_it_is_closed() -> None:
    """Exact types and beginnings."""
    bus = make_bus()
    bus.start()
    some = bus.subscribe("agent.*", "tick")
    bus.publish([event("agent.started"), event("agents"), event("tick"), event("tock")])
    assert [e.type for e in some.take(9)] == ["agent.started", "tick"]
    assert some.get(timedelta(0)) is None
    bus.publish([event("tick")])
    some.close()
    assert list(some) == []
    assert bus.wants_events
    bus.subscribe()
    bus.publish([event("tick")])
    assert some.take(1) == []
    bus.stop()
    assert not bus.wants_events


def test_what_a_plugin_emits_reaches_subscribers_and_is_not_stored() -> None:
    """With the bus's own stream, so nobody takes it for an agent's."""
    memory = Memory()
    bus = make_bus(memory)
    bus.start()
    heard = bus.subscribe()
    bus.emit("audit.done", {"files": 3})
    found = heard.get()
    assert found is not None
    assert (found.type, found.stream_id, dict(found.payload)) == ("audit.done", "@bus", {"files": 3})
    bus.stop()
    assert memory.streams == {}


# -- the ledger -------------------------------------------------------------------------------------------------------


def test_events_and_counts_wait_for_the_store_and_are_written_once() -> None:
    """An outage holds nobody up and loses nothing."""
    memory = Memory()
    memory.away = True
    bus = make_bus(memory)
    bus.register(FakeHook("one", before=boom))
    bus.start()
    bus.before_step(STEP)
    assert memory.streams == {}
    memory.away = False
    memory.until("one", "plugin.started", "plugin.failed")
    wait_until(lambda: memory.counted == {"plugin_failures": 1}, "the counter")
    assert len(set(memory.ops)) == len(memory.ops) == 1
    bus.stop()


def test_the_stream_of_a_plugin_is_kept_short() -> None:
    """Each process adds to it for ever; about the newest thousand stay."""
    memory = Memory()
    ledger = Ledger(memory, None, SystemClock())
    memory.append("@plugin:a", [NewEvent("plugin.started", {})] * 950)
    for _ in range(300):
        ledger.write("@plugin:a", NewEvent("plugin.started", {}))
    assert ledger.close(timedelta(seconds=5))
    assert memory.trimmed == [("@plugin:a", 100), ("@plugin:a", 200)]


def test_a_store_that_refuses_an_event_stops_nothing() -> None:
    """It is logged; the bus goes on."""
    memory = Memory()
    memory.refuses = RuntimeError("no")
    bus = make_bus(memory)
    bus.register(Fake("one"))
    bus.start()
    bus.stop()
    assert memory.streams == {}


def test_a_bus_ends_in_time_whatever_its_plugins_do(gate: Gate) -> None:
    """The end of a process is bounded as a whole: the rest counts as too slow."""
    bus = make_bus(call_limit=timedelta(seconds=20))
    quick = Fake("quick")
    bus.register(quick)
    bus.register(Fake("stuck", stop=gate))
    bus.start()
    with pytest.raises(PluginTimeoutError, match="stuck"):
        bus.stop(within=timedelta(seconds=1))
    assert gate.entered.is_set()
    assert quick.told == ["start quick", "stop quick"], "the others still get their time"
