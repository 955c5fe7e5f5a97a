"""Verdicts: recoveries from events, availability, invariants, the two scores, the three forms of a report."""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from html.parser import HTMLParser
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast
from xml.etree import ElementTree as ET

import pytest
from typing_extensions import override

from ares_celery.arena.verdict.compare import compare
from ares_celery.arena.verdict.history import failovers, spans
from ares_celery.arena.verdict.invariants import INVARIANTS, InvariantReader, Judged, check_invariants
from ares_celery.arena.verdict.journal import ActivityReport, Outcome, Phase, RunStatus
from ares_celery.arena.verdict.judge import judge, verdict_of
from ares_celery.arena.verdict.junit import junit
from ares_celery.arena.verdict.page import page
from ares_celery.arena.verdict.scores import go_score
from ares_celery.errors import InvalidSettingError, RunNotCompletedError, StoreUnavailableError, TooFewReportsError
from ares_celery.ids import Version
from ares_celery.model.agent import AgentState
from ares_celery.model.event import Event, ReadOptions
from tests.unit.arena.histories import START, Stream, action, at, report
from tests.unit.cli.calling import agent

# -- scores -----------------------------------------------------------------------------------------------------------


@pytest.mark.spec(145)
@pytest.mark.parametrize(
    ("total", "succeeded", "seconds", "score", "grade"),
    [(0, 0, 0.0, 30.0, "F"), (10, 10, 0.5, 100.0, "A+"), (10, 10, 10.0, 91.0, "A"), (10, 8, 1.0, 86.3, "B")],
)
def test_the_pinned_inputs_give_the_original_s_scores_and_grades(
    total: int, succeeded: int, seconds: float, score: float, grade: str
) -> None:
    """No actions; ten of ten at half a second, and at ten; eight of ten at a second."""
    found = go_score(total=total, succeeded=succeeded, seconds=seconds)
    assert (found.score, found.grade) == (score, grade)


@pytest.mark.spec(145)
def test_a_measured_consistency_is_taken_as_it_is() -> None:
    """Above zero; else it follows from the failures, each two of which cost five points, and one as well."""
    assert go_score(total=10, succeeded=10, seconds=1, consistency=50).score == 85.0
    assert [go_score(total=10, succeeded=10 - failed).consistency for failed in (0, 1, 2, 4)] == [100, 95, 95, 90]


# -- recoveries -------------------------------------------------------------------------------------------------------


@pytest.mark.spec(146)
def test_mttr_is_computed_from_trigger_to_completed() -> None:
    """Average, least, most and last, all above zero; a restore that was asked for and an open failover are none."""
    a = Stream("a").add(0, "agent.started").death(10, 2.0).death(30, 4.0, incarnation=2).death(90, None, incarnation=3)
    b = Stream("b").add(0, "agent.started").death(20, 0.5)
    b.add(50, "failover.triggered", cause="restore").add(53, "failover.completed")
    run = report(action("k1", 9.5), action("k2", 29.9), action("k3", 19.0, target="b"))
    verdict = verdict_of(run, [Judged("a", a.events), Judged("b", b.events)])
    assert (verdict.deaths, verdict.recovered) == (4, 3)
    assert verdict.times is not None
    assert verdict.times.to_json() == {
        "count": 3,
        "min": 0.5,
        "avg": pytest.approx(6.5 / 3),
        "p95": 4.0,
        "max": 4.0,
        "last": 4.0,
    }
    assert verdict.to_json()["mttr"]["last"] == 4.0
    assert all(value > 0 for value in verdict.times.to_json().values())


@pytest.mark.spec(146)
def test_without_actions_there_is_no_data_and_the_go_score_stands_under_its_own_name() -> None:
    """30 and F of the original is not a word about these agents."""
    verdict = verdict_of(report(), [Judged("a", Stream().add(0, "agent.started").events)])
    told = verdict.to_json()
    assert (told["score"], told["grade"], told["mttr"]) == ("no data", "no data", "no data")
    assert (told["go_score"], told["go_grade"]) == (30.0, "F")


