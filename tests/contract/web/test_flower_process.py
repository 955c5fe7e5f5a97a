"""Flower as people start it, with the lowest and the highest version: where it listens, and who is let in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.web.flower_process import ARES, CELERY, listens_at, start_flower
from tests.fleet import Process
from tests.redis_server import RedisServer

APP = ("-A", "ares_celery.cli.builtin_app")


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    """What the test started; it ends with it."""
    started: list[Process] = []
    yield started
    for process in started:
        process.end()


@pytest.fixture
def env(redis_server: RedisServer, namespace: str) -> dict[str, str]:
    """Where processes find the namespace; nothing of Flower's that the suite happens to run with."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWER_", "ARES_"))}
    return {**kept, "ARES_REDIS_URL": redis_server.url, "ARES_NAMESPACE": namespace}


def conf_of_the_package() -> str:
    """The path that the package prints for ``--conf``."""
    command = [sys.executable, "-m", "ares_celery.web.flower_extension"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("way", ["ares flower", "celery flower --conf"])
def test_the_routes_are_on_the_loopback_behind_the_login(
    way: str, processes: list[Process], env: dict[str, str], tmp_path: Path
) -> None:
    """By our own command, and by Celery's with the configuration of the package; SIGTERM ends it with exit code 0."""
    ours = (*ARES, *APP, "flower")
    command = ours if way == "ares flower" else (*CELERY, *APP, "flower", f"--conf={conf_of_the_package()}")
    client, process = start_flower(processes, tmp_path, *command, env=env)
    assert listens_at(process, client.port) == {"0100007F"}
    with client.stream("/arena/stream") as events:
        assert (events.response.status, events.frame()[""]) == (200, "it has begun")
        for login in (None, "operator:wrong"):
            assert client.get("/chaos/faults", login=login).status == 401
            assert client.post("/chaos/heal", login=login).status == 401
        assert client.post("/chaos/heal", Origin="http://elsewhere.example").status == 403
        assert client.get("/chaos/faults").json == {"faults": []}
        assert client.post("/arena/agent/nobody/slow", {"delay": "1s"}).status == 404
        assert process.terminate() == 0, process.log()
