"""Which answers of a server cost a connection, and which go on as they are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import redis
from kombu import Connection
from kombu.transport.virtual import QoS as VirtualQoS
from redis import exceptions
from redis.connection import AbstractConnection

from ares_celery.celery_app.refusals import REFUSALS, NotNowError, refusing
from ares_celery.celery_app.transport import OutageTolerantQoS, RedisTransport, SentinelTransport, register_transports


class Answering:
    """A connection whose server answers one thing."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def read_response(self, *, disable_decoding: bool = False) -> object:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    "text",
    [
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
        "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
        "NOREPLICAS Not enough good replicas to write.",
        "BUSY Redis is busy running a script.",
    ],
)
def test_a_refusal_without_a_class_gets_one(text: str) -> None:
    """The driver knows no class for it, and its text stays."""
    with pytest.raises(NotNowError, match=text.partition(" ")[0]):
        refusing(Answering)(redis.ResponseError(text)).read_response()


@pytest.mark.parametrize(
    "error", [redis.ResponseError("WRONGTYPE no list"), redis.ReadOnlyError("a replica"), redis.ConnectionError("BUSY")]
)
def test_other_answers_stay_as_they_are(error: Exception) -> None:
    """A mistake is none that passes; what has a class keeps it."""
    with pytest.raises(type(error)) as caught:
        refusing(Answering)(error).read_response()
    assert caught.value is error
    assert refusing(Answering)(b"PONG").read_response(disable_decoding=True) == b"PONG"


@pytest.mark.parametrize("transport", [RedisTransport, SentinelTransport])
@pytest.mark.parametrize(
    "error",
    [
        NotNowError("x"),
        redis.ReadOnlyError("x"),
        exceptions.OutOfMemoryError("x"),
        exceptions.MasterDownError("x"),
        redis.BusyLoadingError("x"),
    ],
)
def test_to_celery_a_refusal_is_a_lost_connection(transport: Any, error: Exception) -> None:
    """Celery makes those anew; of all else its consumer dies."""
    assert isinstance(error, transport.connection_errors)
    assert not isinstance(redis.ResponseError("WRONGTYPE"), transport.connection_errors)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("url", ["ares-redis://h", "ares-rediss://h", "ares-redis+socket:///s"])
def test_every_connection_of_ours_types_refusals(url: str, *, asynchronous: bool) -> None:
    """TCP, TLS and unix sockets; the one that blocks and those that do not."""
    register_transports()
    connection = Connection(url)
    channel: Any = object.__new__(RedisTransport.Channel)
    channel.connection = SimpleNamespace(client=connection, default_port=6379)
    channel._registered = False
    made = channel._connparams(asynchronous)["connection_class"]
    assert issubclass(made, AbstractConnection)
    assert "_Refusing" in [base.__name__ for base in made.__mro__]


class Refusing:
    """A channel whose server refuses to note anything."""

    unacked_key = "unacked"
    unacked_index_key = "unacked_index"
    do_restore = False
    closed = False

    def conn_or_acquire(self, client: object = None) -> object:
        raise exceptions.OutOfMemoryError("command not allowed")


def test_a_message_that_cannot_be_noted_is_delivered(caplog: pytest.LogCaptureFixture) -> None:
    """It is out of its queue already: to fail here would lose it."""
    channel: Any = Refusing()
    qos = OutageTolerantQoS(channel)
    message: Any = SimpleNamespace(delivery_info={"exchange": "e", "routing_key": "r"}, _raw={})
    qos.append(message, "tag")
    assert list(qos._delivered or ()) == ["tag"]
    assert "refuses to note message tag" in caplog.text
    assert issubclass(OutageTolerantQoS, VirtualQoS)
    assert exceptions.OutOfMemoryError in REFUSALS
