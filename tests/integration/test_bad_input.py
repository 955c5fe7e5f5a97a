"""Bad input gets an error of its own that names the field, the value and the cure; nothing is half-written."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ares_celery import AgentContext, AgentSpec, Event, Manager
from ares_celery.errors import (
    AgentNotFoundError,
    AgentNotRunningError,
    AgentTypeError,
    ChaosDisabledError,
    EventTooLargeError,
    InvalidAgentIdError,
    InvalidConfigError,
    InvalidSettingError,
    NilAgentError,
    NilFactoryError,
    OperationNotSupportedError,
    RuntimeAlreadyStartedError,
    RuntimePermissionError,
    RuntimeStoppedError,
    StoreUnavailableError,
    UnknownAgentTypeError,
    UnserialisableError,
)
from ares_celery.ids import AgentId
from tests.hosting import Runtime
from tests.redis_server import RedisServer, free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


class Emitter:
    """Emits what the test put into its box."""

    box: Any = None

    def __init__(self, agent_id: str) -> None:
        self.seen: list[Any] = []

    async def process(self, ctx: AgentContext, message: object) -> object:
        event = await ctx.emit("told", Emitter.box)
        return event.version

    def apply(self, event: Event) -> None:
        self.seen.append(event.payload)


@pytest.fixture
def runtime(redis_server: RedisServer, namespace: str) -> Iterator[Runtime]:
    """A running runtime in this process."""
    with Runtime(redis_server.url, namespace) as made:
        made.manager.start()
        made.register("emitter", Emitter)
        yield made


#: Arguments of calls from afar, which JSON lets be anything.
TEXTS = {
    "reason": ("start_agent", "stop_agent", "restart_agent", "define_group", "set_config", "register_agent_dag"),
    "actor": ("start_agent", "stop_agent", "pause_agent", "delete_group", "set_config", "register_agent_dag"),
    "op": ("register_agent", "update_agent", "restart_agent", "delete_agent", "define_group", "set_config"),
    "message_id": ("send", "process"),
    "name": ("get_group", "delete_group"),
    "key": ("get_agent_dag",),
}
GOOD: dict[str, Any] = {
    "agent": {"id": "a", "type": "emitter"},
    "agent_id": "a",
    "name": "g",
    "config": {},
    "settings": {"lease_ttl": "2s"},
    "key": "k",
    "value": 1,
    "message": 1,
}


@pytest.mark.parametrize("value", [7, math.nan, True, ["a"], {"a": 1}, "\ud800"], ids=ascii)
def test_what_is_no_text_is_refused_with_the_name_of_the_argument(runtime: Runtime, value: Any) -> None:
    """Whatever method it is for; nothing is written, and the error is plain JSON."""
    runtime.manager.define_group("g")
    runtime.manager.start_agent(AgentSpec(id="a", type="emitter"), wait="running")

    def seen() -> tuple[object, ...]:
        record = runtime.store.read(AgentId("a")).record
        return record and record.revision, runtime.manager.audit(), runtime.manager.list_groups()

    before = seen()
    for field, methods in TEXTS.items():
        for method in methods:
            ask = getattr(runtime.manager, method)
            given = {name: GOOD[name] for name in inspect.signature(ask).parameters if name in GOOD}
            with pytest.raises(InvalidSettingError, match=f"{field}=.*(must be a text|surrogate)") as caught:
                ask(**{**given, field: value})
            json.dumps(caught.value.args[0], allow_nan=False)
    assert seen() == before


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("audit", {"limit": "x"}),
        ("audit", {"limit": math.nan}),
        ("audit", {"limit": 10**30}),
        ("audit", {"since": 7}),
        ("list_agents", {"states": 7}),
        ("list_agents", {"states": "asleep"}),
        ("list_agents", {"states": [{}]}),
        ("set_config", {"settings": "lease_ttl=3s"}),
        ("set_config", {"settings": {"lease_ttl": math.nan}}),
        ("restore_agent", {"agent_id": "a", "factory": 7}),
    ],
    ids=str,
)
def test_a_value_of_another_kind_is_refused_with_field_and_cure(
    runtime: Runtime, method: str, given: dict[str, Any]
) -> None:
    """Of the methods that others may call by task."""
    runtime.manager.start_agent(AgentSpec(id="a", type="emitter"))
    with pytest.raises(InvalidSettingError) as caught:
        getattr(runtime.manager, method)(**given)
    assert caught.value.field in (*given, "lease_ttl")
    json.dumps(caught.value.args[0], allow_nan=False)
    assert [info.id for info in runtime.manager.list_agents(states="starting")] in ([], ["a"])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("config", {"by": math.nan}),
        ("config", {"deep": [{"by": -math.inf}]}),
        ("config", {"name": "\ud800"}),
        ("config", {"\ud800": 1}),
        ("labels", {"team": "\ud800"}),
        ("tenant", "\ud800"),
        ("group", "\ud800"),
    ],
    ids=ascii,
)
def test_a_spec_that_would_not_be_read_back_as_it_is_written_is_refused(
    runtime: Runtime, field: str, value: Any
) -> None:
    """Else a record would hold another value in silence, or never be read again; nothing is made or changed."""
    runtime.manager.start_agent(AgentSpec(id="a", type="emitter"))
    before = runtime.store.read(AgentId("a")).record
    bad = AgentSpec(id="b", type="emitter", **{field: value})
    start, register = runtime.manager.start_agent, runtime.manager.register_agent
    moved = AgentSpec(id="a", type="emitter", **{field: value})
    asked: list[tuple[Callable[..., object], object, dict[str, Any]]] = [
        (start, bad, {}),
        (register, bad, {}),
        (start, {"id": "b", "type": "emitter", field: value}, {}),
        (start, moved, {"if_exists": "update"}),
    ]
    for ask, spec, options in asked:
        with pytest.raises(InvalidConfigError, match=f"{field}: JSON cannot hold it") as caught:
            ask(spec, **options)
        json.dumps(caught.value.args[0], allow_nan=False)
    if field == "config":
        with pytest.raises(InvalidConfigError, match="config: JSON cannot hold it"):
            runtime.manager.update_agent("a", config=value)
    assert runtime.manager.get_agent("b") is None
    after = runtime.store.read(AgentId("a")).record
    assert before is not None
    assert after is not None
    assert before.spec == after.spec


def test_a_spec_of_ten_megabytes_is_refused(runtime: Runtime) -> None:
    """It would be read with each decision about its agent; the text says which part is large, and what to do."""
    huge = {"name": "x" * 10_000_000}
    runtime.manager.start_agent(AgentSpec(id="a", type="emitter"))
    for ask in (
        lambda: runtime.manager.start_agent(AgentSpec(id="b", type="emitter", config=huge)),
        lambda: runtime.manager.update_agent("a", config=huge),
    ):
        with pytest.raises(InvalidConfigError, match=r"config: 100000.. bytes of JSON.*keep it elsewhere"):
            ask()
    assert runtime.manager.get_agent("b") is None
    record = runtime.store.read(AgentId("a")).record
    assert record is not None
    assert record.spec.config == {}


@pytest.mark.parametrize("kind", ["x" * 201, "\ud800"], ids=["too long", "no text"])
def test_a_restore_as_an_impossible_type_leaves_the_record_readable(
    redis_server: RedisServer, namespace: str, kind: str
) -> None:
    """From a process that knows no types, in a namespace where no worker has said which there are."""
    with Runtime(redis_server.url, namespace) as runtime:
        runtime.manager.start()
        runtime.manager.start_agent(AgentSpec(id="a", type="later"))
        with pytest.raises(InvalidConfigError, match=r"type: (String|Input) should"):
            runtime.manager.restore_agent("a", kind)
        assert runtime.manager.get_agent_info("a").type == "later"  # type: ignore[union-attr]


@pytest.mark.parametrize("agent_id", ["", "a b", "a/b", "a|b", "ü", "a" * 201, "{a}", "a\n", None, 7])
def test_an_agent_id_that_is_not_acceptable_is_refused(runtime: Runtime, agent_id: Any) -> None:
    """Every method says which id, and what one may look like."""
    for call in (runtime.manager.stop_agent, runtime.manager.get_agent, runtime.manager.restart_agent):
        with pytest.raises(InvalidAgentIdError, match=r"1 to 200"):
            call(agent_id)
    with pytest.raises(InvalidAgentIdError):
        runtime.manager.start_agent({"id": agent_id, "type": "emitter"})


@pytest.mark.parametrize("agent_id", ["a", "A.b_c:d-e", "9" * 200, "::", "-"])
def test_every_acceptable_id_works_as_any_other(runtime: Runtime, agent_id: str) -> None:
    """Marks of keys, queues and members in an id confuse nothing."""
    runtime.manager.start_agent(AgentSpec(id=agent_id, type="emitter"), wait="running")
    Emitter.box = {}
    runtime.manager.process(agent_id, "x")
    runtime.manager.stop_agent(agent_id)
    assert [info.id for info in runtime.manager.list_agents()] == [agent_id]
    runtime.manager.delete_agent(agent_id)
    assert runtime.manager.list_agents() == []


@pytest.mark.spec(11)
def test_no_agent_is_no_agent(runtime: Runtime) -> None:
    """None is NilAgentError; an empty id an error of its own."""
    with pytest.raises(NilAgentError):
        runtime.manager.start_agent(None)
    with pytest.raises(NilAgentError):
        runtime.manager.register_agent(None)
    with pytest.raises(InvalidAgentIdError):
        runtime.manager.start_agent("")


@pytest.mark.spec(8)
def test_a_registration_without_agent_factory_or_id_is_refused_with_a_log(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    """Each an error of its own, each logged, and nothing is listed or can be started."""

    class Loose:
        agent_id = "l"

    class Nameless:
        agent_id = ""

    refused: list[tuple[type[Exception], object, Any]] = [
        (NilAgentError, None, Loose),
        (NilFactoryError, Loose(), None),
        (InvalidAgentIdError, Nameless(), Nameless),
        (InvalidAgentIdError, {"id": "", "type": "emitter"}, None),
    ]
    for error, agent, factory in refused:
        caplog.clear()
        with pytest.raises(error):
            runtime.manager.register_agent(agent, factory)
        assert "no agent is made" in caplog.text
    assert runtime.manager.list_agents() == []
    assert runtime.registry.names() == ["emitter"]


@pytest.mark.spec(56)
def test_a_restore_without_any_factory_is_refused_and_writes_no_event(runtime: Runtime) -> None:
    """Nobody registered the type: NilFactoryError, and the stream is as it was."""
    runtime.manager.start_agent(AgentSpec(id="e", type="emitter"), wait="running")
    before = runtime.types("e")
    runtime.registry._types.clear()

    with pytest.raises(NilFactoryError):
        runtime.manager.restore_agent("e")

    assert runtime.types("e") == before


@pytest.mark.spec(23)
def test_an_unknown_agent_is_not_found(runtime: Runtime) -> None:
    """Each method that needs one says so."""
    manager = runtime.manager
    calls = (
        manager.stop_agent,
        manager.restart_agent,
        manager.restore_agent,
        manager.pause_agent,
        manager.resume_agent,
        manager.delete_agent,
        manager.unpark_agent,
    )
    for call in calls:
        with pytest.raises(AgentNotFoundError, match="nobody"):
            call("nobody")
    with pytest.raises(AgentNotFoundError):
        manager.process("nobody", "x")
    with pytest.raises(AgentNotFoundError):
        manager.start_agent("nobody")
    assert manager.get_agent("nobody") is None
    assert manager.get_agent_info("nobody") is None


def test_a_type_that_no_worker_knows_is_refused(runtime: Runtime) -> None:
    """The error lists those that are known; nothing is stored."""
    runtime.store.report_types({"emitter": {"open": False, "names": [], "required": []}})

    with pytest.raises(UnknownAgentTypeError, match="emitter"):
        runtime.manager.start_agent(AgentSpec(id="e", type="emiter"))

    assert runtime.manager.list_agents() == []


def test_a_config_is_checked_from_afar_too(runtime: Runtime) -> None:
    """A service that does not have the agent's code still gets the error, by what the workers reported."""
    runtime.store.report_types({"far": {"open": False, "names": ["depth"], "required": ["depth"]}})

    with pytest.raises(InvalidConfigError, match="unknown: dept; missing: depth"):
        runtime.manager.start_agent(AgentSpec(id="f", type="far", config={"dept": 1}))


