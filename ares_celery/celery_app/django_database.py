"""The database connections that Django keeps for each thread."""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

__all__ = ["let_go_of_database"]

log: Final = logging.getLogger(__name__)


def let_go_of_database() -> None:
    """Closes this thread's connections of Django, if there is a Django; the next query opens one anew.

    With results in Django's database Celery has just written on this thread that the task has begun. Django closes a
    connection when its task ends; an agent's task ends when the agent does, and a database counts its connections.
    """
    database: Any = sys.modules.get("django.db")
    if database is None:
        return
    try:
        database.connections.close_all()
    except Exception as error:  # noqa: BLE001 - a Django that nobody has configured, or a broken connection
        log.debug("connections of Django stay open: %s: %s", type(error).__name__, error)
