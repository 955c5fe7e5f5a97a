"""The entry of beat's schedule: one more alarm clock for supervision, never the only one."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any, Final

from celery import Celery
from celery.signals import beat_init

from ares_celery.celery_app.names import HEALTH_CHECK, NAMESPACE_HEADER
from ares_celery.celery_app.routing import route_task
from ares_celery.celery_app.wiring import wiring_of
from ares_celery.errors import AresError

__all__ = ["ENTRY", "beat_entry", "follow_namespace"]

log: Final = logging.getLogger(__name__)

ENTRY: Final = "ares.health_check"


def beat_entry(namespace: str, interval: timedelta) -> dict[str, Any]:
    """The entry that sends ``ares.health_check``.

    It has no ``expires``: that is compared by the wall clock of the worker, and a clock that is wrong would silence it.

    Example:
        >>> beat_entry("ares", timedelta(seconds=10))["task"]
        'ares.health_check'
    """
    return {
        "task": HEALTH_CHECK,
        "schedule": interval,
        "options": {
            "queue": route_task(namespace, HEALTH_CHECK),
            # In the headers, too, as a scheduler that keeps its entries in a database forgets the option.
            "headers": {NAMESPACE_HEADER: namespace, "ignore_result": True},
            "ignore_result": True,
        },
    }


def follow_namespace(app: Celery, namespace: str) -> None:
    """Makes a beat of this app take the interval from the namespace's own settings when it starts."""

    def adjust(sender: Any = None, **_: object) -> None:  # noqa: ANN401 - Celery's Service
        if sender is None or sender.app is not app:
            return
        try:
            interval = wiring_of(app).config.health_check_interval
        except AresError as error:
            log.warning(
                "beat keeps its own interval of %s, as the namespace's settings are not at hand: %s", ENTRY, error
            )
            if ENTRY in sender.scheduler.schedule:
                return
            interval = wiring_of(app).own_config.health_check_interval
        sender.scheduler.update_from_dict({ENTRY: beat_entry(namespace, interval)})

    beat_init.connect(adjust, weak=False, dispatch_uid=f"ares-beat-{id(app)}")