@pytest.mark.pain("P46")
def test_each_fault_is_told_with_its_detection_and_recovery() -> None:
    """Fault, detected in, recovered in; a death that came by itself belongs to no action on another agent."""
    a = Stream("a").add(0, "agent.started").death(10, 2.0).death(40, None, cause="lost", incarnation=2)
    b = Stream("b").add(0, "agent.started").death(11, 1.0)
    run = report(action("first", 9.0), action("idle", 20.0), action("last", 39.0), action("deaf", 5, target="c"))
    verdict = verdict_of(run, [Judged("a", a.events), Judged("b", b.events)])
    assert [(one.name, one.cause, one.detected, one.recovered) for one in verdict.effects] == [
        ("deaf", "", None, None),
        ("first", "crash", 1.0, 3.0),
        ("idle", "", None, None),
        ("last", "lost", 1.0, None),
    ]


def test_availability_counts_the_time_in_which_an_agent_should_have_been_up() -> None:
    """Rest on purpose is neither up nor down; what is not known yet is not counted."""
    a = Stream("a").add(10, "agent.started").death(50, 10.0)
    a.add(80, "agent.stopped", reason="pause")
    b = Stream("b").add(-5, "agent.started").add(90, "agent.exhausted", cause="cap")
    verdict = verdict_of(report(), [Judged("a", a.events), Judged("b", b.events)])
    assert [(one.state, one.seconds) for one in verdict.spans if one.agent_id == "a"] == [
        ("out", 10.0),
        ("up", 40.0),
        ("down", 10.0),
        ("up", 20.0),
        ("out", 20.0),
    ]
    assert verdict.availability == pytest.approx(100 * (60 + 90) / (70 + 100))
    assert spans("x", (), START, at(5))[0].state == "out"


def test_a_score_is_made_of_what_the_events_say() -> None:
    """Not of what injections returned: an agent that does not come back costs it."""
    back = Stream().add(0, "agent.started").death(10, 1.0)
    gone = Stream().add(0, "agent.started").death(10, None)
    fine = verdict_of(report(action("k", 9)), [Judged("a", back.events)])
    lost = verdict_of(report(action("k", 9)), [Judged("a", gone.events)])
    assert (fine.score, fine.grade) == (99.6, "A+")
    assert (lost.score, lost.grade) == (34.0, "F")
    assert fine.go is not None
    assert fine.go == lost.go
    calm = verdict_of(report(action("slow", 9)), [Judged("a", Stream().add(0, "agent.started").events)])
    assert calm.score == 100.0


def test_failovers_end_as_their_events_say() -> None:
    """Completed, failed, aborted, or not at all."""
    stream = Stream().death(1, None).death(2, 1.0).death(5, None).add(6, "failover.aborted").death(7, None)
    stream.add(8, "failover.failed")
    assert [one.end for one in failovers("a", stream.events)] == ["", "completed", "aborted", "failed"]


# -- invariants -------------------------------------------------------------------------------------------------------


def broken(stream: Stream, **more: Any) -> dict[str, int]:
    """Which invariants do not hold, and how often."""
    found = check_invariants([Judged("a", stream.events, **more)])
    return {one.name: one.count for one in found if not one.holds}


def sound() -> Stream:
    """A life with a death, a step that is not repeated, and a rest."""
    stream = Stream().add(0, "agent.started").add(1, "tick", epoch=5).add(1, "step.started", execution="e", step="s")
    stream.add(2, "step.completed", execution="e", step="s").death(3, 1.0).add(5, "tick", epoch=9)
    return stream.add(6, "agent.stopped", reason="stop")


def test_a_sound_history_violates_nothing() -> None:
    """Whatever was survived."""
    assert broken(sound()) == {}
    assert [one.name for one in check_invariants([])] == list(INVARIANTS)


