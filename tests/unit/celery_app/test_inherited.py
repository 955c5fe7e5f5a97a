"""A forked child lets go of its parent's connections: then their end is seen when the parent ends."""

from __future__ import annotations

import os
import signal
import socket

import pytest
from celery import Celery

from ares_celery.celery_app.inherited import broker_ports, let_go_of_sockets


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_connection_ends_with_the_parent_although_a_child_lives() -> None:
    """The server reads the end of the stream while the child is still there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        served, _ = server.accept()
        ready, told = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(told, str(let_go_of_sockets({port})).encode())
            signal.pause()
        try:
            assert os.read(ready, 8) == b"1"
            client.sendall(b"the parent still speaks")
            assert served.recv(100) == b"the parent still speaks"
            client.close()
            served.settimeout(5)
            assert served.recv(100) == b""
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            served.close()
            os.close(ready)
            os.close(told)


def test_other_connections_and_files_are_left_alone() -> None:
    """Only the named ports; pipes, listeners and files are none of its business."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert let_go_of_sockets({server.getsockname()[1] ^ 1}) == 0
        client.sendall(b"x")


def test_every_broker_of_a_failover_list_is_known() -> None:
    """Also where the port is the scheme's own."""
    app = Celery("t", broker="redis://127.0.0.1:7001/0;redis://127.0.0.1:7002/0", set_as_current=False)
    assert broker_ports(app) == {7001, 7002}
    assert broker_ports(Celery("t", broker="redis://127.0.0.1/0", set_as_current=False)) == {6379}
