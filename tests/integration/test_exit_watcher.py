"""The exit watcher with real processes: each exit reported once, quickly, and nothing else ever."""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
import queue
import signal
import statistics
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ares_celery.runtime import exit_watcher
from ares_celery.runtime.exit_watcher import ExitWatcher, kill
from ares_celery.runtime.process_identity import ProcessIdentity

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pidfds are Linux' own")

#: Longest wait for something that happens in milliseconds, in seconds.
PATIENCE = 10.0


class Exits:
    """What a watcher reported, with the moment."""

    def __init__(self) -> None:
        self._queue: queue.Queue[tuple[ProcessIdentity, float]] = queue.Queue()

    def __call__(self, identity: ProcessIdentity) -> None:
        self._queue.put((identity, time.perf_counter()))

    def next(self) -> ProcessIdentity:
        return self._queue.get(timeout=PATIENCE)[0]

    def next_moment(self) -> float:
        return self._queue.get(timeout=PATIENCE)[1]

    def is_empty(self) -> bool:
        return self._queue.empty()


@contextmanager
def running() -> Generator[subprocess.Popen[bytes], None, None]:
    """A process that lives until killed, reaped at the end."""
    process = subprocess.Popen(["sleep", "300"])
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until the test kills it."""
    with running() as process:
        yield process


@pytest.fixture
def exits() -> Exits:
    """What the watcher of this test reports."""
    return Exits()


@pytest.fixture
def watcher(exits: Exits) -> Iterator[ExitWatcher]:
    """A started watcher."""
    watcher = ExitWatcher(exits)
    watcher.start()
    yield watcher
    watcher.close()


def identity_of(process: subprocess.Popen[bytes]) -> ProcessIdentity:
    """The identity of a process that is there."""
    identity = ProcessIdentity.of_pid(process.pid)
    assert identity is not None
    return identity


def become_zombie(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and wait for its end without reaping it."""
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def pass_a_death_through(watcher: ExitWatcher, exits: Exits) -> None:
    """Return when the watcher has reported a later death, and nothing before it."""
    with running() as process:
        identity = watcher.watch_pid(process.pid)
        process.kill()
        assert exits.next() == identity
    assert exits.is_empty()


def open_files() -> int:
    """How many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def watcher_threads() -> list[threading.Thread]:
    """The watchers' threads in this process."""
    return [thread for thread in threading.enumerate() if thread.name == "ares-exit-watcher"]


def test_each_of_twenty_killed_processes_is_reported_once_and_soon(watcher: ExitWatcher, exits: Exits) -> None:
    """Kill to callback takes milliseconds; the bound here leaves room for a busy machine."""
    delays: list[float] = []
    for _ in range(20):
        with running() as process:
            identity = watcher.watch_pid(process.pid)
            assert identity is not None
            assert watcher.watched() == {identity}
            killed_at = time.perf_counter()
            process.kill()
            delays.append(exits.next_moment() - killed_at)
        assert watcher.watched() == frozenset()
    assert exits.is_empty()
    assert statistics.median(delays) < 0.05


def test_many_processes_killed_together_are_all_reported_once(watcher: ExitWatcher, exits: Exits) -> None:
    """Exits that come at one moment are neither merged nor doubled."""
    processes = [subprocess.Popen(["sleep", "300"]) for _ in range(20)]
    try:
        identities = {identity_of(process) for process in processes}
        assert all(watcher.watch(identity) for identity in identities)
    finally:
        for process in processes:
            process.kill()
    assert {exits.next() for _ in processes} == identities
    for process in processes:
        process.wait(PATIENCE)
    pass_a_death_through(watcher, exits)


def test_a_process_that_is_not_our_child_is_watched(watcher: ExitWatcher, exits: Exits) -> None:
    """A worker watches its neighbours on the host as well as its children."""
    script = "import subprocess; p = subprocess.Popen(['sleep', '300']); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        identity = watcher.watch_pid(int(parent.stdout.readline()))
        assert identity is not None
        assert kill(identity)
        assert exits.next() == identity


def test_watching_twice_reports_once(watcher: ExitWatcher, exits: Exits, child: subprocess.Popen[bytes]) -> None:
    """A second watch of a watched process adds neither a report nor a file."""
    identity = identity_of(child)
    assert watcher.watch(identity)
    before = open_files()
    assert watcher.watch(identity)
    assert open_files() == before
    child.kill()
    assert exits.next() == identity
    pass_a_death_through(watcher, exits)


