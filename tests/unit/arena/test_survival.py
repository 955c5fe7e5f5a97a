"""Survival runs: drawn by a seed, one at a time, everything set right at the end."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from ares_celery.arena.survival import (
    SURVIVAL_FAULTS,
    SurvivalRun,
    check_survival_faults,
    plan_survival,
    survival_options,
)
from ares_celery.arena.verdict.journal import Outcome, Phase, RunStatus, ScenarioReport
from ares_celery.errors import (
    AgentNotFoundError,
    AgentNotRunningError,
    ArenaBusyError,
    ChaosDisabledError,
    InvalidScenarioError,
    InvalidSettingError,
    StoreUnavailableError,
)
from ares_celery.model.agent import AgentState
from ares_celery.model.arena import ArenaHold
from ares_celery.model.fault_names import FAULT_ACTIONS
from tests.unit.arena.managers import StandIn
from tests.wait import wait_until

MINUTE = timedelta(minutes=1)


class Guarded(StandIn):
    """With an arena that one run has at a time."""

    def __init__(self, *ids: str, **errors: BaseException) -> None:
        super().__init__(*ids, worker="a@host", **errors)
        self.held: ArenaHold | None = None

    def hold_arena(self, owner: str, info: Mapping[str, Any], *, reason: str = "", actor: str = "") -> ArenaHold:
        if self.held is not None and self.held.owner != owner:
            raise ArenaBusyError(owner="anna", seed=self.held.info["seed"], namespace=self.namespace)
        self.held = self.held or ArenaHold(owner, dict(info))
        return self.held

    def release_arena(self, owner: str) -> bool:
        self.held = None
        return True


def survive(manager: StandIn, **options: Any) -> SurvivalRun:
    """A run of a moment."""
    quick: dict[str, Any] = {"seed": 7, "duration": "200ms", "interval": "20ms", "settle": "50ms", "steady": "10ms"}
    return SurvivalRun(cast("Any", manager), **{**quick, **options})


def deeds(report: ScenarioReport) -> list[tuple[str, str]]:
    """Faults and targets, in their order."""
    return [(one.fault, one.target) for one in report.of(Phase.METHOD)]


@pytest.mark.spec(144)
def test_the_same_seed_picks_the_same_faults_and_targets() -> None:
    """In the plan with all arguments, and in what a run really does; another seed picks others."""
    ids = [f"agent-{number}" for number in range(9)]
    plan = plan_survival(7, ids, duration=10 * MINUTE)
    assert plan == plan_survival(7, ids[::-1], duration=10 * MINUTE)
    assert plan != plan_survival(8, ids, duration=10 * MINUTE)
    assert [one.at for one in plan] == [timedelta(seconds=10 * number) for number in range(60)]
    assert {one.fault for one in plan} == set(SURVIVAL_FAULTS) - {"tool_timeout"}, "it may park an agent for good"
    first, again = survive(Guarded(*ids)).run(), survive(Guarded(*ids)).run()
    assert deeds(first) == deeds(again)
    wanted = plan_survival(7, ids, duration=timedelta(milliseconds=200), interval=timedelta(milliseconds=20))
    assert deeds(first) == [(one.fault, one.target) for one in wanted]
    assert len(deeds(first)) == 10
    assert first.seed == 7
    assert deeds(survive(Guarded(*ids), seed=8).run()) != deeds(first)


@pytest.mark.spec(144)
def test_a_seed_means_the_same_for_ever() -> None:
    """Whoever reads a seed in an old report draws what it drew."""
    plan = plan_survival(2026, ["a", "b", "c"], duration=timedelta(seconds=30))
    assert [(one.fault, one.target) for one in plan] == [
        ("kill_agent", "b"),
        ("partition_network", "c"),
        ("kill_agent", "a"),
    ]


@pytest.mark.spec(144)
def test_faults_are_as_the_seed_of_the_run_says_too() -> None:
    """The same damage, and the same calls; each fault of a run its own."""
    faults = tuple(one for one in SURVIVAL_FAULTS if one not in ("kill_agent", "pause_agent", "partition_network"))
    plan = plan_survival(7, ["a"], duration=MINUTE, faults=faults)
    seeds = [one.arguments["seed"] for one in plan]
    assert (len(seeds), len(set(seeds))) == (6, 6)
    assert seeds == [one.arguments["seed"] for one in plan_survival(7, ["a"], duration=MINUTE, faults=faults)]
    assert seeds != [one.arguments["seed"] for one in plan_survival(8, ["a"], duration=MINUTE, faults=faults)]
    assert seeds[0] == 2_063_577_323
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_faults_are_named_in_any_way() -> None:
    """As commands, kinds, actions or routes; all of them are what may be drawn."""
    words = ["KILL", "pause", "slow", "tool-timeout", "partition", "memory-corrupt", "disconnect-mcp", "llm_failure"]
    assert check_survival_faults(words) == tuple(SURVIVAL_FAULTS) == tuple(FAULT_ACTIONS)
    plan = plan_survival(7, ["a"], duration=MINUTE, faults=["slow"])
    assert {one.fault for one in plan} == {"slow_agent"}
    with pytest.raises(InvalidSettingError, match=r"faults='blah' .* name some of kill_agent, "):
        survive(Guarded("a"), faults=["slow", "blah"])


@pytest.mark.spec(144)
def test_a_second_concurrent_run_is_refused_with_an_error() -> None:
    """It does nothing; the first goes on; after it another may run."""
    manager = Guarded()
    first = survive(manager, duration="1h", interval="30m")
    reports: list[ScenarioReport] = []
    thread = threading.Thread(target=lambda: reports.append(first.run()))
    thread.start()
    wait_until(lambda: manager.held, "the first run")
    before = list(manager.calls)
    with pytest.raises(ArenaBusyError, match=r"of anna is under way .* \(seed 7\)"):
        survive(manager, seed=9).run()
    assert manager.calls == before
    first.stop("enough")
    thread.join(10)
    assert (reports[0].status, reports[0].partial_because) == (RunStatus.INTERRUPTED, "enough")
    assert manager.held is None
    assert survive(manager).run().status is RunStatus.COMPLETED


def test_a_run_without_a_seed_tells_the_one_it_drew() -> None:
    """So that it can be run again."""
    run = survive(Guarded(), seed=None)
    report = run.run()
    assert (report.seed, report.title) == (run.seed, "survival of 2 agents")
    assert survive(Guarded("a")).run().title == "survival of 1 agent"


def test_a_run_that_somebody_stops_from_afar_ends_and_says_why() -> None:
    """It learns of it when it keeps the arena."""
    manager = Guarded()
    run = survive(manager, duration="1h", interval="30m")
    manager.hold_arena(run.id, {"seed": 7})
    assert manager.held is not None
    manager.held = ArenaHold(run.id, {}, stop="deploy")
    report = run.run()
    assert (report.status, report.partial_because, deeds(report)) == (RunStatus.INTERRUPTED, "deploy", [])


def test_its_faults_end_with_it_and_it_deviates_where_an_agent_does_not_come_back() -> None:
    """Whatever was injected is healed, whoever rests is resumed."""
    manager = Guarded("a")
    report = survive(manager, faults=["slow_agent", "partition_network"], duration="60ms").run()
    injected = [call for call in manager.calls if call[0] in {"slow_agent", "partition_network"}]
    healed = [call for call in manager.calls if call[0] == "heal"]
    assert len(injected) == len(healed) == len(report.of(Phase.ROLLBACK)) == 3
    manager.infos["a"] = manager.infos["a"].model_copy(update={"state": AgentState.PARKED})
    manager.infos["b"] = manager.infos["a"].model_copy(update={"id": "b", "state": AgentState.RUNNING})
    report = survive(manager, agents=["a", "b"]).run()
    assert (report.status, report.reasons) == (RunStatus.DEVIATED, ("a was given up on ()",))


@pytest.mark.parametrize(
    ("looks", "settle", "status"),
    [(3, "10s", RunStatus.COMPLETED), (10**6, "100ms", RunStatus.DEVIATED)],
    ids=["late", "never"],
)
def test_it_is_not_over_before_the_last_death_is_noticed(looks: int, settle: str, status: RunStatus) -> None:
    """Until then whoever was killed seems to run; a death that nobody notices is one that was not survived."""
    manager = Guarded("a")
    manager.looks = looks
    report = survive(manager, faults=["kill_agent"], duration="20ms", settle=settle).run()
    assert (report.status, deeds(report)) == (status, [("kill_agent", "a")])
    assert (manager.infos["a"].incarnation == 2) is (status is RunStatus.COMPLETED)


def test_without_agents_or_leave_it_says_so() -> None:
    """Preconditions, told apart from a fleet that did not survive."""
    manager = Guarded("a")
    manager.infos.clear()
    report = survive(manager).run()
    assert (report.status, report.partial_because) == (RunStatus.PRECONDITION, "no agent runs")
    off = ChaosDisabledError(operation="slow_agent", namespace="n")
    refused = survive(Guarded("a", slow_agent=off), faults=["slow_agent"]).run()
    assert refused.status is RunStatus.PRECONDITION
    assert "chaos is off" in refused.partial_because
    assert len(deeds(refused)) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [("seed", -1), ("duration", "soon"), ("interval", 0), ("faults", ["sulk"]), ("faults", []), ("duration", -1)],
)
def test_what_cannot_be_is_named(field: str, value: object) -> None:
    """Before anything is done."""
    with pytest.raises(InvalidSettingError, match=field):
        survive(Guarded(), **{field: value})
    with pytest.raises(InvalidScenarioError, match="speed"):
        survival_options("speed: 3")
    assert survival_options("seed: 3\nduration: 1m") == {"seed": 3, "duration": "1m"}


def test_a_slip_in_the_name_of_an_agent_is_no_fleet_that_survives() -> None:
    """Nothing is injected, the arena is free again, and the name is told: whoever asks before the run gets an error."""
    manager = Guarded("a")
    run = survive(manager, agents=["a", "typo"])
    with pytest.raises(AgentNotFoundError, match="'typo'"):
        run.demand_agents()
    report = run.run()
    assert (report.status, deeds(report)) == (RunStatus.PRECONDITION, [])
    assert report.reasons == (report.partial_because,)
    assert "'typo'" in report.partial_because
    assert (manager.calls, manager.held) == ([], None)


def test_a_fleet_that_met_nothing_has_survived_nothing() -> None:
    """Every fault was refused: no success, and why; one that could be injected is enough."""
    refused = AgentNotRunningError(agent_id="a", state="resurrecting", operation="slow_agent")
    report = survive(Guarded("a", slow_agent=refused), faults=["slow_agent"], duration="40ms").run()
    assert report.status is RunStatus.PRECONDITION
    assert report.reasons[0].startswith("no fault could be injected: AgentNotRunningError")
    mixed = survive(Guarded("a", slow_agent=refused), faults=["slow_agent", "partition_network"])
    found = mixed.run()
    assert {one.outcome for one in found.of(Phase.METHOD)} == set(Outcome) - {Outcome.SKIPPED, Outcome.CANCELLED}
    assert (found.status, found.reasons) == (RunStatus.COMPLETED, ())


def test_where_chaos_is_off_nothing_is_drawn_that_needs_it() -> None:
    """It is refused before its first action, whatever that is; pauses need no leave."""
    manager = Guarded("a")
    manager.config.chaos = False
    report = survive(manager, seed=1).run()
    assert (report.status, deeds(report), manager.calls) == (RunStatus.PRECONDITION, [], [])
    assert "chaos is off" in report.reasons[0]
    assert survive(manager, faults=["pause_agent"], duration="20ms").run().status is RunStatus.COMPLETED
    manager.allowed_until = datetime(2030, 1, 2, tzinfo=UTC)
    assert survive(manager, seed=1).run().status is RunStatus.COMPLETED


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is empty"),
        ("- seed: 3", "no mapping of fields"),
        ("agents: counter-1", "'counter-1' is no list of names"),
        ("agents: [1]", "no list of names"),
        ("faults: [[kill_agent]]", "no list of names"),
        ('force: "no"', "neither true nor false"),
    ],
)
def test_a_file_of_a_survival_run_is_checked(text: str, said: str) -> None:
    """A file that says nothing, or something else than it seems to, starts no half an hour of faults."""
    with pytest.raises(InvalidScenarioError, match=said):
        survival_options(text)


def test_a_store_that_is_away_at_the_end_takes_no_report_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fleet has not come back as far as anybody knows; the arena is free in a moment by itself."""
    gone = StoreUnavailableError(url="redis://", problem="gone")
    manager = Guarded("a")
    run = survive(manager, faults=["slow_agent"], duration="60ms", settle="300ms")
    real, looks = manager.list_agents, list[int]()

    def listed(**given: Any) -> Any:
        looks.append(1)
        if 1 < len(looks) < 4:
            raise gone
        return real(**given)

    def released(owner: str) -> bool:
        raise gone

    monkeypatch.setattr(manager, "list_agents", listed)
    monkeypatch.setattr(manager, "release_arena", released)
    report = run.run()
    assert (report.status, len(deeds(report)), len(looks)) == (RunStatus.COMPLETED, 3, 4)


