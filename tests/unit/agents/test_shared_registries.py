"""Resources, tools and MCP servers are checked when they are registered, and can be replaced in tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import pytest

from ares_celery.agents.dead_letters import dead_letter_handler
from ares_celery.agents.mcp_servers import MCP_SERVERS, MCPServerRegistry, mcp_server, override_mcp
from ares_celery.agents.resources import RESOURCES, ResourceRegistry, override_resource, worker_resource
from ares_celery.agents.tools import TOOLS, ToolRegistry, override_tool, tool
from ares_celery.errors import AresError, MCPServerError, ToolError, WorkerHookError, WorkerResourceError
from ares_celery.runtime.shared_things import Registries


async def llm() -> AsyncIterator[str]:
    """Belongs to the loop."""
    yield "llm"


def cache() -> Iterator[dict[str, int]]:
    """Belongs to threads."""
    yield {}


def plain(order: str) -> str:
    """Takes no key."""
    return order


def keyed(order: str, idempotency_key: str = "") -> str:
    """Takes one."""
    return f"{order} {idempotency_key}"


def takes_all(**more: object) -> str:
    """Takes whatever comes, a key too."""
    return "all"


async def session() -> AsyncIterator[str]:
    """A connection."""
    yield "session"


class Kind:
    """One of the three, for what they have in common."""

    def __init__(
        self,
        registry: Callable[[], Any],
        function: Callable[..., Any],
        other: Callable[..., Any],
        error: type[AresError],
        *,
        field: str,
    ) -> None:
        self.registry, self.function, self.other, self.error, self.field = registry, function, other, error, field


KINDS = [
    pytest.param(Kind(ResourceRegistry, llm, cache, WorkerResourceError, field="name"), id="resource"),
    pytest.param(Kind(ToolRegistry, plain, keyed, ToolError, field="tool"), id="tool"),
    pytest.param(Kind(MCPServerRegistry, session, llm, MCPServerError, field="server"), id="mcp"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_name_is_refused_with_the_known_ones(kind: Kind) -> None:
    """Whoever mistypes a name sees what there is."""
    registry = kind.registry()
    with pytest.raises(kind.error, match="known: none"):
        registry.get("one")
    registry.register("two", kind.function)
    registry.register("one", kind.other)
    with pytest.raises(kind.error, match="known: one, two") as caught:
        registry.get("three")
    assert caught.value.fields[kind.field] == "three"


@pytest.mark.parametrize("kind", KINDS)
def test_another_function_is_refused_and_the_same_one_replaces_itself(kind: Kind) -> None:
    """As agent types: a module that is loaded again brings a new function of the same name."""
    registry = kind.registry()
    registry.register("one", kind.function)
    with pytest.raises(kind.error, match=f"{kind.function.__qualname__} holds the name already"):
        registry.register("one", kind.other)
    assert registry.get("one").function is kind.function

    again = _loaded_again(kind.function)
    registry.register("one", again)
    assert registry.get("one").function is again
    assert registry.name_of(again) == "one"
    with pytest.raises(kind.error, match="not registered"):
        registry.name_of(kind.other)


def _loaded_again(function: Any) -> Any:
    made = type(function)(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    made.__qualname__, made.__module__ = function.__qualname__, function.__module__
    return made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["", None, 7])
def test_a_name_is_a_string_that_is_not_empty(kind: Kind, name: Any) -> None:
    """Nothing can be asked for by another one."""
    with pytest.raises(kind.error, match="a name is needed"):
        kind.registry().register(name, kind.function)


@pytest.mark.parametrize("function", [plain, 7, None], ids=["function", "number", "nothing"])
def test_a_resource_is_opened_by_a_generator_function(function: Any) -> None:
    """Nothing else says how it is closed."""
    with pytest.raises(WorkerResourceError, match="async generator"):
        ResourceRegistry().register("one", function)


def test_a_resource_names_what_it_needs() -> None:
    """By its parameters without default; all of it must exist, none may need itself, and plain needs plain."""
    registry = ResourceRegistry()

    async def clients(llm: str, cache: dict[str, int], size: int = 3) -> AsyncIterator[None]:
        yield

    def plain_needs_async(llm: str) -> Iterator[None]:
        yield

    def first(second: str) -> Iterator[None]:
        yield

    def second(first: str) -> Iterator[None]:
        yield

    def any_number(*names: str) -> Iterator[None]:
        yield

    assert registry.register("clients", clients).needs == ("llm", "cache")
    with pytest.raises(WorkerResourceError, match="'llm': nobody registered it"):
        registry.check("clients")
    registry.register("llm", llm)
    registry.register("cache", cache)
    assert registry.check("clients").is_async
    registry.register("plain", plain_needs_async)
    with pytest.raises(WorkerResourceError, match="cannot need 'llm'"):
        registry.check("plain")
    registry.register("first", first)
    registry.register("second", second)
    with pytest.raises(WorkerResourceError, match="first → second → first"):
        registry.check("first")
    with pytest.raises(WorkerResourceError, match="'names' can be none"):
        registry.register("any", any_number)


def test_a_tool_says_how_it_may_be_repeated() -> None:
    """Never, unless it says otherwise; one with a key must be able to take it."""
    registry = ToolRegistry()
    assert registry.register("mail", plain).replay == "never"
    assert registry.register("look", plain, replay="safe").replay == "safe"
    assert registry.register("refund", keyed, replay="keyed", timeout="500ms").timeout == timedelta(seconds=0.5)
    assert registry.register("open", takes_all, replay="keyed").replay == "keyed"
    with pytest.raises(ToolError, match='idempotency_key: str = ""'):
        registry.register("bad", plain, replay="keyed")
    twice: Any = "twice"
    with pytest.raises(ToolError, match="'twice' is not one of safe, keyed, never"):
        registry.register("bad", plain, replay=twice)


@pytest.mark.parametrize("timeout", [0, -1, "soon", timedelta(0)], ids=str)
def test_a_timeout_that_cannot_work_is_refused(timeout: Any) -> None:
    """With the tool's name."""
    with pytest.raises(ToolError, match="timeout") as caught:
        ToolRegistry().register("refund", plain, timeout=timeout)
    assert caught.value.fields["tool"] == "refund"


