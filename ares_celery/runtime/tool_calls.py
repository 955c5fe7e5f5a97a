"""Calling a registered tool: with its key, within its limit, and with the hooks of plug-ins told before and after."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Self

from ares_celery.agents.guards import unguarded
from ares_celery.agents.steps import KEY, UNSET, Replay, StepOptions, Unset, takes_key
from ares_celery.agents.tools import Tool
from ares_celery.background import start_detached
from ares_celery.clock import Clock
from ares_celery.errors import InvalidSettingError, ToolError, ToolTimeoutError
from ares_celery.errors.wording import describe_error
from ares_celery.ids import check_step_id
from ares_celery.plugins.contract import StepCall, StepResult
from ares_celery.runtime.async_steps import AsyncSteps
from ares_celery.runtime.awaited import Awaited
from ares_celery.runtime.calling import ThreadCaller, call_on_loop, on_thread
from ares_celery.runtime.fault_points import AsyncFaultPoints, SyncFaultPoints
from ares_celery.runtime.ports import StepHooks
from ares_celery.runtime.sync_steps import SyncSteps

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

    def result(self, began: float, value: object, error: BaseException | None = None) -> StepResult:
        """How a call ended, as hooks see it."""
        took = timedelta(seconds=self.clock.monotonic() - began)
        return StepResult(value, "" if error is None else describe_error(error), took)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A tool with what was said of its next call."""

    tool: Tool
    options: StepOptions
    step_id: str = ""

    @classmethod
    def of(cls, tool: Tool) -> _Chosen:
        limit = tool.timeout.total_seconds() if tool.timeout is not None else None
        return cls(tool, StepOptions(tool.replay, limit=limit))

    def changed(self, given: Mapping[str, Any], step_id: str | Unset) -> _Chosen:
        """The same with other options. Raises ToolError."""
        options = self.options
        try:
            options = options.changed(**given)
            chosen = self.step_id if isinstance(step_id, Unset) else check_step_id(step_id)
        except InvalidSettingError as error:
            problem = f"{error.fields['field']}={error.fields['value']!r} {error.fields['problem']}"
            raise ToolError(tool=self.tool.name, problem=problem) from error
        if options.replay == "keyed" and not takes_key(self.tool.function):
            problem = f'a keyed tool takes its key: add the parameter {KEY}: str = ""'
            raise ToolError(tool=self.tool.name, problem=problem)
        return replace(self, options=options, step_id=chosen)

    def complete(self, caller: ToolCaller, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Where nothing is recorded a keyed tool gets a key of this call alone; one of the caller's is left alone."""
        if self.options.replay != "keyed" or KEY in kwargs:
            return kwargs
        return {**kwargs, KEY: f"{caller.agent_id}:{uuid.uuid4().hex}"}

    def late(self, caller: ToolCaller, limit: float | None) -> ToolTimeoutError:
        return ToolTimeoutError(tool=self.tool.name, agent_id=caller.agent_id, limit=limit)


class AsyncToolCall:
    """Implements :class:`~ares_celery.agents.sharing.ToolCall` for async agents.

    Args:
        tool: What is called.
        caller: Who calls.
        alive: Awaited first; raises once the incarnation is over.
        steps: Where the call is recorded; None: nowhere.
        points: Where faults are felt; None: nowhere.
    """

    def __init__(
        self,
        tool: Tool | _Chosen,
        caller: ToolCaller,
        alive: Callable[[], Awaitable[None]],
        steps: AsyncSteps | None = None,
        *,
        points: AsyncFaultPoints | None = None,
    ) -> None:
        self._points = points
        self._chosen = tool if isinstance(tool, _Chosen) else _Chosen.of(tool)
        self._caller = caller
        self._alive = alive
        self._steps = steps

    def with_options(
        self,
        *,
        timeout: timedelta | float | str | Unset | None = UNSET,
        replay: Replay | Unset = UNSET,
        retries: int | Unset = UNSET,
        step_id: str | Unset = UNSET,
    ) -> Self:
        """The same tool with other options of a call."""
        chosen = self._chosen.changed({"timeout": timeout, "replay": replay, "retries": retries}, step_id)
        return type(self)(chosen, self._caller, self._alive, self._steps, points=self._points)

    def __call__(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:  # noqa: ANN401 - whatever the tool takes
        """Calls it; see :class:`~ares_celery.agents.sharing.ToolCall`."""
        made, steps = self._called(args, kwargs), self._steps
        return made if steps is None else Awaited(made, steps.hosted, "ctx.tool({})(…)", self._chosen.tool.name)

    async def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - as above
        chosen, steps = self._chosen, self._steps
        if steps is None or not steps.records(chosen.options, chosen.step_id):
            return await self._unrecorded(args, chosen.complete(self._caller, kwargs))
        return await steps.call_tool(chosen.tool, chosen.step_id, args, kwargs, chosen.options)

    async def _unrecorded(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - as above
        await self._alive()
        limit = self._chosen.options.limit
        if self._points is not None and self._points.is_disturbed:
            limit = await self._points.before_tool(limit)
        caller, step = self._caller, self._caller.next_step(self._chosen.tool)
        if step is not None:
            await on_thread(caller.tell, step)
        began = caller.clock.monotonic()
        try:
            value = await self._run(args, kwargs, limit)
        except BaseException as error:
            # Beside the error: what ends the agent must not wait for plug-ins.
            if step is not None:
                result = caller.result(began, None, error)
                start_detached("tool-hooks", lambda: caller.tell(step, result))
            raise
        if step is not None:
            await on_thread(caller.tell, step, caller.result(began, value))
        return value

    async def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any], limit: float | None) -> Any:  # noqa: ANN401 - as above
        tool = self._chosen.tool
        return await call_on_loop(
            unguarded(tool.function),
            args,
            kwargs,
            is_async=tool.is_async,
            limit=limit,
            late=lambda: self._chosen.late(self._caller, limit),
        )


class SyncToolCall:
    """Implements :class:`~ares_celery.agents.sharing.ToolCall` for plain agents.

    Args:
        tool: What is called.
        caller: Who calls.
        calls: Runs functions of either colour for the agent's thread.
        alive: Called first; raises once the incarnation is over.
        steps: Where the call is recorded; None: nowhere.
        points: Where faults are felt; None: nowhere.
    """

    def __init__(
        self,
        tool: Tool | _Chosen,
        caller: ToolCaller,
        calls: ThreadCaller,
        alive: Callable[[], None],
        steps: SyncSteps | None = None,
        *,
        points: SyncFaultPoints | None = None,
    ) -> None:
        self._points = points
        self._chosen = tool if isinstance(tool, _Chosen) else _Chosen.of(tool)
        self._caller = caller
        self._calls = calls
        self._alive = alive
        self._steps = steps

    def with_options(
        self,
        *,
        timeout: timedelta | float | str | Unset | None = UNSET,
        replay: Replay | Unset = UNSET,
        retries: int | Unset = UNSET,
        step_id: str | Unset = UNSET,
    ) -> Self:
        """The same tool with other options of a call."""
        chosen = self._chosen.changed({"timeout": timeout, "replay": replay, "retries": retries}, step_id)
        return type(self)(chosen, self._caller, self._calls, self._alive, self._steps, points=self._points)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever the tool takes and gives
        """Calls it; see :class:`~ares_celery.agents.sharing.ToolCall`."""
        chosen, steps = self._chosen, self._steps
        if steps is None or not steps.records(chosen.options, chosen.step_id):
            return self._unrecorded(args, chosen.complete(self._caller, kwargs))
        return steps.call_tool(chosen.tool, chosen.step_id, args, kwargs, chosen.options)

    def _unrecorded(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - as above
        self._alive()
        limit = self._chosen.options.limit
        if self._points is not None and self._points.is_disturbed:
            limit = self._points.before_tool(limit)
        caller, step = self._caller, self._caller.next_step(self._chosen.tool)
        caller.tell(step)
        began = caller.clock.monotonic()
        try:
            value = self._run(args, kwargs, limit)
        except BaseException as error:
            caller.tell(step, caller.result(began, None, error))
            raise
        caller.tell(step, caller.result(began, value))
        return value

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any], limit: float | None) -> Any:  # noqa: ANN401 - as above
        tool = self._chosen.tool
        return self._calls.call(
            unguarded(tool.function),
            args,
            kwargs,
            is_async=tool.is_async,
            limit=limit,
            late=lambda: self._chosen.late(self._caller, limit),
        )