def test_a_store_that_is_away_meanwhile_ends_no_run_and_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The agents live through that, too; whoever looks for the arena's holder finds why there was none."""
    manager = Guarded("a")
    run = survive(manager, faults=["slow_agent"], duration="60ms")
    real, holds = manager.hold_arena, list[int]()

    def held(owner: str, info: Mapping[str, Any], **given: Any) -> ArenaHold:
        holds.append(1)
        if len(holds) == 2:
            raise StoreUnavailableError(url="redis://", problem="gone")
        return real(owner, info, **given)

    monkeypatch.setattr(manager, "hold_arena", held)
    assert run.run().status is RunStatus.COMPLETED
    assert len(holds) > 2
    assert caplog.text.count("its arena cannot be kept: the store at redis:// did not answer: gone") == 1


def test_the_arena_is_kept_while_things_are_set_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each heal may take its time, and nobody else may begin before the last of them."""
    manager = Guarded("a")
    order: list[str] = []
    hold, heal = manager.hold_arena, manager.heal

    def holds(*arguments: Any, **said: Any) -> ArenaHold:
        order.append("hold")
        return hold(*arguments, **said)

    def heals(*arguments: Any, **said: Any) -> Any:
        order.append("heal")
        return heal(*arguments, **said)

    monkeypatch.setattr(manager, "hold_arena", holds)
    monkeypatch.setattr(manager, "heal", heals)
    survive(manager, faults=["slow_agent"], duration="60ms").run()
    begun = order.index("heal")
    assert order[begun : begun + 6] == ["heal", "hold"] * 3