def test_each_invariant_finds_what_it_is_for() -> None:
    """One broken history for each, and only that one told."""
    assert broken(sound().add(7, "tick", version=20)) == {"versions_gapless": 1}
    late = sound().add(7, "agent.started").add(8, "tick", epoch=7)
    assert broken(late) == {"epochs_grow": 1, "one_writer": 1}
    assert broken(sound().add(7, "tick", epoch=9)) == {"one_writer": 1}
    doubled = sound().add(7, "step.completed", execution="e", step="s")
    assert broken(doubled) == {"steps_once": 1}
    again = Stream().add(1, "step.started", execution="e", step="s").add(2, "step.started", execution="e", step="s")
    assert broken(again) == {"steps_once": 1}
    assert broken(sound().add(7, "agent.exhausted", cause="cap").add(8, "failover.triggered", cause="crash")) == {
        "restarts_capped": 1
    }


def test_what_looks_doubled_and_is_not() -> None:
    """A try that failed, a person who said retry, an execution whose id is used again, an un-parked agent."""
    stream = Stream()
    for ends in ({"kind": "step.failed"}, {"kind": "step.reconciled", "outcome": "retry"}, {"kind": "step.completed"}):
        stream.add(1, "step.started", execution="e", step="s")
        stream.add(2, ends["kind"], execution="e", step="s", outcome=ends.get("outcome", ""))
    stream.add(3, "execution.completed", execution="e").add(4, "step.completed", execution="e", step="s")
    stream.add(5, "agent.parked", cause="cap").add(6, "agent.started").death(7, 1.0)
    assert broken(stream) == {}


@pytest.mark.parametrize(
    ("state", "charged", "cap", "holds"),
    [("running", 3, 3, True), ("running", 4, 3, False), ("parked", 4, 3, True), ("running", 99, 0, True)],
)
def test_charged_restarts_stay_within_their_cap(state: str, charged: int, cap: int, holds: bool) -> None:  # noqa: FBT001
    """The death that used it up is counted, too; 0 is no cap."""
    info = agent("a", AgentState(state), charged=charged)
    assert (broken(Stream(), info=info, cap=cap) == {}) is holds


def test_an_unsound_history_costs_consistency() -> None:
    """By agent."""
    bad = sound().add(7, "tick", version=20)
    verdict = verdict_of(report(action("k", 1)), [Judged("a", bad.events), Judged("b", Stream("b").events)])
    assert verdict.consistency == 50.0
    assert not verdict.is_sound
    assert verdict_of(report(), [], ["a: cannot be read"]).is_sound is False


# -- what came of actions ---------------------------------------------------------------------------------------------


def faulty(fault: str, name: str = "inject", seconds: float = 10, **output: Any) -> ActivityReport:
    """An action with what it gave."""
    return replace(action(name, seconds), fault=fault, output=output)


def test_a_fault_is_told_with_its_end_and_what_the_agent_met() -> None:
    """Of events that tell of a disturbance, from the injection to the next one, and of nothing that came later."""
    stream = Stream().add(0, "agent.started").add(9, "step.failed").add(10.1, "fault.injected", fault="f-1")
    stream.add(11, "step.failed").add(12, "step.failed").add(12, "tick", epoch=3).add(13, "mcp.disconnected")
    stream.add(15.1, "fault.ended", fault="f-1", by="count").add(15.2, "fault.injected", fault="f-2")
    stream.add(21, "agent.stopped", reason="pause").add(25, "fault.healed", fault="f-2").add(200, "step.failed")
    first, second = faulty("inject_llm_failure", id="f-1"), faulty("slow_agent", "slow", 15.2, id="f-2")
    healed = faulty("heal", "right", 20)
    effects = verdict_of(report(first, second, healed), [Judged("a", stream.events)]).effects
    assert [(one.name, one.lasted, one.ended, dict(one.felt)) for one in effects] == [
        ("inject", 5.0, "count", {"mcp.disconnected": 1, "step.failed": 2}),
        ("slow", pytest.approx(9.8), "healed", {"agent.stopped": 1}),
        ("right", None, "", {}),
    ]
    assert json.loads(json.dumps(effects[0].to_json()))["felt"] == {"mcp.disconnected": 1, "step.failed": 2}


