"""What must not be lost counts when a replica has it: real servers, one of them a replica that is frozen meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from ares_celery.agents.tools import tool
from ares_celery.errors import InvalidSettingError, NotConfirmedError
from ares_celery.model.agent import AgentSpec
from tests.hosting import Runtime
from tests.key_leaks import leaked_keys
from tests.redis_server import RedisServer
from tests.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

CHARGED: Final[list[str]] = []


@pytest.fixture(scope="module")
def replica() -> Iterator[tuple[RedisServer, RedisServer]]:
    """A server, and a replica that has caught up."""
    with (
        RedisServer(options={"repl-diskless-sync-delay": "0"}) as server,
        RedisServer(options={"replicaof": f"127.0.0.1 {server.port}"}) as copy,
        server.client() as opened,
    ):
        client: Any = opened
        client.set("any", "write")
        wait_until(lambda: client.wait(1, 100) == 1, "the replica")
        yield server, copy


@pytest.fixture
def runtime(replica: tuple[RedisServer, RedisServer], namespace: str) -> Iterator[Runtime]:
    """A namespace that wants one replica to have it, with one host in this process."""
    server, copy = replica
    CHARGED.clear()
    with Runtime(server.url, namespace, hints=True, confirm_replicas=1, confirm_timeout="300ms") as made:
        made.manager.start()
        made.register("async", Payer)
        made.register("plain", PlainPayer)
        yield made
        copy.resume()


@tool("confirmed-charge", replay="never")
def charge(order: str) -> str:
    """An effect that must not be repeated."""
    CHARGED.append(order)
    return f"charged {order}"


class Payer:
    """Charges what a message names; asks a person about ``ask``."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def process(self, ctx: Any, message: str) -> Any:
        if message == "ask":
            return bool(await ctx.wait_for_approval("refund"))
        return await ctx.tool("confirmed-charge")(message)


class PlainPayer:
    """The same on a thread."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    def process(self, ctx: Any, message: str) -> Any:
        return ctx.tool("confirmed-charge")(message)


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_a_step_that_must_not_be_repeated_begins_when_the_replica_has_its_intent(
    runtime: Runtime, replica: tuple[RedisServer, RedisServer], kind: str
) -> None:
    """Not before: its agent waits as in an outage. The intent is there meanwhile, once."""
    agent_id = f"{kind}-1"
    runtime.manager.start_agent(AgentSpec(id=agent_id, type=kind), wait="running")
    assert runtime.manager.process(agent_id, "order-1", timeout=10) == "charged order-1"
    replica[1].pause()
    message_id = runtime.manager.send(agent_id, "order-2", message_id="m2")
    wait_until(lambda: runtime.store.intents(agent_id), "the intent")
    seen = _count(replica[0], "wait")
    wait_until(lambda: _count(replica[0], "wait") >= seen + 2, "two more tries to confirm it")
    assert CHARGED == ["order-1"]
    replica[1].resume()
    wait_until(lambda: CHARGED == ["order-1", "order-2"], "the charge", timeout=10)
    wait_until(lambda: not runtime.store.intents(agent_id), "the outcome")
    assert message_id == "m2"
    with replica[0].client() as client:
        assert leaked_keys(client, runtime.store.namespace) == []


def test_what_people_ask_for_is_acknowledged_when_the_replica_has_it(
    runtime: Runtime, replica: tuple[RedisServer, RedisServer]
) -> None:
    """Else an error says that it is written but not confirmed, and the same call again confirms it."""
    runtime.manager.start_agent(AgentSpec(id="a", type="async"), wait="running")
    replica[1].pause()
    with pytest.raises(NotConfirmedError, match=r"not confirmed within 0\.3 s: 0 of 1 replicas have it"):
        runtime.manager.start_agent(AgentSpec(id="b", type="async"), op="start-b")
    replica[1].resume()
    assert runtime.manager.start_agent(AgentSpec(id="b", type="async"), op="start-b").id == "b"
    assert runtime.manager.get_agent_info("b") is not None


def test_a_decision_counts_when_the_replica_has_it(runtime: Runtime, replica: tuple[RedisServer, RedisServer]) -> None:
    """A repeat under the same op confirms it, and is no second decision."""
    runtime.manager.start_agent(AgentSpec(id="a", type="async"), wait="running")
    runtime.manager.send("a", "ask")
    wait_until(lambda: runtime.manager.interrupts("a"), "the question")
    replica[1].pause()
    with pytest.raises(NotConfirmedError):
        runtime.manager.approve("a", "refund", "yes", actor="ann", op="yes")
    replica[1].resume()
    assert runtime.manager.approve("a", "refund", "yes", actor="ann", op="yes").actor == "ann"


def test_nothing_is_asked_of_the_server_where_the_namespace_wants_no_more_than_its_word(
    replica: tuple[RedisServer, RedisServer], namespace: str
) -> None:
    """That is the default."""
    seen = _count(replica[0], "wait")
    with Runtime(replica[0].url, namespace, hints=True) as made:
        made.manager.start()
        made.register("async", Payer)
        made.manager.start_agent(AgentSpec(id="a", type="async"), wait="running")
        assert made.manager.process("a", "order-9", timeout=10) == "charged order-9"
    assert _count(replica[0], "wait") == seen


def test_a_promise_that_the_server_cannot_keep_is_refused(
    runtime: Runtime, replica: tuple[RedisServer, RedisServer], namespace: str
) -> None:
    """No append-only file here, and before Redis 7.2 no WAITAOF: neither at birth nor as a change of settings."""
    with pytest.raises(InvalidSettingError, match=r"confirm_fsync.*this server") as refused:
        runtime.store.set_config({"confirm_fsync": True})
    assert refused.value.fields["field"] == "confirm_fsync"
    assert not runtime.store.refresh_config().confirm_fsync
    with pytest.raises(InvalidSettingError, match="confirm_fsync"):
        Runtime(replica[0].url, f"{namespace}b", confirm_fsync=True)


def _count(server: RedisServer, command: str) -> int:
    """How often the server has run a command."""
    with server.client() as opened:
        client: Any = opened
        return int(client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])
