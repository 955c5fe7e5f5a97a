"""Asking recovery plug-ins: who is asked, what counts as an answer, and how long the asker waits."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from typing_extensions import override

from ares_celery.clock import SystemClock
from ares_celery.errors import InvalidPluginError
from ares_celery.model.failure import Failure
from ares_celery.plugins.bus import PluginBus
from ares_celery.plugins.judge import Allowance, BusJudge
from tests.unit.plugins.sample import FakeJudge, Gate, Memory, make_bus
from tests.unit.supervision.fakes import ManualClock
from tests.wait import wait_until

FAILURE = Failure("counter-1", "counter")
SHORT = timedelta(milliseconds=400)


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A call that hangs until the test is over."""
    made = Gate()
    yield made
    made.open()


def judge_of(bus: PluginBus, **options: Allowance) -> BusJudge:
    """A judge with a short patience."""
    return BusJudge(lambda: bus, SHORT, SystemClock(), **options)


def test_the_first_no_wins_and_the_others_are_not_asked() -> None:
    """In order of registration."""
    bus = make_bus()
    yes, no, later = (
        FakeJudge("yes", answer=True),
        FakeJudge("no", answer=False),
        FakeJudge("later", answer=False),
    )
    for plugin in (yes, no, later):
        bus.register(plugin)
    bus.start()
    assert judge_of(bus).refusal(FAILURE) == "no"
    assert [plugin.told[1:] for plugin in (yes, no, later)] == [["judge yes"], ["judge no"], []]
    bus.unregister("no")
    bus.unregister("later")
    assert judge_of(bus).refusal(FAILURE) == ""
    bus.stop()


@pytest.mark.parametrize("answer", [None, 0, "no", [False]])
def test_rubbish_counts_as_yes_and_is_counted(answer: object) -> None:
    """Whoever cannot say no clearly leaves nobody dead."""
    memory = Memory()
    bus = make_bus(memory)
    bus.register(FakeJudge("odd", answer=answer))
    bus.start()
    assert judge_of(bus).refusal(FAILURE) == ""
    assert bus.counts == {"plugin_failures": 1}
    payload = memory.until("odd", "plugin.started", "plugin.failed")[1]
    assert payload["call"] == "should_recover"
    assert f"answered {type(answer).__name__}" in payload["error"]
    bus.stop()


def test_one_that_raises_or_hangs_counts_as_yes(gate: Gate) -> None:
    """And the next one is still asked, if there is time."""

    def panic(_: Failure) -> bool:
        raise InvalidPluginError(plugin="other", problem="none")

    bus = make_bus()
    bus.register(FakeJudge("panics", answer=panic))
    bus.register(FakeJudge("no", answer=False))
    bus.start()
    assert judge_of(bus).refusal(FAILURE) == "no"
    bus.register(FakeJudge("stuck", answer=gate))
    bus.unregister("no")
    assert judge_of(bus).refusal(FAILURE) == ""
    assert bus.counts == {"plugin_failures": 2, "plugin_timeouts": 1}
    gate.open()
    bus.stop()


def test_without_plugins_nobody_waits_and_nothing_is_counted() -> None:
    """No bus, an empty one, one that has stopped."""
    assert BusJudge(lambda: None, SHORT, SystemClock()).refusal(FAILURE) == ""
    bus = make_bus()
    bus.start()
    assert judge_of(bus).refusal(FAILURE) == ""
    bus.register(FakeJudge("no", answer=False))
    bus.stop()
    assert judge_of(bus).refusal(FAILURE) == "", "a stopped plug-in is asked nothing"
    assert bus.counts == {}


def test_a_bus_that_has_not_started_yet_is_waited_for_and_then_not() -> None:
    """An agent that dies while its worker starts is asked about if the plug-ins are there in time."""
    bus = make_bus()
    bus.register(FakeJudge("no", answer=False))
    assert judge_of(bus).refusal(FAILURE) == ""
    assert bus.counts == {"plugin_timeouts": 1}
    bus.start()
    assert judge_of(bus).refusal(FAILURE) == "no"
    bus.stop()


def test_an_allowance_is_used_up_by_waiting_and_comes_back() -> None:
    """Two seconds in ten: a fifth of the time at most."""
    clock = ManualClock()
    allowance = Allowance(2, 10, clock)
    assert allowance.left == 2
    allowance.use(1.5)
    assert allowance.left == 0.5
    clock.advance(5)
    assert allowance.left == 1.5
    clock.advance(60)
    assert allowance.left == 2
    allowance.use(7)
    assert allowance.left == 0


def test_a_hanging_plugin_costs_a_shared_thread_its_allowance_once(gate: Gate) -> None:
    """After that all come back unasked, at once; it is counted each time."""
    clock = ManualClock()
    allowance = Allowance(0.2, 10, clock)
    bus = make_bus()
    bus.register(FakeJudge("stuck", answer=gate))
    bus.start()
    judge = judge_of(bus, allowance=allowance)
    assert judge.refusal(FAILURE) == ""
    assert gate.entered.is_set()
    allowance.use(1)
    for _ in range(250):
        assert judge.refusal(FAILURE) == ""
    assert bus.counts == {"plugin_timeouts": 251}
    gate.open()
    wait_until(lambda: bus.refusal(FAILURE, limit=SHORT) == "", "it to come back")
    bus.stop()


class SlowBus(PluginBus):
    """Its plug-ins say yes after a second and a half of the clock, or when their time is up."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.time = clock
        self.limits: list[float] = []

    @property
    @override
    def has_judges(self) -> bool:
        return True

    @override
    def refusal(self, failure: Failure, *, limit: timedelta) -> str:
        self.limits.append(limit.total_seconds())
        self.time.advance(min(1.5, limit.total_seconds()))
        return ""


def test_slow_plugins_get_a_fifth_of_a_shared_thread_at_most() -> None:
    """Each wait is bounded by what is left of the allowance; the process of one agent has no such bound."""
    clock = ManualClock()
    bus = SlowBus(clock)
    bus.start()
    judge = BusJudge(lambda: bus, timedelta(seconds=5), clock, allowance=Allowance(2, 10, clock))
    began = clock.now
    for _ in range(100):
        judge.refusal(FAILURE)
        clock.advance(0.01)
    assert bus.limits[0] == 2
    assert bus.limits[1] == pytest.approx(0.8, abs=0.01)
    waited = clock.now - began - 1
    assert waited <= 2 + (clock.now - began) * 0.2
    assert bus.counts.get("plugin_timeouts", 0) + len(bus.limits) == 100
    free = BusJudge(lambda: bus, timedelta(seconds=5), clock)
    bus.limits.clear()
    for _ in range(3):
        free.refusal(FAILURE)
    assert bus.limits == [5, 5, 5]
