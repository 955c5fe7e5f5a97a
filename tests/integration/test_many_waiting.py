"""Ten thousand agents that wait without a slot: what they cost the sweep."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
import redis

from ares_celery.ids import AgentId, Epoch, Instant
from ares_celery.model.agent import AgentRecord, AgentSpec, AgentState, Desired
from ares_celery.model.command import Deadline, Start
from ares_celery.model.plan import Nudge, Plan
from ares_celery.model.waits import Waiting
from ares_celery.runtime.commits import Committer
from ares_celery.store.redis import agent_calls
from ares_celery.store.redis.connections import Connector
from ares_celery.store.redis.store import RedisStore
from ares_celery.supervision.sweep import Sweeper
from tests.contract.store.acting import run_namespace
from tests.contract.store.backends import Backend
from tests.redis_server import RedisServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

MANY = 10_000
HOUR = 3_600_000_000


class Messages:
    """What would be sent to workers."""

    def __init__(self) -> None:
        self.sent: list[Nudge] = []

    def launch(self, nudge: Nudge) -> None:
        self.sent.append(nudge)

    def waiting(self, queue: str | None) -> int | None:
        return 0


def put_to_wait(store: RedisStore, number: int, now: Instant) -> None:
    """Makes agents that wait for an hour, as their commits would have left them."""
    keys = store._bound.keys
    calls: list[Any] = []
    read = store.read(AgentId("w-0"))
    for index in range(number):
        agent_id = AgentId(f"w-{index}")
        spec, until = AgentSpec(id=agent_id, type="t"), Instant(now + HOUR + index)
        record = AgentRecord(spec, Desired.RUNNING, AgentState.WAITING, epoch=Epoch(now), waiting=Waiting(until=until))
        plan = Plan(Start(spec=spec), None, record, deadlines={Deadline.TIMER: until})
        calls.append(
            agent_calls.commit(keys, agent_id=agent_id, plan=plan, read=read, op=uuid4().hex, guard=None, events=[])
        )
    for begin in range(0, number, 500):
        store._bound.client.run_many(calls[begin : begin + 500])


def calls_of(client: redis.Redis) -> int:
    """Commands that the server has run, those of scripts included."""
    stats: Any = client.info("commandstats")
    return sum(one["calls"] for name, one in stats.items() if not name.startswith(("cmdstat_info", "cmdstat_ping")))


def test_ten_thousand_agents_wait_and_the_sweep_pays_for_those_that_are_due(
    redis_server: RedisServer, namespace: str
) -> None:
    """None is hosted; a sweep costs the same with ten thousand as with none, and a little more for each that is due."""
    connector = Connector.to(redis_server.url)
    client: Any = connector.driver()
    backend = Backend(client=connector.driver, async_client=connector.async_driver, namespace=namespace)  # type: ignore[arg-type]
    try:
        store, messages = run_namespace(backend.open()), Messages()
        sweeper = Sweeper(store, Committer(store, store.config, messages), store.config)
        plain = redis.Redis.from_url(redis_server.url)
        sweeper.sweep_once(judge_leases=False)
        before = calls_of(plain)
        sweeper.sweep_once(judge_leases=False)
        none = calls_of(plain) - before
        put_to_wait(store, MANY, store.server_time())
        assert store.count_by_state() == {AgentState.WAITING: MANY}
        before = calls_of(plain)
        report = sweeper.sweep_once(judge_leases=False)
        many = calls_of(plain) - before
        assert (report.applied, messages.sent) == (0, [])
        assert report.next_in is not None
        assert timedelta(minutes=50) < report.next_in < timedelta(hours=1)
        assert many <= none + 2
        due = [AgentId(f"w-{number}") for number in range(5)]
        for agent_id in due:
            shard = store._bound.keys.shard_of(agent_id)
            plain.zadd(store._bound.keys.deadlines(shard), {f"timer|{agent_id}": 1})
        before = calls_of(plain)
        assert sweeper.sweep_once(judge_leases=False).applied == len(due)
        assert calls_of(plain) - before < none + 60 * len(due)
        assert sorted(nudge.agent_id for nudge in messages.sent) == due
        assert store.count_by_state() == {AgentState.WAITING: MANY - 5, AgentState.STARTING: 5}
        plain.close()
    finally:
        client.close()
        backend.close()
