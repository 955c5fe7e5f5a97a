"""The namespace itself in Redis: its settings, the state of its runtime, who sweeps, who hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ares_celery.ids import AgentId, Instant
from ares_celery.model.agent import AgentState, RuntimeState
from ares_celery.store.base import ClockStand, Rebased, RuntimeRead
from ares_celery.store.redis import index_calls, namespace_calls
from ares_celery.store.redis.bound import Part
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.confirming import confirm
from ares_celery.store.redis.namespace import reopen_namespace
from ares_celery.store.redis.namespace_calls import StoredRuntime

__all__ = ["RedisNamespaceAdmin"]

#: Keys looked at in one step of a scan.
SCAN_STEP: Final = 1_000


class RedisNamespaceAdmin(Part):
    """Implements :class:`~ares_celery.store.base.NamespaceAdmin`."""

    @property
    def namespace(self) -> str:
        """The namespace's name."""
        return self._bound.keys.namespace

    def reopen(self) -> Instant:
        """Makes the namespace again if the server has lost it; returns when it was made."""
        return reopen_namespace(self._bound.client, self._bound.keys, self._bound.config)

    def runtime(self) -> RuntimeRead:
        """The runtime's state."""
        return self._bound.client.run(namespace_calls.read_runtime(self._bound.keys)).read

    def set_runtime(
        self, state: RuntimeState, *, only_from: Sequence[RuntimeState], reason: str, actor: str
    ) -> RuntimeRead:
        """Moves the runtime's state, in the home shard first, then copied to every shard with its generation."""
        call = namespace_calls.set_runtime(
            self._bound.keys, state=state, only_from=only_from, reason=reason, actor=actor
        )
        stored = self._bound.client.run(call)
        self._copy(stored)
        confirm(self._bound, 0)
        return stored.read

    def copy_runtime(self) -> None:
        """Copies the home shard's runtime state to every shard that has an older generation; clears the deadline."""
        self._copy(self._bound.client.run(namespace_calls.read_runtime(self._bound.keys)))

    def _copy(self, stored: StoredRuntime) -> None:
        keys = self._bound.keys
        self._bound.client.run_many(
            namespace_calls.copy_runtime(keys, shard=shard, stored=stored) for shard in range(1, keys.shards)
        )
        self._bound.client.run(namespace_calls.settle_runtime(keys, generation=stored.read.generation))

    def count(self, by: Mapping[str, int], *, op: str) -> None:
        """Raises counters of the namespace, once for each operation id."""
        self._bound.client.run(namespace_calls.count(self._bound.keys, by=by, op=op))

    def elect(self, identity: str, *, ttl_ms: int) -> bool:
        """Takes or keeps the sweeper's lease; True while this process holds it."""
        return self._bound.client.run(namespace_calls.elect(self._bound.keys, identity=identity, ttl_ms=ttl_ms))

    def report_sweep(self, identity: str) -> None:
        """Notes that a sweep was finished now."""
        self._bound.client.run(namespace_calls.report_sweep(self._bound.keys, identity=identity))

    def sweep_age_ms(self) -> int:
        """Milliseconds since the last sweep by anybody; -1 when there was none."""
        return self._bound.client.run(namespace_calls.sweep_age(self._bound.keys))

    def report_hosts(self, identity: str, worker: str) -> None:
        """Notes that this process hosts agents or watches others."""
        self._bound.client.run(namespace_calls.report_host(self._bound.keys, identity=identity, worker=worker))

    def hosts(self) -> Mapping[str, str]:
        """Identities of the processes that reported within a minute, with their worker names."""
        return self._bound.client.run(namespace_calls.read_hosts(self._bound.keys))

    def report_background(self, identity: str, work: Mapping[str, int]) -> None:
        """Notes the detached work of a process, label to count."""
        self._bound.client.run(namespace_calls.report_background(self._bound.keys, identity=identity, work=work))

    def background(self, *, without: str = "") -> Mapping[str, int]:
        """The detached work that processes reported, summed by label."""
        keys, total = self._bound.keys, Counter[str]()
        others = [identity for identity in self.hosts() if identity != without]
        for work in self._bound.client.run_many(
            namespace_calls.read_background(keys, identity=identity) for identity in others
        ):
            total.update(work)
        return dict(total)

    def report_types(self, types: Mapping[str, Mapping[str, Any]]) -> None:
        """Notes the agent types that a worker can host, each with its factory's parameters."""
        if types:
            self._bound.client.run(namespace_calls.report_types(self._bound.keys, types=types))

    def known_types(self) -> Mapping[str, Mapping[str, Any]]:
        """The agent types that any worker reported; empty when none ever did."""
        return self._bound.client.run(namespace_calls.known_types(self._bound.keys))

    def server_time(self) -> Instant:
        """Redis TIME."""
        return self._bound.client.run(namespace_calls.server_time())

    def clock(self) -> ClockStand:
        """Which steps of the server's clock the namespace has followed, and Redis TIME."""
        return self._bound.client.run(namespace_calls.read_clock(self._bound.keys, shard=0))

    def rebase(self, stand: ClockStand) -> Rebased:
        """Moves whatever is in Redis time along with a step of the server's clock; each shard once for each step."""
        client, keys = self._bound.client, self._bound.keys
        clocks = client.run_many(namespace_calls.read_clock(keys, shard=shard) for shard in range(keys.shards))
        rebased, home = Rebased.BEFORE, clocks[0]
        if home.generation < stand.generation:
            rebased, home = self._rebase(0, stand)
        for shard in range(1, keys.shards):
            if clocks[shard].generation < home.generation:
                self._rebase(shard, home)
        return rebased

    def _rebase(self, shard: int, stand: ClockStand) -> tuple[Rebased, ClockStand]:
        client, keys = self._bound.client, self._bound.keys
        listed = client.run_many(index_calls.list_state(keys, shard=shard, state=state) for state in AgentState)
        # An agent that moved on between two of these reads may stand in both.
        agent_ids = [AgentId(agent_id) for agent_id in dict.fromkeys(one for some in listed for one in some)]
        lease_ttl = self._bound.config.lease_ttl
        return client.run(
            namespace_calls.rebase(keys, shard=shard, stand=stand, lease_ttl=lease_ttl, agent_ids=agent_ids)
        )

    def wipe(self) -> int:
        """Deletes every key of the namespace; for tests and demos. Looks at every key of the database."""
        return sum(self._wipe(pattern) for pattern in self._bound.keys.patterns)

    def _wipe(self, pattern: str) -> int:
        client, cursor, count = self._bound.client, 0, 0
        while True:
            cursor, found = client.run(Call(_parse_scan, args=("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_STEP)))
            count += sum(client.run_many(Call(int, args=("UNLINK", key)) for key in found))
            if cursor == 0:
                return count


def _parse_scan(reply: tuple[Any, list[bytes]]) -> tuple[int, list[bytes]]:
    return int(reply[0]), reply[1]