def test_a_normal_end_is_an_exit_too(watcher: ExitWatcher, exits: Exits) -> None:
    """Not only kills are reported."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        identity = watcher.watch_pid(process.pid)
        assert process.stdin is not None
        process.stdin.close()
        assert exits.next() == identity


def test_a_pid_that_another_process_has_got_is_dead_at_once(
    watcher: ExitWatcher, exits: Exits, child: subprocess.Popen[bytes]
) -> None:
    """The same pid with another start time is another process: the one asked for is over, the other one lives on."""
    former = dataclasses.replace(identity_of(child), start_ticks=1)
    assert watcher.watch(former)
    assert exits.next() == former
    assert child.poll() is None


def test_a_pid_that_is_now_a_thread_is_dead_at_once(watcher: ExitWatcher, exits: Exits) -> None:
    """Threads take their numbers from the pids; such a number is no process any more."""
    thread = watcher_threads()[0]
    assert thread.native_id is not None
    former = dataclasses.replace(ProcessIdentity.current(), pid=thread.native_id, start_ticks=1)
    assert watcher.watch(former)
    assert exits.next() == former


def test_a_zombie_is_dead_at_once(watcher: ExitWatcher, exits: Exits, child: subprocess.Popen[bytes]) -> None:
    """A process that nobody reaps (a container without init) is over all the same."""
    become_zombie(child)
    identity = watcher.watch_pid(child.pid)
    assert identity is not None
    assert exits.next() == identity


def test_a_reaped_process_is_dead_at_once_and_again_for_each_watch(
    watcher: ExitWatcher, exits: Exits, child: subprocess.Popen[bytes]
) -> None:
    """Each watch of a process that is gone is answered by one report."""
    identity = identity_of(child)
    child.kill()
    child.wait(PATIENCE)
    for _ in range(2):
        assert watcher.watch(identity)
        assert exits.next() == identity
    assert watcher.watch_pid(child.pid) is None


def test_a_stopped_process_has_not_exited(watcher: ExitWatcher, exits: Exits, child: subprocess.Popen[bytes]) -> None:
    """SIGSTOP is no exit; the kill that follows is."""
    identity = watcher.watch_pid(child.pid)
    child.send_signal(signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    pass_a_death_through(watcher, exits)
    child.kill()
    assert exits.next() == identity


def test_a_process_whose_first_thread_ended_has_not_exited(watcher: ExitWatcher, exits: Exits) -> None:
    """/proc shows such a process as a zombie while its other threads work."""
    script = """
        import ctypes, sys, threading
        main = threading.main_thread().native_id
        def work():
            while f"\\nState:\\tZ" not in open(f"/proc/self/task/{main}/status").read():
                threading.Event().wait(0.01)
            print("alone", flush=True)
            sys.stdin.read()
        threading.Thread(target=work).start()
        ctypes.CDLL(None).pthread_exit(None)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"alone\n"
        identity = watcher.watch_pid(process.pid)
        assert identity is not None
        pass_a_death_through(watcher, exits)
        process.kill()
        assert exits.next() == identity


def test_a_raising_callback_is_logged_and_watching_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """Not even SystemExit of a callback ends the thread."""
    exits = Exits()
    errors: list[BaseException] = [RuntimeError("first"), SystemExit("second")]

    def raise_twice(identity: ProcessIdentity) -> None:
        if errors:
            raise errors.pop(0)
        exits(identity)

    watcher = ExitWatcher(raise_twice)
    watcher.start()
    with running() as first, running() as second:
        for process in (first, second):
            assert watcher.watch_pid(process.pid) is not None
            become_zombie(process)
    pass_a_death_through(watcher, exits)
    watcher.close()
    raised = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert raised == [RuntimeError, SystemExit]


def test_a_callback_may_use_the_watcher(child: subprocess.Popen[bytes]) -> None:
    """Watching, forgetting and closing from the callback do not deadlock."""
    closed = threading.Event()

    def close(identity: ProcessIdentity) -> None:
        assert own.watch(identity)
        own.forget(identity)
        own.close()
        closed.set()

    own = ExitWatcher(close)
    own.start()
    thread = watcher_threads()[0]
    own.watch_pid(child.pid)
    child.kill()
    assert closed.wait(PATIENCE)
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_forgotten_process_is_not_reported(
    watcher: ExitWatcher, exits: Exits, child: subprocess.Popen[bytes]
) -> None:
    """Forgetting ends the watch, and forgetting what is not watched does nothing."""
    identity = watcher.watch_pid(child.pid)
    assert identity is not None
    watcher.forget(identity)
    watcher.forget(identity)
    assert watcher.watched() == frozenset()
    child.kill()
    pass_a_death_through(watcher, exits)


