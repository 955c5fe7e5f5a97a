"""What faults are called: one table for the kind, the command, the action of a scenario and the route of each. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ares_celery.model.fault import FaultKind

__all__ = ["FAULT_ACTIONS", "fault_action", "fault_kind"]

#: The action of each disturbance of one agent, and what else it is called, with ``_`` for ``-``.
FAULT_ACTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "kill_agent": ("kill",),
    "pause_agent": ("pause",),
    "slow_agent": ("slow",),
    "tool_timeout": (),
    "partition_network": ("partition", "network_partition"),
    "corrupt_memory": ("memory", "memory_corrupt"),
    "disconnect_mcp": ("mcp", "mcp_disconnect"),
    "inject_llm_failure": ("llm", "llm_failure"),
}
_ACTIONS: Final = {name: action for action, names in FAULT_ACTIONS.items() for name in (action, *names)}
_KINDS: Final = {_ACTIONS[kind.value]: kind for kind in FaultKind}


def fault_action(word: object) -> str:
    """The action that a word means, whichever of its names it is, with ``-`` or ``_``, in any case; empty: none.

    Example:
        >>> fault_action("Memory-Corrupt"), fault_action("kill"), fault_action("blah")
        ('corrupt_memory', 'kill_agent', '')
    """
    return _ACTIONS.get(word.strip().lower().replace("-", "_"), "") if isinstance(word, str) else ""


def fault_kind(word: object) -> FaultKind | None:
    """The kind of fault that a word means, as for :func:`fault_action`; None: no kind that lasts.

    Example:
        >>> fault_kind("disconnect-mcp"), fault_kind("kill")
        (<FaultKind.MCP: 'mcp'>, None)
    """
    return _KINDS.get(fault_action(word))
