"""The store of one open namespace: all ports in one object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ares_celery.clock import Clock, SystemClock
from ares_celery.config import RuntimeConfig
from ares_celery.errors import OperationNotSupportedError
from ares_celery.ids import AgentId
from ares_celery.model.snapshot import Snapshot
from ares_celery.store.base import DamagedSnapshot, EventStore, MemoryManager, SnapshotStore
from ares_celery.store.checkpoints import CheckpointStore
from ares_celery.store.redis import state_calls
from ares_celery.store.redis.agent_store import RedisAgentStore
from ares_celery.store.redis.arena import RedisArena
from ares_celery.store.redis.async_access import AsyncRedisAccess
from ares_celery.store.redis.audit import RedisAudit
from ares_celery.store.redis.bound import Bound
from ares_celery.store.redis.checkpoint_store import RedisCheckpointStore
from ares_celery.store.redis.client import AsyncRedisClient, GuardedClient, RedisClient
from ares_celery.store.redis.connections import AsyncDriver, Borrowed, Driver
from ares_celery.store.redis.driver_errors import DriverErrors
from ares_celery.store.redis.event_store import RedisEventStore
from ares_celery.store.redis.family_store import RedisFamilyStore
from ares_celery.store.redis.fault_store import RedisFaultDesk
from ares_celery.store.redis.fork_store import RedisForkStore
from ares_celery.store.redis.group_store import RedisGroupStore
from ares_celery.store.redis.incarnation_store import AsyncRedisIncarnationStore, RedisIncarnationStore
from ares_celery.store.redis.interrupt_store import RedisInterruptDesk
from ares_celery.store.redis.introspection import RedisIntrospection
from ares_celery.store.redis.live_settings import LiveSettings
from ares_celery.store.redis.mailbox import RedisMailbox
from ares_celery.store.redis.memory_manager import RedisMemoryManager
from ares_celery.store.redis.namespace import open_namespace
from ares_celery.store.redis.namespace_admin import RedisNamespaceAdmin
from ares_celery.store.redis.scripts import Scripts
from ares_celery.store.redis.server import scripts_for
from ares_celery.store.redis.settings import RedisSettings
from ares_celery.store.redis.settling import RedisSettling
from ares_celery.store.redis.snapshot_store import RedisSnapshotStore
from ares_celery.store.redis.wakeups import RedisWakeups

__all__ = ["Drivers", "RedisStore"]


@dataclass(frozen=True, slots=True)
class Drivers:
    """Where a store gets its connections from.

    Attributes:
        main: For calls that are answered at once.
        waiting: For calls that wait on the server.
        listener: Makes a driver that listens to a channel.
        asynchronous: Makes a driver for an event loop.
    """

    main: Driver
    waiting: Driver
    listener: Callable[[], Driver]
    asynchronous: Callable[[], AsyncDriver]


class RedisStore(
    RedisAgentStore,
    RedisIncarnationStore,
    RedisMailbox,
    RedisNamespaceAdmin,
    RedisSettings,
    RedisAudit,
    RedisGroupStore,
    RedisFamilyStore,
    RedisInterruptDesk,
    RedisIntrospection,
    RedisForkStore,
    RedisSettling,
    RedisFaultDesk,
    RedisArena,
):
    """Implements :class:`~ares_celery.store.base.Store`: one open namespace, safe to share between threads and to fork.

    Made by :func:`~ares_celery.store.redis.open.open_store`, or by :meth:`from_client` around a driver of your own.
    """

    def __init__(self, bound: Bound, drivers: Drivers, scripts: Scripts, errors: DriverErrors) -> None:
        super().__init__(bound)
        self._drivers = drivers
        self._scripts = scripts
        self._errors = errors
        self._events = RedisEventStore(bound)
        self._snapshots = RedisSnapshotStore(bound)
        self._memory = RedisMemoryManager(bound)
        self._checkpoints = RedisCheckpointStore(bound)

    @classmethod
    def connect(
        cls,
        drivers: Drivers,
        namespace: str,
        config: RuntimeConfig | None,
        *,
        errors: DriverErrors,
        clock: Clock | None = None,
        guard: Callable[[], None] | None = None,
    ) -> RedisStore:
        """Opens a namespace through the given drivers; made when it does not exist.

        Args:
            drivers: Whose connections are used.
            namespace: Its name.
            config: Wanted settings; None = those of the environment. They win only when the namespace is made.
            errors: How the server is named in errors.
            clock: For waits; the machine's own by default.
            guard: Called before every blocking call, which it may refuse by raising.

        Raises:
            StoreUnavailableError: The server does not answer.
            UnsupportedServerError: It is too old.
            NamespaceMismatchError: The namespace was made with another schema, or with other shards than asked for.
        """
        scripts = scripts_for(drivers.main, errors)

        def blocking(driver: Driver) -> RedisClient:
            return (
                RedisClient(driver, scripts, errors) if guard is None else GuardedClient(driver, scripts, errors, guard)
            )

        client = blocking(drivers.main)
        keys, stored, generation = open_namespace(client, namespace, config)
        clock = clock or SystemClock()
        settings = LiveSettings(stored, generation, clock)
        waiting = blocking(drivers.waiting)

        def listening() -> RedisClient:
            return blocking(drivers.listener())

        return cls(Bound(client, waiting, keys, settings, clock, listening), drivers, scripts, errors)

    @classmethod
    def from_client(
        cls,
        client: Driver,
        namespace: str,
        config: RuntimeConfig | None = None,
        *,
        async_client: Callable[[], AsyncDriver] | None = None,
        shown: str = "the given client",
        clock: Clock | None = None,
    ) -> RedisStore:
        """Opens a namespace through a client of your own, fakeredis' for example; see :meth:`connect`.

        Args:
            client: Must answer with bytes (``decode_responses=False``) and retry nothing.
            namespace: Its name.
            config: Wanted settings; None = those of the environment.
            async_client: Makes its twin for an event loop.
            shown: How the server is named in errors.
            clock: For waits; the machine's own by default.
        """
        drivers = Drivers(client, client, lambda: Borrowed(client), async_client or _no_async_client)
        return cls.connect(drivers, namespace, config, errors=DriverErrors(shown), clock=clock)

    @property
    def events(self) -> EventStore:
        """Streams of events."""
        return self._events

    @property
    def snapshots(self) -> SnapshotStore:
        """Newest states."""
        return self._snapshots

    @property
    def memory(self) -> MemoryManager:
        """What agents said and were told."""
        return self._memory

    @property
    def checkpoints(self) -> CheckpointStore:
        """Executions and their checkpoints."""
        return self._checkpoints

    def stored_snapshots(self, agent_id: AgentId) -> list[Snapshot | DamagedSnapshot]:
        """All kept snapshots, newest first, damaged ones included."""
        return self._bound.client.run(state_calls.read_snapshots(self._bound.keys, agent_id=agent_id))

    def set_aside(
        self, agent_id: AgentId, fence: str, damaged: Sequence[DamagedSnapshot], *, copies: bool = False
    ) -> int:
        """Moves damaged snapshots, newest first, where later ones do not push them out; returns how many."""
        blobs = [one.raw for one in damaged]
        call = state_calls.set_aside(self._bound.keys, agent_id=agent_id, fence=fence, blobs=blobs, copies=copies)
        return self._bound.client.run(call)

    def damaged_snapshots(self, agent_id: AgentId) -> list[DamagedSnapshot]:
        """The damaged snapshots that recoveries have set aside, newest first."""
        return self._bound.client.run(state_calls.read_damaged(self._bound.keys, agent_id=agent_id))

    def wake_channel(self, identity: str) -> str:
        """The channel on which a hosting process is told to look at an agent now; the message is the agent's id."""
        return self._bound.keys.wake_prefix + identity

    def wakeups(self, identity: str) -> RedisWakeups:
        """The hints for a process; implements :class:`~ares_celery.runtime.ports.Wakeups`."""
        return RedisWakeups(
            self._drivers.listener, self.wake_channel(identity), errors=self._errors, clock=self._bound.clock
        )

    def open_async(self) -> AsyncRedisIncarnationStore:
        """The same namespace for agents on an event loop, with connections of its own, made when first used."""
        client = AsyncRedisClient(self._drivers.asynchronous(), self._scripts, self._errors)
        return AsyncRedisIncarnationStore(self._bound, client)

    def open_access(self) -> AsyncRedisAccess:
        """The same namespace for callers on an event loop, with connections of its own, made when first used."""
        return AsyncRedisAccess(self._bound, self._drivers.asynchronous, self._scripts, self._errors)

    def close(self) -> None:
        """Closes all connections, and ends subscriptions; idempotent."""
        self._events.end_subscriptions()
        self._bound.client.close()
        self._bound.waiting.close()


def _no_async_client() -> AsyncDriver:
    raise OperationNotSupportedError(operation="open_async()", reason="the store was made from a client without a twin")
