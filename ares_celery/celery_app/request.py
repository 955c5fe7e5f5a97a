"""What the worker's main process sees of a message for an agent: accepted, retried, lost, revoked."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from billiard.einfo import ExceptionInfo
from celery.exceptions import WorkerLostError
from celery.worker.request import Request
from kombu.utils.encoding import safe_repr, safe_str
from typing_extensions import override

from ares_celery.celery_app.message import AgentMessage, message_of
from ares_celery.celery_app.wiring import wiring_of
from ares_celery.clock import SystemClock, micros, to_datetime
from ares_celery.model.restart import DeathCause

if TYPE_CHECKING:
    from celery import Celery

    from ares_celery.celery_app.services import WorkerServices

__all__ = ["AgentRequest"]

log: Final = logging.getLogger(__name__)


@contextlib.contextmanager
def _isolated(request: Request) -> Generator[None]:
    """Whatever our part of a hook raises is logged, and Celery's own part runs: it frees the slot of the pool."""
    try:
        yield
    except Exception:
        log.exception("what follows from task %s[%s] for its agent is left to its lease", request.name, request.id)


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
        with _isolated(self):
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
        with _isolated(self):
            error: Any = exc_info.exception
            error = getattr(error, "exc", error)
            if isinstance(error, (WorkerLostError, SystemExit)):
                self._report(f"{type(error).__name__}: {error}", DeathCause.LOST, proof=True)
        self._forget()
        return super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)

    @override
    def on_timeout(self, soft: bool, timeout: float) -> None:
        """An operator gave the running task a time limit, and it was reached."""
        with _isolated(self):
            self._report(f"time limit of {timeout} s reached", DeathCause.HUNG, proof=False)
        super().on_timeout(soft, timeout)

    @override
    def on_retry(self, exc_info: ExceptionInfo) -> None:
        """The attempt failed and the next one waits in the store: told with time and count, as Flower shows them."""
        self._forget()
        with _isolated(self):
            self._send_retried(exc_info)

    @override
    def terminate(self, pool: Any, signal: Any = None) -> None:
        """Somebody revoked the running task: a durable stop of the agent. No process is ever signalled."""
        with _isolated(self):
            self._ask_for_stop()

    @override
    def cancel(self, pool: Any, signal: Any = None, emit_retry: bool = True) -> None:
        """The worker shuts down cold: its agents release, as for a warm one."""
        with _isolated(self):
            wiring_of(cast("Celery", self.app)).begin_drain()

    @override
    def revoked(self) -> bool:
        """Tells whether the message was revoked before it ran; then the agent is stopped, as if it had run."""
        known = bool(getattr(self, "_already_revoked", False))
        found = bool(super().revoked())
        if found and not known:
            with _isolated(self):
                self._ask_for_stop()
        return found

    def _send_retried(self, exc_info: ExceptionInfo) -> None:
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

    def _forget(self) -> None:
        with _isolated(self):
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
