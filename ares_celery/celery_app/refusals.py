"""Answers by which a Redis says "not now": each costs the connection, which is made anew, and never the consumer.

A server whose memory is full, that became a replica, or that cannot save, refuses commands for some time and then is
well again. Kombu takes such answers for errors of a channel, and Celery ends its consumer for ever at the first one.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final, cast

import redis
from redis import exceptions
from typing_extensions import override

from ares_celery.clock import SystemClock

__all__ = ["REFUSALS", "NotNowError", "pause_after", "refusing"]

log: Final = logging.getLogger(__name__)

#: First words of such answers for which redis-py has no class of its own.
_NOT_NOW: Final = frozenset({"BUSY", "MISCONF", "NOREPLICAS", "UNBLOCKED"})
#: Seconds between two tries; Celery's own loop around its consumer would take five a second.
PAUSE: Final = 2.0


class NotNowError(redis.ResponseError):
    """The server refuses a command for a reason that passes."""


#: All of them, as they are raised; a server that loads its data raises a connection error by itself.
REFUSALS: Final[tuple[type[Exception], ...]] = (
    NotNowError,
    exceptions.ReadOnlyError,
    exceptions.OutOfMemoryError,
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
)

if TYPE_CHECKING:
    _Connection = redis.Connection
else:
    _Connection = object


class _Refusing(_Connection):
    """Gives refusals that come as a mere text a type, so that they can be told from mistakes."""

    @override
    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """Reads one answer. Raises what the server answered."""
        stock: Any = super()
        try:
            return stock.read_response(*args, **kwargs)
        except redis.ResponseError as error:
            text = str(error)
            if type(error) is redis.ResponseError and text.partition(" ")[0] in _NOT_NOW:
                raise NotNowError(text) from error
            raise


def refusing(connection_class: type[Any]) -> type[Any]:
    """The class of connections, with typed refusals."""
    return cast("type[Any]", type(connection_class.__name__, (_Refusing, connection_class), {}))


def pause_after(error: Exception) -> None:
    """Says that the broker refuses, and waits a moment, as the next connection would be refused too."""
    log.warning("the broker refuses commands, tried again in %g s: %s: %s", PAUSE, type(error).__name__, error)
    SystemClock().wait(threading.Event(), PAUSE)
