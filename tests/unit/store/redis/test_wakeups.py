"""Hints from a channel: whatever comes, the next one is heard."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from ares_celery.clock import SystemClock
from ares_celery.ids import AgentId, Instant
from ares_celery.model.message import MessageKind
from ares_celery.store.base import InboxMessage
from ares_celery.store.redis.driver_errors import DriverErrors
from ares_celery.store.redis.mailbox_calls import read_hint
from ares_celery.store.redis.wakeups import RedisWakeups
from tests.wait import wait_until


class Channel:
    """A driver, its subscription and its connection in one: gives payloads, or raises, in turn."""

    def __init__(self, *turns: bytes | Exception) -> None:
        self._turns = list(turns)

    def pubsub(self, **_: object) -> Channel:
        return self

    def subscribe(self, channel: str) -> None:
        pass

    def close(self) -> None:
        pass

    @property
    def connection(self) -> Channel:
        return self

    def can_read(self, timeout: float) -> bool:
        if not self._turns:
            threading.Event().wait(0.01)
        return bool(self._turns)

    def check_health(self) -> None:
        pass

    def read_response(self) -> list[bytes]:
        turn = self._turns.pop(0)
        if isinstance(turn, Exception):
            raise turn
        return [b"message", b"hints", turn]


@pytest.mark.parametrize("bad", [b"\xff\xfe", ValueError("a bug of the driver"), OSError("gone")], ids=repr)
def test_whatever_a_channel_brings_the_next_hint_comes_through(
    bad: bytes | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """A payload that is no text, or an error that nobody foresaw, is told and ends nothing."""
    channel: Any = Channel(bad, b"counter-1")
    wakeups = RedisWakeups(lambda: channel, "hints", errors=DriverErrors("redis://here"), clock=SystemClock())
    heard: list[AgentId] = []
    wakeups.listen(heard.append)
    try:
        wait_until(lambda: heard == ["counter-1"], "the hint")
    finally:
        wakeups.close()
    # Threads of other tests may say something of their own meanwhile.
    told = [record.levelname for record in caplog.records if record.name == "ares_celery.store.redis.wakeups"]
    assert told == ["WARNING"]


@pytest.mark.parametrize(("word", "number", "signal"), [("message", (), 0), ("mail", ("7",), 7)])
def test_hints_of_this_and_of_the_last_version_are_read(word: str, number: tuple[str, ...], signal: int) -> None:
    """A caller of the last version does not say the message's number."""
    parts = ("a", word, "3|token", "5-0", "send", "1700000000000000", *number, "3", 'm\n1"b\n"')
    message = InboxMessage(
        "5-0", "m\n1", "b\n", wants_reply=False, time=Instant(1700000000000000), kind=MessageKind.SEND, signal=signal
    )
    assert read_hint("\n".join(parts).replace('b\n"', 'b\\n"').encode()) == ("3|token", message)
    assert read_hint(b"a") is None
    assert read_hint(b"a\nsomething of a later version\n3|token") is None
