"""Workers with a snapshot store and a memory manager of the user's own, named by hooks; one of them is killed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ares_celery import AgentSpec
from tests.fleet import Fleet

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

INTERVAL = 0.5
#: For the save itself, and for a machine that others use too.
SLACK = 0.5


@pytest.mark.spec(92)
@pytest.mark.spec(6, 19)
def test_the_state_that_a_killed_worker_leaves_in_the_users_store_is_at_most_one_interval_old(
    make_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    """Every 0.5 s a snapshot; after SIGKILL another worker goes on from one that is no older.

    The workers' memory manager has the event store and gives a conversation to an agent without a snapshot.
    """
    fleet = make_fleet(SNAPSHOT_INTERVAL=f"{INTERVAL}s")
    own = {"ARES_AGENT_MODULES": "tests.own_stores", "OWN_STORES_FOLDER": str(tmp_path)}
    first = fleet.worker("first", env=own)
    fleet.manager.start_agent(AgentSpec(id="w", type="stopwatch"), wait="running")
    fleet.manager.start_agent(AgentSpec(id="l", type="listener"), wait="running")
    heard = json.loads((tmp_path / "heard-l").read_text())
    assert (heard["session_id"], heard["conversation_history"][0]["content"]) == ("s", "hello l")
    assert (tmp_path / f"events-{first.pid}").read_text() == "RedisEventStore"
    kept = tmp_path / "w.json"
    fleet.wait(lambda: kept.exists() and json.loads(kept.read_text())["count"] > 50, "several snapshots")
    fleet.worker("second", env=own)

    killed = time.monotonic()
    first.kill()
    fleet.until("w", "running", incarnation=2)

    restored = [json.loads(line) for line in (tmp_path / "restored").read_text().splitlines()][-1]
    assert killed - restored["at"] <= INTERVAL + SLACK
    assert restored["count"] > 50
    assert set(restored) == {"count", "at"}
    assert fleet.store.stored_snapshots(fleet.record("w").id) == []
    assert fleet.record("w").state_saved
