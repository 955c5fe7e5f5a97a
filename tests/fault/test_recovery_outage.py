"""Redis is away for longer than a recovery may take: a recovery that waited for it is no recovery that hung."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ares_celery import AgentSpec
from tests.fleet import Fleet
from tests.wait import assert_stays

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

OUTAGE = 4.5


def test_a_start_that_had_no_store_for_longer_than_start_timeout_is_not_charged(
    make_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    """All are being made when Redis stalls; the deadlines pass meanwhile, and nobody is judged by them."""
    fleet = make_fleet(START_TIMEOUT="3s")
    worker = fleet.worker("worker", slots=20)
    flag = tmp_path / "flag"
    flag.touch()
    config = {"flag": str(flag), "journal": str(tmp_path / "journal"), "takes": 1.0}
    ids = [f"made-{number:02}" for number in range(12)]
    for agent_id in ids:
        fleet.manager.start_agent(AgentSpec(id=agent_id, type="slow-maker", config=config))
    fleet.wait(lambda: all(fleet.record(agent_id).hosted for agent_id in ids), "every start to be under way")
    fleet.redis.pause()
    assert_stays(lambda: worker.alive, "the worker", seconds=OUTAGE)
    fleet.redis.resume()
    for agent_id in ids:
        info = fleet.until(agent_id, "running")
        assert (info.incarnation, info.restarts, info.charged) == (1, 0, 0)
