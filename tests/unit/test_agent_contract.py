"""What breaks the contract of an agent is refused when its type is registered, with what to write instead."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

from ares_celery import AgentContext, Event
from ares_celery.agents.registry import Registry, agent, load_modules
from ares_celery.errors import AgentTypeError, UnknownAgentTypeError


class AsyncApply:
    def __init__(self, agent_id: str) -> None: ...

    async def apply(self, event: Event) -> None: ...


class AsyncSnapshot:
    def __init__(self, agent_id: str) -> None: ...

    async def snapshot(self) -> dict[str, object]:
        return {}


class AsyncRestore:
    def __init__(self, agent_id: str) -> None: ...

    async def restore_state(self, state: dict[str, object]) -> None: ...


class AsyncAlive:
    def __init__(self, agent_id: str) -> None: ...

    async def is_alive(self) -> bool:
        return True


class Mixed:
    def __init__(self, agent_id: str) -> None: ...

    async def start(self, ctx: AgentContext) -> None: ...

    def process(self, ctx: AgentContext, message: object) -> object:
        return message


class StartWithoutContext:
    def __init__(self, agent_id: str) -> None: ...

    async def start(self) -> None: ...


class ProcessWithoutMessage:
    def __init__(self, agent_id: str) -> None: ...

    async def process(self, ctx: AgentContext) -> object:
        return None


class NoId:
    def __init__(self, *, limit: int = 1) -> None: ...

    def process(self, ctx: object, message: object) -> object:
        return message


class Typo:
    def __init__(self, agent_id: str) -> None: ...

    async def proces(self, ctx: AgentContext, message: object) -> object:
        return message


class Idle:
    def __init__(self, agent_id: str) -> None: ...

    async def stop(self, ctx: AgentContext) -> None: ...


class Yields:
    def __init__(self, agent_id: str) -> None: ...

    async def process(self, ctx: AgentContext, message: object) -> AsyncIterator[object]:
        yield message


class PlainYields:
    def __init__(self, agent_id: str) -> None: ...

    def start(self, ctx: object) -> Iterator[object]:
        yield ctx


class YieldsEvents:
    def __init__(self, agent_id: str) -> None: ...

    async def start(self, ctx: AgentContext) -> None: ...

    def apply(self, event: Event) -> Iterator[object]:
        yield event


class SavesOnly:
    def __init__(self, agent_id: str) -> None: ...

    async def start(self, ctx: AgentContext) -> None: ...

    def snapshot(self) -> dict[str, object]:
        return {}


class NotCallable:
    start = 7

    def __init__(self, agent_id: str) -> None: ...


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (AsyncApply, "write def apply"),
        (AsyncSnapshot, "write def snapshot"),
        (AsyncRestore, "write def restore_state"),
        (AsyncAlive, "write def is_alive"),
        (Mixed, "start is async, process is plain"),
        (StartWithoutContext, r"write start\(self, ctx\)"),
        (ProcessWithoutMessage, r"write process\(self, ctx, message\)"),
        (NoId, "the id comes first"),
        (NotCallable, "start is not callable"),
        (Typo, "none of start, process, process_stream.*did you mean process"),
        (Yields, "process holds a yield.*name it process_stream"),
        (PlainYields, "start holds a yield"),
        (YieldsEvents, "apply holds a yield"),
    ],
)
def test_a_class_that_breaks_the_contract_is_refused_with_what_to_write(broken: type[Any], said: str) -> None:
    """At registration, not when its first agent has lost its state."""
    registry = Registry()
    with pytest.raises(AgentTypeError, match=said):
        registry.register("broken", broken)
    with pytest.raises(UnknownAgentTypeError):
        registry.get("broken")


@pytest.mark.parametrize(
    ("odd", "said"), [(Idle, "none of start, process, process_stream"), (SavesOnly, "no restore_state")]
)
def test_a_class_that_does_little_is_taken_with_a_warning(
    odd: type[Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Every method is optional."""
    registry = Registry()
    registry.register("odd", odd)
    assert registry.get("odd").name == "odd"
    assert said in caplog.text


class Whole:
    """Every method, each as the runtime calls it, with more parameters that have defaults."""

    def __init__(self, agent_id: str, limit: int = 3, **more: object) -> None: ...

    async def start(self, ctx: AgentContext, pause: float = 1.0) -> None: ...

    async def process(self, ctx: AgentContext, message: object) -> object:
        return message

    async def stop(self, ctx: AgentContext) -> None: ...

    def apply(self, event: Event) -> None: ...

    def replay_events(self, events: Sequence[Event]) -> None: ...

    def snapshot(self) -> dict[str, object]:
        return {}

    def restore_state(self, state: dict[str, object]) -> None: ...

    def heartbeat(self) -> None: ...

    @staticmethod
    def is_alive() -> bool:
        return True


def test_a_whole_agent_is_registered_and_described() -> None:
    """Its parameters are told to other processes."""
    registry = Registry()
    registry.register("whole", Whole, concurrency=3, schema=2)
    assert registry.describe() == {
        "whole": {"open": True, "names": ["limit"], "required": [], "types": {"limit": ["int"]}}
    }
    assert registry.names() == ["whole"]


def test_a_function_may_be_the_factory() -> None:
    """What it gives is checked when it is made."""
    from ares_celery import AgentSpec

    registry = Registry()

    def make(agent_id: str, **config: object) -> Whole:
        return Whole(agent_id, limit=len(config))

    def nothing(agent_id: str) -> None: ...

    registry.register("made", make)
    assert isinstance(registry.get("made").create(AgentSpec(id="a", type="made", config={"x": 1})), Whole)
    registry.register("none", nothing)
    with pytest.raises(AgentTypeError, match="returned None"):
        registry.get("none").create(AgentSpec(id="a", type="none"))


@pytest.mark.parametrize("name", [5, None, "", "a b", "a\n", "a" * 500])
def test_the_name_of_a_type_is_a_short_text_without_blanks(name: Any) -> None:
    """It is part of specs, logs and keys."""
    with pytest.raises(AgentTypeError, match="name"):
        Registry().register(name, Whole)


def test_the_decorator_without_a_name_says_what_to_write() -> None:
    """It would else register nothing, in silence."""
    without: Any = agent
    with pytest.raises(AgentTypeError, match=r'write @agent\("name"\)'):
        without(Whole)


def test_a_stream_may_come_from_an_async_function_that_returns_one() -> None:
    """Only when it is called is known what it gives."""

    class Returns:
        def __init__(self, agent_id: str) -> None: ...

        async def process_stream(self, ctx: AgentContext, message: object) -> AsyncIterator[object]:
            async def pieces() -> AsyncIterator[object]:
                yield message

            return pieces()

    assert Registry().register("returns", Returns).name == "returns"


@pytest.mark.parametrize("option", [{"concurrency": 0}, {"schema": 0}, {"concurrency": "x"}, {"schema": True}])
def test_options_start_at_one(option: dict[str, Any]) -> None:
    """Zero makes no sense, nor does what is no number."""
    with pytest.raises(AgentTypeError, match="start at 1"):
        Registry().register("whole", Whole, **option)


def test_a_named_module_must_be_there_and_the_default_one_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt module is an error; a folder without workers/ is none."""
    with pytest.raises(ModuleNotFoundError):
        load_modules(["no_such_module_anywhere"])
    monkeypatch.setattr("ares_celery.agents.registry.DEFAULT_MODULE", "no_such_package.agents")
    assert load_modules(None) == ()
