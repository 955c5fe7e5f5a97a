"""The demo's checker finds what is wrong in a stream, each thing once, and nothing in one that is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ares_celery.cli.demo.checker import Findings, Kill, Stream, Victim, check, fold
from ares_celery.clock import to_datetime
from ares_celery.ids import Version
from ares_celery.model.event import Event, EventType

T0 = 1_795_000_000_000_000
FILES = ["a.py", "b.py", "c.py"]
RUNTIME = {"module": "runtime"}


def event(version: int, kind: str, payload: dict[str, Any], *, epoch: int = 0, after_ms: float = 0) -> Event:
    """One stored event; those with an epoch are an incarnation's, the others the runtime's."""
    time = to_datetime(T0) + timedelta(milliseconds=after_ms)
    metadata = {} if epoch else RUNTIME
    return Event(f"e{version}", "demo-01", Version(version), kind, payload, time, epoch, metadata)


def counted(version: int, file: str, epoch: int = 100) -> Event:
    """A file's counts."""
    return event(
        version, "file.counted", {"file": file, "identifiers": {"self": 2}, "keywords": {"def": 1}}, epoch=epoch
    )


def good_events() -> list[Event]:
    """An agent that was killed after its second file, recovered and finished."""
    return [
        event(1, EventType.AGENT_STARTED, {"incarnation": 1}),
        counted(2, "a.py"),
        counted(3, "b.py"),
        event(4, EventType.AGENT_STOPPED, {"reason": "process lost"}, after_ms=20),
        event(5, EventType.FAILOVER_TRIGGERED, {"incarnation": 1}, after_ms=20),
        event(6, EventType.FAILOVER_COMPLETED, {"incarnation": 2}, after_ms=50),
        counted(7, "c.py", epoch=200),
        event(8, EventType.AGENT_COMPLETED, {"incarnation": 2}, after_ms=900),
    ]


KILL = Kill("process", "one", 4711, T0, (Victim("demo-01", 1),))


def findings_of(events: Sequence[Event], kills: Sequence[Kill] = (KILL,), last_version: int = 8) -> Findings:
    """What the checker says of one agent."""
    return check({"demo-01": Stream(events, last_version, FILES)}, kills)


def test_a_right_stream_has_no_findings_but_its_death() -> None:
    """Counts, times and nothing to complain of."""
    found = findings_of(good_events())

    assert (found.duplicates, found.lost_events, found.epoch_falls, found.other_deaths) == (0, 0, 0, 0)
    assert (found.killed, found.recovered, found.completed) == (1, 1, 1)
    assert (found.detect_ms, found.recover_ms) == ([20.0], [50.0])
    assert found.problems == []


def test_a_doctored_stream_shows_one_duplicate_and_one_lost_event() -> None:
    """One file stored twice under a new version, another taken out: one of each, not more."""
    events = good_events()
    del events[2]
    events.append(counted(9, "c.py", epoch=200))

    found = findings_of(events, last_version=9)

    assert (found.duplicates, found.lost_events) == (1, 1)


def _add_again(events: list[Event]) -> list[Event]:
    return [*events, events[1]]


def _double_a_version(events: list[Event]) -> list[Event]:
    return [*events[:3], replace(events[2], id="other"), *events[3:]]


def _drop_last(events: list[Event]) -> list[Event]:
    return events[:-1]


def _drop_files(events: list[Event]) -> list[Event]:
    return [one for one in events if one.type != "file.counted"]


def _drop_a_runtime_event(events: list[Event]) -> list[Event]:
    return [one for one in events if one.version != 4]


@pytest.mark.parametrize(
    ("doctor", "duplicates", "lost"),
    [
        (_add_again, 1, 0),
        (_double_a_version, 1, 0),
        (_drop_last, 0, 1),
        (_drop_files, 0, 3),
        (_drop_a_runtime_event, 0, 1),
    ],
)
def test_each_event_that_is_twice_there_or_missing_counts_once(
    doctor: Callable[[list[Event]], list[Event]], duplicates: int, lost: int
) -> None:
    """Version and file of an event are two signs of one thing."""
    found = findings_of(doctor(good_events()))

    assert (found.duplicates, found.lost_events) == (duplicates, lost)
    assert found.problems


def test_a_file_of_somebody_else_is_a_duplicate() -> None:
    """Its owner counts it too."""
    found = findings_of([*good_events(), counted(9, "z.py", epoch=200)], last_version=9)

    assert found.duplicates == 1


def test_a_write_of_an_older_incarnation_is_noticed() -> None:
    """Epochs never fall."""
    events = good_events()
    events[6] = counted(7, "c.py", epoch=99)

    found = findings_of(events)

    assert found.epoch_falls == 1
    assert "version 7" in found.problems[0]


def test_an_agent_that_never_ran_again_is_not_recovered() -> None:
    """Killed and not recovered, and it says which."""
    found = findings_of(good_events()[:5], last_version=5)

    assert (found.killed, found.recovered) == (1, 0)
    assert any("never ran again" in problem for problem in found.problems)


def test_one_that_was_done_before_the_signal_was_not_killed() -> None:
    """Its completion ended the incarnation."""
    events = [
        event(1, EventType.AGENT_STARTED, {"incarnation": 1}),
        *(counted(2 + index, file) for index, file in enumerate(FILES)),
        event(5, EventType.AGENT_COMPLETED, {"incarnation": 1}),
    ]

    found = findings_of(events, last_version=5)

    assert (found.killed, found.recovered, found.problems) == (0, 0, [])


def test_an_incarnation_hit_twice_died_once() -> None:
    """Its process and then its whole worker: the first kill counts."""
    second = replace(KILL, what="worker", at=T0 + 30_000)

    found = findings_of(good_events(), [KILL, second])

    assert (found.killed, found.detect_ms) == (1, [20.0])


def test_a_death_that_the_demo_did_not_cause_is_told_apart() -> None:
    """It is neither hidden nor counted as a kill."""
    found = findings_of(good_events(), kills=())

    assert (found.killed, found.other_deaths) == (0, 1)


def test_the_fold_counts_what_the_events_say() -> None:
    """Runtime events have no counts."""
    total = fold({"demo-01": Stream(good_events(), 8, FILES)})

    assert (total.identifiers, total.keywords) == ({"self": 6}, {"def": 3})