def test_a_kill_is_told_with_all_that_it_took_along() -> None:
    """Of a worker, of neighbours: the last death and the last return count, and one that stays away."""
    a, b = Stream("a").add(0, "agent.started").death(11, 2.0), Stream("b").add(0, "agent.started").death(12, 3.0)
    worker = replace(faulty("kill_worker", agents=["a", "b"]), target="")
    forced = faulty("kill_agent", agent_id="a", co_tenants=["b"])
    for kill in (worker, forced):
        (one,) = verdict_of(report(kill), [Judged("a", a.events), Judged("b", b.events)]).effects
        assert (one.agents, one.deaths, one.cause, one.detected, one.recovered) == (("a", "b"), 2, "crash", 2.0, 5.0)
        assert one.felt["failover.completed"] == 2
    gone = Stream("b").add(0, "agent.started").death(12, None)
    (one,) = verdict_of(report(worker), [Judged("a", a.events), Judged("b", gone.events)]).effects
    assert (one.deaths, one.detected, one.recovered) == (2, 2.0, None)
    alone = replace(worker, output={"agents": [f"agent-{number}" for number in range(9)]})
    many = [Judged(f"agent-{number}", Stream().events) for number in range(9)]
    text = page(replace(report(alone), verdict=verdict_of(report(alone), many)))
    assert "agent-0, agent-1, agent-2, agent-3, agent-4 and 4 more" in text


# -- long histories ---------------------------------------------------------------------------------------------------


class Tracked(Event):
    """An event whose life can be followed."""


class LongStreams:
    """A manager with one agent and a stream that is made as it is read; ``trim`` takes away its beginning meanwhile."""

    def __init__(self, length: int, *, trim: Mapping[int, int] = MappingProxyType({}), hole: int = 0) -> None:
        self.length, self.trim, self.hole = length, trim, hole
        self.first = 1
        self.alive: weakref.WeakValueDictionary[int, Tracked] = weakref.WeakValueDictionary()
        self.most = self.longest = 0
        self.config = SimpleNamespace(max_restarts_per_agent=3)
        self.events = self

    def list_agents(self) -> list[Any]:
        return [agent("a", AgentState.RUNNING)]

    def read(self, stream_id: str, options: ReadOptions) -> tuple[Event, ...]:
        first = max(options.from_version, self.first)
        last = min(options.to_version or self.length, self.length, first + options.limit - 1)
        versions = [one for one in range(first, last + 1) if one != self.hole]
        found = tuple(Tracked(f"e{one}", stream_id, Version(one), "tick", {}, at(one), epoch=1) for one in versions)
        self.alive.update({int(one.version): one for one in found})
        self.most, self.longest = max(self.most, len(self.alive)), max(self.longest, len(found))
        self.first = self.trim.get(last, self.first)
        return found


def test_of_a_long_history_a_page_is_held_at_a_time() -> None:
    """However long it is."""
    for length in (500, 20_000):
        streams = LongStreams(length)
        verdict = judge(cast("Any", streams), report(), ["a"])
        assert (verdict.agents, verdict.is_sound) == (1, True)
        assert streams.longest == 250
        assert streams.most <= 2 * streams.longest


def test_what_is_trimmed_while_it_is_read_is_no_gap() -> None:
    """A version that is missing among those that are kept is one."""
    assert judge(cast("Any", LongStreams(1000, trim={250: 700})), report(), ["a"]).is_sound
    verdict = judge(cast("Any", LongStreams(1000, hole=251)), report(), ["a"])
    assert [one.told for one in verdict.invariants if not one.holds] == [("a: version 252 follows 250",)]