def test_mixed_methods_are_refused_when_the_type_is_registered(runtime: Runtime) -> None:
    """One async and one plain: the error names them."""

    class Mixed:
        def __init__(self, agent_id: str) -> None: ...

        async def start(self, ctx: AgentContext) -> None: ...

        def process(self, ctx: AgentContext, message: object) -> object:
            return message

    with pytest.raises(AgentTypeError, match="start is async, process is plain"):
        runtime.register("mixed", Mixed)


def test_a_name_that_another_class_holds_is_refused(runtime: Runtime) -> None:
    """The same class again replaces itself; another one is an error."""
    runtime.register("emitter", Emitter)

    class Other:
        def __init__(self, agent_id: str) -> None: ...

        async def start(self, ctx: AgentContext) -> None: ...

    with pytest.raises(AgentTypeError, match="holds the name"):
        runtime.register("emitter", Other)


@pytest.mark.parametrize(
    "payload",
    [
        {"pair": (1, 2)},
        {"set": {1}},
        {"bytes": b"x"},
        {"nan": math.nan},
        {"deep": [{"inf": math.inf}]},
        {1: "key"},
        {"object": object()},
    ],
    ids=["tuple", "set", "bytes", "nan", "inf", "key", "object"],
)
def test_a_payload_that_is_not_plain_json_is_refused(runtime: Runtime, payload: Any) -> None:
    """What replay could not give back the same is never stored; the caller gets the agent's error."""
    runtime.manager.start_agent(AgentSpec(id="e", type="emitter"), wait="running")
    Emitter.box = payload

    with pytest.raises(Exception, match="not plain JSON") as caught:
        runtime.manager.process("e", "emit")

    assert caught.value.fields["type"] == "UnserialisableError"  # type: ignore[attr-defined]
    assert runtime.events("e", "told") == []


