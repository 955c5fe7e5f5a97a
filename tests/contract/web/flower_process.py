"""Flower as a process, as people start it, on a port of its own."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from tests.contract.web.flower_site import LOGIN, Client
from tests.fleet import Process
from tests.redis_server import free_port
from tests.wait import wait_until

ARES: Final = (sys.executable, "-m", "ares_celery.cli.main")
CELERY: Final = (sys.executable, "-m", "celery")


def start_flower(
    processes: list[Process], folder: Path, *command: str, env: Mapping[str, str], **where: str
) -> tuple[Client, Process]:
    """Starts one, notes it down, and waits until it answers; ``where``: its host and prefix, if others than usual."""
    client = Client(free_port(), **where)
    options = {"FLOWER_PORT": str(client.port), "FLOWER_BASIC_AUTH": LOGIN}
    name = f"flower-{client.port}"
    process = Process(name, list(command), {**options, **env}, folder / f"{name}.log")
    processes.append(process)

    def answers() -> bool:
        assert process.alive, process.log()
        with closing(socket.socket()) as asked:
            return asked.connect_ex((client.host, client.port)) == 0

    wait_until(answers, "Flower to answer", timeout=40)
    return client, process


def listens_at(process: Process, port: int) -> set[str]:
    """The addresses, in hexadecimal, at which a process listens on a port."""
    tables = [Path(f"/proc/{process.pid}/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    local = [fields[1].split(":") for line in tables[0] + tables[1] if (fields := line.split())[3] == "0A"]
    return {address for address, number in local if int(number, 16) == port}
