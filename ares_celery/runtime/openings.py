"""One opening of something shared: an owner of its own enters it, holds it and leaves it.

Whatever a library enters in one task it wants to leave in the same one (cancel scopes, task groups), and an agent that
asked for it first may be cancelled at any time. So neither an agent nor whoever closes touches it: the owner does.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, Protocol, TypeVar

from typing_extensions import override

from ares_celery.clock import Clock
from ares_celery.errors.wording import describe_error

__all__ = [
    "ON_THREADS",
    "Failed",
    "Opened",
    "Opening",
    "Submitter",
    "TaskOpening",
    "ThreadOpening",
    "outcome_of",
    "value_of",
    "wait_in_thread",
]

log: Final = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

#: Seconds between two looks of a thread that waits at whether it still should.
_LOOK: Final = 0.1
#: Seconds that a loop may be late.
_SLACK: Final = 0.5


@dataclass(frozen=True, slots=True)
class Opened:
    """It is open."""

    value: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """It could not be opened, or the call failed."""

    error: BaseException


async def outcome_of(function: Callable[..., Any], *args: object, **kwargs: object) -> Opened | Failed:
    """What a call on the loop gives or raises, as a value: SystemExit in a task would go through the loop."""
    try:
        made = function(*args, **kwargs)
        return Opened(await made if inspect.isawaitable(made) else made)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - raised where its caller waits
        return Failed(error)


def value_of(outcome: Opened | Failed) -> Any:  # noqa: ANN401 - whatever was called
    """The value of an outcome; raises the error of a failed one."""
    if isinstance(outcome, Failed):
        raise outcome.error
    return outcome.value


def wait_in_thread(running: Future[T], timeout: float | None, look: Callable[[], None], clock: Clock) -> T | None:
    """What runs elsewhere and never fails, from a thread that looks about itself meanwhile; None = not in time.

    Args:
        running: What to wait for.
        timeout: Seconds; None = as long as it takes.
        look: Called now and then; may raise.
        clock: Monotonic time.
    """
    until = None if timeout is None else clock.monotonic() + timeout
    while True:
        left = _LOOK if until is None else until - clock.monotonic()
        try:
            return running.result(max(0.0, min(_LOOK, left)))
        except FutureTimeoutError:
            if left <= 0:
                return None
            look()


class _OnThreads(Executor):
    """Runs each call on a thread of its own: one that hangs holds up nothing but its caller."""

    @override
    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        # Nobody cancels it from here on: whoever waits in vain just goes.
        future.set_running_or_notify_cancel()
        context = contextvars.copy_context()

        def run() -> None:
            try:
                value = context.run(fn, *args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                future.set_exception(error)
            else:
                future.set_result(value)

        threading.Thread(target=run, name="ares-call", daemon=True).start()
        return future


#: For calls that may take their time.
ON_THREADS: Final = _OnThreads()


class Submitter(Protocol):
    """An event loop, from outside."""

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs a coroutine on the loop; from any other thread."""
        ...


class Opening:
    """What owners in tasks and in threads have in common; outcomes may be waited for from anywhere.

    Args:
        label: What it is, for logs.
        on_end: Called by the owner once the outcome is known, and again once it is over.
    """

    def __init__(self, label: str, on_end: Callable[[Opening], None]) -> None:
        self.label = label
        #: Set once, and never to an exception: nobody may be there to take it.
        self.outcome: Future[Opened | Failed] = Future()
        self.over: Future[None] = Future()
        self.is_asked_to_close = False
        self._on_end = on_end

    @property
    def is_open(self) -> bool:
        """It was entered and not left."""
        return self.outcome.done() and isinstance(self.outcome.result(), Opened) and not self.over.done()

    @property
    def is_spent(self) -> bool:
        """It is of no more use: the next use needs a new one."""
        return self.over.done() or self.is_asked_to_close

    def start(self) -> None:
        """Starts the owner; returns at once."""
        raise NotImplementedError

    def ask_to_close(self) -> None:
        """Has the owner leave it, or give up entering it; returns at once."""
        raise NotImplementedError

    def close(self, timeout: float, loop: Callable[[], Submitter]) -> bool:
        """Has it left and waits for that; False when it did not come to an end.

        Args:
            timeout: Seconds.
            loop: The event loop, for an owner that is a task; not to be called from it.
        """
        raise NotImplementedError

    async def wait(self, timeout: float) -> Opened | Failed | None:
        """The outcome, or None when it takes longer; a waiter that is cancelled disturbs nobody."""
        if self.outcome.done():
            return self.outcome.result()
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(asyncio.wrap_future(self.outcome))
        except TimeoutError:
            return None

    def _publish(self, outcome: Opened | Failed) -> None:
        if isinstance(outcome, Failed):
            self.over.set_result(None)
        self.outcome.set_result(outcome)
        self._on_end(self)

    def _end(self, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, asyncio.CancelledError):
            log.error("%s: closing it failed: %s", self.label, describe_error(error), exc_info=error)
        elif not self.is_asked_to_close and not self.over.done():
            log.error("%s ended by itself; its next use opens it again", self.label)
        if not self.over.done():
            self.over.set_result(None)
            self._on_end(self)


