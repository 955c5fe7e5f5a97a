"""A shipped plug-in: knows tools by name, and keeps a record of the calls of tools."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from ares_celery.errors import InvalidSettingError
from ares_celery.plugins.contract import Capability, EventBus, PluginContext, StepCall, StepResult

__all__ = ["ToolPlugin", "ToolRecord"]


@dataclass(frozen=True, slots=True)
class ToolRecord:
    """One call of a tool.

    Attributes:
        tool: Its name.
        agent_id: Who called it.
        step_id: In which step.
        registered: The plug-in knows the tool.
        error: What went wrong; empty when nothing did.
        took: How long it took.
    """

    tool: str
    agent_id: str
    step_id: str
    registered: bool
    error: str
    took: timedelta


class ToolPlugin:
    """A registry of tools and a record of their calls; it records unknown tools as well, and forbids none.

    Args:
        tools: Descriptions by name.
        keep: How many of the newest calls are kept.
        name: For more than one.

    Attributes:
        forgotten: Calls that were recorded once and have made room for newer ones.

    Example:
        >>> plugin = ToolPlugin({"search": "looks things up"}, keep=2)
        >>> for tool in ("search", "mail"):
        ...     plugin.after_step(StepCall("a", "s1", tool=tool), StepResult())
        >>> [(record.tool, record.registered) for record in plugin.calls()]
        [('search', True), ('mail', False)]
    """

    capabilities = (Capability.TOOL,)

    def __init__(self, tools: Mapping[str, str] | None = None, *, keep: int = 1_000, name: str = "tools") -> None:
        if keep < 1:
            raise InvalidSettingError(field="keep", value=keep, problem="at least one call must be kept")
        self.name = name
        self.forgotten = 0
        self._lock = threading.Lock()
        self._tools: dict[str, str] = dict(tools or {})
        self._calls: deque[ToolRecord] = deque(maxlen=keep)

    def start(self, ctx: PluginContext, bus: EventBus) -> None:
        """Nothing to begin."""

    def stop(self) -> None:
        """Nothing to end; the record stays readable."""

    def register(self, tool: str, description: str = "") -> None:
        """Makes a tool known; again: with another description."""
        with self._lock:
            self._tools[tool] = description

    def tools(self) -> dict[str, str]:
        """The known tools with their descriptions; a copy."""
        with self._lock:
            return dict(self._tools)

    def calls(self, tool: str = "") -> list[ToolRecord]:
        """The recorded calls, of one tool or of all, oldest first; a copy."""
        with self._lock:
            return [record for record in self._calls if tool in ("", record.tool)]

    def before_step(self, step: StepCall) -> None:
        """Only what has happened is recorded."""

    def after_step(self, step: StepCall, result: StepResult) -> None:
        """Records the step if it called a tool."""
        tool = step.tool or str(step.metadata.get("tool_name", ""))
        if not tool:
            return
        with self._lock:
            self.forgotten += len(self._calls) == self._calls.maxlen
            known = tool in self._tools
            self._calls.append(ToolRecord(tool, step.agent_id, step.step_id, known, result.error, result.took))
