"""Flower with our routes as a process, as people start it: `ares flower`, `celery … flower --conf`, and `ares up`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from ares_celery import AgentSpec
from tests.contract.web.flower_process import ARES, CELERY, listens_at, start_flower
from tests.contract.web.flower_site import Client
from tests.fleet import Fleet, Process
from tests.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


def flower(fleet: Fleet, *command: str, env: Mapping[str, str] | None = None, **where: str) -> tuple[Client, Process]:
    """Starts a Flower beside the fleet, and waits until it answers."""
    return start_flower(fleet.processes, fleet.folder, *command, env={**fleet.env, **(env or {})}, **where)


def lasts(fault: Mapping[str, Any]) -> float:
    """Seconds from its begin to its end."""
    return (datetime.fromisoformat(fault["until"]) - datetime.fromisoformat(fault["since"])).total_seconds()


def slow_by_command(fleet: Fleet, agent_id: str, delay: str, duration: str) -> dict[str, Any]:
    """The fault that `ares chaos slow` injects."""
    command = [*ARES, "chaos", "slow", agent_id, delay, "--for", duration, "-o", "json"]
    done = subprocess.run(command, env=fleet.env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


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
        # Durations are text or numbers, to the server and to the command line.
        for delay, duration in (("2s", "1m30s"), (2, 90)):
            told = client.post("/arena/agent/one/slow", {"delay": delay, "duration": duration}).json
            assert (told["delay"], lasts(told)) == (2.0, 90.0)
            told = slow_by_command(fleet, "one", str(delay), str(duration))
            assert (told["delay"], lasts(told)) == (2.0, 90.0)
        assert [(one.delay, lasts(one.to_json())) for one in fleet.manager.list_faults("one")] == [(2.0, 90.0)]
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
