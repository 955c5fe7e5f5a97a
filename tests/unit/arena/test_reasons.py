"""Why a run is not completed: said in sentences, the same ones everywhere, and never where all is well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast
from xml.etree import ElementTree as ET

import pytest
from typing_extensions import override

from ares_celery.arena.preconditions import is_refused_without_chaos
from ares_celery.arena.runner import ScenarioRun
from ares_celery.arena.verdict.journal import ActivityReport, Outcome, Phase, RunStatus, ScenarioReport
from ares_celery.arena.verdict.judge import judged, unjudged
from ares_celery.arena.verdict.junit import junit
from ares_celery.arena.verdict.page import page
from ares_celery.errors import AgentNotFoundError, AgentNotRunningError, StoreUnavailableError
from ares_celery.model.agent import AgentState
from ares_celery.model.event import Event, ReadOptions
from tests.unit.arena.histories import Stream, action, report
from tests.unit.arena.managers import StandIn
from tests.unit.arena.test_runner import made, of, simulated
from tests.unit.arena.test_survival import Guarded, survive

LOOK = {"type": "python", "module": "ares_celery.arena.probes"}


class Judging(StandIn):
    """With streams, which a verdict reads."""

    def __init__(self, *streams: Stream) -> None:
        super().__init__(*(one.agent_id for one in streams))
        self.streams = {one.agent_id: one.events for one in streams}
        self.config.max_restarts_per_agent = 3
        self.events = self

    def read(self, stream_id: str, options: ReadOptions) -> tuple[Event, ...]:
        return tuple(one for one in self.streams[stream_id] if one.version >= options.from_version)


def is_red(found: ScenarioReport) -> bool:
    """Something has failed in its JUnit XML, by every way to count that."""
    tree = ET.fromstring(junit(found))  # noqa: S314 - our own
    failures = sum(int(suite.get("failures", "0")) for suite in tree)
    assert failures == len(tree.findall(".//failure"))
    return failures > 0


def reports() -> Iterator[ScenarioReport]:
    """Of runs that end in every way."""
    probe = {"type": "probe", "name": "three run", "tolerance": 3, "provider": {**LOOK, "func": "agents_running"}}
    held = {"steady-state-hypothesis": {"title": "h", "probes": [probe]}}
    refused = StandIn(kill_agent=AgentNotRunningError(agent_id="a", state="resurrecting", operation="kill_agent"))
    kill = of("kill_agent", agent_id="a")
    failing = {"kill_agent": {"expect_failure": "resurrecting"}}
    off = StandIn()
    off.config.chaos = False
    yield made(of("pause_agent", agent_id="a")).run()
    yield made(kill, manager=refused).run()
    yield made(kill, manager=refused, activities=failing).run()
    yield made(kill, activities=failing, config={"steady": "10ms"}).run()
    yield made(kill, **held).run()
    yield made(kill, manager=off).run()
    stopped = made(kill)
    stopped.stop("enough")
    yield stopped.run()
    lost = Guarded("a", slow_agent=refused.errors["kill_agent"])
    yield survive(lost, faults=["slow_agent", "tool_timeout"]).run()
    yield survive(lost, faults=["slow_agent"]).run()
    yield survive(lost, agents=["typo"]).run()
    lost.infos["a"] = lost.infos["a"].model_copy(update={"state": AgentState.PARKED, "last_error": "RuntimeError: no"})
    yield survive(lost, agents=["a"], faults=["tool_timeout"]).run()


def test_reasons_are_empty_exactly_when_a_run_is_completed_and_junit_is_red_exactly_when_it_is_not() -> None:
    """Every form says every reason."""
    found = list(reports())
    assert {one.status for one in found} == set(RunStatus)
    for one in found:
        is_fine = one.status is RunStatus.COMPLETED
        assert (one.reasons == (), is_red(one)) == (is_fine, not is_fine), one
        assert one.to_json()["reasons"] == list(one.reasons)
        for reason in one.reasons:
            assert reason in ET.tostring(ET.fromstring(junit(one)), encoding="unicode", method="text")  # noqa: S314
            assert reason.partition("'")[0] in page(one)


def test_each_reason_names_what_it_is_about() -> None:
    """Agents, activities, and why."""
    completed, refused, expected, unexpected, before, off, stopped, mixed, none, typo, parked = reports()
    assert completed.reasons == expected.reasons == mixed.reasons == ()
    assert refused.reasons[0].startswith("kill_agent: AgentNotRunningError: ")
    assert unexpected.reasons == ("kill_agent: it succeeded, and was expected to fail",)
    assert before.reasons[1].startswith("three run does not hold before: it gave 2, ")
    assert "chaos is off" in off.reasons[0]
    assert stopped.reasons == ("enough",)
    assert none.reasons[0].startswith("no fault could be injected: ")
    assert "'typo'" in typo.reasons[0]
    assert parked.reasons == ("a was given up on (): RuntimeError: no",)


def test_a_fault_that_was_drawn_and_refused_is_skipped() -> None:
    """A survival run draws beforehand; it is no failure of the run."""
    refused = AgentNotRunningError(agent_id="a", state="resurrecting", operation="slow_agent")
    report = survive(Guarded("a", slow_agent=refused), faults=["slow_agent", "tool_timeout"]).run()
    tree = ET.fromstring(junit(report))  # noqa: S314 - our own
    failed = [one for one in report.of(Phase.METHOD) if one.outcome is Outcome.FAILED]
    assert failed
    assert len(tree.findall(".//skipped")) == len(failed)


@pytest.mark.parametrize(
    ("outcome", "expected", "as_expected", "told"),
    [
        (Outcome.SUCCEEDED, "", None, "succeeded"),
        (Outcome.FAILED, "", None, "failed"),
        (Outcome.SUCCEEDED, "success", True, "succeeded"),
        (Outcome.FAILED, "success", False, "failed"),
        (Outcome.FAILED, "failure", True, "failed, as expected"),
        (Outcome.SUCCEEDED, "failure", False, "succeeded, should have failed"),
    ],
)
def test_an_outcome_is_told_with_what_was_expected(
    outcome: Outcome,
    expected: str,
    as_expected: bool | None,  # noqa: FBT001
    told: str,
) -> None:
    """And counted by that."""
    one = ActivityReport("a", Phase.METHOD, "action", outcome, expected=expected, as_expected=as_expected)
    found = report(one)
    assert (one.told, found.to_json()["activities"][0]["told"]) == (told, told)
    assert f">{told}<" in page(found)
    assert (found.passed, found.failed) == ((1, 0) if one.is_fine else (0, 1))


def test_what_cannot_be_set_right_deviates() -> None:
    """The next run would begin on what this one left."""
    found = made(of("slow_agent", agent_id="a", delay="1s"), manager=StandIn(heal=KeyError("x"))).run()
    assert (found.status, found.reasons) == (
        RunStatus.DEVIATED,
        ("heal slow of a could not be set right: KeyError: 'x'",),
    )


# -- who is not well at the end ----------------------------------------------------------------------------------------


class Looping(StandIn):
    """Agent a dies again at each look, ``times`` in all once it was killed; everyone is seen after so many of them."""

    def __init__(self, times: int) -> None:
        super().__init__("a", "b")
        self.left, self.times = 0, times

    @override
    def kill_agent(self, agent_id: str, *, force: bool = False, reason: str = "") -> dict[str, Any]:
        self.left = self.times
        return super().kill_agent(agent_id, force=force, reason=reason)

    @override
    def list_agents(self, *, states: Any = None, type: str | None = None) -> list[Any]:
        if self.left:
            self.left -= 1
            self.return_of("a")
        return super().list_agents(states=states, type=type)


def ran(times: int, **more: Any) -> ScenarioReport:
    """A kill of an agent that dies so often."""
    kill = of("kill_agent", agent_id="a")
    return made(kill, manager=Looping(times), clock=simulated(), **more).run()


def test_an_agent_that_dies_again_and_again_deviates() -> None:
    """It runs at each look; what counts is that it stays up. One that gets over it is waited for."""
    found = ran(10**6)
    assert found.status is RunStatus.DEVIATED
    assert found.reasons[0].startswith("a died ")
    assert found.reasons[0].endswith(" times and did not stay up for 2s")
    calm = ran(20)
    assert (calm.status, calm.reasons) == (RunStatus.COMPLETED, ())
    for steady in (2, 3):
        clock = simulated()
        manager = Looping(3)
        run = made(of("kill_agent", agent_id="a"), manager=manager, clock=clock, config={"steady": steady})
        assert run.run().status is RunStatus.COMPLETED
        assert steady <= clock.monotonic() < steady + 1


def test_only_those_that_a_run_is_about_are_waited_for() -> None:
    """Others may have troubles of their own."""
    extension = {"name": "ares", "agents": ["b"]}
    assert ran(10**6, extensions=[extension]).status is RunStatus.COMPLETED


def test_a_death_without_a_return_deviates_whatever_the_run_has_seen() -> None:
    """Its events say so; who was named already is not told twice."""
    lost = Stream("a").add(0, "agent.started").death(10, None)
    fine = Stream("b").add(0, "agent.started")
    manager = cast("Any", Judging(lost, fine))
    found = judged(manager, report(action("k", 9)))
    assert (found.status, found.reasons) == (
        RunStatus.DEVIATED,
        ("a died (crash): it did not come back for good",),
    )
    told = replace(report(action("k", 9)), status=RunStatus.DEVIATED, reasons=("a did not come back within 1m",))
    assert judged(manager, told).reasons == told.reasons
    assert judged(manager, report(action("k", 9, target="b")), ["b"]).status is RunStatus.COMPLETED


def test_a_history_that_is_not_sound_is_a_reason() -> None:
    """With the first violation; and a run that nobody can judge is no success."""
    gap = Stream("a").add(0, "agent.started").add(1, "tick", version=9)
    (reason,) = judged(cast("Any", Judging(gap)), report(action("k", 9))).reasons
    assert reason == "versions_gapless is broken: a: version 9 follows 1"
    gone = unjudged(report(), StoreUnavailableError(url="redis://", problem="gone"))
    assert (gone.status, is_red(gone)) == (RunStatus.DEVIATED, True)
    assert gone.reasons[0].startswith("its events could not be read: ")


# -- before anything is done -------------------------------------------------------------------------------------------


def scenario(*method: dict[str, Any], manager: StandIn, agents: tuple[str, ...] = (), **more: Any) -> ScenarioRun:
    """One that names agents."""
    extension = {"name": "ares", "agents": list(agents), **more.pop("extension", {})}
    return made(*method, manager=manager, extensions=[extension], **more)


def test_agents_that_do_not_exist_are_a_precondition() -> None:
    """Nothing is done, and nothing rolled back."""
    manager = StandIn("a")
    pause, roll = of("pause_agent", agent_id="a"), {**of("resume_agent", agent_id="a"), "name": "r"}
    found = scenario(pause, manager=manager, agents=("a", "ask-9"), rollbacks=[roll]).run()
    assert (found.status, found.activities, manager.calls) == (RunStatus.PRECONDITION, (), [])
    assert found.reasons == (str(AgentNotFoundError(agent_id="ask-9")),)
    several = scenario(pause, manager=manager, agents=("x", "y")).run()
    assert several.reasons == ("agents 'x', 'y' do not exist",)


def test_where_chaos_is_off_a_scenario_is_refused_before_its_first_action() -> None:
    """If any of them needs leave, and its refusal is not what is expected; what heals needs none."""
    manager = StandIn()
    manager.config.chaos = False
    pause, slow = of("pause_agent", agent_id="a"), of("slow_agent", agent_id="a", delay="1s")
    found = scenario(pause, slow, manager=manager).run()
    assert (found.status, found.activities, manager.calls) == (RunStatus.PRECONDITION, (), [])
    assert "chaos is off" in found.reasons[0]
    assert scenario(pause, of("heal", agent_id="a"), manager=manager).run().status is RunStatus.COMPLETED
    doubted = {"activities": {"slow_agent": {"expect_failure": True}}}
    assert len(scenario(pause, slow, manager=manager, extension=doubted).run().of(Phase.METHOD)) == 2


@pytest.mark.parametrize(
    ("func", "arguments", "needed"),
    [
        ("slow_agent", {"delay": 0}, False),
        ("slow_agent", {"delay": "0s"}, False),
        ("tool_timeout", {"timeout": "1s"}, True),
        ("tool_timeout", {"timeout": "soon"}, True),
        ("kill_worker", {}, True),
        ("restart_agent", {}, False),
    ],
)
def test_which_actions_need_leave(func: str, arguments: dict[str, Any], needed: bool) -> None:  # noqa: FBT001
    """Those that the store refuses without it."""
    assert is_refused_without_chaos(func, arguments) is needed
