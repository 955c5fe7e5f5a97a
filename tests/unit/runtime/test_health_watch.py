"""The agent's own word on its health: grace, misses, and what counts as one."""

from __future__ import annotations

from datetime import timedelta

import pytest
from typing_extensions import override

from ares_celery.config import RuntimeConfig
from ares_celery.runtime.health import HealthWatch


class Patient:
    """Answers as the test says."""

    def __init__(self) -> None:
        self.alive = True
        self.beats = 0

    def heartbeat(self) -> None:
        self.beats += 1

    def is_alive(self) -> bool:
        return self.alive


def watch(patient: object, *, grace: float = 0, misses: int = 0) -> HealthWatch:
    """A watch that asks every second, from second 0."""
    config = RuntimeConfig(
        health_check_interval=1, startup_grace=timedelta(seconds=grace), allowed_misses=misses, heartbeat_interval=1
    )
    return HealthWatch(patient, config, 0.0)


def test_it_asks_once_an_interval_and_beats_the_heart_each_time() -> None:
    """More often would cost, less often would miss."""
    patient = Patient()
    asked = watch(patient)
    assert [asked.ask(second) for second in (0.5, 1.0, 1.5, 2.0)] == [None] * 4
    assert patient.beats == 2


def test_one_miss_is_a_death_by_default() -> None:
    """The reason names the heartbeat."""
    patient = Patient()
    asked = watch(patient)
    patient.alive = False
    assert asked.ask(1.0) == "health check: heartbeat failed"


@pytest.mark.spec(67)
def test_no_death_within_the_grace_nor_before_one_more_than_the_allowed_misses() -> None:
    """Grace 3 s, 2 misses: asked each second, the third miss after the grace is the death."""
    patient = Patient()
    patient.alive = False
    asked = watch(patient, grace=3, misses=2)
    answers = [asked.ask(float(second)) for second in range(1, 7)]
    assert answers == [None, None, None, None, "health check: heartbeat failed", "health check: heartbeat failed"]


def test_a_good_answer_forgets_the_misses() -> None:
    """Only misses in a row count."""
    patient = Patient()
    asked = watch(patient, misses=1)
    patient.alive = False
    assert asked.ask(1.0) is None
    patient.alive = True
    assert asked.ask(2.0) is None
    patient.alive = False
    assert asked.ask(3.0) is None
    assert asked.ask(4.0) is not None


def test_an_exception_counts_as_a_miss_and_is_named() -> None:
    """Rubbish from user code is contained."""

    class Broken:
        def is_alive(self) -> bool:
            raise OSError("no socket")

    assert watch(Broken()).ask(1.0) == "health check: heartbeat failed: OSError: no socket"


@pytest.mark.parametrize(("status", "ill"), [("ready", False), ("busy", False), ("offline", True), ("stopping", True)])
def test_without_heartbeats_the_status_is_judged(status: str, ill: bool) -> None:  # noqa: FBT001 - a table
    """The seed's fallback."""

    class Stated:
        def __init__(self) -> None:
            self.status = status

    assert watch(Stated()).ask(1.0) == (f"health check: status={status}" if ill else None)


class Unspeakable(Exception):
    """An exception whose own text raises."""

    @override
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_a_status_or_a_heartbeat_that_fails_without_words_is_a_miss() -> None:
    """A status may be a property, and is the agent's own code too."""

    class Ill:
        def heartbeat(self) -> None:
            raise Unspeakable

    class Unknown:
        @property
        def status(self) -> str:
            raise SystemExit(3)

    assert (
        watch(Ill()).ask(1.0) == "health check: heartbeat failed: Unspeakable: (its text cannot be had: RuntimeError)"
    )
    assert watch(Unknown()).ask(1.0) == "health check: heartbeat failed: SystemExit: 3"
