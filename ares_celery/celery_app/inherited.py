"""Sockets that a pool child inherits from its worker's main process by the fork, and must let go of."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from celery import Celery

__all__ = ["broker_ports", "let_go_of_sockets"]

_FILES: Final = Path("/proc/self/fd")
_DEFAULT_PORTS: Final = {"amqp": 5672, "pyamqp": 5672, "amqps": 5671}
_REDIS_PORT: Final = 6379
_INTERNET: Final = frozenset({socket.AF_INET, socket.AF_INET6})


def broker_ports(app: Celery) -> frozenset[int]:
    """The TCP ports of every broker of the app, failover ones too; only for kinds whose port is known."""
    connection: Any = app.connection_for_read()
    try:
        urls = connection.alt or [connection.as_uri(include_password=True)]
    finally:
        connection.release()
    found = (urlsplit(str(url)) for url in urls)
    return frozenset(parts.port or _DEFAULT_PORTS.get(parts.scheme, _REDIS_PORT) for parts in found if parts.hostname)


def let_go_of_sockets(ports: Collection[int]) -> int:
    """Lets go of this process's copies of connections to these ports; the parent's stay open. Returns how many.

    While a child keeps a copy, the connection outlives the main process: Redis goes on and hands messages to a worker
    that is dead. The copies are replaced, not closed: objects inherited with them close their number later, which must
    not be somebody else's by then.
    """
    if not _FILES.is_dir():
        return 0
    count = 0
    nowhere = os.open(os.devnull, os.O_RDWR)
    try:
        for name in os.listdir(_FILES):  # noqa: PTH208 - a path for each would open more files meanwhile
            number = int(name)
            if number != nowhere and _peer_port(number) in ports:
                os.dup2(nowhere, number, inheritable=False)
                count += 1
    finally:
        os.close(nowhere)
    return count


def _peer_port(number: int) -> int | None:
    """The port that an open file is connected to; None for whatever is no TCP connection."""
    try:
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return None
        copy = socket.socket(fileno=os.dup(number))
    except OSError:
        return None
    with copy:
        if copy.family not in _INTERNET or copy.type != socket.SOCK_STREAM:
            return None
        try:
            return int(copy.getpeername()[1])
        except OSError:
            return None
