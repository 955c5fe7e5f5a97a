"""What a worker says of a message for a task of ours that it does not have: which, and nothing that it carries."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, cast

from typing_extensions import override

from ares_celery.celery_app.names import TASK_PREFIX

__all__ = ["UnknownTaskFilter", "hide_unknown_bodies"]

_CELERYS_LOGGER: Final = "celery.worker.consumer.consumer"
#: How Celery's record begins; its arguments are the KeyError, the body, the headers and the delivery info.
_CELERYS_WORDS: Final = "Received unregistered task"
_OUR_WORDS: Final = "message %s for the unknown task %s is discarded: is its sender newer than this worker?"


class UnknownTaskFilter(logging.Filter):
    """Takes body and headers out of Celery's record about an unknown task of ours; drops nothing."""

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        """Changes such a record in place: a warning with the name and the id."""
        if not str(record.msg).startswith(_CELERYS_WORDS):
            return True
        name = _task_of(record)
        if name.startswith(TASK_PREFIX):
            record.msg, record.args = _OUR_WORDS, (_id_of(record)[:100], name[:100])
            record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
            # Its text names the task once more and its frames are Celery's own.
            record.exc_info = record.exc_text = None
        return True


def _task_of(record: logging.LogRecord) -> str:
    error: Any = record.args[0] if isinstance(record.args, tuple) and record.args else None
    return str(error.args[0]) if isinstance(error, KeyError) and error.args else ""


def _id_of(record: logging.LogRecord) -> str:
    """The task's id; messages of Celery's first protocol have it in the body only, and it is left there."""
    parts: tuple[object, ...] = record.args if isinstance(record.args, tuple) else ()
    for part in parts:
        if isinstance(part, Mapping) and "id" in part:
            return str(cast("Mapping[str, object]", part)["id"])
    return "without id"


def hide_unknown_bodies() -> None:
    """Adds the filter to the logger of Celery's consumer, once in a process."""
    logger = logging.getLogger(_CELERYS_LOGGER)
    if not any(isinstance(one, UnknownTaskFilter) for one in logger.filters):
        logger.addFilter(UnknownTaskFilter())
