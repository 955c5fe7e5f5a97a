"""Routes that disturb one agent, and heal it: the same methods, arguments and refusals as of a Manager."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ares_celery.ids import check_agent_id
from ares_celery.model.fault import Fault
from ares_celery.web.flower_extension.base import Asked

__all__ = ["ACTIONS", "Action", "act", "heal", "list_faults"]

_CALLS: Final = ("duration", "count", "probability", "seed")
_WHY: Final = ("reason", "op")


@dataclass(frozen=True, slots=True)
class Action:
    """What is done to an agent.

    Attributes:
        method: Of the Manager.
        fields: What the body may have; spans are seconds as a number, or text such as ``1m30s``.
        needed: Fields without which the method cannot be called; it says itself what is wrong with None.
        is_gated: An ordinary operation elsewhere, and a disturbance here: only where faults are allowed.
    """

    method: str
    fields: tuple[str, ...] = _WHY
    needed: tuple[str, ...] = ()
    is_gated: bool = False


ACTIONS: Final = {
    "kill": Action("kill_agent", ("force", "reason")),
    "partition": Action("partition_network", ("duration", *_WHY)),
    "pause": Action("pause_agent", ("duration", *_WHY), is_gated=True),
    "resume": Action("resume_agent"),
    "slow": Action("slow_agent", ("delay", *_CALLS, *_WHY), needed=("delay",)),
    "tool-timeout": Action("tool_timeout", ("timeout", *_CALLS, *_WHY), needed=("timeout",)),
    "memory-corrupt": Action("corrupt_memory", ("duration", "seed", *_WHY)),
    "mcp-disconnect": Action("disconnect_mcp", ("server", *_CALLS, *_WHY)),
    "llm-failure": Action("inject_llm_failure", ("error_type", "retry_after", *_CALLS, *_WHY)),
}


async def act(asked: Asked, name: str) -> Any:  # noqa: ANN401 - JSON
    """Does one of the actions to the agent that the path names.

    Returns:
        The fault; what was killed; or that it was done.

    Raises:
        InvalidAgentIdError, InvalidSettingError. AgentNotFoundError. ChaosDisabledError. AgentNotRunningError.
    """
    action = ACTIONS[name]
    agent_id = check_agent_id(asked.path[0])
    if action.is_gated:
        await asked.desk.demand_chaos(action.method)
    given = {**dict.fromkeys(action.needed), **asked.body, "actor": asked.actor}
    done: object = await getattr(asked.desk.manager, action.method)(agent_id, **given)
    if isinstance(done, Fault):
        return done.to_json()
    if done is not None:
        return done
    return {"agent_id": agent_id, "action": name, "cleared": bool(action.needed)}


async def heal(asked: Asked) -> Any:  # noqa: ANN401 - JSON
    """Ends faults: of the agent that the path or the body names, else of all; one kind, or one, if the body says so."""
    named = asked.path[0] if asked.path else asked.body.get("agent_id")
    agent_id = None if named is None else check_agent_id(named)
    why = {name: asked.body[name] for name in _WHY if name in asked.body}
    fault = asked.body.get("fault")
    healed = await asked.desk.manager.heal(agent_id, fault, actor=asked.actor, **why)
    return {"healed": [one.to_json() for one in healed]}


async def list_faults(asked: Asked) -> Any:  # noqa: ANN401 - JSON
    """The active faults, of all agents or of one."""
    named = asked.query.get("agent_id")
    agent_id = None if named is None else check_agent_id(named)
    return {"faults": [one.to_json() for one in await asked.desk.manager.list_faults(agent_id)]}
