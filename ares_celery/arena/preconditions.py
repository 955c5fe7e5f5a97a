"""What is looked at before a run does anything: a run that cannot show what it is for is not begun."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from ares_celery.arena.scenario import Activity, PythonProvider
from ares_celery.arena.seed_types import ACTIONS_MODULE
from ares_celery.errors import AgentNotFoundError, ChaosDisabledError
from ares_celery.model.durations import parse_duration

if TYPE_CHECKING:
    from ares_celery.manager import CoreManager

__all__ = ["allows_chaos", "is_refused_without_chaos", "nobody_there", "not_allowed"]

#: Our actions that a namespace refuses unless it allows faults; the others are everyday operations.
_FAULTS: Final = frozenset(
    {
        "clock_offset",
        "corrupt_memory",
        "disconnect_mcp",
        "inject_llm_failure",
        "kill_agent",
        "kill_leader",
        "kill_orchestrator",
        "kill_worker",
        "partition_network",
        "redis_latency",
        "redis_outage",
        "slow_agent",
        "stop_beat",
        "tool_timeout",
    }
)
#: Of these an amount of zero ends a fault.
_AMOUNTS: Final[Mapping[str, str]] = {"slow_agent": "delay", "tool_timeout": "timeout"}


def is_refused_without_chaos(func: str, arguments: Mapping[str, Any]) -> bool:
    """An action of ours is a fault, which a namespace that does not allow any refuses.

    Example:
        >>> is_refused_without_chaos("slow_agent", {"delay": "1s"}), is_refused_without_chaos("pause_agent", {})
        (True, False)
    """
    if func not in _FAULTS:
        return False
    amount = arguments.get(_AMOUNTS.get(func, ""))
    try:
        return amount is None or parse_duration(amount) != timedelta(0)
    except ValueError:
        return True


def allows_chaos(manager: CoreManager) -> bool:
    """Faults are allowed in the namespace, by its settings or for a time.

    Raises:
        StoreUnavailableError.
    """
    return bool(manager.config.chaos) or manager.introspect().chaos.get("allowed_until") is not None


def not_allowed(manager: CoreManager, activities: Iterable[Activity]) -> str:
    """Why faults cannot be injected now; empty when they can, or when none is one.

    A refusal that the scenario expects is no reason.
    """
    for one in activities:
        provider = one.provider
        if not isinstance(provider, PythonProvider) or provider.module != ACTIONS_MODULE or one.expect_failure:
            continue
        if is_refused_without_chaos(provider.func, provider.arguments):
            if allows_chaos(manager):
                return ""
            return str(ChaosDisabledError(operation=provider.func, namespace=manager.namespace))
    return ""


def nobody_there(manager: CoreManager, agents: Iterable[str]) -> str:
    """Who is named and does not exist; empty when all do."""
    unknown = [one for one in agents if manager.get_agent_info(one) is None]
    return str(AgentNotFoundError(agent_id=unknown[0])) if len(unknown) == 1 else _several(unknown)


def _several(unknown: list[str]) -> str:
    return f"agents {', '.join(map(repr, unknown))} do not exist" if unknown else ""