@pytest.mark.parametrize("function", [llm, cache, 7], ids=["async generator", "generator", "number"])
def test_a_tool_is_a_function_of_one_answer(function: Any) -> None:
    """Generators give many."""
    with pytest.raises(ToolError):
        ToolRegistry().register("bad", function)


def test_async_tools_are_told_from_plain_ones() -> None:
    """Also objects that are called."""

    class Called:
        async def __call__(self) -> None: ...

    async def fetch() -> None: ...

    functions: list[Callable[..., Any]] = [fetch, Called(), plain]
    registry = ToolRegistry()
    found = [registry.register(f"tool-{at}", one).is_async for at, one in enumerate(functions)]
    assert found == [True, True, False]


def test_a_server_is_connected_by_something_without_arguments() -> None:
    """A generator of one colour, or what makes a context manager; which it is shows when it is called."""
    registry = MCPServerRegistry()

    async def coroutine() -> None: ...

    def takes(url: str) -> AbstractContextManager[None]:
        return nullcontext()

    for bad in (cache, coroutine, takes, 7):
        function: Any = bad
        with pytest.raises(MCPServerError):
            registry.register("bad", function)
    with pytest.raises(MCPServerError, match="gave a str, no async context manager"):
        registry.register("late", lambda: "text").manager()
    assert hasattr(registry.register("good", nullcontext).manager(), "__aenter__")


def test_overrides_nest_and_end_with_their_block() -> None:
    """Also when the block fails; given is the name, or the registered function."""

    @worker_resource("overridden")
    async def opened() -> AsyncIterator[str]:
        yield "real"

    @tool("overridden", replay="keyed", timeout=3)
    def called(idempotency_key: str = "") -> str:
        return "real"

    @mcp_server("overridden")
    async def connected() -> AsyncIterator[str]:
        yield "real"

    with override_resource("overridden", 1):
        with override_resource(opened, 2):
            assert RESOURCES.replacement("overridden") == (True, 2)
        with pytest.raises(KeyError), override_resource("overridden", 3):
            raise KeyError
        assert RESOURCES.replacement("overridden") == (True, 1)
    assert RESOURCES.replacement("overridden") == (False, None)

    with override_tool(called, takes_all):
        found = TOOLS.find("overridden")
        assert (found.function(), found.replay, found.timeout) == ("all", "keyed", timedelta(seconds=3))
    with override_tool("overridden", lambda: "takes no key"):
        assert TOOLS.find("overridden").replay == "never"
    assert TOOLS.find("overridden").function is called
    not_callable: Any = 7
    with pytest.raises(ToolError, match="cannot be called"), override_tool("overridden", not_callable):
        pass

    with override_mcp(connected, "fake"):
        assert MCP_SERVERS.replacement("overridden") == (True, "fake")
    assert MCP_SERVERS.replacement("overridden") == (False, None)


def test_a_mistyped_name_replaces_nothing() -> None:
    """As the real thing would be used; the text has those that there are."""

    @worker_resource("known-one")
    async def one() -> AsyncIterator[str]:
        yield "real"

    with pytest.raises(WorkerResourceError, match=r"'onne'.*known: .*known-one"):
        override_resource("onne", 1)
    with pytest.raises(ToolError, match=r"'onne'.*known: "):
        override_tool("onne", takes_all)
    with pytest.raises(MCPServerError, match=r"'onne'.*known: "):
        override_mcp("onne", 1)
    for kind, error in (("resource", WorkerResourceError), ("tool", ToolError), ("mcp", MCPServerError)):
        with pytest.raises(error, match="onne"):
            Registries(instead={kind: {"onne": 1}})


@pytest.mark.parametrize("decorator", [worker_resource, tool, mcp_server])
def test_a_decorator_without_its_name_says_what_to_write(decorator: Any) -> None:
    """It would else register nothing, in silence."""

    def things() -> None: ...

    with pytest.raises(AresError, match=rf'write @{decorator.__name__}\("name"\)'):
        decorator(things)


@pytest.mark.parametrize("arguments", [(), ("letters",)])
def test_a_handler_with_parentheses_says_what_to_write(arguments: tuple[Any, ...]) -> None:
    """It takes no name."""
    with pytest.raises(WorkerHookError, match="without parentheses"):
        dead_letter_handler(*arguments)
