"""What a Manager makes of what it is called with: bad arguments are refused by name, before anything is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import fakeredis
import pytest
from typing_extensions import override

from ares_celery import AgentSpec, AsyncManager, InvalidSettingError, RuntimeConfig
from ares_celery.celery_app.control_ports import ControlPorts
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
    manager.process_stream("a", 1, message_id="m-1")
    assert manager.read_chunks("a", "m-1", timeout="0s") == ()  # type: ignore[arg-type]


def test_a_stream_is_ended_by_its_ids(manager: CoreManager, raw: fakeredis.FakeRedis) -> None:
    """As leaving its iterator does; of one that nobody knows, and of a detached one, nothing is ended."""
    manager.process_stream("a", 1, message_id="m-1")
    manager.process_stream("a", 1, message_id="m-2", detached=True)
    for message_id in ("m-1", "m-2", "m-3"):
        manager.cancel_stream("a", message_id)
    keys = [key.decode() for key in raw.keys("*message:a:*") if isinstance(key, bytes)]
    left = {key.rpartition(":")[2]: raw.hget(key, "left") for key in keys}
    assert left == {"m-1": b"1", "m-2": None}
    with pytest.raises(InvalidSettingError, match="message_id"):
        manager.cancel_stream("a", "")