def test_violations_are_counted_and_the_first_are_told() -> None:
    """Of a history that is broken throughout as well."""
    stream = Stream()
    for number in range(1, 101):
        stream.add(number, "tick", version=2 * number)
    reader = InvariantReader(Judged("a", ()))
    for event in stream.events:
        reader.see(event)
    assert (reader.counts["versions_gapless"], len(reader.told["versions_gapless"])) == (99, 20)
    (gaps,) = [one for one in check_invariants([Judged("a", stream.events), Judged("b", stream.events)]) if one.count]
    assert (gaps.count, gaps.agents, len(gaps.told), gaps.told[0]) == (198, ("a", "b"), 20, "a: version 4 follows 2")


def test_a_stream_that_cannot_be_read_to_its_end_is_a_problem() -> None:
    """It is named, and the others are judged."""

    def broken_off() -> Iterator[Event]:
        yield from Stream().add(0, "agent.started").events
        raise StoreUnavailableError(url="u", problem="gone")

    verdict = verdict_of(report(action("k", 1)), [Judged("a", broken_off()), Judged("b", Stream("b").events)])
    assert (verdict.agents, verdict.is_sound) == (1, False)
    assert verdict.problems[0].startswith("a: ")


# -- forms of a report ------------------------------------------------------------------------------------------------


def whole() -> Any:
    """A report with everything in it, hostile words included."""
    evil = "<script>alert(1)</script>&\"'\x00\ud800"
    activities = (
        replace(action("k", 9), label=evil),
        ActivityReport(evil, Phase.METHOD, "probe", Outcome.FAILED, problem=evil),
        ActivityReport("skip", Phase.METHOD, "action", Outcome.SKIPPED, problem="it waits"),
        ActivityReport("odd", Phase.METHOD, "action", Outcome.SUCCEEDED, expected="failure", as_expected=False),
        ActivityReport("r", Phase.ROLLBACK, "action", Outcome.SUCCEEDED),
    )
    run = replace(report(*activities, partial=True, partial_because=evil, seed=7), title=evil)
    stream = Stream().add(0, "agent.started").death(10, 2.0).add(20, "tick", version=90)
    verdict = verdict_of(run, [Judged(evil, stream.events), Judged("a", stream.events)], [evil])
    return replace(run, status=RunStatus.INTERRUPTED, verdict=verdict)


class Reader(HTMLParser):
    """Notes tags, and attributes that could load something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [name for name, _ in attrs if name in {"src", "href", "data", "action"} or name.startswith("on")]


def test_the_page_is_one_file_that_loads_and_runs_nothing() -> None:
    """Whatever names and errors say."""
    text = page(whole())
    assert text.encode().decode() == text
    reader = Reader()
    reader.feed(text)
    assert reader.loads == []
    assert not {"script", "link", "img", "iframe", "object"} & set(reader.tags)
    assert {"svg", "rect", "line", "table"} <= set(reader.tags)
    assert "default-src &#x27;none&#x27;" in text
    assert "url(" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "2.000 s" in text
    assert page(report()).count("<h1>") == 1
    assert "an agent that waits for its store, its model or a tool is up" in text


def test_the_picture_is_well_formed_and_says_when_who_was_down() -> None:
    """As XML, with nothing from elsewhere in it; one row for each agent, in seconds of the run."""
    a = Stream("a").add(-5, "agent.started").death(25, 25.0)
    b = Stream("b").add(-5, "agent.started")
    run = report(replace(action("kill <a>", 25), label="kill <a>"))
    text = page(replace(run, verdict=verdict_of(run, [Judged("b", b.events), Judged("a", a.events)])))
    (picture,) = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert re.findall(r"""https?:|//|url\(|@import|xlink|<image|<use|<style|javascript:""", picture) == []
    assert re.findall(r"""(?:src|href|srcset|poster|xmlns)\s*=|https?://|url\(|@import""", text) == []
    root = ET.fromstring(picture)  # noqa: S314 - made here
    width, height = (float(one) for one in str(root.get("viewBox")).split()[2:])
    shown = [
        (one.get("fill"), round(float(str(one.get("x")))), round(float(str(one.get("width")))), one.findtext("title"))
        for one in root.findall("rect")
    ]
    # 810 points are 100 s; who was down comes first.
    assert shown == [
        ("#2e7d32", 180, 202, "a: up for 25.000 s"),
        ("#c62828", 382, 202, "a: down for 25.000 s"),
        ("#2e7d32", 585, 405, "a: up for 50.000 s"),
        ("#2e7d32", 180, 810, "b: up for 100.000 s"),
    ]
    (line,) = root.findall("line")
    assert (line.get("x1"), line.findtext("title")) == ("382.5", "kill <a>")
    for one in root.iter():
        x, y = float(one.get("x") or one.get("x1") or 0), float(one.get("y") or one.get("y2") or 0)
        assert 0 <= x <= width
        assert 0 <= y <= height


