"""What a Manager makes of what it is called with: bad arguments are refused by name, before anything is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import fakeredis
import pytest
from typing_extensions import override

from ares_celery import AgentSpec, AresError, AsyncManager, InvalidSettingError, RuntimeConfig
from ares_celery.agents.specs import parse_spec
from ares_celery.celery_app.control_ports import ControlPorts
from ares_celery.errors import AgentAlreadyRegisteredError, AgentNotRunningError, InvalidAgentIdError
from ares_celery.ids import AgentId
from ares_celery.manager import CoreManager
from ares_celery.model.agent import AgentState, Request, RuntimeState
from ares_celery.model.event import ReadOptions
from ares_celery.model.plan import Nudge
from ares_celery.runtime.commits import Committer
from ares_celery.runtime.ports import Launcher
from ares_celery.store.redis.store import RedisStore


class Nobody(Launcher):
    """No broker."""

    @override
    def launch(self, nudge: Nudge) -> None:
        """Forgets it."""

    @override
    def waiting(self, queue: str | None) -> int | None:
        """Nothing waits."""
        return 0


@pytest.fixture
def raw() -> fakeredis.FakeRedis:
    """A Redis in this process."""
    return fakeredis.FakeRedis(server=fakeredis.FakeServer())


@pytest.fixture
def manager(namespace: str, raw: fakeredis.FakeRedis) -> Iterator[CoreManager]:
    """A manager over a Redis in this process, with an agent ``a`` that is meant to run."""
    config = RuntimeConfig(chaos=True)
    store = RedisStore.from_client(raw, namespace, config)
    store.set_runtime(RuntimeState.RUNNING, only_from=(RuntimeState.NEW,), reason="test", actor="test")
    committer = Committer(store, lambda: store.config, Nobody())
    made = CoreManager(ControlPorts(lambda _: (store, committer)))
    made.start_agent(AgentSpec(id="a", type="t"))
    yield made
    made._ports.close()


CHOICES: list[tuple[str, Callable[[CoreManager], Any]]] = [
    ("force='no' is not valid: use True or False", lambda m: m.stop_agent("a", force="no")),  # type: ignore[arg-type]
    ("wait='no' is not valid: use True or False", lambda m: m.stop_agent("a", wait="no")),  # type: ignore[arg-type]
    ("force='no' is not valid: use True or False", lambda m: m.kill_agent("a", force="no")),  # type: ignore[arg-type]
    ("merge='no' is not valid", lambda m: m.update_agent("a", config={}, merge="no")),  # type: ignore[arg-type]
    ("apply='now' is not valid: use one of next, restart", lambda m: m.update_agent("a", config={}, apply="now")),  # type: ignore[arg-type]
    ("accept_loss='no' is not valid", lambda m: m.unpark_agent("a", accept_loss="no")),  # type: ignore[arg-type]
    ("wait='runing' is not valid: use one of durable, running", lambda m: m.start_agent("a", wait="runing")),  # type: ignore[arg-type]
    ("wait=True is not valid", lambda m: m.start_agent("a", wait=True)),  # type: ignore[arg-type]
    ("if_exists='maybe' is not valid", lambda m: m.start_agent("a", if_exists="maybe")),  # type: ignore[arg-type]
    (r"states='\[\]' is not valid: name at least one", lambda m: m.wait_for("a", [])),
    ("states='runing' is not valid", lambda m: m.wait_for("a", "runing")),
    ("direction='up' is not valid", lambda _: ReadOptions(direction="up")),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("problem", "call"), CHOICES)
def test_what_is_none_of_the_words_that_an_argument_may_be_is_refused(
    manager: CoreManager, problem: str, call: Callable[[CoreManager], Any]
) -> None:
    """The text "no" is not taken for a yes; nothing of the agent is changed."""
    before = manager._ports.store.read(AgentId("a")).record
    with pytest.raises(InvalidSettingError, match=problem):
        call(manager)
    after = manager._ports.store.read(AgentId("a")).record
    assert after == before
    assert after is not None
    assert (after.state, after.request) == (AgentState.STARTING, Request.NONE)


@pytest.mark.parametrize("timeout", ["soon", None, float("nan"), float("inf"), True, -1, "-1s", [1]])
@pytest.mark.parametrize("method", ["process", "process_stream", "read_chunks", "wait_for"])
def test_a_timeout_that_is_none_is_refused_before_anything_is_sent(
    manager: CoreManager, raw: fakeredis.FakeRedis, method: str, timeout: Any
) -> None:
    """Of both managers; the inbox stays empty."""
    given: tuple[Any, ...] = ("a", ["running"]) if method == "wait_for" else ("a", "m")
    with pytest.raises(InvalidSettingError, match="timeout=") as raised:
        getattr(manager, method)(*given, timeout=timeout)
    assert raised.value.fields["field"] == "timeout"

    async def ask() -> None:
        # Refused before anything is opened.
        asked = getattr(AsyncManager.connect(redis_url="redis://127.0.0.1:1/0", namespace="x"), method)(
            *given, timeout=timeout
        )
        await asked

    with pytest.raises(InvalidSettingError, match="timeout="):
        asyncio.run(ask())
    assert raw.keys("*:inbox:*") == []


def test_zero_is_a_timeout(manager: CoreManager) -> None:
    """It looks once."""
    assert manager.wait_for("a", "starting", timeout=0).state is AgentState.STARTING
    with manager.process_stream("a", 1, message_id="m-1"):
        assert manager.read_chunks("a", "m-1", timeout="0s") == ()  # type: ignore[arg-type]


def test_a_stream_is_ended_by_its_ids(manager: CoreManager, raw: fakeredis.FakeRedis) -> None:
    """As leaving its iterator does; of one that nobody knows, and of a detached one, nothing is ended."""
    store = manager._ports.store
    store.send(AgentId("a"), 1, message_id="m-1", wants_reply=True, stream=True)
    store.send(AgentId("a"), 1, message_id="m-2", wants_reply=True, stream=True, detached=True)
    for message_id in ("m-1", "m-2", "m-3"):
        manager.cancel_stream("a", message_id)
    keys = [key.decode() for key in raw.keys("*message:a:*") if isinstance(key, bytes)]
    left = {key.rpartition(":")[2]: raw.hget(key, "left") for key in keys}
    assert left == {"m-1": b"1", "m-2": None}
    with pytest.raises(InvalidSettingError, match="message_id"):
        manager.cancel_stream("a", "")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: AgentSpec(type="x"), "an agent id is missing: give 1 to 200 characters of ASCII letters"),  # type: ignore[call-arg]
        (lambda: AgentSpec(id=5, type="x"), "agent id 5 is no text: give 1 to 200"),  # type: ignore[arg-type]
        (lambda: AgentSpec(id="ab"), "spec of agent 'ab': type is missing"),  # type: ignore[call-arg]
        (lambda: AgentSpec(id="ab", type="t", restart="always"), "spec of agent 'ab': restart: Input should be"),  # type: ignore[arg-type]
        (lambda: AgentSpec(id="ab", type="t", labels=["a"]), "spec of agent 'ab': labels: "),  # type: ignore[arg-type]
        (lambda: AgentSpec(id="ab", type="t", max_restarts=-1), "spec of agent 'ab': max_restarts: "),
        (lambda: AgentSpec(id="ab", type=5), "spec of agent 'ab': type: "),  # type: ignore[arg-type]
        (lambda: AgentSpec(id="ab", type="t", grp="g"), "grp: there is no such field; there are id, type, config"),  # type: ignore[call-arg]
        (lambda: parse_spec({"type": "t"}), "an agent id is missing"),
        (lambda: parse_spec({"id": "ab", "type": "t", "labels": 1}), "spec of agent 'ab': labels: "),
    ],
)
def test_a_bad_spec_says_which_field_is_wrong(make: Callable[[], Any], text: str) -> None:
    """Not that the config is, nor that the id is the text None; the same for JSON from afar."""
    with pytest.raises(AresError) as raised:
        make()
    assert text in str(raised.value)


def test_what_is_no_agent_is_said_to_be_none(manager: CoreManager) -> None:
    """An object without an id has no bad id."""
    with pytest.raises(InvalidAgentIdError, match="a object without agent_id is no agent: pass an AgentSpec"):
        manager.start_agent(object())


def test_who_cannot_be_asked_now_is_said_with_the_way_out(manager: CoreManager) -> None:
    """In the words of what was called: the caller of process has sent nothing by that name."""
    manager.register_agent(AgentSpec(id="new", type="t"))
    with pytest.raises(AgentNotRunningError, match=r"so it takes no messages: start_agent starts it, as soon as an"):
        manager.process("new", 1)
    store = manager._ports.store
    store.send(AgentId("a"), 1, message_id="m-1", wants_reply=True)
    manager.stop_agent("a", force=True)
    with pytest.raises(AgentNotRunningError, match="so it takes no messages; start_agent starts it"):
        manager.process("a", 1)
    with pytest.raises(AgentNotRunningError, match="so nobody answers now; your message stays in its inbox"):
        store.wait_reply(AgentId("a"), "m-1", timeout=1)


def test_an_agent_that_is_paused_is_resumed_not_started(manager: CoreManager) -> None:
    """The error of start_agent names the method that helps."""
    manager.pause_agent("a")
    with pytest.raises(AgentAlreadyRegisteredError, match="exists and is paused; resume_agent lets it run again"):
        manager.start_agent("a")


def test_the_audit_reaches_back_by_a_duration(manager: CoreManager) -> None:
    """As the command line's does; what is neither a time nor a duration is told what to give."""
    assert [entry.operation for entry in manager.audit("a", since="2h")] == ["start"]
    assert manager.audit("a", since=timedelta(hours=2)) == manager.audit("a")
    for since in ("2 moons", "2026", timedelta(-1)):
        with pytest.raises(InvalidSettingError, match="since="):
            manager.audit(since=since)
