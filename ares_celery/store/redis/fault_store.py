"""Faults on purpose in Redis: for those who inject and heal them, and for incarnations, awaited or not."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from ares_celery.clock import micros
from ares_celery.ids import AgentId
from ares_celery.model.fault import Fault, FaultKind, Injection
from ares_celery.model.limits import ClosedLimit
from ares_celery.store.base import CommitConflict, DueDeadline
from ares_celery.store.faults import ChaosState, FaultUse
from ares_celery.store.redis import chaos_calls, fault_calls, limit_calls
from ares_celery.store.redis.bound import Bound, Part
from ares_celery.store.redis.client import AsyncRedisClient
from ares_celery.store.redis.fault_calls import Asked, Ending, Last
from ares_celery.store.redis.keys import CHAOS

__all__ = ["AsyncRedisFaultStore", "RedisFaultDesk", "RedisFaultStore"]

#: Somebody else injects the same kind at the same moment: so often in a row means a bug.
_MOST_TRIES: Final = 20
#: Kinds that close no limit.
_OTHERS: Final = frozenset(FaultKind) - {FaultKind.LLM}
_NONE: Final = timedelta(0)


class RedisFaultStore(Part):
    """Implements :class:`~ares_celery.store.faults.FaultStore`."""

    def faults(self, agent_id: AgentId) -> tuple[Fault, ...]:
        """The active faults of an agent, as they are felt."""
        return self._bound.client.run(fault_calls.read_faults(self._bound.keys, agent_id=agent_id))

    def use_fault(self, agent_id: AgentId, fault_id: str, *, op: str = "") -> FaultUse:
        """Asks, in front of one call, whether the fault affects it, and counts it."""
        keys, client, op = self._bound.keys, self._bound.client, op or uuid.uuid4().hex
        met = client.run(fault_calls.use_fault(keys, agent_id=agent_id, fault_id=fault_id, op=op))
        if isinstance(met, Last):
            met = client.run(fault_calls.use_fault(keys, agent_id=agent_id, fault_id=fault_id, op=op, last=met))
        return _counted(met)


class AsyncRedisFaultStore:
    """Implements :class:`~ares_celery.store.faults.AsyncFaultStore`."""

    _bound: Bound
    _client: AsyncRedisClient

    async def faults(self, agent_id: AgentId) -> tuple[Fault, ...]:
        """The active faults of an agent, as they are felt."""
        return await self._client.run(fault_calls.read_faults(self._bound.keys, agent_id=agent_id))

    async def use_fault(self, agent_id: AgentId, fault_id: str, *, op: str = "") -> FaultUse:
        """Asks, in front of one call, whether the fault affects it, and counts it."""
        keys, op = self._bound.keys, op or uuid.uuid4().hex
        met = await self._client.run(fault_calls.use_fault(keys, agent_id=agent_id, fault_id=fault_id, op=op))
        if isinstance(met, Last):
            call = fault_calls.use_fault(keys, agent_id=agent_id, fault_id=fault_id, op=op, last=met)
            met = await self._client.run(call)
        return _counted(met)


def _counted(met: FaultUse | Last) -> FaultUse:
    if isinstance(met, Last):  # pragma: no cover - the script asks for the event only where it got none
        raise CommitConflict(agent_id="", changed="the last call of a fault")
    return met


class RedisFaultDesk(RedisFaultStore):
    """Implements :class:`~ares_celery.store.faults.FaultDesk`."""

    def all_faults(self) -> tuple[Fault, ...]:
        """The active faults of all agents, by agent, then as they are felt."""
        keys, client = self._bound.keys, self._bound.client
        found = client.run_many(fault_calls.read_faults(keys, agent_id=agent_id) for agent_id in self.disturbed())
        return tuple(fault for some in found for fault in some)

    def disturbed(self) -> Sequence[AgentId]:
        """The agents that have faults, sorted."""
        keys = self._bound.keys
        listed = self._bound.client.run_many(
            fault_calls.list_disturbed(keys, shard=shard) for shard in range(keys.shards)
        )
        return sorted(AgentId(agent_id) for some in listed for agent_id in some)

    def inject(self, injection: Injection, *, allowed: bool, op: str, reason: str, actor: str) -> Fault:
        """Makes a fault active."""
        keys, client, asked = self._bound.keys, self._bound.client, Asked(op, reason, actor)
        for _ in range(_MOST_TRIES):
            # One whose end was not told yet is replaced, too.
            present = client.run(fault_calls.read_faults(keys, agent_id=injection.agent_id, overdue=True))
            wanted = injection if allowed else self._within(injection)
            call = fault_calls.inject_fault(keys, injection=wanted, allowed=allowed, asked=asked, present=present)
            try:
                return client.run(call)
            except CommitConflict:
                continue
        raise CommitConflict(agent_id=injection.agent_id, changed=f"faults of kind {injection.kind.value}")

    def _within(self, injection: Injection) -> Injection:
        """What is told of a fault that ends with the time for which faults are allowed; the script sees to the end."""
        keys = self._bound.keys
        read = self._bound.client.run(chaos_calls.read_chaos(keys, shard=keys.shard_of(injection.agent_id)))
        left = read.until - read.now
        if not 0 < left < micros(injection.duration):
            return injection
        return replace(injection, duration=timedelta(microseconds=left))

    def heal(
        self, agent_id: AgentId, *, fault: FaultKind | str | None, op: str, reason: str, actor: str
    ) -> tuple[Fault, ...]:
        """Ends active faults of an agent."""
        endings = [Ending.of(one) for one in self.faults(agent_id) if fault is None or fault in (one.id, one.kind)]
        asked = Asked(op, reason, actor)
        healed = self._bound.client.run(
            fault_calls.end_faults(self._bound.keys, agent_id=agent_id, endings=endings, asked=asked)
        )
        if fault not in _OTHERS:
            self._open_limits(agent_id, healed, fault)
        return healed

    def _open_limits(self, agent_id: AgentId, healed: Sequence[Fault], fault: str | None) -> None:
        """Opens what healed faults have closed, and what those have that ended by their count.

        First they are kept from closing anything more: an answer that one has made up may be on its way.
        """
        keys, client = self._bound.keys, self._bound.client
        failing = [one for one in healed if one.kind is FaultKind.LLM]
        found = client.run_many(
            limit_calls.look_closings(keys, shard=shard, healed=failing) for shard in range(keys.shards)
        )
        client.run_many(
            limit_calls.open_limit(keys, closed=one)
            for some in found
            for one in some
            if one.agent_id == agent_id and one.fault and fault in (None, FaultKind.LLM, one.fault)
        )

    def closed_limits(self) -> tuple[ClosedLimit, ...]:
        """The limits that are closed now, by name."""
        keys = self._bound.keys
        found = self._bound.client.run_many(
            limit_calls.look_closings(keys, shard=shard) for shard in range(keys.shards)
        )
        return tuple(sorted((one for some in found for one in some), key=lambda one: (one.name, one.until, one.fault)))

    def end_faults(self, due: DueDeadline) -> bool:
        """Ends a fault whose time is over."""
        keys, client = self._bound.keys, self._bound.client
        ending = client.run(fault_calls.read_ending(keys, agent_id=due.agent_id, fault_id=due.name))
        call = fault_calls.end_faults(keys, agent_id=due.agent_id, endings=[ending], asked=None)
        return bool(client.run(call))

    def chaos_state(self) -> ChaosState:
        """Whether faults are allowed for a time now."""
        keys = self._bound.keys
        return self._bound.client.run(chaos_calls.read_chaos(keys, shard=keys.shard_of(CHAOS))).state

    def allow_chaos(self, duration: timedelta, *, op: str, reason: str, actor: str) -> ChaosState:
        """Allows faults for a time."""
        self._set_chaos(duration, Asked(op, reason, actor))
        return self.chaos_state()

    def forbid_chaos(self, *, op: str, reason: str, actor: str) -> ChaosState:
        """Ends the time for which faults were allowed, for every agent."""
        before = self.chaos_state()
        self._set_chaos(_NONE, Asked(op, reason, actor))
        return before

    def settle_chaos(self) -> bool:
        """Tells the end of that time once it is over, and copies to every shard what somebody could not."""
        return self._set_chaos(_NONE, None)

    def _set_chaos(self, duration: timedelta, asked: Asked | None) -> bool:
        keys, client = self._bound.keys, self._bound.client
        changed = client.run(chaos_calls.set_chaos(keys, duration=duration, asked=asked))
        home = keys.shard_of(CHAOS)
        read = client.run(chaos_calls.read_chaos(keys, shard=home))
        others = [shard for shard in range(keys.shards) if shard != home]
        client.run_many(chaos_calls.copy_chaos(keys, shard=shard, read=read) for shard in others)
        client.run(chaos_calls.settle_chaos(keys, generation=read.generation))
        return changed
