"""Workers of somebody else's app, on their broker, with agents in our Redis."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from celery import Celery
from typing_extensions import override

from ares_celery import Manager, install
from tests.fleet import Fleet, Process
from tests.integration.guests.shop import make_shop
from tests.redis_server import RedisServer

BEFORE = "tests.integration.guests.shop"
AFTER = "tests.integration.guests.shop_with_agents"


class GuestFleet(Fleet):
    """A namespace in an app that is not ours."""

    def __init__(self, redis: RedisServer, namespace: str, folder: Path, settings: Mapping[str, Any]) -> None:
        super().__init__(redis, namespace, folder)
        self.shop_settings = settings
        self.manager.close()
        self.shop = make_shop(settings)
        install(self.shop, namespace=namespace, redis_url=redis.url)
        # Their broker and our namespace, both from the app.
        self.manager = Manager(self.config, app=self.shop)

    @property
    @override
    def env(self) -> dict[str, str]:
        """With the app's settings; the modules of agents are named by install() alone."""
        env = {**super().env, "SHOP_SETTINGS": json.dumps(self.shop_settings)}
        del env["ARES_AGENT_MODULES"]
        return env

    @cached_property
    @override
    def app(self) -> Celery:
        """The app itself, as a service of theirs has it."""
        return self.shop

    def theirs(self, name: str, app: str, *options: str) -> Process:
        """Starts a worker as they start it: no word of queues."""
        return self.run(name, app, "worker", "-c", "1", "-n", f"{name}@host", *options)

    def run(self, name: str, app: str, *words: str) -> Process:
        """Starts a command of Celery with an app."""
        command = [sys.executable, "-m", "celery", "-A", app, *words, "-l", "INFO"]
        process = Process(name, command, self.env, self.folder / f"{self.namespace}-{name}.log")
        self.processes.append(process)
        return process

    def guests(self, name: str, queues: Iterable[str], *, pool: str = "threads", slots: int = 4) -> Process:
        """Starts a worker for agents."""
        return self.start_worker(name, queues, pool=pool, slots=slots, app=AFTER)

    def conf(self, worker: str) -> dict[str, Any]:
        """What `celery inspect conf` says of a worker."""
        inspect: Any = self.shop.control.inspect(destination=[f"{worker}@host"], timeout=10, limit=1)
        found: dict[str, Any] = inspect.conf(with_defaults=True)[f"{worker}@host"]
        return {**found, "include": sorted(found["include"])}
