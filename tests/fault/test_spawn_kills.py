"""Processes that die by SIGKILL in the middle of a spawn: each child is made once, or was never made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from ares_celery import AgentSpec
from ares_celery.store.redis.keys import Keys
from tests.fleet import Fleet

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]


def cascades(fleet: Fleet) -> list[str]:
    """Agents whose children are still to be looked at."""
    keys = Keys(fleet.namespace, fleet.config.shards)
    with redis.Redis.from_url(fleet.redis.url, decode_responses=True) as client:
        found: list[Any] = [one for shard in range(keys.shards) for one in client.zrange(keys.deadlines(shard), 0, -1)]
    return [one for one in found if one.startswith("children|")]


def test_a_child_is_made_once_although_its_parent_dies_in_the_middle(
    make_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    """SIGKILL when the parent has listed the child, and when the child is made and the parent's step not recorded.

    The next life makes the same call again: no child is lost, none is doubled. Of a parent that does not come back the
    cascade leaves nothing behind, and a start by hand makes its child.
    """
    fleet = make_fleet(RESTORE_BACKOFF="50ms", STABLE_AFTER="20s")
    fleet.worker("prefork", pool="prefork", slots=8, env={"ARES_AGENT_MODULES": "tests.spawn_agents"})
    manager = fleet.manager

    def starts(child: str) -> str:
        path = tmp_path / f"{child}.starts"
        return path.read_text() if path.exists() else ""

    children = {"c0": "", "c1": "listed", "c2": "made", "c3": ""}
    config = {"folder": str(tmp_path), "children": children}
    manager.start_agent(AgentSpec(id="p", type="breeder", config=config))
    config = {"folder": str(tmp_path), "children": {"d1": "listed"}}
    manager.start_agent(AgentSpec(id="q", type="breeder", restart="temporary", config=config))

    fleet.wait(lambda: fleet.events("p", "bred"), "all children to be spawned")
    fleet.wait(lambda: all(map(starts, children)), "all children to be started")
    fleet.until("q", "stopped")
    assert manager.get_agent_info("d1") is None

    assert [fleet.info("p").restarts, fleet.info("p").deaths] == [2, {"lost": 2}]
    assert sorted(path.name for path in tmp_path.glob("*.killed")) == ["c1.killed", "c2.killed", "d1.killed"]
    spawned = [event.payload["child"] for event in fleet.events("p", "child.spawned")]
    assert spawned == list(children)
    assert fleet.record("p").children == len(children)
    for child in children:
        assert starts(child) == "1\n", f"{child} was started more than once"
        assert len(fleet.events(child, "agent.started")) == 1
        assert (fleet.info(child).incarnation, fleet.info(child).parent) == (1, "p")

    # The list has a child that was never made: nothing waits for it.
    manager.stop_agent("q", wait=True)
    fleet.wait(lambda: not cascades(fleet), "the cascade to be over")
    assert manager.get_agent_info("d1") is None
    manager.start_agent("q")
    fleet.wait(lambda: starts("d1"), "the child to be started")
    assert fleet.info("d1").parent == "q"

    manager.stop_agent("p", wait=True)
    for child in children:
        fleet.until(child, "stopped")
        assert (starts(child), len(fleet.events(child, "agent.started"))) == ("1\n", 1)
    assert (starts("d1"), fleet.info("d1").state) == ("1\n", "running")
