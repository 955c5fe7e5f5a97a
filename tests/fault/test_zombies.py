"""Workers that are frozen until others have taken over, and then wake up: they may write nothing and end at once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import pytest

from ares_celery import AgentSpec
from tests.fleet import AGENTS, Fleet, Process
from tests.wait import assert_stays

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

TICKERS = 2
#: What two busy cores may add to a heartbeat, in seconds.
SLACK = 0.7


class Line(NamedTuple):
    """A line that a ticker wrote after an acknowledged tick."""

    agent_id: str
    incarnation: int
    total: int
    at: float


def read_journal(path: Path) -> list[Line]:
    """What tickers wrote so far."""
    lines = [line.split() for line in path.read_text().splitlines()]
    return [Line(agent_id, int(incarnation), int(total), float(at)) for agent_id, incarnation, total, at in lines]


def ids_of(prefix: str) -> list[str]:
    """The tickers of a test."""
    return [f"{prefix}{number}" for number in range(TICKERS)]


def assert_fenced_from_the_verdict_on(fleet: Fleet, agent_id: str, old_epoch: int) -> None:
    """After failover.triggered no event of the old incarnation was stored, and the stream has no flaw."""
    events = fleet.events(agent_id)
    (verdict,) = [event.version for event in events if event.type == "failover.triggered"]
    assert {event.epoch for event in events if event.type == "ticked" and event.version < verdict} == {old_epoch}
    after = {event.epoch for event in events if event.type == "ticked" and event.version > verdict}
    assert len(after) == 1
    assert after != {old_epoch}
    fleet.check_streams(agent_id)


def has_ended(zombie: Process, agent_id: str) -> bool:
    """The worker says that the agent's task is over, and that it was fenced."""
    lines = [line for line in zombie.log().splitlines() if f"('{agent_id}'" in line]
    return any("succeeded" in line and "{'noop': 'fenced'}" in line for line in lines)


def freeze_until_taken_over(fleet: Fleet, zombie: Process, ids: list[str]) -> None:
    """SIGSTOP beyond the lease, until every agent ticks elsewhere."""
    zombie.freeze()
    for agent_id in ids:
        fleet.until(agent_id, "running", incarnation=2, timeout=30)
        fleet.until_ticks(agent_id, fleet.ticks(agent_id))


@pytest.mark.spec(52)
@pytest.mark.parametrize("pool", ["threads", pytest.param("prefork", marks=pytest.mark.pain("P4"))])
def test_a_worker_that_wakes_up_after_its_agents_moved_writes_nothing_and_ends_them(
    fleet: Fleet, tmp_path: Path, pool: str
) -> None:
    """SIGSTOP beyond the lease, SIGCONT: refused from the verdict on, over in a heartbeat, no gap, no mixed epochs."""
    zombie = fleet.worker("zombie", [AGENTS], pool=pool, slots=4)
    journal, ids = tmp_path / "journal", ids_of("z")
    for agent_id in ids:
        config = {"every": 0.02, "journal": str(journal)}
        fleet.manager.start_agent(AgentSpec(id=agent_id, type="ticker", config=config), wait="running")
    fleet.manager.start_agent(AgentSpec(id="p", type="parent"), wait="running")
    child = int(fleet.manager.process("p", "pids")["child"])
    within = fleet.config.heartbeat_interval.total_seconds() + SLACK
    epochs = {agent_id: fleet.info(agent_id).epoch for agent_id in ids}
    fleet.worker("standby", slots=8)

    freeze_until_taken_over(fleet, zombie, ids)
    fleet.until("p", "running", incarnation=2)
    thawed = time.monotonic()
    zombie.thaw()

    fleet.wait(lambda: all(has_ended(zombie, agent_id) for agent_id in ids), "the old incarnations to end")
    assert time.monotonic() - thawed <= within
    fleet.wait(lambda: has_ended(zombie, "p"), "the old incarnation to end, and with it what it started")
    for agent_id in ids:
        fleet.until_ticks(agent_id, fleet.ticks(agent_id) + 20)
    late = [line.at - thawed for line in read_journal(journal) if line.incarnation == 1 and line.at > thawed]
    assert max(late, default=0.0) <= within
    for agent_id in ids:
        assert_fenced_from_the_verdict_on(fleet, agent_id, epochs[agent_id])
    assert zombie.alive
    if pool == "prefork":
        fleet.wait(lambda: not Path(f"/proc/{child}").exists(), "the child of the zombie's agent to be ended")
    assert_stays(lambda: {fleet.info(agent_id).incarnation for agent_id in ids} == {2}, "one takeover", seconds=1)
