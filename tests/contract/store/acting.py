"""Short ways to bring an agent into a state, always through the pure decisions and the store's own methods."""

from __future__ import annotations

from uuid import uuid4

from ares_celery.ids import AgentId, Epoch, Version
from ares_celery.model.agent import AgentRecord, AgentSpec, Owner, RuntimeState
from ares_celery.model.command import Command, MarkRunning, Start
from ares_celery.model.event import NewEvent
from ares_celery.model.lifecycle import decide
from ares_celery.model.plan import Plan, Situation
from ares_celery.store.base import AgentRead, Claimed, Committed, DueDeadline
from ares_celery.store.redis.store import RedisStore

AGENT = AgentId("counter-1")
CLAIMER = "t1"
OWNER = Owner(identity="host:boot:4026531836:4711:98765", worker="agents@host", task_id="task-1")


def plan_for(store: RedisStore, read: AgentRead, command: Command, agent_id: AgentId = AGENT) -> Plan:
    """What is decided on a read."""
    spec = read.record.spec if read.record else None
    situation = Situation(read.record, read.now, store.config.policy_for(spec), read.runtime, read.lease_until)
    return decide(situation, command, agent_id=agent_id)


def act(
    store: RedisStore, command: Command, agent_id: AgentId = AGENT, *, op: str = "", guard: DueDeadline | None = None
) -> Committed:
    """Reads, decides, commits."""
    read = store.read(agent_id)
    return store.commit(plan_for(store, read, command, agent_id), read, op=op or uuid4().hex, guard=guard)


def record_of(store: RedisStore, agent_id: AgentId = AGENT) -> AgentRecord:
    """The record of an agent that exists."""
    record = store.read(agent_id).record
    assert record is not None
    return record


def run_namespace(store: RedisStore) -> RedisStore:
    """The same store, its runtime running."""
    store.set_runtime(RuntimeState.RUNNING, only_from=[RuntimeState.NEW], reason="test", actor="test")
    return store


def start(store: RedisStore, agent_id: AgentId = AGENT) -> AgentRecord:
    """An agent whose incarnation may be claimed."""
    act(store, Start(spec=AgentSpec(id=agent_id, type="counter")), agent_id)
    return record_of(store, agent_id)


def take(
    store: RedisStore,
    epoch: int,
    agent_id: AgentId = AGENT,
    *,
    claimer: str = CLAIMER,
    owner: Owner = OWNER,
    page: int = 100,
) -> Claimed:
    """Claims an epoch."""
    return store.claim(agent_id, Epoch(epoch), token=claimer, owner=owner, page=page)


def claim(store: RedisStore, agent_id: AgentId = AGENT, *, owner: Owner = OWNER) -> Claimed:
    """Starts an agent and claims it."""
    return take(store, start(store, agent_id).epoch, agent_id, owner=owner)


def run(store: RedisStore, agent_id: AgentId = AGENT, *, owner: Owner = OWNER) -> str:
    """Starts an agent until its own code runs (version 1 is its agent.started); gives its fence."""
    fence = claim(store, agent_id, owner=owner).record.fence
    act(store, MarkRunning(fence=fence), agent_id)
    return fence


def ticks(*numbers: int) -> list[NewEvent]:
    """Events that are told apart by a number."""
    return [NewEvent("counter.ticked", {"n": number}) for number in numbers]


def append(store: RedisStore, fence: str, *numbers: int, expected: int, op: str = "") -> list[int]:
    """Appends events as the incarnation; gives their versions."""
    stored = store.append(AGENT, fence, ticks(*numbers), op=op or uuid4().hex, expected=Version(expected))
    return [event.version for event in stored]
