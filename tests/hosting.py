"""A whole runtime in this process, without a broker: real Redis, real host, keeper and sweep, threads for messages."""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property
from types import TracebackType
from typing import Any, Self

from ares_celery.agents.registry import Registry
from ares_celery.celery_app.control_ports import ControlPorts
from ares_celery.clock import SystemClock
from ares_celery.config import ProcessSettings, RuntimeConfig
from ares_celery.manager import CoreManager
from ares_celery.model.event import Event, ReadOptions
from ares_celery.plugins.bus import PluginBus
from ares_celery.plugins.judge import BusJudge
from ares_celery.runtime.commits import Committer
from ares_celery.runtime.host import ProcessHost
from ares_celery.runtime.process_identity import ProcessIdentity
from ares_celery.store.redis.open import open_store
from ares_celery.store.redis.store import RedisStore
from ares_celery.supervision.contact import ContactWindow
from ares_celery.supervision.sweep import Sweeper
from ares_celery.testing.thread_launcher import ThreadLauncher
from tests.wait import wait_until

FAST: dict[str, Any] = {
    "heartbeat_interval": "200ms",
    "lease_ttl": "1s",
    "restore_backoff": "100ms",
    "agent_stop_timeout": "1500ms",
    "overall_stop_timeout": "3s",
    "health_check_interval": "200ms",
    "snapshot_interval": "50ms",
    "stable_after": "2s",
    "shards": 2,
}


class Runtime:
    """Store, host and manager of one namespace; ``sweep`` does what the sweep thread would do.

    With ``hints`` the host hears of messages at once, else with its heartbeat.
    """

    def __init__(
        self, url: str, namespace: str, *, bus: PluginBus | None = None, hints: bool = False, **settings: Any
    ) -> None:
        config = RuntimeConfig.parse({**FAST, **settings})
        self.url = url
        self.store: RedisStore = open_store(ProcessSettings(redis_url=url, namespace=namespace), config)
        self.config = self.store.config
        self.registry = Registry()
        self.launcher = ThreadLauncher(lambda: self.host)
        self.bus = bus
        judge = None if bus is None else BusJudge(lambda: bus, timedelta(seconds=5), SystemClock())
        self.committer = Committer(self.store, lambda: self.store.config, self.launcher, judge=judge, listener=bus)
        self.manager = CoreManager(self, registry=self.registry, hosts_here=True)
        self.hints = hints
        self.host = self.new_host()
        contact = ContactWindow(self.config.lease_ttl)
        self.sweeper = Sweeper(self.store, self.committer, self.config, contact=contact)

    @cached_property
    def control_ports(self) -> ControlPorts:
        """What commands by task go through, over this runtime's own store."""
        return ControlPorts(lambda _: (self.store, self.committer))

    def new_host(self, registry: Registry | None = None) -> ProcessHost:
        """A host as another process would have it, perhaps with agent types of its own."""
        return ProcessHost(
            store=self.store,
            config=lambda: self.store.config,
            committer=self.committer,
            registry=registry or self.registry,
            open_async=self.store.open_async,
            listener=self.bus,
            wakeups=self.store.wakeups(ProcessIdentity.current().encode()) if self.hints else None,
            sources=self.manager.state_sources,
        )

    def register(self, name: str, factory: Any, **options: Any) -> None:
        """Makes a type known."""
        self.registry.register(name, factory, **options)

    def until(self, agent_id: str, state: str, *, incarnation: int = 0, timeout: float = 8, judge: bool = False) -> Any:
        """Waits for a state, sweeping meanwhile."""
        found: list[Any] = [None]

        def there() -> bool:
            self.sweep(judge=judge)
            found[0] = self.manager.get_agent_info(agent_id)
            return found[0] is not None and found[0].state == state and found[0].incarnation >= incarnation

        wait_until(there, f"{agent_id} to be {state}, not {found}", timeout=timeout)
        return found[0]

    def sweep(self, *, judge: bool = False) -> None:
        """One sweep, without judging leases and tries to recover unless told to."""
        self.sweeper.sweep_once(judge_leases=judge)

    def events(self, agent_id: str, type: str = "") -> list[Event]:
        """All events, or those of one type."""
        return [e for e in self.store.events.read(agent_id, ReadOptions()) if type in ("", e.type)]

    def types(self, agent_id: str) -> list[str]:
        """The types of all events, in order."""
        return [event.type for event in self.events(agent_id)]

    def close(self) -> None:
        """Closes everything."""
        self.host.close()
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.manager.stop()
        self.close()