def test_a_death_before_start_is_reported_after_it(exits: Exits, child: subprocess.Popen[bytes]) -> None:
    """Watching may begin before the thread does, and forgetting still counts for what is unreported."""
    watcher = ExitWatcher(exits)
    identity = identity_of(child)
    gone = dataclasses.replace(identity, start_ticks=1)
    forgotten = dataclasses.replace(identity, start_ticks=2)
    assert all(watcher.watch(one) for one in (identity, gone, forgotten))
    assert watcher.watched() == {identity, gone, forgotten}
    watcher.forget(forgotten)
    become_zombie(child)
    assert exits.is_empty()
    watcher.start()
    assert {exits.next(), exits.next()} == {identity, gone}
    pass_a_death_through(watcher, exits)
    watcher.close()


def test_a_file_number_that_went_to_a_newer_watch_is_no_exit(exits: Exits, child: subprocess.Popen[bytes]) -> None:
    """Word of an exit may come late: its file was closed and the number belongs to a living process by now."""
    watcher: Any = ExitWatcher(exits)
    identity = watcher.watch_pid(child.pid)
    assert identity is not None
    assert watcher._collect(watcher._poller, [watcher._pidfds[identity]])
    watcher._report()
    assert exits.is_empty()
    assert watcher.watched() == {identity}
    watcher.close()


def test_close_ends_the_thread_and_all_files(exits: Exits, child: subprocess.Popen[bytes]) -> None:
    """After close nothing is watched, reported or left open, and a new start is refused."""
    before = open_files()
    watcher = ExitWatcher(exits)
    watcher.start()
    watcher.start()
    assert len(watcher_threads()) == 1
    identity = watcher.watch_pid(child.pid)
    assert identity is not None
    watcher.close()
    watcher.close()
    assert watcher_threads() == []
    assert open_files() == before
    assert not watcher.watch(identity)
    assert watcher.watched() == frozenset()
    with pytest.raises(RuntimeError, match="make a new one"):
        watcher.start()
    become_zombie(child)
    assert exits.is_empty()


