"""Manager.local(): a whole runtime in this process, its threads, its company, and what it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, cast

import pytest

from ares_celery import AgentContext, AgentSpec, Event, LocalManager, Manager, RuntimeConfig
from ares_celery.agents.registry import Registry
from ares_celery.errors import (
    EventStoreClosedError,
    NilFactoryError,
    OperationNotSupportedError,
    UnknownAgentTypeError,
)
from ares_celery.ids import AgentId, Epoch
from ares_celery.model.plan import Nudge
from ares_celery.runtime.process_identity import ProcessIdentity
from ares_celery.runtime.thread_launcher import InProcessLauncher
from tests.hosting import FAST
from tests.key_leaks import namespace_keys
from tests.redis_server import RedisServer
from tests.unit.supervision.fakes import FakeStore, ManualClock, record_of
from tests.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

SETTINGS = RuntimeConfig.parse({**FAST, "drain_timeout": "3s"})


class Tally:
    """Counts what it is told."""

    def __init__(self, agent_id: str = "tally-1") -> None:
        self.agent_id = agent_id
        self.total = 0

    async def process(self, ctx: AgentContext, message: int) -> int:
        await ctx.emit("told", {"by": message})
        return self.total

    def apply(self, event: Event) -> None:
        self.total += event.payload["by"]


def local(server: RedisServer, namespace: str | None = None, config: RuntimeConfig = SETTINGS) -> LocalManager:
    """A manager with types of its own."""
    registry = Registry()
    registry.register("tally", Tally)
    return Manager.local(config, redis_url=server.url, namespace=namespace, registry=registry)


@pytest.fixture
def manager(redis_server: RedisServer) -> Iterator[LocalManager]:
    """A running one in a namespace of its own."""
    with local(redis_server) as made:
        made.start()
        yield made


def ours() -> set[threading.Thread]:
    """Threads of this process but for those of the server's own client."""
    return {thread for thread in threading.enumerate() if thread.is_alive()}


def test_the_seeds_form_of_registration_runs_here(redis_server: RedisServer) -> None:
    """An instance and a factory that takes nothing: launched by start(), ended by stop() with all its threads."""
    before = ours()
    with local(redis_server) as manager:
        assert ours() == before
        handle = manager.register_agent(Tally("seed-1"), Tally)
        manager.start()
        handle.wait("running", timeout=10)
        assert [handle.process(5), handle.process(2)] == [5, 7]
        manager.stop()
        assert ours() - before == set()
        info = handle.info()
        assert (info.state, info.reason, manager.stats().active_agents) == ("stopped", "shutdown", 0)
        manager.start()
        handle.wait("running", timeout=10)
        assert handle.process(1) == 8
    assert ours() - before == set()


def test_a_namespace_of_its_own_is_deleted_at_the_end(redis_server: RedisServer) -> None:
    """With everything in it; the manager then says that it is closed."""
    with local(redis_server) as manager:
        manager.start()
        manager.start_agent(AgentSpec(id="a", type="tally"), wait="running")
        name = manager.namespace
        assert list(namespace_keys(redis_server.client(), name)) != []
    assert list(namespace_keys(redis_server.client(), name)) == []
    manager.close()
    with pytest.raises(EventStoreClosedError, match="closed"):
        manager.stats()


def test_a_named_namespace_stays_and_the_next_manager_goes_on(redis_server: RedisServer, namespace: str) -> None:
    """Leaving the block is no stop: agents release with their state, and run again."""
    with local(redis_server, namespace) as manager:
        manager.start()
        manager.start_agent(AgentSpec(id="a", type="tally"), wait="running").process(4)
    with local(redis_server, namespace) as manager:
        handle = manager.get_agent("a")
        assert handle is not None
        handle.wait("running", timeout=10)
        assert (handle.process(1), handle.info().restarts, handle.info().charged) == (5, 0, 0)
        manager.stop()


