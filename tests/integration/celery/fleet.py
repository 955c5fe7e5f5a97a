"""The suite's fleet, with this folder's agents, and with a plain Celery app to call its tasks by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from celery import Celery
from typing_extensions import override

from ares_celery.celery_app.factory import create_app
from ares_celery.config import ProcessSettings
from ares_celery.ids import AgentId
from ares_celery.model.agent import AgentRecord, AgentSpec
from ares_celery.runtime.process_identity import ProcessIdentity
from ares_celery.store.redis.open import open_store
from tests.fleet import Fleet
from tests.redis_server import RedisServer

#: The lead process and the agents of one prefork or threads worker; supervision runs in it, too.
AGENTS_ONLY = ("agents",)


class CeleryFleet(Fleet):
    """A fleet whose store, messages and results a test may look at."""

    def __init__(self, redis: RedisServer, namespace: str, folder: Path, settings: Mapping[str, str]) -> None:
        super().__init__(redis, namespace, folder, settings)
        where = ProcessSettings(redis_url=redis.url, namespace=namespace)
        self.records = open_store(where, self.config)
        self.app: Celery = create_app(where, set_as_current=False)

    @property
    @override
    def env(self) -> dict[str, str]:
        return {**super().env, "ARES_AGENT_MODULES": "tests.integration.celery.agents"}

    def start(self, kind: str, *agent_ids: str, config: Mapping[str, Any] | None = None) -> None:
        """Starts agents of a type and waits until they run."""
        for agent_id in agent_ids:
            self.manager.start_agent(AgentSpec(id=agent_id, type=kind, config=dict(config or {})))
        for agent_id in agent_ids:
            self.until(agent_id, "running")

    def stored(self, agent_id: str) -> AgentRecord:
        """The record of an agent."""
        found = self.records.read(AgentId(agent_id)).record
        assert found is not None
        return found

    def pid_of(self, agent_id: str) -> int:
        """The process that hosts the agent, by its record."""
        owner = self.stored(agent_id).owner
        assert owner is not None
        return ProcessIdentity.decode(owner.identity).pid

    def task_of(self, agent_id: str) -> str:
        """The task that hosts the agent."""
        owner = self.stored(agent_id).owner
        assert owner is not None
        return owner.task_id

    def call(self, task: str, *args: object, **kwargs: object) -> Any:
        """Sends a task by name, as another service does, and returns its result."""
        return self.app.send_task(task, args=args, kwargs=kwargs).get(timeout=8)

    @override
    def close(self) -> None:
        super().close()
        self.records.wipe()
        self.records.close()
        self.app.close()