def test_junit_has_a_case_for_each_activity_and_invariant() -> None:
    """Well-formed whatever is in it; failures and skips are counted."""
    root = ET.fromstring(junit(whole()))  # noqa: S314 - made here
    suites = {one.get("name"): one for one in root}
    assert set(suites) == {"method", "rollback", "invariants", "run"}
    assert [suites["method"].get(name) for name in ("tests", "failures", "skipped")] == ["4", "2", "1"]
    failures = [one.get("message") for one in suites["method"].iter("failure")]
    assert failures[1] == "it succeeded, and was expected to fail"
    assert suites["invariants"].get("failures") == "1"
    assert len(suites["invariants"]) == len(INVARIANTS)


def test_a_report_says_in_a_few_lines_what_was_wrong() -> None:
    """Each thing on a line of its own; what was as it had to be is not in it."""
    failed = replace(action("kill", 9, fails=True, target="b"), problem="AgentNotFoundError:\n no agent")
    odd = ActivityReport("odd", Phase.AFTER, "probe", Outcome.SUCCEEDED, expected="failure", as_expected=False)
    met = ActivityReport(
        "met", Phase.METHOD, "action", Outcome.FAILED, "", "refused", None, "failure", as_expected=True
    )
    other = replace(met, name="other", as_expected=False)
    run = replace(report(failed, met, other, odd, seed=7), status=RunStatus.DEVIATED)
    stream = Stream().add(0, "agent.started").death(10, None).add(20, "tick", version=90)
    judged = replace(run, verdict=verdict_of(run, [Judged("a", stream.events)], ["b: gone"]))
    lines = str(judged).splitlines()
    assert lines[0] == "'t' is deviated (seed 7):"
    assert "  method 'kill' failed on b: AgentNotFoundError: no agent" in lines
    assert "  method 'other' failed, and was to fail with another error: refused" in lines
    assert "  after 'odd' succeeded, and was to fail" in lines
    assert "  b: gone" in lines
    assert any(line.startswith("  versions_gapless: ") for line in lines)
    assert any("did not come back" in line for line in lines)
    assert not any("'met'" in line for line in lines)
    assert str(met) == "method 'met' failed, as expected: refused"
    assert str(replace(run, status=RunStatus.COMPLETED, seed=None)) == "'t' is completed"


def test_a_run_that_is_not_completed_fails_a_test_with_its_reasons() -> None:
    """As an assertion, so that runners of tests count a failure and no error; a completed one is given back."""
    fine = replace(report(action("k", 9)), status=RunStatus.COMPLETED)
    assert fine.raise_for_status() is fine
    for status in set(RunStatus) - {RunStatus.COMPLETED}:
        bad = replace(fine, status=status, partial=True, partial_because="SIGINT")
        with pytest.raises(RunNotCompletedError, match=rf"the run 't' is {status.value}:\n  SIGINT") as raised:
            bad.raise_for_status()
        assert isinstance(raised.value, AssertionError)
        assert (raised.value.status, raised.value.reasons) == (status.value, ["SIGINT"])