def test_an_agent_that_never_ends_keeps_neither_stop_nor_the_others(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It is fenced, its thread is named."""
    hold = threading.Event()

    class Deaf:
        def __init__(self, agent_id: str) -> None: ...

        def start(self, ctx: Any) -> None:
            hold.wait(30)

    short = SETTINGS.model_copy(update={"overall_stop_timeout": timedelta(seconds=0.5)})
    manager = local(redis_server, config=short)
    manager._registry.register("deaf", Deaf)
    manager.start()
    manager.start_agent(AgentSpec(id="d", type="deaf"), wait="running")
    manager.start_agent(AgentSpec(id="a", type="tally"), wait="running")
    manager.stop()
    assert {info.state for info in manager.list_agents()} == {"stopped"}
    assert "agent-d" in caplog.text
    hold.set()
    manager.close()


def test_an_agent_that_blocks_the_event_loop_keeps_neither_stop_nor_close(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It is fenced like any other; the namespace goes, and its code ends with nothing to write to."""
    let_go = threading.Event()

    class Blocking:
        def __init__(self, agent_id: str) -> None: ...

        async def start(self, ctx: AgentContext) -> None:
            let_go.wait(30)

    quick = RuntimeConfig.parse({**FAST, "agent_stop_timeout": "300ms", "overall_stop_timeout": "500ms"})
    made = local(redis_server, config=quick)
    made._registry.register("blocking", Blocking)
    try:
        made.start()
        made.start_agent(AgentSpec(id="b", type="blocking"), wait="running")
        made.stop()
        assert made.get_agent_info("b").state == "stopped"  # type: ignore[union-attr]
        assert "an agent's code blocks the event loop" in caplog.text
        made.close()
        assert list(namespace_keys(redis_server.client(), made._local._settings.namespace)) == []
    finally:
        let_go.set()
    wait_until(lambda: not any(thread.name == "ares-agents-loop" for thread in ours()), "the event loop to end")


def test_what_this_process_does_not_know_is_refused(manager: LocalManager) -> None:
    """Nobody else hosts here."""
    with pytest.raises(UnknownAgentTypeError, match="tally"):
        manager.start_agent(AgentSpec(id="x", type="tly"))
    assert manager.list_agents() == []


def test_a_namespace_that_workers_serve_is_left_to_them(redis_server: RedisServer, namespace: str) -> None:
    """They have none of this process's factories. One that is over, or this process itself, is no company."""
    with local(redis_server, namespace) as first:
        store = first._local.store
        gone = ProcessIdentity.current().encode().replace(f":{os.getpid()}:", ":4194300:")
        store.report_hosts(gone, "gone@here")
    with local(redis_server, namespace) as second:
        parent = ProcessIdentity.of_pid(os.getppid())
        assert parent is not None
        second._local.store.report_hosts(parent.encode(), "agents@here")
    third = local(redis_server, namespace)
    with pytest.raises(OperationNotSupportedError, match="agents@here serves it"):
        third.start()
    third.close()


def test_agents_of_a_killed_process_live_on_in_the_next(redis_server: RedisServer, namespace: str) -> None:
    """SIGKILL in the middle: the next process of the namespace brings them back, with all that was acknowledged."""
    script = (
        "import sys, time; from tests.integration.test_local import *;"
        f"m = Manager.local(SETTINGS, redis_url={redis_server.url!r}, namespace={namespace!r}, registry=Registry());"
        "m._registry.register('tally', Tally); m.start();"
        "h = m.start_agent(AgentSpec(id='a', type='tally'), wait='running');"
        "print(h.process(3) + h.process(4), flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"10\n"
    child.send_signal(signal.SIGKILL)
    child.communicate()
    with local(redis_server, namespace) as manager:
        handle = manager.get_agent("a")
        assert handle is not None
        wait_until(lambda: handle.incarnation == 2, timeout=20)
        handle.wait("running", timeout=10)
        assert (handle.process(1), handle.info().restarts) == (8, 1)
        manager.stop()


def test_from_afar_a_factory_of_this_process_is_no_help(redis_server: RedisServer, namespace: str) -> None:
    """A plain Manager says so, and what to do; a registered class means its type."""
    registry = Registry()
    registry.register("tally", Tally)

    class Loose(Tally):
        pass

    with Manager(SETTINGS, redis_url=redis_server.url, namespace=namespace, registry=registry) as manager:
        with pytest.raises(UnknownAgentTypeError, match=r"Manager\.local"):
            manager.register_agent(Loose("l"), Loose)
        assert registry.names() == ["tally"]
        assert manager.list_agents() == []
        assert manager.register_agent(Tally("t"), Tally).info().type == "tally"
        with pytest.raises(NilFactoryError):
            manager.register_agent(Loose("l"))
        with pytest.raises(UnknownAgentTypeError, match=r"Manager\.local"):
            manager.restore_agent("t", lambda: Loose("t"))


def test_a_nudge_of_an_unknown_type_is_left_to_those_who_know_it(caplog: pytest.LogCaptureFixture) -> None:
    """The host is not asked: a try would fail, and be counted. The warning says what is missing."""
    store, ran = FakeStore(ManualClock()), []

    class Host:
        def run(self, agent_id: str, *_: object) -> None:
            ran.append(agent_id)

    registry = Registry()
    store.records["a"] = record_of("a")
    launcher = InProcessLauncher(cast("Any", store), registry, lambda: cast("Any", Host()), "local@here")
    nudge = Nudge(AgentId("a"), Epoch(7), 1, None, resurrect=False)
    launcher.launch(nudge)
    assert launcher.join(5) == []
    assert ran == []
    assert "knows no type 't'" in caplog.text
    registry.register("t", Tally)
    launcher.launch(nudge)
    assert launcher.join(5) == []
    assert ran == ["a"]
    store.away = True
    launcher.launch(nudge)
    assert launcher.join(5) == []
    assert ran == ["a"]
