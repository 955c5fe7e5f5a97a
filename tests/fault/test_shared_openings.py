"""What agents of a pool child share outlives each of them, comes back after a kill, and ends with the child."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ares_celery import AgentFailedError, AgentSpec
from tests.fleet import AGENTS, CONTROL, SUPERVISION, Fleet

pytestmark = [pytest.mark.fault, pytest.mark.timeout(90)]


def test_shared_servers_outlive_agents_and_end_with_their_pool_child(
    make_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    """An agent's own processes end with it, shared ones do not; a killed server starts again; a drain closes all."""
    journal = tmp_path / "journal"
    fleet = make_fleet()
    modules = {"ARES_AGENT_MODULES": "tests.shared_agents", "ARES_TEST_JOURNAL": str(journal)}
    worker = fleet.worker("w", [AGENTS, SUPERVISION, CONTROL], pool="prefork", slots=1, env=modules)

    first = _ask_and_stop(fleet, "a")
    fleet.wait(lambda: not _lives(first["left"]), "what the agent left behind to end")
    assert _lives(first["server"])
    second = _ask(fleet, "b")
    assert (second["pid"], second["server"]) == (first["pid"], first["server"]), "one connection for both"

    os.kill(first["server"], signal.SIGKILL)
    with pytest.raises(AgentFailedError, match="MCPConnectionLostError"):
        _ask(fleet, "b")
    third = _ask(fleet, "b")
    assert third["pid"] == first["pid"]
    assert third["server"] != first["server"]

    assert worker.terminate() == 0
    fleet.wait(lambda: not _lives(third["server"]), "the server to end with the pool child")
    child = first["pid"]
    assert journal.read_text().splitlines() == [f"open {child}", f"closed {child}"]


def _ask(fleet: Fleet, agent_id: str) -> dict[str, int]:
    fleet.manager.start_agent(AgentSpec(id=agent_id, type="sharer"), if_exists="return", wait="running", timeout=20)
    answer: Any = fleet.manager.process(agent_id, "who", timeout=15)
    return dict(answer)


def _ask_and_stop(fleet: Fleet, agent_id: str) -> dict[str, int]:
    answer = _ask(fleet, agent_id)
    fleet.manager.stop_agent(agent_id)
    return answer


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