def test_json_is_plain() -> None:
    """Through a strict encoder and back."""
    told = whole().to_json()
    again = json.loads(json.dumps(told, allow_nan=False, ensure_ascii=True))
    assert again["verdict"]["deaths"] == 2
    assert again["seed"] == 7


# -- two versions -----------------------------------------------------------------------------------------------------


def runs(*mttr: float) -> list[dict[str, Any]]:
    """Reports whose mean recovery took so long."""
    return [{"verdict": {"mttr": {"avg": one}, "score": 90, "availability": "no data"}} for one in mttr]


def test_two_versions_are_compared_by_a_test_of_scipy() -> None:
    """Slower is worse; the same is no difference; what no run has is no data."""
    pytest.importorskip("scipy", reason="in the set of highest versions only")
    slow, fast = runs(5, 6, 7, 8, 9, 10), runs(1, 1.5, 2, 2.5, 3, 3.5)
    found = {one.metric: one for one in compare(fast, slow)}
    assert (found["mttr"].result, found["score"].result) == ("worse", "no difference")
    assert found["availability"].result == "no data"
    assert found["mttr"].p_value == pytest.approx(0.002164, abs=1e-5)
    assert (found["mttr"].median_before, found["mttr"].median_after) == (2.25, 7.5)
    assert compare(slow, fast)[0].result == "better"
    assert compare(slow, runs(5.1, 6.2, 7.1, 8.3, 8.9, 9.9))[0].result == "no difference"


@pytest.mark.parametrize(
    ("before", "after", "alpha", "needed"),
    [(3, 3, 0.05, 4), (6, 1, 0.05, 4), (30, 1, 0.05, 4), (4, 4, 0.02, 5), (2, 2, 0.2, 3), (0, 9, 0.05, 4)],
)
def test_so_few_runs_that_no_difference_could_show_are_refused(
    before: int, after: int, alpha: float, needed: int
) -> None:
    """However far apart they are, the least p-value of so many is above alpha; how many it takes is said."""
    with pytest.raises(TooFewReportsError, match=rf"give {needed} or more of each") as raised:
        compare(runs(*range(before)), runs(*range(100, 100 + after)), alpha=alpha)
    assert (raised.value.before, raised.value.after, raised.value.needed) == (before, after, needed)


@pytest.mark.parametrize(("before", "after"), [(4, 4), (3, 5), (2, 8), (1, 40)])
def test_as_few_as_can_show_a_difference_are_enough(before: int, after: int) -> None:
    """The largest difference there is shows, for each shape of the least numbers."""
    pytest.importorskip("scipy", reason="in the set of highest versions only")
    found = compare(runs(*range(before)), runs(*range(100, 100 + after)), metrics=["mttr"])
    assert found[0].result == "worse"


def test_a_number_that_too_few_runs_have_is_no_data_and_an_unknown_metric_is_refused() -> None:
    """Beside one that can be compared; a wrong name is not silently left out."""
    pytest.importorskip("scipy", reason="in the set of highest versions only")
    few = [{"verdict": {**one["verdict"], "availability": number}} for number, one in enumerate(runs(1, 2, 3))]
    found = {one.metric: one.to_json()["result"] for one in compare([*few, *runs(4)], [*few, *runs(5)])}
    assert (found["mttr"], found["availability"]) == ("no difference", "no data")
    with pytest.raises(TooFewReportsError, match="3 reports before and 3 after"):
        compare([*few, *runs(4)], [*few, *runs(5)], metrics=["availability"])
    assert compare([], [], metrics=[]) == ()
    with pytest.raises(InvalidSettingError, match="mttr"):
        compare([], [], metrics=["speed"])
    with pytest.raises(InvalidSettingError, match="alpha"):
        compare([], [], alpha=2)
