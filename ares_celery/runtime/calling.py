"""Calls of functions of either colour for agents of either colour, within a limit of time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any

from ares_celery.background import counted_work
from ares_celery.clock import Clock
from ares_celery.runtime.openings import ON_THREADS, Failed, Opened, outcome_of, value_of, wait_in_thread

__all__ = ["ThreadCaller", "call_on_loop", "on_thread"]


async def on_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever is called
    """Runs it on a thread of its own; an agent that is cancelled leaves the thread to itself."""
    loop = asyncio.get_running_loop()
    return value_of(await loop.run_in_executor(ON_THREADS, _counted, function, args, kwargs))


async def call_on_loop(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    is_async: bool,
    limit: float | None,
    late: Callable[[], Exception],
) -> Any:  # noqa: ANN401 - whatever is called
    """Calls a function for an async agent: an async one here, a plain one on a thread, which a limit cannot end.

    Args:
        function: What is called.
        args: For it.
        kwargs: For it.
        is_async: It is to be awaited.
        limit: Seconds; None = as long as it takes.
        late: Makes what is raised when it did not return in time.
    """
    if limit is None:
        return await _called(function, args, kwargs, is_async=is_async)
    patience = asyncio.timeout(limit)
    try:
        async with patience:
            return await _called(function, args, kwargs, is_async=is_async)
    except TimeoutError as error:
        if not patience.expired():
            raise
        raise late() from error


async def _called(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], *, is_async: bool
) -> Any:  # noqa: ANN401 - whatever is called
    if is_async:
        return await function(*args, **kwargs)
    made = await on_thread(function, *args, **kwargs)
    return await made if inspect.isawaitable(made) else made


class ThreadCaller:
    """Calls functions for a plain agent: plain ones in its own thread, async ones on the process's event loop.

    Args:
        on_loop: Runs a coroutine on the loop.
        look: Called now and then while a call is waited for; may raise.
        clock: Monotonic time.
    """

    def __init__(
        self, on_loop: Callable[[Coroutine[Any, Any, Any]], Future[Any]], look: Callable[[], None], clock: Clock
    ) -> None:
        self._on_loop = on_loop
        self._look = look
        self._clock = clock

    def call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        is_async: bool,
        limit: float | None,
        late: Callable[[], Exception],
    ) -> Any:  # noqa: ANN401 - whatever is called
        """See :func:`call_on_loop`; a plain function with a limit runs on a thread of its own."""
        if is_async:
            return self._wait(self._on_loop(outcome_of(function, *args, **kwargs)), limit, late)
        if limit is not None:
            made = self._wait(ON_THREADS.submit(_counted, function, args, kwargs), limit, late)
        else:
            made = function(*args, **kwargs)
        # A plain wrapper around an async function, as decorators make them: without this it would never run.
        return self._wait(self._on_loop(outcome_of(_itself, made)), limit, late) if inspect.isawaitable(made) else made

    def _wait(self, running: Future[Opened | Failed], limit: float | None, late: Callable[[], Exception]) -> Any:  # noqa: ANN401 - whatever is called
        try:
            outcome = wait_in_thread(running, limit, self._look, self._clock)
        finally:
            # Ends what runs on the loop; on a thread nothing can.
            running.cancel()
        if outcome is None:
            raise late()
        return value_of(outcome)


def _itself(made: object) -> object:
    return made


def _counted(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Opened | Failed:
    """Runs a plain function on the thread at hand; what it raises is a value, as nobody may be there to take it."""
    with counted_work("tool"):
        try:
            return Opened(function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - raised where the agent waits
            return Failed(error)
