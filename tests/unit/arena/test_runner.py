"""Runs of scenarios: order, concurrency, expectations, early ends, rollbacks."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from ares_celery.arena.loading import parse_scenario
from ares_celery.arena.ring import at_hand
from ares_celery.arena.runner import ScenarioRun
from ares_celery.arena.verdict.journal import ActivityReport, Outcome, Phase, RunStatus, ScenarioReport
from ares_celery.errors import AgentNotFoundError, StoreUnavailableError
from ares_celery.model.agent import AgentState
from ares_celery.testing import ManualClock
from tests.unit.arena.histories import START
from tests.unit.arena.managers import StandIn
from tests.wait import wait_until

DEEDS = "arena_deeds"


class Deeds:
    """Functions that a scenario calls, which note when they began and ended."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.running = 0
        self.most = 0
        self.lock = threading.Lock()
        self.gate = threading.Event()
        self.gate.set()

    def work(self, name: str, *, fails: bool = False, waits: bool = False, gives: Any = None) -> Any:
        with self.lock:
            self.log.append(f"+{name}")
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            if waits:
                assert self.gate.wait(10)
            if fails:
                raise KeyError(f"{name} is broken")
            return gives
        finally:
            with self.lock:
                self.running -= 1
                self.log.append(f"-{name}")


@pytest.fixture
def deeds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Deeds]:
    """Those of a module that the run is told to allow."""
    made, module = Deeds(), ModuleType(DEEDS)

    def work(name: str, *, fails: bool = False, waits: bool = False, gives: Any = None) -> Any:
        return made.work(name, fails=fails, waits=waits, gives=gives)

    module.work = work  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, DEEDS, module)
    yield made
    made.gate.set()


def deed(name: str, kind: str = "action", **arguments: Any) -> dict[str, Any]:
    """One activity; ``tolerance``, ``pauses`` and ``background`` are its own."""
    own: dict[str, Any] = {one: arguments.pop(one) for one in ("tolerance", "pauses", "background") if one in arguments}
    provider = {"type": "python", "module": DEEDS, "func": "work", "arguments": {"name": name, **arguments}}
    return {"type": kind, "name": name, "provider": provider, **own}


def simulated() -> ManualClock:
    """Time jumps to the end of a wait; only the wait for the end of an activity is one in real time."""

    def wait(event: threading.Event, until: float) -> bool:
        if until - clock.monotonic() >= 3600:
            return event.wait(10)
        clock.move_to(until)
        return event.is_set()

    clock = ManualClock(wait)
    return clock


def of(func: str, module: str = "ares_celery.arena.actions", /, **arguments: Any) -> dict[str, Any]:
    """One activity that calls one of our functions."""
    provider = {"type": "python", "module": module, "func": func, "arguments": arguments}
    return {"type": "action", "name": func, "provider": provider}


def made(
    *method: dict[str, Any],
    config: Any = None,
    activities: Any = None,
    manager: Any = None,
    clock: Any = None,
    **more: Any,
) -> ScenarioRun:
    """A run of these activities."""
    extension = {"name": "ares", "config": config or {}, "activities": activities or {}}
    document = {"title": "t", "method": list(method), "extensions": [extension], **more}
    scenario = parse_scenario(document, allow_modules=[DEEDS])
    return ScenarioRun(cast("Any", manager or StandIn()), scenario, allow_modules=[DEEDS], clock=clock)


def by_name(report: ScenarioReport, phase: Phase = Phase.METHOD) -> dict[str, ActivityReport]:
    """The activities of a phase."""
    return {one.name: one for one in report.of(phase)}


# -- order and concurrency --------------------------------------------------------------------------------------------


@pytest.mark.spec(142)
def test_one_at_a_time_in_the_order_of_the_file_unless_one_waits_for_another(deeds: Deeds) -> None:
    """Without parallel_actions."""
    report = made(deed("a"), deed("b"), deed("c"), activities={"a": {"depends_on": ["c"]}}).run()
    assert deeds.log == ["+b", "-b", "+c", "-c", "+a", "-a"]
    assert (report.status, report.passed, report.failed) == (RunStatus.COMPLETED, 3, 0)