def test_a_message_that_is_not_plain_json_or_too_large_is_not_sent(runtime: Runtime) -> None:
    """The inbox stays empty."""
    runtime.manager.start_agent(AgentSpec(id="e", type="emitter"), wait="running")

    with pytest.raises(UnserialisableError):
        runtime.manager.send("e", {"x": object()})
    with pytest.raises(EventTooLargeError, match="message"):
        runtime.manager.send("e", "x" * (1 << 20))

    assert runtime.store.inbox("e") == ()  # type: ignore[arg-type]


def test_a_snapshot_that_is_not_plain_json_keeps_the_previous_one(runtime: Runtime) -> None:
    """It is logged; the agent lives, and recovery uses what is good."""

    class Odd:
        def __init__(self, agent_id: str) -> None:
            self.count = 0

        async def process(self, ctx: AgentContext, message: object) -> object:
            await ctx.emit("counted", {})
            return self.count

        def apply(self, event: Event) -> None:
            self.count += 1

        def snapshot(self) -> dict[str, object]:
            return {"count": self.count if self.count < 2 else {self.count}}

        def restore_state(self, state: dict[str, Any]) -> None:
            self.count = state["count"]

    runtime.register("odd", Odd)
    runtime.manager.start_agent(AgentSpec(id="o", type="odd"), wait="running")
    assert [runtime.manager.process("o", "x") for _ in range(3)] == [1, 2, 3]

    runtime.manager.restart_agent("o")
    runtime.until("o", "running", incarnation=2)

    assert runtime.manager.process("o", "x") == 4


