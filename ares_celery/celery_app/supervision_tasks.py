"""``ares.health_check`` and ``ares.notify_agent_dead``: what others may tell or ask supervision."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from celery import Celery

from ares_celery.celery_app.control_tasks import Control, bind
from ares_celery.celery_app.due_task import AresTask
from ares_celery.celery_app.names import HEALTH_CHECK, NOTIFY_AGENT_DEAD
from ares_celery.celery_app.wiring import wiring_of
from ares_celery.errors import InvalidSettingError
from ares_celery.manager import CoreManager
from ares_celery.runtime.callers import as_shown
from ares_celery.supervision.health import check_health
from ares_celery.supervision.sweep import Sweeper

__all__ = ["add_supervision_tasks", "epoch_of"]

#: Digits of an epoch: microseconds.
_DIGITS: Final = 16


def add_supervision_tasks(app: Celery, namespace: str) -> None:
    """Adds both tasks to the app."""

    @app.task(name=HEALTH_CHECK, base=AresTask, bind=True, shared=False, ares_namespace=namespace)
    def health_check(self: AresTask) -> dict[str, Any]:
        wiring = wiring_of(self.app)
        sweeper = Sweeper(wiring.store, wiring.committer, wiring.config)
        return asdict(check_health(wiring.store, sweeper))

    # typing=False: the arguments are checked with errors of ours.
    @app.task(name=NOTIFY_AGENT_DEAD, base=AresTask, bind=True, shared=False, typing=False, ares_namespace=namespace)
    def notify_agent_dead(self: AresTask, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - JSON
        given = bind(_NOTIFY, args, kwargs)
        given["epoch"] = epoch_of(given.get("epoch"))
        given["actor"] = given.get("actor") or f"task {self.request.id}"
        given["op"] = given.get("op") or str(self.request.id)
        CoreManager(wiring_of(self.app)).notify_agent_dead(**given)

    _ = health_check, notify_agent_dead


def _notify(agent_id: str, reason: str, epoch: int | None = None, actor: str = "", op: str = "") -> None:
    """The wire's own order: here the epoch may be given by position."""


_NOTIFY: Final = Control("notify_agent_dead", parameters=_notify)


def epoch_of(given: object) -> int | None:
    """The epoch that a message names; a text of digits is one, too, as some languages cannot hold so large a number.

    Raises:
        InvalidSettingError: It is none; taken for one it would name an incarnation that never was.
    """
    if given is None or (isinstance(given, int) and not isinstance(given, bool)):
        return given
    if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) <= _DIGITS:
        return int(given)
    problem = "give the agent's epoch, a whole number, or leave it out for the incarnation now alive"
    raise InvalidSettingError(field="epoch", value=as_shown(given), problem=problem)
