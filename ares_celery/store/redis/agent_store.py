"""Records, deadlines and leases in Redis."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from ares_celery.errors import UnreadableRecordError
from ares_celery.ids import AgentId, Epoch, Instant, Version
from ares_celery.model.agent import AgentRecord, AgentState, Owner
from ares_celery.model.audit import AuditNote, note_of
from ares_celery.model.plan import Plan
from ares_celery.store.base import (
    NO_SCHEMAS,
    AgentRead,
    Claimed,
    Committed,
    DueDeadline,
    DueShard,
    Lease,
    LeaseChange,
    Renewal,
)
from ares_celery.store.redis import agent_calls, checkpoint_calls, index_calls
from ares_celery.store.redis.bound import Bound, Part
from ares_celery.store.redis.confirming import confirm
from ares_celery.store.redis.stored_events import encode_events, lifecycle_events

__all__ = ["RedisAgentStore"]

T = TypeVar("T")
log: Final = logging.getLogger(__name__)

#: Reads of one round trip: more would only make the answers wait in memory.
READS_PER_TRIP: Final = 500
#: Unreadable records that are named in the log; beyond, the first ones tell the story.
MOST_SAID: Final = 1_000
#: Bytes of one of the runtime's own events, whose texts are cut: max_event_bytes is for agents, and refuses no verdict.
OWN_EVENT_BYTES: Final = 1 << 20


class RedisAgentStore(Part):
    """Implements :class:`~ares_celery.store.base.AgentStore`, whose docstrings say what each method guarantees."""

    def __init__(self, bound: Bound) -> None:
        super().__init__(bound)
        self._unreadable: dict[AgentId, str] = {}

    @property
    def namespace(self) -> str:
        """The namespace's name."""
        return self._bound.keys.namespace

    def read(self, agent_id: AgentId, *, op: str = "") -> AgentRead:
        """Reads an agent and Redis TIME in one atomic call."""
        read = self._run(agent_calls.read_agent(self._bound.keys, agent_id=agent_id, op=op))
        if read.problem:
            raise UnreadableRecordError(agent_id=agent_id, problem=read.problem)
        return read

    def read_record(self, agent_id: AgentId) -> AgentRecord | None:
        """An agent as it is now; None when it does not exist."""
        return self.read(agent_id).record

    def read_many(self, agent_ids: Sequence[AgentId]) -> list[AgentRead]:
        """Reads many agents; each read is atomic, all together are not."""
        reads = [
            read
            for some in _chunks(agent_ids, READS_PER_TRIP)
            for read in self._run_many(
                [agent_calls.read_agent(self._bound.keys, agent_id=agent_id, op="") for agent_id in some]
            )
        ]
        for agent_id, read in zip(agent_ids, reads, strict=True):
            if read.problem:
                self._say_unreadable(agent_id, read.problem)
        return reads

    def _say_unreadable(self, agent_id: AgentId, problem: str) -> None:
        """Logs it once, and again when the problem is another one."""
        if self._unreadable.get(agent_id) == problem or len(self._unreadable) >= MOST_SAID:
            return
        self._unreadable[agent_id] = problem
        error = UnreadableRecordError(agent_id=agent_id, problem=problem)
        log.error("%s; it is left as it is, the others are not held up by it", error, extra={"agent_id": agent_id})

    def commit(self, plan: Plan, read: AgentRead, *, op: str, guard: DueDeadline | None = None) -> Committed:
        """Applies a whole Plan or nothing."""
        if plan.before is not None and plan.after is None:
            return self._delete_by(plan, read, op)
        agent_id = _agent_of(plan, guard)
        events = encode_events(agent_id, lifecycle_events(plan.events), epoch=0, limit=OWN_EVENT_BYTES)
        call = agent_calls.commit(
            self._bound.keys, agent_id=agent_id, plan=plan, read=read, op=op, guard=guard, events=events
        )
        return self._bound.client.run(call)

    def confirm(self, agent_id: AgentId) -> None:
        """Returns when what was written before is where the namespace wants it before it counts."""
        confirm(self._bound, self._bound.keys.shard_of(agent_id))

    def _delete_by(self, plan: Plan, read: AgentRead, op: str) -> Committed:
        agent_id = _agent_of(plan, None)
        self._delete(agent_id, read, op, note_of(plan, op))
        after = self.read(agent_id, op=op)
        return after.outcome or Committed(Epoch(0), 0, Version(0), after.now)

    def claim(
        self,
        agent_id: AgentId,
        epoch: Epoch,
        *,
        token: str,
        owner: Owner,
        page: int,
        schemas: Mapping[str, int] = NO_SCHEMAS,
    ) -> Claimed:
        """Takes the fence of this epoch, and loads what recovery needs, in one atomic call."""
        config = self._bound.config
        call = agent_calls.claim(
            self._bound.keys,
            agent_id=agent_id,
            epoch=epoch,
            token=token,
            owner=owner,
            lease_ttl=config.lease_ttl,
            start_timeout=config.start_timeout,
            restore_timeout=config.restore_timeout,
            tried_elsewhere=config.restore_backoff,
            page=page,
            schemas=schemas,
        )
        return self._run(call)

    def renew(self, leases: Sequence[Lease]) -> Renewal:
        """Renews leases in one round trip; lists those with news."""
        keys = self._bound.keys
        shards: dict[int, list[Lease]] = defaultdict(list)
        for lease in leases:
            shards[keys.shard_of(lease.agent_id)].append(lease)
        answers = self._run_many(
            [
                agent_calls.renew(keys, shard=shard, leases=some, lease_ttl=self._bound.config.lease_ttl)
                for shard, held in shards.items()
                for some in _chunks(held, agent_calls.LEASES_PER_CALL)
            ]
        )
        news: list[LeaseChange] = [change for _, changes in answers for change in changes]
        return Renewal(now=max((now for now, _ in answers), default=Instant(0)), changes=tuple(news))

    def due(self, *, limit: int = 100) -> list[DueShard]:
        """Deadlines that have passed, of every shard, in one round trip."""
        keys = self._bound.keys
        return self._run_many([agent_calls.due(keys, shard=shard, limit=limit) for shard in range(keys.shards)])

    def hosted_by(self, identity: str) -> list[AgentId]:
        """The agents whose last known host is this process, sorted."""
        keys = self._bound.keys
        found = self._bound.client.run_many(
            index_calls.hosted_by(keys, shard=shard, identity=identity) for shard in range(keys.shards)
        )
        return sorted(agent_id for some in found for agent_id in some)

    def list_ids(self, states: Iterable[AgentState] | None = None) -> list[AgentId]:
        """Ids of all agents, or of those in the given states, sorted."""
        keys = self._bound.keys
        wanted = tuple(AgentState) if states is None else tuple(dict.fromkeys(states))
        found = self._bound.client.run_many(
            index_calls.list_state(keys, shard=shard, state=state) for shard in range(keys.shards) for state in wanted
        )
        # An agent that moved on between two of these reads may stand in both.
        return sorted({AgentId(agent_id) for some in found for agent_id in some})

    def count_by_state(self) -> dict[AgentState, int]:
        """How many agents are in each state; states without agents are absent."""
        keys = self._bound.keys
        places = [(shard, state) for shard in range(keys.shards) for state in AgentState]
        counts = self._bound.client.run_many(
            index_calls.count_state(keys, shard=shard, state=state) for shard, state in places
        )
        total: Counter[AgentState] = Counter()
        for (_, state), count in zip(places, counts, strict=True):
            total[state] += count
        return dict(+total)

    def counters(self) -> dict[str, int]:
        """The namespace's counters."""
        keys = self._bound.keys
        total: Counter[str] = Counter()
        for part in self._bound.client.run_many(
            index_calls.read_counters(keys, shard=shard) for shard in range(keys.shards)
        ):
            total.update(part)
        return dict(total)

    def delete(self, agent_id: AgentId, read: AgentRead, *, op: str) -> None:
        """Removes an agent and every key of it, the record last."""
        self._delete(agent_id, read, op, None)

    def _delete(self, agent_id: AgentId, read: AgentRead, op: str, note: AuditNote | None) -> None:
        bound = self._bound
        # Only an incarnation adds to them, and one that began meanwhile has changed the record.
        listed = bound.client.run(checkpoint_calls.list_executions(bound.keys, agent_id=agent_id))
        executions = [execution_id for execution_id, _ in listed]
        call = agent_calls.delete_agent(
            bound.keys, agent_id=agent_id, read=read, op=op, executions=executions, note=note
        )
        bound.client.run(call)


def _agent_of(plan: Plan, guard: DueDeadline | None) -> AgentId:
    record = plan.before or plan.after
    if record is not None:
        return record.id
    if guard is not None:
        return guard.agent_id
    raise ValueError("a plan without a record needs the deadline that it answers: pass guard=")


def _chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