def test_close_does_not_wait_for_ever_for_a_callback(
    child: subprocess.Popen[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """A callback that hangs costs the close timeout and a warning."""
    entered, release = threading.Event(), threading.Event()

    def hang(identity: ProcessIdentity) -> None:
        entered.set()
        release.wait(PATIENCE)

    watcher = ExitWatcher(hang)
    watcher.start()
    thread = watcher_threads()[0]
    watcher.watch_pid(child.pid)
    child.kill()
    assert entered.wait(PATIENCE)
    watcher.close(timedelta(milliseconds=20))
    assert "still runs" in caplog.text
    release.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_no_files_are_left_after_many_exits(watcher: ExitWatcher, exits: Exits) -> None:
    """Each report closes the file of its watch."""
    before = open_files()
    for _ in range(100):
        pass_a_death_through(watcher, exits)
    assert open_files() == before


def test_the_number_of_watches_is_bounded(exits: Exits, caplog: pytest.LogCaptureFixture) -> None:
    """One more than the limit is refused aloud; a place that became free is taken again."""
    watcher = ExitWatcher(exits, max_watches=1)
    with running() as first, running() as second:
        identity = watcher.watch_pid(first.pid)
        assert identity is not None
        assert watcher.watch_pid(second.pid) is None
        assert "1 processes are watched already" in caplog.text
        watcher.forget(identity)
        assert watcher.watch_pid(second.pid) is not None
    watcher.close()
    with pytest.raises(ValueError, match="max_watches 0"):
        ExitWatcher(exits, max_watches=0)


@pytest.mark.parametrize("change", [{"boot_id": "another"}, {"pid_namespace": 1}, {"boot_id": ""}])
def test_a_process_of_another_kernel_is_neither_watched_nor_killed(
    watcher: ExitWatcher, exits: Exits, child: subprocess.Popen[bytes], change: dict[str, Any]
) -> None:
    """Its pid would be somebody else's here."""
    foreign = dataclasses.replace(identity_of(child), **change)
    assert not watcher.watch(foreign)
    assert not kill(foreign)
    pass_a_death_through(watcher, exits)
    assert child.poll() is None


def test_a_living_process_that_proc_hides_is_not_called_dead(
    watcher: ExitWatcher, exits: Exits, child: subprocess.Popen[bytes]
) -> None:
    """With hidepid the start time cannot be read: that proves nothing, so nothing is reported or killed."""
    identity = identity_of(child)
    before = open_files()

    def hide(pid: int) -> None:
        return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exit_watcher, "read_start_ticks", hide)
        assert not watcher.watch(identity)
        assert not kill(identity)
    assert open_files() == before
    pass_a_death_through(watcher, exits)
    assert child.poll() is None


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EMFILE, errno.EINVAL])
def test_a_refusal_of_the_system_is_no_death_and_warned_of_once(
    watcher: ExitWatcher,
    exits: Exits,
    child: subprocess.Popen[bytes],
    number: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Sweeps ask again and again: the log is told once, watch answers False each time."""
    identity = identity_of(child)

    def refuse(pid: int, flags: int = 0) -> int:
        raise OSError(number, os.strerror(number))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pidfd_open", refuse)
        assert not watcher.watch(identity)
        assert not watcher.watch(identity)
    assert [record.levelno for record in caplog.records].count(logging.WARNING) == 1
    pass_a_death_through(watcher, exits)


def test_where_the_system_has_no_pidfds_the_watcher_says_so(
    exits: Exits, child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All methods work and watch nothing."""
    monkeypatch.delattr(os, "pidfd_open")
    watcher = ExitWatcher(exits)
    watcher.start()
    assert "cannot be watched here" in caplog.text
    identity = identity_of(child)
    assert not watcher.watch(identity)
    assert not kill(identity)
    watcher.forget(identity)
    assert watcher.watched() == frozenset()
    watcher.close()


def test_kill_ends_exactly_the_process_meant(watcher: ExitWatcher, exits: Exits) -> None:
    """A living process is killed, a process that only has its pid is spared, a dead one is left alone."""
    with running() as process:
        identity = identity_of(process)
        assert not kill(dataclasses.replace(identity, start_ticks=1))
        pass_a_death_through(watcher, exits)
        assert process.poll() is None
        before = open_files()
        assert kill(identity)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not kill(identity)
        assert process.wait(PATIENCE) == -signal.SIGKILL
        assert not kill(identity)
        assert open_files() == before


def test_watching_from_many_threads_reports_each_process_once(watcher: ExitWatcher, exits: Exits) -> None:
    """Threads that watch and forget at the same time lose and double nothing, and no file leaks."""
    before = open_files()
    with running() as kept, running() as toggled:
        kept_identity, toggled_identity = identity_of(kept), identity_of(toggled)

        def toggle() -> None:
            for _ in range(200):
                watcher.watch(kept_identity)
                watcher.watch(toggled_identity)
                watcher.forget(toggled_identity)

        threads = [threading.Thread(target=toggle) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        kept.kill()
        assert exits.next() == kept_identity
    pass_a_death_through(watcher, exits)
    assert open_files() == before


FORKING = """
    import os, queue, subprocess, sys
    from ares_celery.runtime.exit_watcher import ExitWatcher

    def watcher_files():
        numbers = [name for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")]
        targets = [os.readlink(f"/proc/self/fd/{number}") for number in numbers]
        return [target for target in targets if target.startswith(("anon_inode:", "pidfd:"))]

    exits = queue.Queue()
    watcher = ExitWatcher(exits.put)
    watcher.start()
    target = subprocess.Popen(["sleep", "300"])
    identity = watcher.watch_pid(target.pid)
    assert identity is not None and len(watcher_files()) == 3, watcher_files()
    child = os.fork()
    if child == 0:
        try:
            assert watcher_files() == []
            assert watcher.watched() == frozenset()
            assert not watcher.watch(identity)
            watcher.forget(identity)
            try:
                watcher.start()
            except RuntimeError:
                pass
            else:
                raise AssertionError("started an inherited watcher")
            watcher.close()
            own_exits = queue.Queue()
            own = ExitWatcher(own_exits.put)
            own.start()
            assert own.watch(identity)
            own.close()
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert watcher.watched() == {identity}
    target.kill()
    assert exits.get(timeout=10) == identity
    target.wait()
    watcher.close()
    assert watcher_files() == [] and exits.empty()
"""


def test_a_forked_child_inherits_nothing_and_does_not_disturb_its_parent() -> None:
    """The child's copy is closed, a new one works there, and the parent's goes on watching."""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", textwrap.dedent(FORKING)], check=True, timeout=PATIENCE * 2, cwd=root)


def test_a_fork_while_other_threads_use_the_watcher_leaves_the_child_free() -> None:
    """A lock that another thread held at the fork is not waited for in the child."""
    script = """
        import os, signal
        from ares_celery.runtime.exit_watcher import ExitWatcher
        watcher = ExitWatcher(print)
        watcher.start()
        with watcher._lock:
            child = os.fork()
            if child == 0:
                signal.alarm(5)
                assert watcher.watched() == frozenset()
                watcher.close()
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=PATIENCE * 2, cwd=root)
