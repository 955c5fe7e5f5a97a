"""Calling a registered tool: with its key, within its limit, and with the hooks of plug-ins told before and after."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Self

from ares_celery.agents.tools import KEY, Tool, limit_of
from ares_celery.background import counted_work, start_detached
from ares_celery.clock import Clock
from ares_celery.errors import ToolTimeoutError
from ares_celery.errors.wording import describe_error
from ares_celery.plugins.contract import StepCall, StepResult
from ares_celery.runtime.openings import ON_THREADS, Failed, Opened, outcome_of, value_of, wait_in_thread
from ares_celery.runtime.ports import StepHooks

__all__ = ["AsyncToolCall", "SyncToolCall", "ToolCaller"]


@dataclass(frozen=True, slots=True)
class ToolCaller:
    """Who calls tools: one incarnation.

    Attributes:
        agent_id: The agent.
        agent_type: Its type.
        clock: Tells how long calls take.
        hooks: Told of each call; None = nobody is.
    """

    agent_id: str
    agent_type: str
    clock: Clock
    hooks: StepHooks | None = None
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1), repr=False)

    def next_step(self, tool: Tool) -> StepCall | None:
        """The call as hooks see it; None when there are none."""
        if self.hooks is None or not self.hooks.hooks:
            return None
        step_id = f"tool:{tool.name}:{next(self._numbers)}"
        return StepCall(self.agent_id, step_id, agent_type=self.agent_type, tool=tool.name)

    def tell(self, step: StepCall | None, result: StepResult | None = None) -> None:
        """Tells the hooks; what they raise is the bus's business. May take as long as they do."""
        if step is None or self.hooks is None:
            return
        if result is None:
            self.hooks.before_step(step)
        else:
            self.hooks.after_step(step, result)


class _ToolCall:
    """What both kinds share."""

    def __init__(self, tool: Tool, caller: ToolCaller) -> None:
        self.tool = tool
        self._caller = caller

    def _with_timeout(self, timeout: timedelta | float | str | None) -> Tool:
        return replace(self.tool, timeout=limit_of(self.tool.name, timeout))

    def _complete(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """A keyed tool gets a key; one of the caller's own is left alone."""
        if self.tool.replay != "keyed" or KEY in kwargs:
            return kwargs
        return {**kwargs, KEY: f"{self._caller.agent_id}:{uuid.uuid4().hex}"}

    @property
    def _limit(self) -> float | None:
        return self.tool.timeout.total_seconds() if self.tool.timeout is not None else None

    def _late(self) -> ToolTimeoutError:
        return ToolTimeoutError(tool=self.tool.name, agent_id=self._caller.agent_id, limit=self._limit)

    def _result(self, began: float, outcome: object, error: BaseException | None = None) -> StepResult:
        took = timedelta(seconds=self._caller.clock.monotonic() - began)
        return StepResult(outcome, "" if error is None else describe_error(error), took)


class AsyncToolCall(_ToolCall):
    """Implements :class:`~ares_celery.agents.sharing.ToolCall` for async agents.

    Args:
        tool: What is called.
        caller: Who calls.
        alive: Awaited first; raises once the incarnation is over.
    """

    def __init__(self, tool: Tool, caller: ToolCaller, alive: Callable[[], Awaitable[None]]) -> None:
        super().__init__(tool, caller)
        self._alive = alive

    def with_options(self, *, timeout: timedelta | float | str | None) -> Self:
        """The same tool with another limit for a call."""
        return type(self)(self._with_timeout(timeout), self._caller, self._alive)

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever the tool takes and gives
        """Calls it; see :class:`~ares_celery.agents.sharing.ToolCall`."""
        await self._alive()
        caller, step = self._caller, self._caller.next_step(self.tool)
        if step is not None:
            await _on_thread(caller.tell, step)
        began = caller.clock.monotonic()
        try:
            value = await self._run(args, self._complete(kwargs))
        except BaseException as error:
            # Beside the error: what ends the agent must not wait for plug-ins.
            if step is not None:
                result = self._result(began, None, error)
                start_detached("tool-hooks", lambda: caller.tell(step, result))
            raise
        if step is not None:
            await _on_thread(caller.tell, step, self._result(began, value))
        return value

    async def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - as above
        function = self.tool.function
        patience = asyncio.timeout(self._limit)
        try:
            async with patience:
                if self.tool.is_async:
                    return await function(*args, **kwargs)
                made = await _on_thread(function, *args, **kwargs)
                return await made if inspect.isawaitable(made) else made
        except TimeoutError as error:
            if not patience.expired():
                raise
            raise self._late() from error


class SyncToolCall(_ToolCall):
    """Implements :class:`~ares_celery.agents.sharing.ToolCall` for plain agents.

    Args:
        tool: What is called.
        caller: Who calls.
        on_loop: Runs a coroutine on the process's event loop.
        look: Called now and then while a call is waited for; may raise.
        alive: Called first; raises once the incarnation is over.
    """

    def __init__(
        self,
        tool: Tool,
        caller: ToolCaller,
        *,
        on_loop: Callable[[Coroutine[Any, Any, Any]], Future[Any]],
        look: Callable[[], None],
        alive: Callable[[], None],
    ) -> None:
        super().__init__(tool, caller)
        self._on_loop = on_loop
        self._look = look
        self._alive = alive

    def with_options(self, *, timeout: timedelta | float | str | None) -> Self:
        """The same tool with another limit for a call."""
        tool, caller = self._with_timeout(timeout), self._caller
        return type(self)(tool, caller, on_loop=self._on_loop, look=self._look, alive=self._alive)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever the tool takes and gives
        """Calls it; see :class:`~ares_celery.agents.sharing.ToolCall`."""
        self._alive()
        caller, step = self._caller, self._caller.next_step(self.tool)
        caller.tell(step)
        began = caller.clock.monotonic()
        try:
            value = self._run(args, self._complete(kwargs))
        except BaseException as error:
            caller.tell(step, self._result(began, None, error))
            raise
        caller.tell(step, self._result(began, value))
        return value

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - as above
        function = self.tool.function
        if self.tool.is_async:
            return self._wait(self._on_loop(outcome_of(function, *args, **kwargs)))
        if self._limit is not None:
            made = self._wait(ON_THREADS.submit(_counted, function, args, kwargs))
        else:
            made = function(*args, **kwargs)
        # A plain wrapper around an async function, as decorators make them: without this it would never run.
        return self._wait(self._on_loop(outcome_of(_itself, made))) if inspect.isawaitable(made) else made

    def _wait(self, running: Future[Opened | Failed]) -> Any:  # noqa: ANN401 - as above
        try:
            outcome = wait_in_thread(running, self._limit, self._look, self._caller.clock)
        finally:
            # Ends what runs on the loop; on a thread nothing can.
            running.cancel()
        if outcome is None:
            raise self._late()
        return value_of(outcome)


def _itself(made: object) -> object:
    return made


def _counted(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Opened | Failed:
    """Runs a plain tool on the thread at hand; what it raises is a value, as nobody may be there to take it."""
    with counted_work("tool"):
        try:
            return Opened(function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - raised where the agent waits
            return Failed(error)


async def _on_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as above
    """Runs it on a thread of its own; an agent that is cancelled leaves the thread to itself."""
    loop = asyncio.get_running_loop()
    return value_of(await loop.run_in_executor(ON_THREADS, _counted, function, args, kwargs))
