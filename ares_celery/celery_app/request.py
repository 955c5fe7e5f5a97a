"""What the worker's main process sees of a message for an agent: accepted, retried, lost, revoked."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from billiard.einfo import ExceptionInfo
from celery.exceptions import WorkerLostError
from celery.worker.request import Request
from kombu.utils.encoding import safe_repr, safe_str
from typing_extensions import override

from ares_celery.celery_app.names import RESURRECT_AGENT, RUN_AGENT
from ares_celery.celery_app.wiring import wiring_of
from ares_celery.clock import SystemClock, micros, to_datetime
from ares_celery.ids import AgentId, Epoch
from ares_celery.model.restart import DeathCause

if TYPE_CHECKING:
    from celery import Celery

    from ares_celery.celery_app.services import WorkerServices

__all__ = ["AgentMessage", "AgentRequest", "message_of"]

log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AgentMessage:
    """Which incarnation a message is about."""

    agent_id: AgentId
    epoch: Epoch


def message_of(task: str, args: Any, kwargs: Any) -> AgentMessage | None:  # noqa: ANN401 - whatever a message carries
    """Reads the agent and epoch of a message; None when it is not one of ours or cannot be read.

    Example:
        >>> message_of("ares.run_agent", ["counter-1", 17], {})
        AgentMessage(agent_id='counter-1', epoch=17)
    """
    if task not in (RUN_AGENT, RESURRECT_AGENT):
        return None
    given = dict(zip(("agent_id", "epoch"), args or (), strict=False)) | dict(kwargs or {})
    try:
        return AgentMessage(AgentId(str(given["agent_id"])), Epoch(int(given["epoch"])))
    except (KeyError, TypeError, ValueError):
        return None


class AgentRequest(Request):
    """Hooks of the main process; each only notes or enqueues, and then Celery goes on.

    In the threads pool they run in the process that hosts the agents.
    """

    @property
    def _message_of(self) -> AgentMessage | None:
        return message_of(self.task.name, self.args, self.kwargs)

    @property
    def _services(self) -> WorkerServices | None:
        return wiring_of(cast("Celery", self.app)).services

    @override
    def on_accepted(self, pid: Any, time_accepted: float) -> None:
        """A pool process has taken the message: its exit is watched from now on."""
        message, services = self._message_of, self._services
        if message is not None and services is not None:
            services.children.accepted(message.agent_id, message.epoch, self.id, pid)
        super().on_accepted(pid, time_accepted)

    @override
    def on_failure(
        self,
        exc_info: ExceptionInfo,
        send_failed_event: bool = True,
        return_ok: bool = False,
    ) -> Any:
        """The task raised, or its process was lost; the loss of a process is a death."""
        error: Any = exc_info.exception
        error = getattr(error, "exc", error)
        if isinstance(error, (WorkerLostError, SystemExit)):
            self._report(f"{type(error).__name__}: {error}", DeathCause.LOST, proof=True)
        self._forget()
        return super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)

    @override
    def on_timeout(self, soft: bool, timeout: float) -> None:
        """An operator gave the running task a time limit, and it was reached."""
        self._report(f"time limit of {timeout} s reached", DeathCause.HUNG, proof=False)
        super().on_timeout(soft, timeout)

    @override
    def on_retry(self, exc_info: ExceptionInfo) -> None:
        """The attempt failed and the next one waits in the store: told with time and count, as Flower shows them."""
        self._forget()
        retry: Any = exc_info.exception
        if not hasattr(retry, "when"):
            retry = getattr(retry, "exc", retry)
        wait = timedelta(seconds=float(getattr(retry, "when", 0) or 0))
        self.send_event(
            "task-retried",
            exception=safe_repr(getattr(retry, "exc", retry)),
            traceback=safe_str(exc_info.traceback),
            eta=to_datetime(SystemClock().wall() + micros(wait)).isoformat(),
            retries=int(self.request_dict.get("retries") or 0) + 1,
        )

    @override
    def terminate(self, pool: Any, signal: Any = None) -> None:
        """Somebody revoked the running task: a durable stop of the agent. No process is ever signalled."""
        self._ask_for_stop()

    @override
    def cancel(self, pool: Any, signal: Any = None, emit_retry: bool = True) -> None:
        """The worker shuts down cold: its agents release, as for a warm one."""
        wiring_of(cast("Celery", self.app)).begin_drain()

    @override
    def revoked(self) -> bool:
        """Tells whether the message was revoked before it ran; then the agent is stopped, as if it had run."""
        known = bool(getattr(self, "_already_revoked", False))
        found = bool(super().revoked())
        if found and not known:
            self._ask_for_stop()
        return found

    def _forget(self) -> None:
        services = self._services
        if services is not None:
            services.children.ended(self.id)

    def _report(self, reason: str, cause: DeathCause, *, proof: bool) -> None:
        message, services = self._message_of, self._services
        if message is None or services is None:
            return
        known = services.children.find(self.id)
        if known is not None and proof:
            services.desk.report_tenant_exit(message.agent_id, known.identity, reason)
        else:
            services.desk.report(message.agent_id, message.epoch, reason, cause, proof=proof)

    def _ask_for_stop(self) -> None:
        message, services = self._message_of, self._services
        if message is None or services is None:
            log.warning("task %s was revoked before this worker was ready; stop its agent with the Manager", self.id)
            return
        services.desk.request_stop(message.agent_id, message.epoch, "revoked", "celery revoke")