def test_a_kill_needs_chaos_and_names_the_co_tenants(runtime: Runtime) -> None:
    """Refused by default; where it is on, refused while others would die too."""
    runtime.manager.start_agent(AgentSpec(id="e", type="emitter"), wait="running")
    with pytest.raises(ChaosDisabledError, match="chaos"):
        runtime.manager.kill_agent("e")


def test_a_kill_of_a_shared_process_is_refused_with_their_names(redis_server: RedisServer, namespace: str) -> None:
    """The hosting process here is the test's own: without force nothing happens to it."""
    with Runtime(redis_server.url, namespace, chaos=True) as runtime:
        runtime.manager.start()
        runtime.register("emitter", Emitter)
        for agent_id in ("a", "b"):
            runtime.manager.start_agent(AgentSpec(id=agent_id, type="emitter"), wait="running")

        with pytest.raises(OperationNotSupportedError, match="also hosts b") as caught:
            runtime.manager.kill_agent("a")
        assert caught.value.fields["co_tenants"] == ["b"]
        runtime.manager.stop_agent("b")
        runtime.manager.stop_agent("a")
        with pytest.raises(AgentNotRunningError):
            runtime.manager.kill_agent("a")


@pytest.mark.spec(15)
def test_a_stopped_runtime_starts_nothing(runtime: Runtime) -> None:
    """start_agent and restart_agent say that start() is needed."""
    runtime.manager.stop()

    with pytest.raises(RuntimeStoppedError, match="start"):
        runtime.manager.start_agent(AgentSpec(id="e", type="emitter"))

    assert runtime.manager.list_agents() == []


