"""Faults on purpose in a fleet of real workers: what they do is real, and what follows is the recovery of always."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ares_celery import AgentNotRunningError, AgentSpec, Fault, OperationNotSupportedError
from ares_celery.ids import AgentId
from ares_celery.model.fault import FaultKind, Injection
from tests.fault.test_zombies import has_ended
from tests.fleet import AGENTS, CONTROL, SUPERVISION, Fleet
from tests.integration.command_line import ares

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]


def inject(fleet: Fleet, kind: FaultKind, *, duration: float = 60) -> Fault:
    """A fault on the one agent."""
    injection = Injection.of("t", kind, duration=duration, seed=5)
    return fleet.store.inject(injection, allowed=True, op=f"{kind.value}-1", reason="a test", actor="tester")


@pytest.mark.spec(136)
@pytest.mark.spec(137)
@pytest.mark.spec(52)
@pytest.mark.pain("P46")
def test_a_partition_a_corrupt_memory_and_a_kill_of_one_agent(fleet: Fleet) -> None:
    """Each ends the incarnation as it would in earnest; nothing acknowledged is lost, and nothing late is stored."""
    # A slot each: whoever is cut off holds its own, so that the next incarnation is another worker's.
    workers = {f"{name}@host": fleet.start_worker(name, slots=1) for name in ("one", "two")}
    fleet.ready(*workers.values())
    fleet.manager.start_agent(AgentSpec(id="t", type="ticker"), wait="running", timeout=20)
    fleet.until_ticks("t", 10)

    # -- cut off: its lease runs out, it goes on elsewhere, and the old one is fenced when it is healed
    first = fleet.info("t")
    inject(fleet, FaultKind.PARTITION)
    second = fleet.until("t", "running", incarnation=2)
    assert second.worker != first.worker
    seen = fleet.until_ticks("t", fleet.ticks("t") + 5)
    zombie = workers[str(first.worker)]
    assert zombie.alive
    assert not has_ended(zombie, "t"), "it is cut off, so it cannot know"
    (healed,) = fleet.store.heal(AgentId("t"), fault=None, op="heal-1", reason="", actor="tester")
    assert healed.kind is FaultKind.PARTITION
    fleet.wait(lambda: has_ended(zombie, "t"), "the old incarnation to be fenced")
    events = fleet.events("t")
    (stopped,) = [event for event in events if event.type == "agent.stopped"]
    late = [event for event in events if event.version > stopped.version and event.epoch == first.epoch]
    assert late == []

    # -- its memory is corrupt: the instance ends at its next call, the damaged snapshot is noticed and passed over
    fleet.until_ticks("t", seen + 20)
    inject(fleet, FaultKind.MEMORY)
    fleet.until("t", "running", incarnation=3)
    assert [event.payload["place"] for event in fleet.events("t", "snapshot.damaged")] == ["namespace"]
    reasons = [event.payload["reason"] for event in fleet.events("t", "agent.stopped")]
    assert reasons[1].startswith("MemoryCorruptedError: the memory of agent 't' was corrupted on purpose")
    assert dict(fleet.info("t").deaths) == {"lost": 1, "crash": 1}

    # -- killed: the task really dies, nobody meant the agent to stop, and it is resurrected
    before = fleet.until_ticks("t", fleet.ticks("t") + 5)
    host = workers[str(fleet.info("t").worker)]
    killed = fleet.manager.kill_agent("t", reason="a test", actor="tester")
    assert (killed["pid"], killed["co_tenants"]) == (host.pid, [])
    fleet.wait(lambda: not host.alive, "the worker to die")
    assert host.popen.returncode == -9
    info = fleet.until("t", "running", incarnation=4)
    assert (info.desired, info.restarts, workers[str(info.worker)].alive) == ("running", 3, True)
    fleet.until_ticks("t", before + 5)
    last = fleet.events("t", "agent.stopped")[-1]
    assert last.payload["auto_restore"] is True
    assert len(fleet.events("t", "failover.completed")) == 3
    fleet.check_streams("t")
    fleet.manager.stop_agent("t")
    with pytest.raises(AgentNotRunningError):
        fleet.manager.kill_agent("t")


@pytest.mark.spec(137)
def test_a_kill_by_command_names_first_who_dies_along_of_a_process_and_of_a_worker(
    make_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    """A pool child dies alone, its worker lives on; a worker dies with all that it hosts; nobody meant any to stop."""
    fleet = make_fleet(CHAOS="true")
    prefork = fleet.start_worker("pre", [AGENTS], pool="prefork", slots=2)
    fleet.ready(prefork)
    ids = ["a", "b"]
    for agent_id in ids:
        fleet.manager.start_agent(AgentSpec(id=agent_id, type="ticker"), wait="running", timeout=20)
        fleet.until_ticks(agent_id, 5)
    other = fleet.start_worker("other", [AGENTS, SUPERVISION, CONTROL], slots=4)
    fleet.ready(other)

    def kill(*words: str) -> tuple[int, str, str]:
        done = ares("chaos", *words, "-o", "json", env=fleet.env, folder=tmp_path)
        return done.returncode, done.stdout, done.stderr

    # -- one process of two: its own agent alone, so nobody has to be named
    child = fleet.host_pid("a")
    assert child in prefork.children()
    code, out, talk = kill("kill", "a")
    assert (code, talk) == (0, "")
    assert json.loads(out) == {"agent_id": "a", "pid": child, "worker": "pre@host", "co_tenants": []}
    fleet.until("a", "running", incarnation=2)
    assert prefork.alive
    assert (fleet.info("b").incarnation, fleet.info("b").restarts) == (1, 0)

    # -- the worker: refused with the names; with --force they come first, and all of it dies
    hosted = sorted(one for one in ids if fleet.info(one).worker == "pre@host")
    assert "b" in hosted
    before = {one: fleet.ticks(one) for one in ids}
    code, out, talk = kill("kill-worker", "pre@host")
    assert (code, out) == (5, "")
    assert f"it hosts {', '.join(hosted)}; pass --force" in talk
    assert (prefork.alive, fleet.info("b").incarnation) == (True, 1)
    children = prefork.children()
    incarnations = {one: fleet.info(one).incarnation for one in ids}
    code, out, talk = kill("kill-worker", "pre@host", "--force", "--reason", "to see")
    assert (code, talk) == (0, f"with it die: {', '.join(hosted)}\n")
    assert json.loads(out) == {"worker": "pre@host", "pid": prefork.pid, "agents": hosted}
    fleet.wait(lambda: not prefork.alive, "the worker to die")
    assert prefork.popen.returncode == -9
    for agent_id in hosted:
        info = fleet.until(agent_id, "running", incarnation=incarnations[agent_id] + 1)
        assert (info.worker, info.desired) == ("other@host", "running")
        fleet.until_ticks(agent_id, before[agent_id] + 3)
    fleet.wait(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), "its children to be gone")
    for agent_id in ids:
        fleet.check_streams(agent_id)
    noted = {(one.operation, one.agent_id, one.reason) for one in fleet.manager.audit()}
    assert ("kill_worker", None, "pre@host: to see") in noted

    # -- as a task from afar: run by a worker of the machine, and refused by name as well
    refused = fleet.result(fleet.send("ares.kill_agent", "a", queue=CONTROL))
    assert isinstance(refused, OperationNotSupportedError)
    assert refused.fields["co_tenants"] == ["b"]
    assert other.alive
    code, out, talk = kill("kill-worker", "nobody@host")
    assert (code, out) == (3, "")
    assert "no worker 'nobody@host' serves this namespace" in talk
