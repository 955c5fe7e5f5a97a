"""The threads for short calls of coroutines: few, made late, ended when idle, none for a call nobody waits for."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading

import pytest

from ares_celery.async_manager.call_threads import CallThreads
from tests.wait import wait_until, wait_until_async

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


def ours(name: str) -> list[threading.Thread]:
    """The threads of one pool."""
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


def test_no_thread_before_the_first_call_and_none_long_after_the_last() -> None:
    """A pool that nobody closes leaves nothing behind."""
    threads = CallThreads("quiet", idle=0.05)
    assert ours("quiet") == []
    assert asyncio.run(threads.call(lambda: 7)) == 7
    wait_until(lambda: not ours("quiet"), "an idle thread to end")
    assert asyncio.run(threads.call(lambda: 8)) == 8


async def test_so_many_calls_at_once_and_no_more() -> None:
    """Twenty calls on three threads: all are made, three at a time; one that is done makes room at once."""
    threads = CallThreads("three", most=3, idle=0.05)
    gate, running, most = threading.Event(), 0, 0
    lock = threading.Lock()

    def work(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        gate.wait(10)
        with lock:
            running -= 1
        return number

    calls = [asyncio.ensure_future(threads.call(work, number)) for number in range(20)]
    await wait_until_async(lambda: running == 3, "three calls at once")
    assert len(ours("three")) == 3
    gate.set()
    assert await asyncio.gather(*calls) == list(range(20))
    assert most == 3


async def test_a_call_never_waits_behind_a_longer_one_while_a_thread_may_be_made() -> None:
    """The one thread is held: the next call gets another."""
    threads, gate = CallThreads("behind", most=2, idle=0.05), threading.Event()
    held = asyncio.ensure_future(threads.call(gate.wait, 10))
    assert await threads.call(lambda: "through") == "through"
    gate.set()
    assert await held


async def test_errors_and_context_variables_go_along() -> None:
    """To the thread and back."""
    threads = CallThreads("along", idle=0.05)
    WHO.set("me")
    assert await threads.call(WHO.get) == "me"

    def fail() -> None:
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        await threads.call(fail)
    # Not even what ends interpreters ends a thread of ours.
    with pytest.raises(SystemExit):
        await threads.call(_exit)
    assert await threads.call(lambda: "alive") == "alive"


def _exit() -> None:
    raise SystemExit(3)


async def test_a_cancelled_caller_leaves_a_call_that_has_begun_and_makes_none_that_has_not() -> None:
    """With one thread only the first has begun."""
    threads, gate = CallThreads("left", most=1, idle=0.05), threading.Event()
    began, done = threading.Event(), list[str]()

    def slow() -> None:
        began.set()
        gate.wait(10)
        done.append("begun")

    first = asyncio.ensure_future(threads.call(slow))
    await wait_until_async(began.is_set)
    second = asyncio.ensure_future(threads.call(done.append, "never"))
    await asyncio.sleep(0)
    for call in (first, second):
        call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    with pytest.raises(asyncio.CancelledError):
        await second
    gate.set()
    assert await threads.call(lambda: list(done)) == ["begun"]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_makes_threads_of_its_own() -> None:
    """Forked while a thread holds the lock: the child waits neither for it nor for threads that it has not."""
    threads, gate = CallThreads("forked", idle=5), threading.Event()
    asyncio.run(threads.call(lambda: None))
    held = threading.Event()
    holder = threading.Thread(target=_hold, args=(threads, held, gate))
    holder.start()
    assert held.wait(10)
    pid = os.fork()
    if pid == 0:  # pragma: no cover - the child says by its exit code
        code = 1
        try:
            code = 0 if asyncio.run(asyncio.wait_for(threads.call(lambda: 5), 5)) == 5 else 2
        finally:
            os._exit(code)
    gate.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _hold(threads: CallThreads, held: threading.Event, gate: threading.Event) -> None:
    with threads._changed:
        held.set()
        gate.wait(10)
