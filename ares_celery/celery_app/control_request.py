"""What the worker's main process says of a control task: which agent it was about, and nothing that it carried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from billiard.einfo import ExceptionInfo
from celery.worker.request import Request
from typing_extensions import override

from ares_celery.errors import AresError

__all__ = ["ControlRequest"]


class ControlRequest(Request):
    """Keeps configs and messages out of events, logs and Flower, whatever their sender has put into the headers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - Celery's own signature
        super().__init__(*args, **kwargs)
        self._argsrepr = "(…)" if self.args else "()"
        self._kwargsrepr = _shown(self.kwargs or {})

    @override
    def on_failure(self, exc_info: ExceptionInfo, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        """The command was refused: the event names the kind of error; its text, which has values, is for the caller."""
        error: Any = exc_info.exception
        error = getattr(error, "exc", error)
        if not isinstance(error, AresError):
            return super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)
        if send_failed_event:
            self.send_event("task-failed", exception=repr(error), traceback="")
        return super().on_failure(exc_info, send_failed_event=False, return_ok=return_ok)


def _shown(kwargs: Mapping[str, Any]) -> str:
    """The names of the arguments, and the agent's id.

    Example:
        >>> _shown({"agent": {"id": "counter-1", "config": {"token": "x"}}, "reason": "why"})
        "{'agent': 'counter-1', 'reason': …}"
    """
    agent: Any = kwargs.get("agent")
    known: dict[str, Any] = {"agent_id": kwargs.get("agent_id"), "agent": agent}
    if isinstance(agent, Mapping):
        known["agent"] = cast("Mapping[str, Any]", agent).get("id")
    parts = (f"{name!r}: {str(known[name])[:200]!r}" if known.get(name) else f"{name!r}: …" for name in kwargs)
    return "{" + ", ".join(parts) + "}"
