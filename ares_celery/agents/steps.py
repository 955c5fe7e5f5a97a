"""Steps of an agent: what may be repeated, how a function says so, and what an agent's context offers for them."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, Literal, ParamSpec, Protocol, TypeVar, cast, get_args, overload

from typing_extensions import override

from ares_celery.agents.guards import guarded
from ares_celery.errors import InvalidSettingError
from ares_celery.model.durations import parse_duration

__all__ = [
    "DEFAULTS",
    "KEY",
    "UNSET",
    "ExecutionScope",
    "Replay",
    "StepCaller",
    "StepOptions",
    "Stepping",
    "SyncStepCaller",
    "SyncStepping",
    "Unset",
    "is_async",
    "mark_tool",
    "options_of",
    "step",
    "takes_key",
]

T = TypeVar("T")
P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])

#: ``safe``: may run again. ``keyed``: the other side knows a call by its key. ``never``: must not run twice.
Replay = Literal["safe", "keyed", "never"]
#: The parameter that a keyed function takes.
KEY: Final = "idempotency_key"
#: Where a function keeps what ``@step``, and what ``@tool``, said of it.
_MARK: Final = "__ares_step__"
_TOOL_MARK: Final = "__ares_tool__"
_MOST_RETRIES: Final = 1_000


class Unset:
    """Stands for an option that was not given, as None is a value."""

    @override
    def __repr__(self) -> str:
        """Short, as it is shown in signatures."""
        return "…"


UNSET: Final = Unset()


@dataclass(frozen=True, slots=True)
class StepOptions:
    """How a step may be repeated.

    Attributes:
        replay: What may happen after a death in the middle of it.
        retries: Tries after the first one that failed.
        limit: Seconds that one try may take; None = as long as it takes.
        formerly: Names of earlier functions whose recorded results hold for this one, too.
    """

    replay: Replay = "safe"
    retries: int = 0
    limit: float | None = None
    formerly: tuple[str, ...] = ()

    def changed(
        self,
        *,
        replay: Replay | Unset = UNSET,
        retries: int | Unset = UNSET,
        timeout: timedelta | float | str | Unset | None = UNSET,
        formerly: Iterable[str] | Unset = UNSET,
    ) -> StepOptions:
        """The same with other options.

        Raises:
            InvalidSettingError: One of them cannot work; the text names it.
        """
        made = replace(
            self,
            replay=self.replay if isinstance(replay, Unset) else _checked_replay(replay),
            retries=self.retries if isinstance(retries, Unset) else _checked_retries(retries),
            limit=self.limit if isinstance(timeout, Unset) else _checked_limit(timeout),
            formerly=self.formerly if isinstance(formerly, Unset) else _checked_names(formerly),
        )
        if made.replay == "never" and made.retries:
            problem = "a step that must not run twice cannot be tried again; say replay='keyed', or retries=0"
            raise InvalidSettingError(field="retries", value=made.retries, problem=problem)
        return made


#: What holds for a function without ``@step``.
DEFAULTS: Final = StepOptions()
#: Tools that keep nothing, as bound methods do.
_others: Final[dict[Callable[..., Any], StepOptions]] = {}


def _checked_replay(replay: object) -> Replay:
    if replay in get_args(Replay):
        return cast("Replay", replay)
    raise InvalidSettingError(
        field="replay", value=_shown(replay), problem=f"choose one of {', '.join(get_args(Replay))}"
    )


def _checked_retries(retries: object) -> int:
    if isinstance(retries, int) and not isinstance(retries, bool) and 0 <= retries <= _MOST_RETRIES:
        return retries
    problem = f"give how often it is tried again, 0 to {_MOST_RETRIES}"
    raise InvalidSettingError(field="retries", value=_shown(retries), problem=problem)


def _checked_limit(timeout: timedelta | float | str | None) -> float | None:
    if timeout is None:
        return None
    try:
        limit = parse_duration(timeout)
    except ValueError as error:
        raise InvalidSettingError(field="timeout", value=_shown(timeout), problem=str(error)) from error
    if limit <= timedelta(0):
        problem = "must be above 0; leave it out for no limit"
        raise InvalidSettingError(field="timeout", value=_shown(timeout), problem=problem)
    return limit.total_seconds()


def _checked_names(formerly: object) -> tuple[str, ...]:
    given = formerly
    is_list = isinstance(formerly, Iterable) and not isinstance(formerly, (str, bytes))
    names = tuple(cast("Iterable[object]", formerly)) if is_list else ("",)
    if not all(isinstance(name, str) and name for name in names):
        problem = "give the names of earlier functions, as a list of texts"
        raise InvalidSettingError(field="formerly", value=_shown(given), problem=problem)
    return cast("tuple[str, ...]", names)


def _shown(value: object) -> str:
    return value[:200] if isinstance(value, str) else repr(value)[:200]


# -- functions -------------------------------------------------------------------------------------------------------


@overload
def step(function: F, /) -> F: ...
@overload
def step(
    *,
    replay: Replay = "safe",
    retries: int = 0,
    timeout: timedelta | float | str | None = None,
    formerly: Iterable[str] = (),
) -> Callable[[F], F]: ...
def step(
    function: Callable[..., Any] | None = None,
    /,
    *,
    replay: Replay = "safe",
    retries: int = 0,
    timeout: timedelta | float | str | None = None,
    formerly: Iterable[str] = (),
) -> Any:
    """Says how a function behaves as a step of an agent, ``await ctx.step("charge", charge, order)``.

    Called by itself the function is just called, which is no step: nothing is recorded, and nothing keeps it from
    running twice. Of one that is not ``safe`` a warning says so, once, when an agent's code does that.

    Args:
        function: When it is written without parentheses, ``@step``.
        replay: What may happen after a death in the middle of it. ``safe``: it may run again. ``keyed``: it takes a
            parameter ``idempotency_key: str = ""``, gets the same key in every life, and whoever it calls does the
            work once for a key. ``never``: it runs at most once; when nobody knows how it ended, a person decides.
        retries: How often it is tried again when it raises, after 1, 2, 4 … at most 30 seconds; not with ``never``.
        timeout: Longest time of one try, a timedelta, seconds, or text such as 500ms.
        formerly: Names of functions that this one replaces: what they recorded holds for it, too.

    Raises:
        InvalidSettingError: An option cannot work; the text names it.

    Example:
        >>> @step(replay="keyed", retries=3, timeout="20s")
        ... async def charge(order: str, idempotency_key: str = "") -> str:
        ...     return f"charged {order}"
        >>> options_of(charge).retries, options_of(print).replay
        (3, 'safe')
    """
    options = DEFAULTS.changed(replay=replay, retries=retries, timeout=timeout, formerly=formerly)

    def mark(decorated: F) -> F:
        if not callable(cast("object", decorated)):
            problem = "it cannot be called; decorate a function"
            raise InvalidSettingError(field="step", value=_shown(decorated), problem=problem)
        of_tool = getattr(decorated, _TOOL_MARK, None)
        if isinstance(of_tool, StepOptions) and of_tool.replay != replay:
            problem = f"as a tool the function says replay={of_tool.replay!r}; say the same in both places"
            raise InvalidSettingError(field="replay", value=replay, problem=problem)
        setattr(decorated, _MARK, options)
        return guarded(decorated, replay)

    return mark if function is None else mark(function)


def options_of(function: Callable[..., Any]) -> StepOptions:
    """What ``@step``, or else ``@tool``, said of a function, a method or a partial; else it is safe."""
    options = getattr(function, _MARK, None) or getattr(function, _TOOL_MARK, None)
    if options is None and isinstance(function, functools.partial):
        return options_of(function.func)
    if options is None and _others:
        with suppress(TypeError):
            options = _others.get(function)
    return options if isinstance(options, StepOptions) else DEFAULTS


def mark_tool(function: Callable[..., Any], replay: Replay, limit: float | None) -> None:
    """Has a function that is a tool behave as one also where it is called as a step.

    Raises:
        InvalidSettingError: ``@step`` said something else of it.
    """
    said = getattr(function, _MARK, None)
    if isinstance(said, StepOptions) and said.replay != replay:
        problem = f"as a step the function says replay={said.replay!r}; say the same in both places"
        raise InvalidSettingError(field="replay", value=replay, problem=problem)
    options = StepOptions(replay, limit=limit)
    try:
        setattr(function, _TOOL_MARK, options)
    except (AttributeError, TypeError):
        with suppress(TypeError):
            _others[function] = options


def is_async(function: Callable[..., Any]) -> bool:
    """It is to be awaited on the event loop, as far as can be told without calling it."""
    if type(function) is types.FunctionType:
        return bool(function.__code__.co_flags & inspect.CO_COROUTINE)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def takes_key(function: Callable[..., Any]) -> bool:
    """It has the parameter for a key, by name or by ``**kwargs``; True of one that does not tell its signature."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return True
    is_named = KEY in parameters and parameters[KEY].kind is not inspect.Parameter.POSITIONAL_ONLY
    return is_named or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


