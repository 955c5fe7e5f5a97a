"""Redis stalls or dies while agents run: an outage is not a death, and nothing acknowledged is lost or doubled."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from ares_celery import AgentSpec
from tests.fleet import AGENTS, CONTROL, SUPERVISION, Fleet
from tests.wait import assert_stays

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

#: Seconds beyond which a client of ours gives an answer up, with some to spare: store/redis/connections.py.
BEYOND_THE_SOCKET_TIMEOUT = 6.0


def start(fleet: Fleet, ids: Iterable[str], type: str, **config: object) -> None:
    """Starts tickers and waits until each has ticked."""
    for agent_id in ids:
        fleet.manager.start_agent(AgentSpec.model_validate({"id": agent_id, "type": type, "config": config}))
    for agent_id in ids:
        fleet.until_ticks(agent_id, 2)


def journal_of(path: Path, agent_id: str) -> list[int]:
    """The numbers of the ticks that an agent knows to be stored."""
    lines = [line.split() for line in path.read_text().splitlines()]
    return [int(words[2]) for words in lines if words[0] == agent_id]


def repeated_appends(fleet: Fleet) -> int:
    """How often a stored entry was read back: what a claim and the repeat of an append do, and nothing else here."""
    with fleet.redis.client() as client:
        calls = client.info("commandstats").get("cmdstat_xrange", {"calls": 0})
    return int(calls["calls"])


def assert_went_on(fleet: Fleet, ids: Iterable[str]) -> None:
    """Still the first incarnation of each, ticking, with every tick stored once and in order."""
    for agent_id in ids:
        fleet.until_ticks(agent_id, fleet.ticks(agent_id) + 5)
        info = fleet.info(agent_id)
        assert (info.state, info.incarnation, info.restarts) == ("running", 1, 0)
        fleet.check_streams(agent_id)


def test_an_append_whose_reply_is_lost_is_stored_once_and_the_agent_goes_on(fleet: Fleet) -> None:
    """SIGSTOP of the server beyond the client's patience: it stores what it had received, and no repeat of it."""
    worker = fleet.worker("worker")
    plain, on_loop = [f"plain{n}" for n in range(4)], [f"loop{n}" for n in range(4)]
    start(fleet, on_loop, "ticker", every=0.002)
    start(fleet, plain, "plain-ticker", every=0.002)

    ids, repeats = [*plain, *on_loop], repeated_appends(fleet)
    fleet.redis.pause()
    assert_stays(lambda: worker.alive, "the worker", seconds=BEYOND_THE_SOCKET_TIMEOUT)
    fleet.redis.resume()

    stored = {agent_id: fleet.record(agent_id).version for agent_id in ids}
    fleet.wait(lambda: all(fleet.record(a).version > stored[a] + 10 for a in ids), "every agent to go on")
    assert repeated_appends(fleet) > repeats, (
        "an append was stored, its reply lost, and the repeat told what was stored"
    )
    assert worker.log().count("the store does not answer") >= len(ids)
    assert_went_on(fleet, ids)


def test_a_redis_that_dies_and_comes_back_with_its_file_costs_no_agent(
    make_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    """SIGKILL of Redis for 5 s: workers consume within 15 s, no agent was restarted, no tick is lost or doubled."""
    fleet = make_fleet(appendonly=True)
    threads = fleet.worker("threads", [AGENTS, SUPERVISION, CONTROL, "threads"])
    prefork = fleet.worker("prefork", [AGENTS, "prefork"], pool="prefork", slots=4)
    ids, journal = ["t0", "t1", "p0", "p1"], tmp_path / "journal"
    for agent_id in ids:
        queue = "threads" if agent_id.startswith("t") else "prefork"
        config = {"every": 0.02, "journal": str(journal)}
        fleet.manager.start_agent(AgentSpec(id=agent_id, type="ticker", config=config, queue=queue), wait="running")
        fleet.until_ticks(agent_id, 2)

    fleet.redis.kill()
    assert_stays(lambda: threads.alive and prefork.alive, "both workers", seconds=5)
    fleet.redis.start()

    fleet.manager.start_agent(AgentSpec(id="new-t", type="ticker", queue="threads"))
    fleet.manager.start_agent(AgentSpec(id="new-p", type="ticker", queue="prefork"))
    asked = fleet.send("ares.stats", queue=CONTROL)
    fleet.until("new-t", "running", timeout=15)
    fleet.until("new-p", "running", timeout=15)
    assert fleet.result(asked, timeout=15)["active_agents"] >= len(ids)
    assert_went_on(fleet, ids)
    for agent_id in ids:
        known = journal_of(journal, agent_id)
        assert known == list(range(1, len(known) + 1)), "each tick was acknowledged once"
        assert fleet.ticks(agent_id) >= len(known)
    # Longer than a lease and the sweepers' window: whoever wanted to judge has had the time.
    assert_stays(lambda: {fleet.info(a).incarnation for a in ids} == {1}, "no verdict", seconds=4, interval=0.2)
