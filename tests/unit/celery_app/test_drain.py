"""The line by which a worker tells its pool children to let their agents go."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest

from ares_celery.celery_app.drain import DrainLine
from tests.wait import assert_stays, wait_until


def end_by_term(signum: int, frame: object) -> None:
    """What a child does on SIGTERM when it hosts nothing."""
    os._exit(42)


def run_child(body: Callable[[], int]) -> int:
    """Runs the body in a forked child; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        code = body()
    finally:
        os._exit(code)


def exit_code(pid: int) -> int:
    """Waits for a child."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_the_end_of_the_line_reaches_this_process(line: DrainLine) -> None:
    """Once, however often it is said."""
    told: list[int] = []
    line.watch(lambda: told.append(1))
    line.watch(lambda: told.append(2))
    before = line.is_draining
    line.begin()
    line.begin()
    wait_until(lambda: told)
    assert_stays(lambda: told == [1], "one call", seconds=0.1)
    assert [before, line.is_draining, line.is_worker_ending] == [False, True, True]


@pytest.fixture
def line() -> DrainLine:
    """A line of the test's own."""
    return DrainLine()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_reaches_children_that_were_forked_before(line: DrainLine) -> None:
    """A child that has closed its own copy sees the end when the main process says it."""

    def wait_for_drain() -> int:
        told = threading.Event()
        line.become_child()
        line.watch(told.set)
        return 0 if told.wait(10) else 1

    children = [run_child(wait_for_drain) for _ in range(2)]
    assert not line.is_draining, "a child's own closing says nothing"
    line.begin()
    assert [exit_code(pid) for pid in children] == [0, 0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_death_of_the_main_process_is_no_drain(line: DrainLine) -> None:
    """Its children are about to be killed too: a release that is half made would only be in the way."""

    def wait_for_drain() -> int:
        told = threading.Event()
        line.become_child()
        line.watch(told.set)
        return 1 if told.wait(0.5) or line.is_draining else 0

    child = run_child(wait_for_drain)
    os.close(line._write)
    line._write = -1
    assert exit_code(child) == 0


def test_a_hint_drains_this_process_alone(line: DrainLine) -> None:
    """The worker goes on."""
    told = threading.Event()
    line.watch(told.set)
    line.hint()
    assert told.wait(5)
    assert line.is_draining
    assert not line.is_worker_ending


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_sigterm_while_hosting_is_a_hint_and_comes_true_afterwards(line: DrainLine) -> None:
    """The child lives until its agent has ended, then ends by the handler it had before."""

    def host() -> int:
        signal.signal(signal.SIGTERM, end_by_term)
        told = threading.Event()
        line.become_child()
        line.watch(told.set)
        with line.term_is_hint():
            os.kill(os.getpid(), signal.SIGTERM)
            if not told.wait(5):
                return 1
        threading.Event().wait(5)
        return 2

    assert exit_code(run_child(host)) == 42


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_no_second_sigterm_follows_when_the_worker_ends_anyway(line: DrainLine) -> None:
    """It ends its children itself."""

    def host() -> int:
        signal.signal(signal.SIGTERM, end_by_term)
        told = threading.Event()
        line.become_child()
        line.watch(told.set)
        with line.term_is_hint():
            os.kill(os.getpid(), signal.SIGTERM)
            while not line.is_worker_ending:
                threading.Event().wait(0.01)
        threading.Event().wait(0.3)
        return 0

    pid = run_child(host)
    line.begin()
    assert exit_code(pid) == 0