@pytest.mark.spec(142)
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_parallel_actions_are_as_many_as_max_concurrent_says(deeds: Deeds, limit: int) -> None:
    """Never more at once, and as many when there are enough."""
    deeds.gate.clear()
    names = [f"n{number}" for number in range(6)]
    run = made(*(deed(one, waits=True) for one in names), config={"parallel_actions": True, "max_concurrent": limit})
    thread = threading.Thread(target=run.run)
    thread.start()
    wait_until(lambda: deeds.running == limit, f"{limit} at once")
    deeds.gate.set()
    thread.join(10)
    assert deeds.most == limit
    assert sorted(one for one in deeds.log if one[0] == "+") == [f"+{one}" for one in names]


@pytest.mark.spec(142)
def test_parallel_actions_obey_depends_on(deeds: Deeds) -> None:
    """A diamond: the sides wait for the top and run together, the bottom waits for both."""
    deeds.gate.clear()
    waits = {"left": ["top"], "right": ["top"], "bottom": ["left", "right"]}
    run = made(
        deed("bottom"),
        deed("left", waits=True),
        deed("right", waits=True),
        deed("top"),
        config={"parallel_actions": True},
        activities={name: {"depends_on": others} for name, others in waits.items()},
    )
    thread = threading.Thread(target=run.run)
    thread.start()
    wait_until(lambda: deeds.running == 2, "both sides")
    assert deeds.log[:2] == ["+top", "-top"]
    assert "+bottom" not in deeds.log
    deeds.gate.set()
    thread.join(10)
    assert deeds.log[-2:] == ["+bottom", "-bottom"]


def test_what_waits_for_a_failure_is_skipped_and_what_waits_for_an_expected_one_is_not(deeds: Deeds) -> None:
    """Skipped is neither passed nor failed."""
    run = made(
        deed("bad", fails=True),
        deed("after"),
        deed("meant", fails=True),
        deed("then"),
        activities={
            "after": {"depends_on": ["bad"], "expect_success": True},
            "meant": {"expect_failure": True},
            "then": {"depends_on": ["meant"]},
        },
    )
    report = run.run()
    found = by_name(report)
    assert found["after"].outcome is Outcome.SKIPPED
    assert found["after"].as_expected is None
    assert found["then"].outcome is Outcome.SUCCEEDED
    assert (report.passed, report.failed, report.status) == (2, 1, RunStatus.DEVIATED)


def test_a_delay_and_a_background_activity(deeds: Deeds) -> None:
    """One in the background holds nobody up; a delay holds up those after it."""
    deeds.gate.clear()
    run = made(deed("behind", waits=True, background=True), deed("a"), deed("b"), activities={"a": {"delay": "50ms"}})
    thread = threading.Thread(target=run.run)
    thread.start()
    wait_until(lambda: "-b" in deeds.log, "the others")
    assert deeds.log == ["+behind", "+a", "-a", "+b", "-b"]
    deeds.gate.set()
    thread.join(10)
    assert deeds.log[-1] == "-behind"


# -- expectations -----------------------------------------------------------------------------------------------------


