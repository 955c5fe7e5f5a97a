"""Hints that an agent should be looked at now, from a channel of Redis."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final, cast

from ares_celery.clock import Clock
from ares_celery.errors import AresError
from ares_celery.ids import AgentId
from ares_celery.store.base import InboxMessage
from ares_celery.store.redis.connections import Driver
from ares_celery.store.redis.driver_errors import DriverErrors
from ares_celery.store.redis.mailbox_calls import read_hint

__all__ = ["RedisWakeups"]

_Mail = Callable[[str, InboxMessage | str], bool]

_log: Final = logging.getLogger(__name__)

#: Seconds of one wait for a hint; so long closing may take.
POLL: Final = 0.5
#: Seconds until a broken connection is made anew; doubled each time, up to the second number.
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0


class RedisWakeups:
    """Implements :class:`~ares_celery.runtime.ports.Wakeups`: a thread of its own, on a connection of its own.

    Hints that are sent while the connection is broken are lost, as the port allows: the next heartbeat sees the same.
    """

    def __init__(self, connect: Callable[[], Driver], channel: str, *, errors: DriverErrors, clock: Clock) -> None:
        self._connect = connect
        self._channel = channel
        self._errors = errors
        self._clock = clock
        self._stop = threading.Event()
        self._listening = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_listening(self) -> bool:
        """The server has been asked for the hints; False while the connection is broken."""
        return self._listening.is_set()

    def listen(
        self,
        callback: Callable[[AgentId], None],
        mail: _Mail | None = None,
    ) -> None:
        """Starts to deliver hints; an exception of the callbacks is logged and ends nothing.

        Raises:
            RuntimeError: It listens already, or was closed.
        """
        if self._thread is not None or self._stop.is_set():
            raise RuntimeError(f"channel {self._channel} is listened to already or was closed; make a new one")
        self._thread = threading.Thread(target=self._run, args=(callback, mail), name="ares-wakeups", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; idempotent, and safe to call from the callback."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self, callback: Callable[[AgentId], None], mail: _Mail | None) -> None:
        pause = FIRST_PAUSE
        while not self._stop.is_set():
            try:
                self._follow(callback, mail)
            except Exception as error:  # noqa: BLE001 - whatever ended the listening, it begins anew
                if self._listening.is_set():
                    pause = FIRST_PAUSE
                self._listening.clear()
                # The stack of what is no error of ours is for whoever has to find out.
                trace = None if isinstance(error, AresError) else error
                _log.warning(
                    "no hints for now, the heartbeat will do: %s; next try in %.1f s", error, pause, exc_info=trace
                )
                self._clock.wait(self._stop, pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _follow(self, callback: Callable[[AgentId], None], mail: _Mail | None) -> None:
        """Delivers hints until told to stop, or until the connection breaks."""
        with self._errors:
            pubsub = self._connect().pubsub(ignore_subscribe_messages=True)
            try:
                pubsub.subscribe(self._channel)
                self._listening.set()
                connection = pubsub.connection
                while not self._stop.is_set():
                    # Read as it comes, as a question to an agent waits for its hint: the driver's own way costs half
                    # as much again as the whole way through the server. While nothing comes it tries the connection.
                    if connection.can_read(timeout=POLL):
                        _take(connection.read_response(), callback, mail)
                    else:
                        pubsub.check_health()
            finally:
                pubsub.close()


def _take(
    answer: Any,  # noqa: ANN401 - what the driver gave
    callback: Callable[[AgentId], None],
    mail: _Mail | None,
) -> None:
    """Delivers what a channel brought; the answers to subscribing and to trying the connection are no hints."""
    if isinstance(answer, list) and answer[0] == b"message":
        _deliver(callback, mail, cast("list[bytes]", answer)[2])


def _deliver(callback: Callable[[AgentId], None], mail: _Mail | None, payload: bytes) -> None:
    agent_id = payload.partition(b"\n")[0]
    try:
        hint = read_hint(payload) if mail is not None else None
        if mail is None or hint is None or not mail(*hint):
            callback(AgentId(agent_id.decode()))
    except UnicodeDecodeError:
        _log.warning("a hint that is no text is ignored: %r", payload[:100])
    except Exception:  # noqa: BLE001 - foreign code; the next hint must come through
        _log.exception("a hint to look at agent %r was lost in its callback", agent_id.decode(errors="replace"))
