"""How many agents went down together: the loss of a host with several tenants is charged to none of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ares_celery.clock import micros
from ares_celery.config import ConfigSource, RuntimeConfig, config_source
from ares_celery.ids import AgentId, Instant
from ares_celery.model.agent import Owner
from ares_celery.model.restart import Suspicion, lost_together, suspicions
from ares_celery.store.base import AgentRead, Store

__all__ = ["LostHosts", "LostWith"]

#: Lost processes remembered, so that the last of their leases is judged like the first.
_MOST_REMEMBERED: Final = 1_000


@dataclass(frozen=True, slots=True)
class LostWith:
    """What was lost together with an agent.

    Attributes:
        tenants: Agents, this one included.
        suspicion: Whether this one is suspected to have ended their process.
    """

    tenants: int = 1
    suspicion: Suspicion = Suspicion.NONE


class LostHosts:
    """Counts, for leases that ran out, the tenants of the same worker whose leases ran out with them.

    The worker counts, not only the process: the children of a killed prefork worker die with it. Their leases run out
    up to a heartbeat apart, so a lease counts that ends within one; a living owner's lease never does, as it is renewed
    every heartbeat and lasts at least two.

    Args:
        store: The namespace.
        config: heartbeat_interval: how often owners renew.
    """

    def __init__(self, store: Store, config: RuntimeConfig | ConfigSource) -> None:
        self._store = store
        self._config = config_source(config)
        self._seen: OrderedDict[str, int] = OrderedDict()
        self._suspected: dict[str, Mapping[AgentId, Suspicion]] = {}

    def tenants_of(self, due: list[AgentId]) -> Mapping[AgentId, LostWith]:
        """For each agent whose lease ran out, what went down with it; agents without an owner are absent."""
        owners: dict[AgentId, Owner] = {}
        for agent_id, read in zip(due, self._store.read_many(due), strict=True):
            if read.record is not None and read.record.owner is not None:
                owners[agent_id] = read.record.owner
        processes = self._processes()
        for owner in {owner.identity: owner for owner in owners.values()}.values():
            self._count(owner, processes)
        return {
            agent_id: LostWith(
                self._seen.get(owner.identity, 1),
                self._suspected.get(owner.identity, {}).get(agent_id, Suspicion.NONE),
            )
            for agent_id, owner in owners.items()
        }

    def _processes(self) -> dict[str, set[str]]:
        """The processes of each worker, as they reported themselves lately."""
        processes: dict[str, set[str]] = {}
        for identity, worker in self._store.hosts().items():
            processes.setdefault(worker, set()).add(identity)
        return processes

    def _count(self, owner: Owner, processes: Mapping[str, set[str]]) -> None:
        siblings = {owner.identity} | processes.get(owner.worker, set())
        tenants = sorted({agent_id for identity in siblings for agent_id in self._store.hosted_by(identity)})
        gone = [read for read in self._store.read_many(tenants) if self._runs_out(read.lease_until, read.now)]
        owners = [read.record.owner for read in gone if read.record is not None]
        lost = [owner.identity for owner in owners if owner is not None]
        # An agent whose record cannot be read went down with them like any other.
        together = len(lost) + sum(1 for read in gone if read.problem)
        if together > self._seen.get(owner.identity, 1):
            self._suspect(owner.identity, lost, gone)
        # Kept by process, which never comes again, unlike a worker's name: a straggler is judged like the first.
        for identity in {owner.identity, *lost}:
            self._seen[identity] = max(together, self._seen.pop(identity, 1))
        while len(self._seen) > _MOST_REMEMBERED:
            forgotten, _ = self._seen.popitem(last=False)
            self._suspected.pop(forgotten, None)

    def _suspect(self, identity: str, lost: Sequence[str], gone: Sequence[AgentRead]) -> None:
        """Says whom the loss of a process casts suspicion on; that of a worker with several processes on nobody."""
        known = {read.record.id: len(lost_together(read.record, read.now)) for read in gone if read.record}
        if set(lost) == {identity} and len(known) == len(gone):
            self._suspected[identity] = suspicions(known)

    def _runs_out(self, lease_until: Instant, now: Instant) -> bool:
        return 0 < lease_until < now + micros(self._config().heartbeat_interval)
