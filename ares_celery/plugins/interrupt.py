"""A shipped plug-in: some steps run only when a person allows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, cast

from ares_celery.errors import InvalidSettingError
from ares_celery.model.arguments import as_shown, check_flags, check_timeout
from ares_celery.plugins.contract import ApprovalWish, Capability, EventBus, PluginContext, StepCall

__all__ = ["InterruptPlugin", "wish_of"]

#: Says of a step whether a person has to allow it; a mapping says yes and is what the person sees.
Wants = Callable[[StepCall], "bool | Mapping[str, Any] | None"]


class InterruptPlugin:
    """Has a person asked before certain steps run; it only says which.

    The runtime asks as ``ctx.wait_for_approval`` does, under the name ``step:<step id>``: ``interrupt.created`` is
    written, ``manager.approve(agent_id, "step:<step id>", "yes")`` lets the step run, and any other decision makes it
    raise StepRejectedError in the agent. Give every worker the same plug-in.

    Args:
        steps: Ids of steps, names of tools, or beginnings of either that end with ``*``; or a function of the step that
            says True, or what the person shall see.
        release_slot: The agent gives its slot back while it waits.
        timeout: How long it waits; then the step raises ApprovalTimeoutError. None = as long as it takes.
        name: For more than one of them; the first that wants a word is the one.

    Example:
        >>> plugin = InterruptPlugin(["refund", "mail:*"])
        >>> plugin.wants_approval(StepCall("a", "tool:refund:1f", tool="refund"))["tool"]
        'refund'
        >>> plugin.wants_approval(StepCall("a", "read")) is None
        True
    """

    capabilities = (Capability.INTERRUPT,)

    def __init__(
        self,
        steps: Iterable[str] | Wants,
        *,
        release_slot: bool = False,
        timeout: timedelta | float | str | None = None,
        name: str = "interrupt",
    ) -> None:
        check_flags(release_slot=release_slot)
        self.name = name
        self.release_slot = release_slot
        self.timeout = None if timeout is None else check_timeout(timeout)
        self._wants = steps if callable(steps) else _listed(steps)

    def start(self, ctx: PluginContext, bus: EventBus) -> None:
        """Nothing to begin."""

    def stop(self) -> None:
        """Nothing to end."""

    def wants_approval(self, step: StepCall) -> Mapping[str, Any] | None:
        """What a person is to be told about a step that needs a word; None for all others."""
        wanted = self._wants(step)
        if not wanted and not isinstance(wanted, Mapping):
            return None
        about = {"step": step.step_id, "agent_type": step.agent_type, "execution": step.execution, "tool": step.tool}
        return {**about, **(wanted if isinstance(wanted, Mapping) else {})}


def _listed(steps: object) -> Wants:
    if isinstance(steps, str) or not isinstance(steps, Iterable):
        problem = "give a list of step ids and tool names, or a function of the step"
        raise InvalidSettingError(field="steps", value=as_shown(steps), problem=problem)
    names = list(cast("Iterable[object]", steps))
    foreign = next((name for name in names if not isinstance(name, str) or not name), None)
    if foreign is not None or not names:
        shown = as_shown(foreign) if names else "[]"
        raise InvalidSettingError(field="steps", value=shown, problem="give at least one id or name, all as texts")
    texts = [str(name) for name in names]
    exact = {name for name in texts if not name.endswith("*")}
    beginnings = tuple(name[:-1] for name in texts if name.endswith("*"))

    def wants(step: StepCall) -> bool:
        called = [step.step_id, *([step.tool] if step.tool else [])]
        return any(name in exact or (bool(beginnings) and name.startswith(beginnings)) for name in called)

    return wants


def wish_of(plugin: object, step: StepCall) -> ApprovalWish | None:
    """What a plug-in says of a step; on the plug-in's own thread, as all of it is its code.

    Raises:
        TypeError: It answered neither a mapping nor None.
    """
    told: object = cast("Any", plugin).wants_approval(step)
    if told is None:
        return None
    if not isinstance(told, Mapping):
        raise TypeError(f"wants_approval answered {type(told).__name__}, not a mapping or None")
    given: object = getattr(plugin, "timeout", None)
    limit = None if given is None else check_timeout(given)
    name, payload = str(getattr(plugin, "name", "")), dict(cast("Mapping[str, Any]", told))
    return ApprovalWish(name, payload, release_slot=getattr(plugin, "release_slot", False) is True, timeout=limit)
