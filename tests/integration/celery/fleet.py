"""The suite's fleet, with this folder's agents, and with a plain Celery app to call its tasks by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from ares_celery.model.agent import AgentSpec
from ares_celery.runtime.process_identity import ProcessIdentity
from tests.fleet import Fleet

#: The lead process and the agents of one prefork or threads worker; supervision runs in it, too.
AGENTS_ONLY = ("agents",)


class CeleryFleet(Fleet):
    """The suite's fleet with the agents of this folder, and words for what these tests do."""

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

    def pid_of(self, agent_id: str) -> int:
        """The process that hosts the agent, by its record."""
        owner = self.record(agent_id).owner
        assert owner is not None
        return ProcessIdentity.decode(owner.identity).pid

    def task_of(self, agent_id: str) -> str:
        """The task that hosts the agent."""
        owner = self.record(agent_id).owner
        assert owner is not None
        return owner.task_id

    def call(self, task: str, *args: object, **kwargs: object) -> Any:
        """Sends a task by name, as another service does, and returns its result."""
        return self.app.send_task(task, args=args, kwargs=kwargs).get(timeout=8)
