"""Which streams a process compacts by itself, and when."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest

from ares_celery.config import RuntimeConfig
from ares_celery.runtime import compaction_duty
from ares_celery.runtime.compaction_duty import CompactionDuty
from tests.wait import wait_until


@dataclass
class Hosted:
    """One incarnation."""

    agent_id: str
    last_version: int


def duty_and_calls() -> tuple[CompactionDuty, list[str]]:
    """A duty with a step of ten events, and what it compacted."""
    calls: list[str] = []

    def compact(stream_id: str) -> None:
        calls.append(stream_id)
        if stream_id == "bad":
            raise OSError("no luck")

    return CompactionDuty(compact, RuntimeConfig(compaction_threshold=40, compaction_keep=4)), calls


def test_a_stream_is_looked_at_each_time_it_has_grown_by_a_quarter_of_the_threshold() -> None:
    """Not when its agent has just come, and not before."""
    duty, calls = duty_and_calls()
    for version in (25, 25, 29, 30, 31, 39, 55):
        duty.look([Hosted("a", version), Hosted("idle", 7)])
        if version in (30, 55):
            wait_until(lambda: calls, "the stream to be compacted")
            assert calls == ["a"]
            calls.clear()
        assert calls == []
    duty.look([])
    duty.look([Hosted("a", 99)])
    duty.close()
    assert calls == []


def test_one_that_fails_keeps_no_other_from_its_turn(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and tried again when it has grown further."""
    duty, calls = duty_and_calls()
    for version in (0, 10, 20):
        duty.look([Hosted("bad", version), Hosted("good", version)])
        wait_until(lambda: calls.count("good") == version // 10, "the good one's turn")  # noqa: B023 - used at once
    wait_until(lambda: calls.count("bad") == 2)
    duty.close()
    assert "bad could not be compacted" in caplog.text


def test_what_finds_no_room_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue is bounded; nothing is forgotten."""
    monkeypatch.setattr(compaction_duty, "MOST_WAITING", 1)
    free, calls = threading.Event(), list[str]()

    def compact(stream_id: str) -> None:
        calls.append(stream_id)
        free.wait(5)

    duty = CompactionDuty(compact, RuntimeConfig(compaction_threshold=40, compaction_keep=4))
    hosted = [Hosted(name, 0) for name in "abc"]
    duty.look(hosted)
    hosted[0].last_version = 10
    duty.look(hosted)
    wait_until(lambda: calls == ["a"], "the first to be compacted")
    hosted[1].last_version = hosted[2].last_version = 10
    duty.look(hosted)
    free.set()

    def all_done() -> bool:
        duty.look(hosted)
        return calls == ["a", "b", "c"]

    wait_until(all_done, "all three to be compacted")
    duty.close()


def test_a_process_without_growing_streams_starts_no_thread() -> None:
    """Closing is then free too."""
    duty, _ = duty_and_calls()
    duty.look([Hosted("a", 1_000)])
    duty.look([Hosted("a", 1_001)])
    duty.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "ares-compaction"]