# -- what a context offers ---------------------------------------------------------------------------------------------


class ExecutionScope(Protocol):
    """An execution that is entered."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    @property
    def is_finished(self) -> bool:
        """It was finished when it was entered: what its steps recorded is returned, and nothing new is run."""
        ...

    @property
    def recorded(self) -> int:
        """How many steps had been recorded when it was entered."""
        ...


class StepCaller(Protocol):
    """``ctx.step`` of an async agent."""

    @overload
    def __call__(
        self, step_id: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def __call__(
        self, step_id: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    def __call__(
        self, step_id: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Coroutine[Any, Any, Any]:
        """Runs a function once for this id in the current execution, and records what it returns.

        When it returns, the store has the result, as plain JSON; what is returned is that very value, in the first life
        as in later ones. An id that was recorded is not run again: its result is returned. A plain function runs on a
        thread of its own. What the function raises is raised here, and nothing is recorded of it, unless it is a
        ``never`` one: its failure is recorded, and raised as StepFailedError.

        Args:
            step_id: Unique in its execution; steps that run inside of another one have its id in front.
            function: What to run; async or plain.
            args: For it.
            kwargs: For it.

        Raises:
            StepIdReusedError, InvalidStepIdError: The id was used already, or is none.
            StepChangedError: Another function recorded it; nothing was run. Uncaught, it parks the agent.
            StepFailedError: A ``never`` one has failed, now (``__cause__`` is what it raised) or in an earlier life.
            StepTimeoutError: It did not return in time; the agent parks if it is a ``never`` one: a person has to look.
            StepSignatureError: A keyed function without the parameter ``idempotency_key``; nothing was run.
            StepResultTooLargeError, UnserialisableError, StepLimitError: The result cannot be recorded. Uncaught, it
                parks the agent; of a ``never`` one it does in any case: a person says what came of it.
            ExecutionStateError: The execution is finished, and the step is new.
        """
        ...

    def with_options(
        self,
        *,
        replay: Replay = ...,
        retries: int = ...,
        timeout: timedelta | float | str | None = ...,
        formerly: Iterable[str] = ...,
    ) -> StepCaller:
        """The same with other options than those of the function: ``ctx.step.with_options(retries=3)("id", fn)``."""
        ...


class SyncStepCaller(Protocol):
    """``ctx.step`` of a plain agent: see :class:`StepCaller`. An async function runs on this process's event loop.

    Steps may be made on threads that the agent begins. While it is in a block or in a message, such a thread needs the
    context of the code that begins it, ``pool.submit(contextvars.copy_context().run, work)``: else nobody could tell
    whether the step belongs there, and it is refused with StepThreadError.
    """

    @overload
    def __call__(
        self, step_id: str, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    @overload
    def __call__(self, step_id: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    def __call__(self, step_id: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """See :meth:`StepCaller.__call__`."""
        ...

    def with_options(
        self,
        *,
        replay: Replay = ...,
        retries: int = ...,
        timeout: timedelta | float | str | None = ...,
        formerly: Iterable[str] = ...,
    ) -> SyncStepCaller:
        """See :meth:`StepCaller.with_options`."""
        ...


class Stepping(Protocol):
    """For agents whose methods are ``async``."""

    @property
    def step(self) -> StepCaller:
        """Runs a function once in the current execution: ``await ctx.step("charge", charge, order)``."""
        ...

    def execution(self, execution_id: str, /) -> AbstractAsyncContextManager[ExecutionScope]:
        """The execution that the steps of a block belong to: ``async with ctx.execution("order-1"): …``.

        It is finished when the block ends, and given back, to go on where it was, when the block raises. Without a
        block a step belongs to ``msg:<message id>`` inside of ``process``, which ends with the answer, and else to
        ``main``, which ends when the agent completes.

        Args:
            execution_id: 1 to 400 printable characters; ``main`` and what begins with ``msg:`` are the runtime's own.

        Raises:
            InvalidExecutionIdError: The id is none, or the runtime's own.
            ExecutionStateError: It is entered already. Both are raised where the block begins.
        """
        ...


class SyncStepping(Protocol):
    """For agents whose methods are plain; the same names, and calls wait."""

    @property
    def step(self) -> SyncStepCaller:
        """See :attr:`Stepping.step`."""
        ...

    def execution(self, execution_id: str, /) -> AbstractContextManager[ExecutionScope]:
        """See :meth:`Stepping.execution`: ``with ctx.execution("order-1"): …``."""
        ...
