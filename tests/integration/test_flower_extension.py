"""Flower with our routes as a process, as people start it: `ares flower`, `celery … flower --conf`, and `ares up`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ares_celery import AgentSpec
from tests.contract.web.flower_site import LOGIN, Client
from tests.fleet import Fleet, Process
from tests.redis_server import free_port
from tests.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

ARES = (sys.executable, "-m", "ares_celery.cli.main")
CELERY = (sys.executable, "-m", "celery")


def flower(fleet: Fleet, *command: str, env: Mapping[str, str] | None = None, **where: str) -> tuple[Client, Process]:
    """Starts a Flower on a port of its own, and waits until it answers."""
    client = Client(free_port(), **where)
    options = {"FLOWER_PORT": str(client.port), "FLOWER_BASIC_AUTH": LOGIN}
    name = f"flower-{client.port}"
    process = Process(name, list(command), {**fleet.env, **options, **(env or {})}, fleet.folder / f"{name}.log")
    fleet.processes.append(process)

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


@pytest.mark.spec(147)
def test_the_arena_over_http(fleet: Fleet) -> None:
    """Statement 147, clause by clause, by a real Flower beside a real worker."""
    workers = [fleet.start_worker("first"), fleet.start_worker("second")]
    client, process = flower(fleet, *ARES, "-A", "workers.app", "flower")
    fleet.ready(*workers)
    fleet.manager.start_agent(AgentSpec(id="one", type="ticker"), wait="running", timeout=30)
    began = os.times().elapsed

    # Bound to 127.0.0.1 by default.
    assert listens_at(process, client.port) == {"0100007F"}
    with client.stream("/arena/stream") as events:
        assert events.response.status == 200
        # A bad id or bad JSON is 400.
        for agent_id in ("", "%20", "a%20b", "x" * 257):
            assert client.post(f"/arena/agent/{agent_id}/kill").status == 400
        for body in (b"{", b"[]", b'"a"'):
            assert client.post("/arena/agent/one/slow", body).status == 400
        # No key or a wrong one is 401.
        for login in (None, "operator:wrong"):
            assert client.post("/arena/agent/one/kill", login=login).status == 401
            assert client.get("/chaos/faults", login=login).status == 401
        # An unknown agent is 404.
        assert client.post("/arena/agent/nobody/kill").status == 404
        assert client.post("/arena/agent/nobody/slow", {"delay": 1}).status == 404
        # Durations are text or numbers, to the command line likewise.
        told = [client.post("/arena/agent/one/slow", {"delay": one, "duration": "1m30s"}).json for one in ("2s", 2)]
        assert [one["delay"] for one in told] == [2.0, 2.0]
        shown = fleet.manager.list_faults("one")
        assert [(one.delay, (one.until - one.since).total_seconds()) for one in shown] == [(2.0, 90.0)]
        assert events.until("fault.injected")["payload"]["kind"] == "slow"
        assert [one["kind"] for one in client.post("/chaos/heal").json["healed"]] == ["slow"]
        # A kill is answered, and the agent comes back.
        assert client.post("/arena/agent/one/kill").json["agent_id"] == "one"
        fleet.until("one", "running", incarnation=2, timeout=30)
        assert events.until("failover.completed")["agent_id"] == "one"
        # Survival is 202.
        begun = client.post("/arena/survival", {"duration": "10m", "interval": 60, "faults": ["slow_agent"], "seed": 1})
        assert begun.status == 202
        assert events.until("fault.injected")["payload"]["kind"] == "slow"
        # The stream is not cut at 15 s.
        wait_until(lambda: os.times().elapsed - began > 16, "16 s to pass", timeout=20)
        fleet.manager.inject_llm_failure("one")
        while events.until("fault.injected")["payload"]["kind"] != "llm":
            pass
        # SIGTERM ends the survival run in order, and Flower after it.
        assert fleet.manager.arena() is not None
        assert process.terminate() == 0
    assert fleet.manager.arena() is None


def test_the_stock_command_has_the_routes_with_two_lines_of_configuration(fleet: Fleet, tmp_path: Path) -> None:
    """Below Flower's prefix, too; and an address that somebody gives holds."""
    own = tmp_path / "own.py"
    own.write_text("from ares_celery.web.flower_extension import load\nload()\nurl_prefix = 'ops'\n")
    fleet.manager.start()
    command = [*CELERY, "-A", "workers.app", "flower", f"--conf={own}"]
    client, process = flower(fleet, *command, env={"FLOWER_ADDRESS": "127.0.0.2"}, host="127.0.0.2", prefix="/ops")
    assert listens_at(process, client.port) == {"0200007F"}
    assert client.get("/chaos/faults").json == {"faults": []}
    assert client.get("/chaos/faults", login=None).status == 401


def test_a_configuration_beside_ours_is_refused_with_the_two_lines(fleet: Fleet, tmp_path: Path) -> None:
    """It would take the place of ours, and the routes would be missing without a word."""
    command: list[Any] = [*ARES, "flower", "--conf=own.py"]
    ended = subprocess.run(
        command, env=fleet.env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 2
    assert "from ares_celery.web.flower_extension import load; load()" in ended.stderr
