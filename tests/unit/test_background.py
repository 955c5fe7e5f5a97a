"""Detached work, counted by label."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ares_celery.background import counted_work, start_detached, work_in_progress
from tests.wait import wait_until


def test_work_is_counted_from_its_begin_to_its_end() -> None:
    """Two of a label are two; at zero the label is absent."""
    hold = threading.Event()
    threads = [start_detached("unit-holding", lambda: hold.wait(10)) for _ in range(2)]
    assert work_in_progress()["unit-holding"] == 2
    hold.set()
    for thread in threads:
        thread.join(10)
    wait_until(lambda: "unit-holding" not in work_in_progress())


def test_work_that_fails_is_over_too() -> None:
    """However it ends."""

    def fail() -> None:
        with counted_work("unit-failing"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert "unit-failing" not in work_in_progress()


def test_an_empty_label_is_not_counted() -> None:
    """Nobody could tell what it is."""
    with counted_work(""):
        assert "" not in work_in_progress()


def test_the_counts_are_a_copy() -> None:
    """Whoever changes it changes nothing."""
    with counted_work("unit-copied"):
        work_in_progress()["unit-copied"] = 7
        work_in_progress().clear()
        assert work_in_progress()["unit-copied"] == 1


def test_counts_hold_under_many_threads() -> None:
    """None is lost, none goes below zero."""

    def churn(_: int) -> bool:
        with counted_work("unit-churning"):
            return work_in_progress()["unit-churning"] > 0

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(churn, range(500)))
    assert "unit-churning" not in work_in_progress()
