from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from kombu.transport.virtual import QoS as VirtualQoS

from ares_celery.celery_app.transport import OutageTolerantQoS


class FakeChannel:
    """A channel whose server fails as told; live or let go of by Kombu."""

    unacked_key = "unacked"
    unacked_index_key = "unacked_index"
    do_restore = False  # else the interpreter's end would try once more

    def __init__(self, error: Exception, *, closed: bool = False, detached: bool = False) -> None:
        self.error = error
        self.closed = closed
        self.connection = None if detached else SimpleNamespace(client=object())

    def conn_or_acquire(self, client: object = None) -> AbstractContextManager[object]:
        raise self.error


def make_qos(error: Exception, *, closed: bool = False, detached: bool = False) -> OutageTolerantQoS:
    """A QoS that holds one unacknowledged message, `tag`."""
    channel: Any = FakeChannel(error, closed=closed, detached=detached)
    qos = OutageTolerantQoS(channel)
    VirtualQoS.append(qos, object(), "tag")
    return qos


def act(qos: OutageTolerantQoS, action: str) -> None:
    """Do one of the three guarded things."""
    match action:
        case "ack":
            qos.ack("tag")
        case "reject":
            qos.reject("tag")
        case "requeue":
            qos.reject("tag", requeue=True)
        case _:
            qos.restore_unacked()


def held(qos: OutageTolerantQoS) -> list[str]:
    """The tags still held as unacknowledged."""
    return [tag for tag in qos._delivered or () if tag not in (qos._dirty or ())]


ACTIONS = ["ack", "reject", "requeue", "restore_unacked"]


@pytest.mark.parametrize("action", ACTIONS)
def test_on_a_detached_channel_a_failure_is_logged_and_the_message_let_go(
    action: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The channel of a dead connection must not end the consumer; the warning names the message."""
    qos = make_qos(AttributeError("'NoneType' object has no attribute 'hostname'"), closed=True, detached=True)
    act(qos, action)
    assert held(qos) == []
    told = [record.levelname for record in caplog.records if record.name == "ares_celery.celery_app.transport"]
    assert told == ["WARNING"]
    assert "Delivery tags: tag" in caplog.text
    assert "hostname" in caplog.text


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("error", [redis.ConnectionError("away"), redis.ResponseError("refused"), TypeError("a bug")])
def test_on_a_live_channel_every_error_goes_on(action: str, error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is swallowed while the connection lives: Celery retries or reports it as ever, the message stays held."""
    qos = make_qos(error)
    with pytest.raises(type(error)) as caught:
        act(qos, action)
    assert caught.value is error
    assert held(qos) == ["tag"]
    assert not caplog.records


@pytest.mark.parametrize(
    "error", [redis.ConnectionError("away"), redis.ReadOnlyError("a replica now"), OSError("reset")]
)
def test_closing_a_channel_survives_a_server_that_is_away(error: Exception) -> None:
    """A channel that closes while its server is away leaves the messages there, and its siblings close as well."""
    qos = make_qos(error, closed=True)
    qos.restore_unacked()
    assert held(qos) == []


def test_closing_a_channel_does_not_hide_a_bug() -> None:
    """An error that no server raises goes on, at closing time too."""
    with pytest.raises(TypeError, match="a bug"):
        make_qos(TypeError("a bug"), closed=True).restore_unacked()


def test_the_dotted_path_imports_neither_celery_nor_the_rest_of_the_package() -> None:
    """Kombu imports the class by its path in every process: that must stay cheap."""
    code = "import sys, ares_celery.celery_app.transport; print('celery' in sys.modules, 'pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.split() == ["False", "False"]
