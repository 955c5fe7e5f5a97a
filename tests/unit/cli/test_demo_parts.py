"""The demo's work, its choice of victims, and its report."""

from __future__ import annotations

import random
from pathlib import Path

from ares_celery.cli.demo.agents import Tokenizer
from ares_celery.cli.demo.checker import Findings, Kill
from ares_celery.cli.demo.counting import Counts, count_names, share_of, source_files
from ares_celery.cli.demo.report import Report, make_report, render
from ares_celery.cli.demo.scenario import choose_victim, choose_worker
from ares_celery.cli.demo.watch import Row, View
from ares_celery.clock import to_datetime
from ares_celery.ids import Version
from ares_celery.model.agent import AgentState
from ares_celery.model.event import Event


def counts(**identifiers: int) -> Counts:
    """Counts of identifiers."""
    made = Counts()
    made.identifiers.update(identifiers)
    return made


def row(agent_id: str, *, state: AgentState = AgentState.RUNNING, worker: str = "one", done: int = 5) -> Row:
    """An agent with ten files."""
    return Row(agent_id, state, worker, 1, 0, done, 10, to_datetime(0))


# -- counting ----------------------------------------------------------------------------------------------------------


def test_names_are_told_from_keywords(tmp_path: Path) -> None:
    """Strings and comments hold no names."""
    source = tmp_path / "a.py"
    source.write_text("def f(x):\n    # x\n    return x + 'x'\n")

    found = count_names(source)

    assert (found.identifiers, found.keywords) == ({"f": 1, "x": 2}, {"def": 1, "return": 1})


def test_a_broken_source_gives_the_same_counts_every_time(tmp_path: Path) -> None:
    """The library has a few; both sides of the comparison see the same."""
    source = tmp_path / "broken.py"
    source.write_text("good = 1\nbad = '''\n")

    assert count_names(source) == count_names(source)


def test_the_library_is_found_without_its_tests_and_without_what_was_installed() -> None:
    """Enough files for a demo, sorted, the same for every process."""
    files = source_files()

    assert "tokenize.py" in files
    assert list(files) == sorted(files)
    assert not [name for name in files if {"site-packages", "test", "tests"} & set(name.split("/"))]


def test_every_file_belongs_to_exactly_one_agent() -> None:
    """File i is that of agent i modulo their number."""
    files = [f"{index}.py" for index in range(23)]
    shares = [share_of(files, index, 4) for index in range(4)]

    assert sorted(name for share in shares for name in share) == sorted(files)
    assert {len(share) for share in shares} == {5, 6}


def test_a_restored_agent_has_the_state_of_the_one_that_was_snapshotted() -> None:
    """Through JSON values, and it knows where to go on."""
    before = Tokenizer("demo-01", 0, 1)
    payload = {"file": "a.py", "identifiers": {"x": 2}, "keywords": {"def": 1}}
    before.apply(Event("1", "demo-01", Version(2), "file.counted", payload, to_datetime(0), 1))

    after = Tokenizer("demo-01", 0, 1)
    after.restore_state(before.snapshot())

    assert (after.files_done, after.counts) == (1, before.counts)


# -- whom to kill ------------------------------------------------------------------------------------------------------


def test_only_agents_in_the_middle_of_their_work_are_killed() -> None:
    """Not before the first file, not at the last one, not between two lives."""
    view = View(
        [
            row("new", done=0),
            row("nearly-done", done=9),
            row("resurrecting", state=AgentState.RESURRECTING, worker=""),
            row("done", state=AgentState.COMPLETED, done=10),
            row("busy"),
        ]
    )

    chosen = choose_victim(view, (), random.Random(1))

    assert chosen is not None
    assert chosen.agent_id == "busy"


def test_an_agent_that_was_not_hit_yet_comes_first() -> None:
    """The next hit is somebody else's, while there is somebody else."""
    view = View([row("hit"), row("fresh")])

    chosen = choose_victim(view, {"hit"}, random.Random(1))

    assert chosen is not None
    assert chosen.agent_id == "fresh"
    assert choose_victim(View([row("hit")]), {"hit"}, random.Random(1)) is not None
    assert choose_victim(View([]), (), random.Random(1)) is None


def test_the_worker_with_most_agents_is_killed() -> None:
    """More to bring back at once."""
    assert choose_worker(View([row("a"), row("b", worker="two"), row("c", worker="two")])) == "two"
    assert choose_worker(View([])) is None


# -- the report --------------------------------------------------------------------------------------------------------


def report_of(
    findings: Findings | None = None, *, snapshots: Counts | None = None, plain: Counts | None = None
) -> Report:
    """A report of a run in which one incarnation was killed."""
    good = Findings(killed=1, recovered=1, completed=2, detect_ms=[20.0], recover_ms=[50.0])
    same = counts(self=3, x=1)
    return make_report(
        findings or good,
        [Kill("process", "one", 1, 0, ()), Kill("beat", "beat", 2, 0, ())],
        agents=2,
        files=4,
        snapshots=snapshots or same,
        events=same,
        plain=plain or same,
        seconds=12.34,
    )


def test_a_run_in_which_all_held_is_ok() -> None:
    """With the names that programs rely on."""
    report = report_of()
    shown = report.to_json()

    assert report.ok
    assert {
        "agents": 2,
        "killed": 1,
        "recovered": 1,
        "duplicates": 0,
        "lost_events": 0,
        "state_preserved": True,
        "detect_ms_p50": 20.0,
        "recover_ms_p50": 50.0,
        "recover_ms_max": 50.0,
    }.items() <= shown.items()
    assert "All of it held" in render(report)
    assert "self 3, x 1" in render(report)


def test_other_counts_than_the_plain_loop_s_are_a_failure() -> None:
    """Of the agents' states as of their events."""
    for report in (report_of(snapshots=counts(self=2)), report_of(plain=counts(self=4))):
        assert not report.ok
        assert not report.state_preserved
        assert "did NOT hold" in render(report)


def test_an_agent_that_did_not_recover_is_a_failure() -> None:
    """Killed and recovered must be equal."""
    report = report_of(Findings(killed=2, recovered=1))

    assert not report.ok
    assert "2 incarnations were killed" in report.problems[0]


def test_a_run_without_kills_has_no_times() -> None:
    """None, not zero."""
    report = report_of(Findings())

    assert (report.detect_ms_p50, report.recover_ms_max) == (None, None)
    assert "-" in render(report)
