"""The plug-ins that are shipped, each alone and on a bus."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest

from ares_celery.clock import SystemClock
from ares_celery.errors import InvalidSettingError, PluginError
from ares_celery.model.failure import Failure
from ares_celery.plugins.basic_recovery import BasicRecoveryPlugin
from ares_celery.plugins.contract import RecoveryPlugin, RuntimePlugin, StepCall, StepResult, WorkflowHook
from ares_celery.plugins.judge import BusJudge
from ares_celery.plugins.loop import LoopPlugin
from ares_celery.plugins.observer import ObserverPlugin
from ares_celery.plugins.tools import ToolPlugin, ToolRecord
from tests.unit.plugins.sample import Memory, event, make_bus
from tests.wait import wait_until


def test_they_are_what_they_say() -> None:
    """Each fits the protocols of its part, and a bus takes all of them."""
    bus = make_bus()
    made = [ObserverPlugin(), BasicRecoveryPlugin(), ToolPlugin(), LoopPlugin(max_iterations=1)]
    for plugin in made:
        assert isinstance(plugin, RuntimePlugin)
        bus.register(plugin)
    assert bus.names == ["observer", "basic_recovery", "tools", "loop"]
    assert isinstance(made[1], RecoveryPlugin)
    assert isinstance(made[2], WorkflowHook)
    bus.start()
    assert bus.hooks == ["tools"]
    bus.stop()


# -- basic recovery ---------------------------------------------------------------------------------------------------


def test_the_allow_list_knows_steps() -> None:
    """The cases of the seed: an unknown step no; an allowed one yes and others still no; a revoked one no again."""
    plugin = BasicRecoveryPlugin()
    step, other = (Failure("a", "t", "step", step_id=name) for name in ("step-1", "step-2"))
    assert plugin.should_recover(step) is False
    plugin.allow("step-1")
    assert plugin.should_recover(step) is True
    assert plugin.should_recover(other) is False
    plugin.revoke("step-1")
    assert plugin.should_recover(step) is False


def test_the_allow_list_knows_agents_and_their_types() -> None:
    """What was said of the agent itself counts more; a step is not allowed by its agent."""
    plugin = BasicRecoveryPlugin(allow=["counter"])
    one, two = Failure("counter-1", "counter"), Failure("counter-2", "counter")
    assert (plugin.should_recover(one), plugin.should_recover(two)) == (True, True)
    plugin.revoke("counter-1")
    assert (plugin.should_recover(one), plugin.should_recover(two)) == (False, True)
    plugin.revoke("counter")
    plugin.allow("counter-1")
    assert (plugin.should_recover(one), plugin.should_recover(two)) == (True, False)
    assert plugin.should_recover(Failure("counter-1", "counter", "step", step_id="charge")) is False
    lone: Any = "counter"
    with pytest.raises(InvalidSettingError, match="allow"):
        BasicRecoveryPlugin(allow=lone)


def test_a_bus_asks_the_allow_list() -> None:
    """Two lists: each must say yes."""
    bus = make_bus()
    first, second = BasicRecoveryPlugin(allow=["counter"]), BasicRecoveryPlugin(name="second")
    bus.register(first)
    bus.register(second)
    bus.start()
    judge = BusJudge(lambda: bus, timedelta(seconds=5), SystemClock())
    assert judge.refusal(Failure("counter-1", "counter")) == "second"
    second.allow("counter-1")
    assert judge.refusal(Failure("counter-1", "counter")) == ""
    assert judge.refusal(Failure("counter-2", "counter")) == "second"
    assert judge.refusal(Failure("guest-1", "guest")) == "basic_recovery"
    bus.stop()


# -- observer ---------------------------------------------------------------------------------------------------------


def test_an_observer_copies_the_chosen_types_with_their_origin(caplog: pytest.LogCaptureFixture) -> None:
    """Into one stream and into the log; what was seen before its end is written."""
    caplog.set_level(logging.INFO, logger="ares_celery.plugins")
    memory = Memory()
    bus = make_bus(memory)
    observer = ObserverPlugin(["order.*"], stream="@orders")
    bus.register(observer)
    bus.start()
    bus.publish([event("order.paid", "shop-1", 3), event("ticked", "shop-1", 4), event("order.sent", "shop-1", 5)])
    bus.stop()
    copies = memory.streams["@orders"]
    assert [(copy.type, dict(copy.payload)) for copy in copies] == [("order.paid", {"n": 3}), ("order.sent", {"n": 5})]
    assert copies[0].metadata["source"] == {"stream_id": "shop-1", "version": 3, "id": "shop-1-3", "epoch": 0}
    assert copies[0].id == "", "a copy is an event of its own"
    assert (observer.seen, observer.failed) == (2, 0)
    assert "shop-1 order.paid {'n': 3}" in caplog.text
    assert "ticked" not in caplog.text


def test_an_observer_keeps_its_stream_short() -> None:
    """It may run for years."""
    memory = Memory()
    bus = make_bus(memory)
    bus.register(ObserverPlugin(["tick"], stream="@ticks", keep=500, level=0, buffer=5_000))
    bus.start()
    bus.publish([event("tick", version=n) for n in range(2_500)])
    bus.stop()
    assert len(memory.streams["@ticks"]) == 2_500
    # A look follows the batch that goes beyond a thousand.
    (first, second) = [version for _, version in memory.trimmed]
    assert 500 <= first < 600
    assert 1_500 <= second < 1_600


def test_an_observer_counts_what_it_cannot_store_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """Logged, too."""
    memory = Memory()
    memory.refuses = RuntimeError("disk full")
    bus = make_bus(memory)
    observer = ObserverPlugin(["tick"], stream="@ticks", level=0)
    bus.register(observer)
    bus.start()
    bus.publish([event("tick")])
    wait_until(lambda: observer.failed == 1, "the failure to be counted")
    assert "1 events could not be stored" in caplog.text
    memory.refuses = None
    bus.publish([event("tick", version=2)])
    wait_until(lambda: len(memory.streams.get("@ticks", ())) == 1, "the next one to be stored")
    bus.stop()


@pytest.mark.parametrize(("field", "value"), [("stream", "orders"), ("buffer", 0), ("keep", -1), ("types", "order.*")])
def test_an_observer_refuses_what_cannot_work(field: str, value: Any) -> None:
    """A stream that may be an agent's, no room at all, one text as types."""
    with pytest.raises(InvalidSettingError, match=field):
        ObserverPlugin(**{field: value})


