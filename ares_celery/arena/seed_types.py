"""The thirteen actions of the seed's scenarios, and one of ours, as calls of our own actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ares_celery.arena.problems import Place, Problems
from ares_celery.arena.values import as_mapping

__all__ = ["ACTIONS_MODULE", "SEED_TYPES", "SeedType", "check_seed_action"]

ACTIONS_MODULE: Final = "ares_celery.arena.actions"
#: How long a fault lasts, or how much it slows, where the file does not say.
_DEFAULT: Final = "5s"
#: What a fault of calls takes.
_ANY: Final = frozenset({"duration", "count", "probability", "seed", "reason"})

Arguments = Callable[[str, str, Mapping[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class SeedType:
    """One of them.

    Attributes:
        func: Our action.
        needs: Fields that have to name something.
        metadata: What may be said of it.
        arguments: From target, source and metadata to those of our action.
        demands: What has to be said of it.
    """

    func: str
    needs: tuple[str, ...]
    metadata: frozenset[str]
    arguments: Arguments
    demands: tuple[str, ...] = ()


def _agent(target: str, source: str, metadata: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - as the others
    return {"agent_id": target, **metadata}


def _lasting(target: str, source: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {"duration": _DEFAULT, **_agent(target, source, metadata)}


def _amount(name: str) -> Arguments:
    """The seed says with ``duration`` how much; with both, ``duration`` is how long it lasts."""

    def arguments(target: str, source: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
        given = _agent(target, source, metadata)
        if name not in given:
            given[name] = given.pop("duration", _DEFAULT)
        return given

    return arguments


def _edge(target: str, source: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {"source_id": source, "target_id": target, **metadata}


def _node(target: str, source: str, metadata: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - as the others
    return {"node_id": target, **metadata}


def _clock(target: str, source: str, metadata: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - as the others
    return {"file": target, "duration": _DEFAULT, **metadata}


def _nobody(target: str, source: str, metadata: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - as the others
    return dict(metadata)


_TARGET: Final = ("target_id",)
_KILL: Final = frozenset({"force", "reason"})
_DAG: Final = frozenset({"dag", "reason"})

SEED_TYPES: Final[Mapping[str, SeedType]] = {
    "kill_leader": SeedType("kill_leader", (), _KILL, _nobody),
    "kill_agent": SeedType("kill_agent", _TARGET, _KILL, _agent),
    "remove_node": SeedType("remove_node", _TARGET, _DAG, _node),
    "remove_edge": SeedType("remove_edge", ("source_id", "target_id"), _DAG, _edge),
    "pause_agent": SeedType("pause_agent", _TARGET, frozenset({"duration", "reason"}), _agent),
    "resume_agent": SeedType("resume_agent", _TARGET, frozenset({"reason"}), _agent),
    "slow_agent": SeedType("slow_agent", _TARGET, _ANY | {"delay"}, _amount("delay")),
    "kill_orchestrator": SeedType("kill_orchestrator", (), _KILL, _nobody),
    "network_partition": SeedType("partition_network", _TARGET, frozenset({"duration", "reason"}), _lasting),
    "tool_timeout": SeedType("tool_timeout", _TARGET, _ANY | {"timeout"}, _amount("timeout")),
    "memory_corrupt": SeedType("corrupt_memory", _TARGET, frozenset({"duration", "seed", "reason"}), _agent),
    "mcp_disconnect": SeedType("disconnect_mcp", _TARGET, _ANY | {"server"}, _lasting),
    "llm_failure": SeedType("inject_llm_failure", _TARGET, _ANY | {"error_type", "retry_after"}, _lasting),
    # Not of the seed: the target is the file of the worker's ARES_CLOCK_FILE.
    "clock_offset": SeedType("clock_offset", _TARGET, frozenset({"offset", "duration"}), _clock, ("offset",)),
}


def check_seed_action(action: Mapping[str, Any], place: Place, problems: Problems) -> SeedType | None:
    """The type of an action; what is wrong with it is added."""
    name = action.get("type", "")
    if not name:
        problems.add((*place, "type"), f"is missing; it is one of {', '.join(SEED_TYPES)}")
        return None
    kind = SEED_TYPES.get(name) if isinstance(name, str) else None
    if kind is None:
        problems.add((*place, "type"), f"{name!r} is no action; it is one of {', '.join(SEED_TYPES)}")
        return None
    for field in kind.needs:
        if not action.get(field):
            problems.add((*place, field), f"{name} needs it, and it is missing")
    said = as_mapping(action.get("metadata"))
    for key in kind.demands:
        if said.get(key) is None:
            problems.add((*place, "metadata", key), f"{name} needs it, and it is missing")
    for key in sorted(set(said) - kind.metadata):
        problems.add((*place, "metadata", key), f"{name} takes {', '.join(sorted(kind.metadata))}")
    return kind
