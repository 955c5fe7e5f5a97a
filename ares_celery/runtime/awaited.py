"""What a call of an async context gives: a coroutine that says so when it is taken for its result, or dropped."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Coroutine, Generator, Iterator
from types import FrameType, TracebackType
from typing import Any, Concatenate, Final, NoReturn, ParamSpec, Protocol, TypeVar, overload

from typing_extensions import override

from ares_celery.errors import AwaitMissingError
from ares_celery.runtime.incarnation import Incarnation

__all__ = ["Awaited", "awaited"]

T = TypeVar("T")
P = ParamSpec("P")
log: Final = logging.getLogger(__name__)


class _Owned(Protocol):
    """A part of an incarnation."""

    @property
    def hosted(self) -> Incarnation: ...


C = TypeVar("C", bound=_Owned)


class Awaited(Coroutine[Any, Any, T]):
    """A call that does nothing before it is awaited; whatever takes a coroutine takes it.

    Taken for its result, in a condition say, it raises AwaitMissingError. Dropped unused, it logs an error and notes it
    in ``Incarnation.forgotten``.

    Args:
        coroutine: What is awaited.
        incarnation: Whose call.
        form: The call as code has it, with ``{}`` for its first argument.
        first: That argument.
    """

    __slots__ = ("_coroutine", "_first", "_form", "_incarnation", "_is_used")

    def __init__(
        self, coroutine: Coroutine[Any, Any, T], incarnation: Incarnation, form: str, first: object = ""
    ) -> None:
        self._coroutine = coroutine
        self._incarnation = incarnation
        self._form = form
        self._first = first
        self._is_used = False

    @override
    def __await__(self) -> Generator[Any, Any, T]:
        """Begins it."""
        self._is_used = True
        return self._coroutine.__await__()

    @override
    def send(self, value: Any, /) -> Any:
        """What a task does with a coroutine."""
        self._is_used = True
        return self._coroutine.send(value)

    @overload
    def throw(
        self, typ: type[BaseException], val: BaseException | object = None, tb: TracebackType | None = None, /
    ) -> Any: ...  # noqa: ANN401 - whatever it yields
    @overload
    def throw(self, typ: BaseException, val: None = None, tb: TracebackType | None = None, /) -> Any: ...  # noqa: ANN401 - as above
    @override
    def throw(
        self,
        typ: Any,
        val: Any = None,
        tb: TracebackType | None = None,
        /,
    ) -> Any:
        """What a task does with a coroutine that is cancelled."""
        self._is_used = True
        if val is None and tb is None:
            return self._coroutine.throw(typ)
        return self._coroutine.throw(typ, val, tb)

    @override
    def close(self) -> None:
        """Gives it up, on purpose."""
        self._is_used = True
        self._coroutine.close()

    def __bool__(self) -> bool:
        """It is neither true nor false before it is awaited."""
        # A task asks whether it has a coroutine when it is shown (Python 3.12 and later).
        if not self._is_used and not _is_of_asyncio(inspect.currentframe()):
            self._refuse()
        return True

    def __iter__(self) -> Iterator[Any]:
        """Its result may be a list; it is none."""
        self._refuse()

    def __len__(self) -> int:  # noqa: PLE0303 - raises
        """As above."""
        self._refuse()

    def __getitem__(self, key: object) -> Any:  # noqa: ANN401 - never returns
        """As above."""
        self._refuse()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - that of the coroutine
        """Shows debuggers what they ask a coroutine for."""
        if name.startswith("cr_"):
            return getattr(self._coroutine, name)
        raise AttributeError(f"{self._missing()} has no attribute {name!r}: await is missing: await {self._missing()}")

    def __del__(self) -> None:
        """Says that it was forgotten, if nobody has begun it."""
        if self._is_used:
            return
        self.close()
        if not self._incarnation.fenced:
            call, agent_id = self._missing(), self._incarnation.agent_id
            self._incarnation.forgotten.append(call)
            log.error(
                "agent %s: %s was never awaited, so nothing was done: write await %s", agent_id, call, call,
                extra={"agent_id": agent_id},
            )  # fmt: skip

    def _missing(self) -> str:
        # A name or a number: payloads may be secrets.
        is_shown = isinstance(self._first, (str, int, float)) and self._first != ""
        return self._form.format(f"{self._first!r:.100}" if is_shown else "…")

    def _refuse(self) -> NoReturn:
        self.close()
        raise AwaitMissingError(agent_id=self._incarnation.agent_id, call=self._missing())


def _is_of_asyncio(frame: FrameType | None) -> bool:
    """The caller of the code of this frame is asyncio itself."""
    caller = None if frame is None else frame.f_back
    return caller is not None and str(caller.f_globals.get("__name__")).partition(".")[0] == "asyncio"


def awaited(
    function: Callable[Concatenate[C, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[C, P], Coroutine[Any, Any, T]]:
    """Has a public method of an async context give an :class:`Awaited`."""
    form = f"ctx.{function.__name__}({{}})"

    @functools.wraps(function)
    def call(self: C, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        first: object = args[0] if args else ""
        return Awaited(function(self, *args, **kwargs), self.hosted, form, first)

    return call