@pytest.mark.spec(143)
@pytest.mark.parametrize(
    ("fails", "expected", "fine"),
    [(False, "success", True), (True, "success", False), (False, "failure", False), (True, "failure", True)],
)
def test_expectations_compare_in_all_four_combinations(
    deeds: Deeds,
    fails: bool,  # noqa: FBT001 - a parameter of the test
    expected: str,
    fine: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """What came against what was expected: as it is, and not the other way round."""
    report = made(deed("a", fails=fails), activities={"a": {f"expect_{expected}": True}}).run()
    found = by_name(report)["a"]
    assert (found.outcome is Outcome.FAILED, found.expected, found.as_expected) == (fails, expected, fine)
    assert (report.verified, report.passed, report.failed) == (fine, int(fine), int(not fine))
    assert report.status is (RunStatus.COMPLETED if fine else RunStatus.DEVIATED)
    assert not report.partial


@pytest.mark.spec(143)
def test_a_failure_elsewhere_is_not_the_expected_one(deeds: Deeds) -> None:
    """A text is looked for in what failed."""
    fine = {"a": {"expect_failure": "is broken"}}
    assert made(deed("a", fails=True), activities=fine).run().verified
    other = made(deed("a", fails=True), activities={"a": {"expect_failure": "not found"}}).run()
    assert (other.verified, other.status) == (False, RunStatus.DEVIATED)


@pytest.mark.spec(143)
def test_where_nothing_was_expected_nothing_is_unverified(deeds: Deeds) -> None:
    """A failure is a failure all the same."""
    report = made(deed("a", fails=True)).run()
    assert (report.verified, report.passed, report.failed) == (True, 0, 1)
    assert report.status is RunStatus.DEVIATED


# -- early ends -------------------------------------------------------------------------------------------------------


@pytest.mark.spec(143)
def test_stop_on_error_gives_a_partial_report_that_says_so(deeds: Deeds) -> None:
    """The rest is not done, and is in the report; without it all is done."""
    method = [deed("a"), deed("b", fails=True), deed("c")]
    report = made(*method, config={"stop_on_error": True}, rollbacks=[deed("r")]).run()
    assert deeds.log == ["+a", "-a", "+b", "-b", "+r", "-r"]
    assert (report.status, report.partial) == (RunStatus.INTERRUPTED, True)
    assert report.partial_because == "'b' did not end as it had to, and stop_on_error is set"
    assert by_name(report)["c"].outcome is Outcome.CANCELLED
    assert (report.passed, report.failed) == (1, 1)
    whole = made(*method).run()
    assert (whole.partial, whole.passed, whole.failed) == (False, 2, 1)


@pytest.mark.spec(143)
def test_an_expected_failure_is_no_error_to_stop_on(deeds: Deeds) -> None:
    """Only what ends otherwise than it has to."""
    expects = {"a": {"expect_failure": True}}
    report = made(deed("a", fails=True), deed("b"), config={"stop_on_error": True}, activities=expects).run()
    assert (report.status, report.partial, report.passed) == (RunStatus.COMPLETED, False, 2)


@pytest.mark.spec(143)
def test_a_cancelled_run_gives_a_partial_report_that_says_so(deeds: Deeds) -> None:
    """Whoever stops it; what was being done is awaited, the rollbacks run."""
    deeds.gate.clear()
    run = made(deed("a", waits=True), deed("b"), rollbacks=[deed("r")])
    reports: list[ScenarioReport] = []
    thread = threading.Thread(target=lambda: reports.append(run.run()))
    thread.start()
    wait_until(lambda: "+a" in deeds.log, "the first")
    run.stop("SIGTERM")
    deeds.gate.set()
    thread.join(10)
    (report,) = reports
    assert (report.status, report.partial, report.partial_because) == (RunStatus.INTERRUPTED, True, "SIGTERM")
    assert [(one.name, one.outcome) for one in report.activities] == [
        ("a", Outcome.SUCCEEDED),
        ("b", Outcome.CANCELLED),
        ("r", Outcome.SUCCEEDED),
    ]
    assert report.to_json()["partial_because"] == "SIGTERM"


def test_a_timeout_ends_the_method(deeds: Deeds) -> None:
    """Also while it waits for nothing but a delay."""
    report = made(deed("a"), config={"timeout": "30ms"}, activities={"a": {"delay": "1h"}}, rollbacks=[deed("r")]).run()
    assert report.partial_because == "its timeout of 0.03 s is over"
    assert deeds.log == ["+r", "-r"]


@pytest.mark.spec(143)
@pytest.mark.parametrize("end", ["timeout", "stop_on_error", "stop"])
def test_what_does_not_end_with_the_run_is_told_and_not_waited_for(
    deeds: Deeds, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """An action that hangs holds up neither report nor rollbacks; how it ends later is not told."""
    monkeypatch.setattr("ares_celery.arena.method._GRACE", 0.05)
    deeds.gate.clear()
    config: dict[str, Any] = {"parallel_actions": True, "max_concurrent": 2}
    if end != "stop":
        config[end] = "100ms" if end == "timeout" else True
    run = made(
        deed("hangs", waits=True),
        deed("other", fails=end == "stop_on_error"),
        deed("later"),
        config=config,
        activities={"later": {"depends_on": ["hangs"]}},
        rollbacks=[deed("r")],
    )

    def stop() -> None:
        wait_until(lambda: "-other" in deeds.log, "the other")
        run.stop()

    if end == "stop":
        threading.Thread(target=stop).start()
    report = run.run()
    found = by_name(report)
    assert [(found[name].outcome, found[name].problem) for name in ("hangs", "later")] == [
        (Outcome.CANCELLED, "it still ran when the run ended"),
        (Outcome.CANCELLED, "the run ended before it"),
    ]
    assert (report.status, report.partial) == (RunStatus.INTERRUPTED, True)
    assert {
        "timeout": "its timeout of 0.1 s is over",
        "stop_on_error": "'other' did not end as it had to, and stop_on_error is set",
        "stop": "it was stopped",
    }[end] == report.partial_because
    assert by_name(report, Phase.ROLLBACK)["r"].outcome is Outcome.SUCCEEDED
    assert "-hangs" not in deeds.log
    deeds.gate.set()
    wait_until(lambda: "-hangs" in deeds.log, "its end")
    assert by_name(report)["hangs"].outcome is Outcome.CANCELLED


def test_a_run_stopped_before_it_begins_does_nothing_but_roll_back(deeds: Deeds) -> None:
    """A signal may come at any time."""
    run = made(deed("a"), rollbacks=[deed("r")])
    run.stop("early")
    report = run.run()
    assert (report.status, report.partial_because) == (RunStatus.INTERRUPTED, "early")
    assert deeds.log == ["+r", "-r"]


# -- hypothesis and rollbacks -----------------------------------------------------------------------------------------


def holds(gives: list[Any]) -> dict[str, Any]:
    """A hypothesis that has to give true."""
    probes = [deed(f"p{number}", "probe", gives=one, tolerance=True) for number, one in enumerate(gives)]
    return {"steady-state-hypothesis": {"title": "h", "probes": probes}}


def test_where_the_hypothesis_does_not_hold_before_nothing_is_done(deeds: Deeds) -> None:
    """Told apart from a deviation."""
    report = made(deed("a"), rollbacks=[deed("r")], **holds([True, False])).run()
    assert (report.status, report.partial) == (RunStatus.PRECONDITION, True)
    assert deeds.log == ["+p0", "-p0", "+p1", "-p1", "+r", "-r"]


def test_the_hypothesis_is_looked_at_again_after_the_method(deeds: Deeds) -> None:
    """It holds before and not after: the run deviates."""
    manager = StandIn()
    probe = {
        "type": "probe",
        "name": "nobody rests",
        "tolerance": False,
        "provider": {
            "type": "python",
            "module": "ares_celery.arena.probes",
            "func": "agent_is",
            "arguments": {"agent_id": "a", "state": "paused"},
        },
    }
    held = {"steady-state-hypothesis": {"title": "h", "probes": [probe]}}
    assert made(deed("a"), manager=manager, **held).run().status is RunStatus.COMPLETED
    broken = {**held["steady-state-hypothesis"], "probes": [{**probe, "tolerance": "no such"}]}
    report = made(deed("a"), manager=manager, **{"steady-state-hypothesis": broken}).run()
    assert report.status is RunStatus.PRECONDITION
    assert "the tolerance is 'no such'" in by_name(report, Phase.BEFORE)["nobody rests"].problem


def test_what_held_before_and_not_after_is_a_deviation(deeds: Deeds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each probe is asked on both sides of the method, and the rollbacks run after all of them."""
    manager = StandIn()
    probe = of("agent_is", "ares_celery.arena.probes", agent_id="a", state="running")
    probe |= {"type": "probe", "tolerance": True}

    def falls_ill(*_: object, **__: object) -> None:
        manager.infos["a"] = manager.infos["a"].model_copy(update={"state": AgentState.PARKED})

    monkeypatch.setattr(deeds, "work", falls_ill)
    hypothesis = {"title": "h", "probes": [probe]}
    rollback = of("resume_agent", agent_id="b")
    run = made(deed("a"), manager=manager, rollbacks=[rollback], **{"steady-state-hypothesis": hypothesis})
    report = run.run()
    assert (report.status, report.partial, report.failed) == (RunStatus.DEVIATED, False, 0)
    assert [(one.phase, one.outcome) for one in report.activities] == [
        (Phase.BEFORE, Outcome.SUCCEEDED),
        (Phase.METHOD, Outcome.SUCCEEDED),
        (Phase.AFTER, Outcome.FAILED),
        (Phase.ROLLBACK, Outcome.SUCCEEDED),
    ]
    assert "it gave False" in report.activities[2].problem


def test_a_run_warms_up_and_cools_down(deeds: Deeds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between hypothesis and method, and between method and hypothesis; in simulated seconds."""
    clock, moments = simulated(), list[tuple[str, float]]()

    def note(name: str, **_: object) -> bool:
        moments.append((name, clock.monotonic()))
        return True

    monkeypatch.setattr(deeds, "work", note)
    probe = deed("p", "probe", tolerance=True)
    run = made(
        deed("a", pauses={"before": "2s", "after": "3s"}),
        config={"warmup": "10s", "cooldown": "1m"},
        clock=clock,
        **{"steady-state-hypothesis": {"title": "h", "probes": [probe]}},
    )
    assert run.run().status is RunStatus.COMPLETED
    assert [name for name, _ in moments] == ["p", "a", "p"]
    assert moments[1][1] - moments[0][1] == 12
    assert moments[2][1] - moments[1][1] == 63


def test_rollbacks_run_whatever_happens(deeds: Deeds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them, though one fails; also when the thread of the run itself is to end."""
    report = made(deed("a", fails=True), rollbacks=[deed("r1", fails=True), deed("r2")]).run()
    rolled = by_name(report, Phase.ROLLBACK)
    assert [rolled[name].outcome for name in ("r1", "r2")] == [Outcome.FAILED, Outcome.SUCCEEDED]
    assert "KeyError" in rolled["r1"].problem
    deeds.log.clear()
    run = made(deed("a"), rollbacks=[deed("r")])

    def interrupt(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "_do_method", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert deeds.log == ["+r", "-r"]


@pytest.mark.parametrize(("looks", "seen"), [(0, 2), (3, 2), (10**6, 1)], ids=["at once", "late", "never"])
def test_nobody_looks_at_an_agent_before_its_death_is_noticed(
    looks: int, seen: int, deeds: Deeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be found running, and the run judged as if nobody had died. What nobody notices is a deviation."""
    manager, found = StandIn("a"), []
    manager.looks = looks
    look = deed("look", kind="probe", tolerance=True, gives=True)
    held = {"steady-state-hypothesis": {"title": "h", "probes": [look]}}
    work = sys.modules[DEEDS].work

    def note(name: str, **arguments: Any) -> Any:
        found.append(manager.infos["a"].incarnation)
        return work(name, **arguments)

    monkeypatch.setattr(sys.modules[DEEDS], "work", note)
    quick = {"settle": "50ms", "steady": "10ms"}
    report = made(action("kill_agent", agent_id="a"), manager=manager, config=quick, **held).run()
    assert found == [1, seen]
    if seen == 2:
        assert (report.status, report.reasons) == (RunStatus.COMPLETED, ())
    else:
        told = "a did not come back within 50ms, it is dead, and nobody has noticed"
        assert (report.status, report.reasons) == (RunStatus.DEVIATED, (told,))


def action(func: str, **arguments: Any) -> dict[str, Any]:
    """One of ours."""
    return of(func, **arguments)


def test_what_actions_did_is_undone_newest_first_without_being_told() -> None:
    """Faults are healed, paused agents resumed, DAGs put back; what ended by itself is no error."""
    manager = StandIn(heal=AgentNotFoundError(agent_id="a"))
    manager.dags["a"] = {"nodes": ["x", "y"], "edges": [["x", "y"]]}
    report = made(
        action("pause_agent", agent_id="a"),
        action("slow_agent", agent_id="b", delay="2s"),
        action("remove_node", node_id="y"),
        manager=manager,
    ).run()
    assert report.status is RunStatus.COMPLETED
    assert [one.name for one in report.of(Phase.ROLLBACK)] == ["put back DAG a", "heal slow of b", "resume a"]
    assert all(one.outcome is Outcome.SUCCEEDED for one in report.of(Phase.ROLLBACK))
    assert manager.dags["a"]["nodes"] == ["x", "y"]
    assert not manager.infos["a"].paused
    assert [call[0] for call in manager.calls] == [
        "pause_agent",
        "slow_agent",
        "register_agent_dag",
        "register_agent_dag",
        "heal",
        "resume_agent",
    ]


@pytest.mark.parametrize("func", ["partition_network", "corrupt_memory"])
def test_a_fault_that_nobody_survives_may_wait_for_the_return(func: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a later incarnation, within its time; else it has failed."""
    manager, clock = StandIn(), simulated()
    run = made(of(func, agent_id="a", wait="20s"), manager=manager, clock=clock)
    (failed,) = run.run().of(Phase.METHOD)
    assert f"{func!r} failed: a did not come back within 20s" in failed.problem

    def next_life(agent_id: str) -> Any:
        info = manager.infos[agent_id]
        manager.infos[agent_id] = info.model_copy(update={"incarnation": info.incarnation + 1})
        return info

    monkeypatch.setattr(manager, "get_agent_info", next_life)
    assert made(of(func, agent_id="a", wait="20s"), manager=manager, clock=clock).run().status is RunStatus.COMPLETED


def test_who_rested_before_the_run_rests_on_behind_it() -> None:
    """Somebody else has paused it: neither the action nor the end of the run is its resumption."""
    manager = StandIn("a")
    manager.infos["a"] = manager.infos["a"].model_copy(update={"paused": True})
    provider = {"type": "python", "module": "ares_celery.arena.actions", "func": "pause_agent"}
    rest = {"type": "action", "name": "r", "provider": {**provider, "arguments": {"agent_id": "a", "duration": "1ms"}}}
    report = made(rest, manager=manager).run()
    assert report.status is RunStatus.COMPLETED
    assert manager.infos["a"].paused
    assert manager.calls == []


def test_who_is_paused_by_somebody_after_a_pause_of_the_run_rests_on_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pause of the run is over, and the end of the run undoes nobody else's."""
    manager = StandIn("a")
    resume = manager.resume_agent

    def resumed_and_paused(agent_id: str, *, reason: str = "") -> None:
        resume(agent_id, reason=reason)
        manager.infos[agent_id] = manager.infos[agent_id].model_copy(update={"paused": True})

    monkeypatch.setattr(manager, "resume_agent", resumed_and_paused)
    made(of("pause_agent", agent_id="a", duration="1ms"), manager=manager).run()
    assert [call[0] for call in manager.calls] == ["pause_agent", "resume_agent"]
    assert manager.infos["a"].paused


def test_a_pause_whose_answer_is_lost_is_undone_as_well() -> None:
    """It may have happened."""
    manager = StandIn("a", pause_agent=StoreUnavailableError(url="redis://", problem="gone"))
    provider = {"type": "python", "module": "ares_celery.arena.actions", "func": "pause_agent"}
    rest = {"type": "action", "name": "r", "provider": {**provider, "arguments": {"agent_id": "a"}}}
    report = made(rest, manager=manager).run()
    assert [one.name for one in report.of(Phase.ROLLBACK)] == ["resume a"]


def test_a_function_may_raise_anything(deeds: Deeds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it ends the run or its thread."""

    def exits(*_: object, **__: object) -> None:
        raise SystemExit(3)

    monkeypatch.setattr(deeds, "work", exits)
    report = made(deed("a"), deed("b")).run()
    assert [one.problem for one in report.of(Phase.METHOD)] == ["SystemExit: 3"] * 2


def test_async_functions_are_awaited_and_find_the_run(deeds: Deeds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of probes and actions, in the method and before it, also where the caller's thread has a loop; errors as well."""

    async def finds(name: str, **_: object) -> str:
        await asyncio.sleep(0)
        with at_hand() as ring:
            return f"{name} in {ring.manager.namespace}"

    async def breaks(name: str, **_: object) -> None:
        await asyncio.sleep(0)
        raise KeyError(name)

    monkeypatch.setattr(deeds, "work", finds)
    told = "p in stand-in"
    report = made(deed("a"), deed("p", "probe", tolerance=told)).run()
    assert {name: one.output for name, one in by_name(report).items()} == {"a": "a in stand-in", "p": told}
    assert report.status is RunStatus.COMPLETED
    held = {"title": "h", "probes": [deed("p", "probe", tolerance=told)]}

    async def within() -> ScenarioReport:
        return made(deed("a"), **{"steady-state-hypothesis": held}).run()

    assert [one.output for one in asyncio.run(within()).of(Phase.BEFORE)] == [told]
    monkeypatch.setattr(deeds, "work", breaks)
    assert by_name(made(deed("a")).run())["a"].problem == "KeyError: 'a'"


def test_slow_answers_of_the_store_leave_nothing_of_a_run_out(deeds: Deeds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks are compared by the fastest answer, and no activity is dated too late; begin and end are the store's."""
    manager, clock = StandIn(), simulated()
    asked: list[float] = []

    def introspect() -> Any:
        # The answer is a second late, then half of one; it is of the moment at which it was asked for.
        told = START + timedelta(seconds=clock.monotonic())
        asked.append(clock.monotonic())
        clock.move_to(clock.monotonic() + (1.0 if len(asked) == 1 else 0.5))
        return SimpleNamespace(time=told)

    monkeypatch.setattr(manager, "introspect", introspect)
    report = made(deed("a"), manager=manager, clock=clock).run()
    assert asked == [0.0, 1.0, 1.5, 2.0]
    assert (report.started, report.ended) == (START, START + timedelta(seconds=2.0))
    assert report.activities[0].started == START + timedelta(seconds=1.5)


def test_the_clock_of_the_store_dates_a_run(deeds: Deeds) -> None:
    """The clocks of who runs it and of who stores events may differ."""
    report = made(deed("a")).run()
    assert report.started.isoformat().startswith("2030-01-01T00:00:0")
    assert report.ended >= report.started
    first = report.activities[0]
    assert first.started is not None
    assert report.started <= first.started <= report.ended