class TaskOpening(Opening):
    """An opening by a task on an event loop.

    Args:
        label: What it is, for logs.
        make: Gives the context manager to enter.
        loop: Where.
        limit: Seconds that entering may take.
        on_end: See :class:`Opening`.
        prepare: What else is to be done before it counts as open, within the same limit.
    """

    def __init__(
        self,
        label: str,
        make: Callable[[], Awaitable[AbstractAsyncContextManager[Any]]],
        *,
        loop: asyncio.AbstractEventLoop,
        limit: float,
        on_end: Callable[[Opening], None],
        prepare: Callable[[Any], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(label, on_end)
        self._make = make
        self._loop = loop
        self._limit = limit
        self._prepare = prepare
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: On the loop: done once it is being left, or over.
        self.gone: asyncio.Future[None] = loop.create_future()

    @override
    def start(self) -> None:
        self._loop.call_soon_threadsafe(self._begin)

    @override
    def ask_to_close(self) -> None:
        self.is_asked_to_close = True
        self._loop.call_soon_threadsafe(self._on_asked)

    @override
    def close(self, timeout: float, loop: Callable[[], Submitter]) -> bool:
        self.is_asked_to_close = True
        closing = loop().submit(self._leave(timeout))
        try:
            return closing.result(timeout + _SLACK)
        except FutureTimeoutError:
            return False  # the loop itself does not turn

    async def _leave(self, timeout: float) -> bool:
        """On the loop; one that does not end in time is cancelled, and then left."""
        self._on_asked()
        if self._task is None:
            return True
        _, left = await asyncio.wait({self._task}, timeout=timeout)
        if left:
            self._task.cancel()
            await asyncio.sleep(0)
        return not left

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._own(), name=f"ares {self.label}")
        self._task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """One that was cancelled before its first step has said nothing."""
        if not self.outcome.done():
            self._set_gone()
            self._publish(Failed(_why(asyncio.CancelledError(str(task)), was_asked=self.is_asked_to_close)))

    def _on_asked(self) -> None:
        self._asked.set()
        self._set_gone()
        if not self.outcome.done():
            self._cancel()

    def _set_gone(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _own(self) -> None:
        problem: BaseException | None = None
        try:
            async with AsyncExitStack() as stack:
                try:
                    value = await self._enter(stack)
                except BaseException as error:  # noqa: BLE001 - somebody else's code; SystemExit would leave the loop
                    self._publish(Failed(_why(error, was_asked=self.is_asked_to_close)))
                    return
                self._publish(Opened(value))
                await self._asked.wait()
        except BaseException as error:  # noqa: BLE001 - as above
            problem = error
        self._set_gone()
        self._end(problem)

    async def _enter(self, stack: AsyncExitStack) -> Any:  # noqa: ANN401 - whatever it yields
        manager = await self._make()
        patience = asyncio.timeout(self._limit)
        try:
            async with patience:
                value = await manager.__aenter__()
                stack.push_async_exit(manager)
                if self._prepare is not None:
                    await self._prepare(value)
        except TimeoutError as error:
            if not patience.expired():
                raise
            raise TimeoutError(f"it did not open within {self._limit:g} s") from error
        return value


def _why(error: BaseException, *, was_asked: bool) -> BaseException:
    is_ours = was_asked and isinstance(error, asyncio.CancelledError)
    return RuntimeError("it was closed while it opened") if is_ours else error


class ThreadOpening(Opening):
    """An opening by a thread of its own.

    Nothing can end a thread: one that hangs while it opens is waited for by every use, and no other is begun.

    Args:
        label: What it is, for logs.
        make: Gives the context manager to enter; called on the thread.
        on_end: See :class:`Opening`.
    """

    def __init__(
        self, label: str, make: Callable[[], AbstractContextManager[Any]], *, on_end: Callable[[Opening], None]
    ) -> None:
        super().__init__(label, on_end)
        self._make = make
        self._asked = threading.Event()

    @override
    def start(self) -> None:
        threading.Thread(target=self._own, name=f"ares {self.label}", daemon=True).start()
        with suppress(RuntimeError):  # no loop: a plain agent asks
            # So that the loop knows of it: where a test stands for time, time waits for what goes on outside.
            asyncio.get_running_loop().run_in_executor(ON_THREADS, self.outcome.exception)

    @override
    def ask_to_close(self) -> None:
        self.is_asked_to_close = True
        self._asked.set()

    @override
    def close(self, timeout: float, loop: Callable[[], Submitter]) -> bool:
        self.ask_to_close()
        try:
            self.over.result(timeout)
        except FutureTimeoutError:
            return False
        return True

    def _own(self) -> None:
        problem: BaseException | None = None
        try:
            with ExitStack() as stack:
                try:
                    value = stack.enter_context(self._make())
                except BaseException as error:  # noqa: BLE001 - somebody else's code
                    self._publish(Failed(error))
                    return
                self._publish(Opened(value))
                self._asked.wait()
        except BaseException as error:  # noqa: BLE001 - as above
            problem = error
        self._end(problem)
