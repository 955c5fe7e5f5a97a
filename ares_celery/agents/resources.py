"""Things that the agents of a process share, as modules register them: opened once a process, closed at its end."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from ares_celery.agents.named import NamedFunctions, check_decorated
from ares_celery.errors import WorkerResourceError

__all__ = ["RESOURCES", "ResourceRegistry", "WorkerResource", "override_resource", "worker_resource"]

F = TypeVar("F", bound=Callable[..., Any])

_CURE: Final = "write an async generator (async def, one yield), or a plain one for something that threads may share"


@dataclass(frozen=True, slots=True)
class WorkerResource:
    """One registered resource.

    Attributes:
        name: What agents call it.
        function: The generator function.
        is_async: It is opened on the agents' event loop and belongs to it.
        needs: Names of the resources that it is called with.
    """

    name: str
    function: Callable[..., Any]
    is_async: bool
    needs: tuple[str, ...] = ()

    def manager(self, needed: dict[str, Any]) -> AbstractAsyncContextManager[Any] | AbstractContextManager[Any]:
        """What opens and closes it once; calling the function runs none of its code."""
        made = asynccontextmanager(self.function) if self.is_async else contextmanager(self.function)
        return made(**needed)


class ResourceRegistry(NamedFunctions[WorkerResource]):
    """A set of resources; a process has one, tests may have their own."""

    def __init__(self) -> None:
        super().__init__(_refused)

    def register(self, name: str, function: Callable[..., Any]) -> WorkerResource:
        """Adds a resource.

        Raises:
            WorkerResourceError: It is no generator function, or another function holds the name.
        """
        is_async = inspect.isasyncgenfunction(function)
        if not is_async and not inspect.isgeneratorfunction(function):
            raise _refused(name, f"{getattr(function, '__qualname__', function)!r} is no generator function; {_CURE}")
        return self.add(WorkerResource(name, function, is_async, _needs(name, function)))

    def check(self, name: str, way: tuple[str, ...] = ()) -> WorkerResource:
        """The resource of this name, with all that it needs.

        Raises:
            WorkerResourceError: It or what it needs is unknown, needs itself, or is plain and needs an async one.
        """
        if name in way:
            raise _refused(name, f"it needs itself: {' → '.join((*way, name))}")
        found = self.get(name)
        for need in found.needs:
            needed = self.check(need, (*way, name))
            if needed.is_async and not found.is_async:
                raise _refused(name, f"it is plain and cannot need {need!r}, which lives on the event loop")
        return found


def _refused(name: str, problem: str) -> WorkerResourceError:
    return WorkerResourceError(name=name, problem=problem)


def _needs(name: str, function: Callable[..., Any]) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters.values()
    odd = [p.name for p in parameters if p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if odd:
        raise _refused(name, f"its parameters name the resources that it needs; {odd[0]!r} can be none")
    return tuple(p.name for p in parameters if p.default is p.empty)


#: The process's own, which ``@worker_resource`` fills.
RESOURCES: Final = ResourceRegistry()


def worker_resource(name: str, /) -> Callable[[F], F]:
    """Registers a generator function that opens, yields and closes something that all agents of a process share.

    Opened at its first use, once a process, and closed when the process ends, the newest first. An async generator runs
    in one task on the agents' event loop, so what it yields may be bound to that loop; async agents get it with
    ``await ctx.resource(name)``. A plain generator runs in one thread; what it yields must be safe to share between
    threads, and all agents may use it. Parameters without default name other resources, which are opened before.

    Args:
        name: What agents call it.

    Raises:
        WorkerResourceError: It is no generator function, or another function holds the name.

    Example:
        >>> @worker_resource("doc-words")
        ... def words():
        ...     yield {"hello": 5}
        >>> RESOURCES.get("doc-words").is_async
        False
    """
    check_decorated(name, "worker_resource", _refused)

    def register(function: F) -> F:
        RESOURCES.register(name, function)
        return function

    return register


def override_resource(which: str | Callable[..., Any], value: object) -> AbstractContextManager[None]:
    """Has every agent of this process get ``value`` instead of a resource while the block runs; for tests.

    Nothing is opened or closed.

    Raises:
        WorkerResourceError: Nobody registered it in this process, or the name is mistyped.

    Example:
        >>> @worker_resource("doc-llm")
        ... def llm():
        ...     yield "a real one"
        >>> with override_resource("doc-llm", "a fake"):
        ...     RESOURCES.replacement("doc-llm")
        (True, 'a fake')
    """
    name = which if isinstance(which, str) else RESOURCES.name_of(cast("object", which))
    return RESOURCES.override(name, value)
