"""A manager that does nothing but remember, for runs of scenarios without a store."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from ares_celery.model.agent import AgentInfo, AgentState
from ares_celery.model.fault import Fault, FaultKind
from tests.unit.cli.calling import agent

KINDS = {
    "slow_agent": FaultKind.SLOW,
    "tool_timeout": FaultKind.TOOL_TIMEOUT,
    "partition_network": FaultKind.PARTITION,
    "corrupt_memory": FaultKind.MEMORY,
    "disconnect_mcp": FaultKind.MCP,
    "inject_llm_failure": FaultKind.LLM,
}


class StandIn:
    """Notes each call as ``(method, agent, …)``; raises what ``errors`` has for a method."""

    def __init__(self, *ids: str, worker: str = "a@host", **errors: BaseException) -> None:
        self.namespace = "stand-in"
        self.infos: dict[str, AgentInfo] = {
            one: agent(one, AgentState.RUNNING, worker=worker) for one in ids or ("a", "b")
        }
        self.errors = errors
        #: Looks at the agents after which a death is noticed, and whoever died runs again.
        self.looks = 0
        self.unseen: dict[str, int] = {}
        #: Faults are allowed by the settings.
        self.config = SimpleNamespace(chaos=True, lease_ttl=timedelta(milliseconds=50))
        self.calls: list[tuple[Any, ...]] = []
        self.dags: dict[str, Any] = {}
        #: Faults are allowed for a time.
        self.allowed_until: datetime | None = None
        self._lock = threading.Lock()

    def introspect(self) -> Any:
        chaos = {"allowed_until": self.allowed_until}
        return SimpleNamespace(time=datetime(2030, 1, 1, tzinfo=UTC), dags={"keys": list(self.dags)}, chaos=chaos)

    def list_agents(self, *, states: Any = None, type: str | None = None) -> list[AgentInfo]:
        for one in list(self.unseen):
            self.unseen[one] -= 1
            if self.unseen[one] < 0:
                del self.unseen[one]
                self.return_of(one)
        return [one for one in self.infos.values() if states is None or one.state in states]

    def return_of(self, agent_id: str) -> None:
        """It has died once more, and runs again."""
        info = self.infos[agent_id]
        deaths = {"crash": info.deaths.get("crash", 0) + 1}
        self.infos[agent_id] = info.model_copy(update={"incarnation": info.incarnation + 1, "deaths": deaths})

    def get_agent_info(self, agent_id: str) -> AgentInfo | None:
        return self.infos.get(agent_id)

    def get_agent_dag(self, key: str) -> Any:
        return self.dags.get(key)

    def register_agent_dag(self, key: str, value: object, *, reason: str = "") -> None:
        self._note("register_agent_dag", key)
        self.dags[key] = value

    def pause_agent(self, agent_id: str, *, duration: Any = None, reason: str = "") -> None:
        assert duration, "nobody may be left paused for ever by a run that is gone"
        self._note("pause_agent", agent_id)
        self.infos[agent_id] = self.infos[agent_id].model_copy(update={"paused": True})

    def resume_agent(self, agent_id: str, *, reason: str = "") -> None:
        self._note("resume_agent", agent_id)
        self.infos[agent_id] = self.infos[agent_id].model_copy(update={"paused": False})

    def kill_agent(self, agent_id: str, *, force: bool = False, reason: str = "") -> dict[str, Any]:
        self._note("kill_agent", agent_id, force)
        self.unseen[agent_id] = self.looks
        return {"agent_id": agent_id, "pid": 7, "worker": "a@host", "co_tenants": []}

    def heal(self, agent_id: str | None = None, fault: str | None = None, *, reason: str = "") -> tuple[Fault, ...]:
        self._note("heal", agent_id, fault)
        return ()

    def __getattr__(self, name: str) -> Any:
        kind = KINDS.get(name)
        if kind is None:
            raise AttributeError(name)

        def inject(agent_id: str, *amount: Any, **said: Any) -> Fault | None:
            self._note(name, agent_id, *amount)
            if amount and not amount[0]:
                return None
            return Fault(f"op-{len(self.calls)}", agent_id, kind)

        return inject

    def _note(self, name: str, *what: Any) -> None:
        with self._lock:
            self.calls.append((name, *what))
        if name in self.errors:
            raise self.errors[name]