# -- tools ------------------------------------------------------------------------------------------------------------


def test_tools_are_registered_and_their_calls_recorded() -> None:
    """Also of unknown ones, also failed ones; named by the step or, as in the seed, by its metadata."""
    bus = make_bus()
    plugin = ToolPlugin({"search": "looks things up"}, keep=3)
    bus.register(plugin)
    plugin.register("mail")
    assert plugin.tools() == {"search": "looks things up", "mail": ""}
    bus.start()
    took = timedelta(seconds=2)
    assert bus.after_step(StepCall("a", "s1", tool="search"), StepResult(value=1, took=took)) is None
    bus.after_step(StepCall("a", "s2", metadata={"tool_name": "fax"}), StepResult(error="OSError: no line"))
    bus.after_step(StepCall("a", "s3"), StepResult())
    assert plugin.calls() == [
        ToolRecord("search", "a", "s1", registered=True, error="", took=took),
        ToolRecord("fax", "a", "s2", registered=False, error="OSError: no line", took=timedelta(0)),
    ]
    assert [record.step_id for record in plugin.calls("fax")] == ["s2"]
    for number in range(4, 7):
        bus.after_step(StepCall("a", f"s{number}", tool="mail"), StepResult())
    assert [record.step_id for record in plugin.calls()] == ["s4", "s5", "s6"]
    assert plugin.forgotten == 2
    bus.stop()
    assert len(plugin.calls()) == 3, "the record stays readable"
    with pytest.raises(InvalidSettingError, match="keep"):
        ToolPlugin(keep=0)


# -- loop -------------------------------------------------------------------------------------------------------------


@pytest.mark.spec(135)
def test_a_loop_without_limit_and_condition_is_refused() -> None:
    """It would never end; the error names the field and what to give."""
    endless: list[dict[str, Any]] = [{}, {"max_iterations": 0}, {"max_iterations": 0, "until": None}]
    for arguments in endless:
        with pytest.raises(
            InvalidSettingError, match="the loop would never end; give max_iterations above 0, or until"
        ):
            LoopPlugin(**arguments)


@pytest.mark.parametrize(
    ("field", "value"), [("max_iterations", -1), ("max_iterations", True), ("max_iterations", 2.5), ("until", "done")]
)
def test_a_loop_refuses_what_is_no_limit_and_no_condition(field: str, value: Any) -> None:
    """With the value in the text."""
    with pytest.raises(InvalidSettingError, match=field):
        LoopPlugin(**{field: value})


def test_a_loop_ends_after_its_limit_or_when_its_condition_holds() -> None:
    """The first round always runs; each key counts for itself; after its end a loop begins anew."""
    loop = LoopPlugin(max_iterations=3, until=lambda state: state == "done")
    assert [loop.next_round("a", "done"), loop.next_round("a", "done")] == [True, False]
    assert [loop.next_round("a") for _ in range(4)] == [True, True, True, False]
    assert [loop.next_round("b"), loop.next_round("c")] == [True, True]
    assert (loop.rounds("b"), loop.rounds("a")) == (1, 0)


def test_stopping_resets_a_loop() -> None:
    """As the seed's does."""
    bus = make_bus()
    loop = LoopPlugin(max_iterations=2)
    bus.register(loop)
    bus.start()
    assert [loop.next_round(), loop.next_round()] == [True, True]
    bus.stop()
    assert loop.rounds() == 0
    assert [loop.next_round() for _ in range(3)] == [True, True, False]


def test_a_condition_that_raises_or_answers_rubbish_is_named() -> None:
    """The loop keeps its round, so that it may be asked again."""

    def until(state: object) -> Any:
        if state == "raise":
            raise ValueError("no idea")
        return state

    loop = LoopPlugin(until=until, name="rounds")
    assert loop.next_round() is True
    with pytest.raises(PluginError, match="plug-in 'rounds' failed in until: ValueError: no idea"):
        loop.next_round(state="raise")
    with pytest.raises(PluginError, match="answered int"):
        loop.next_round(state=1)
    assert loop.rounds() == 1
    assert loop.next_round(state=True) is False