@pytest.mark.spec(16)
def test_a_second_start_on_one_handle_is_an_error(runtime: Runtime) -> None:
    """Nothing is launched twice. A start without context has no counterpart: there is no context to be absent."""
    runtime.manager.start_agent(AgentSpec(id="e", type="emitter"), wait="running")
    with pytest.raises(RuntimeAlreadyStartedError):
        runtime.manager.start()
    runtime.sweep()
    assert runtime.manager.get_agent_info("e").incarnation == 1  # type: ignore[union-attr]
    assert runtime.types("e") == ["agent.started"]


def test_a_connected_service_may_not_stop_the_runtime(redis_server: RedisServer, namespace: str) -> None:
    """connect() is for services: start and stop of everything are not theirs."""
    with Manager.connect(redis_url=redis_server.url, namespace=namespace) as service:
        with pytest.raises(RuntimePermissionError, match="stop"):
            service.stop()
        with pytest.raises(RuntimePermissionError, match="start"):
            service.start()


def test_an_unreachable_server_is_said_within_seconds_and_without_the_password() -> None:
    """The error names the address and ARES_REDIS_URL."""
    url = f"redis://me:s3cret@127.0.0.1:{free_port()}/0"
    with Manager(redis_url=url, namespace="x") as manager, pytest.raises(StoreUnavailableError) as caught:
        manager.list_agents()
    assert "ARES_REDIS_URL" in str(caught.value)
    assert "s3cret" not in repr(caught.value)


async def test_a_blocking_call_inside_an_event_loop_names_the_async_manager(runtime: Runtime) -> None:
    """It would stop every coroutine of the caller."""
    with pytest.raises(OperationNotSupportedError, match="AsyncManager"):
        runtime.manager.process("e", "x")
