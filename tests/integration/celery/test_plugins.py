"""Real workers with plug-ins of a module: good ones work, bad ones are named and cost nobody anything."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from ares_celery import Event
from tests.integration.celery.fleet import CeleryFleet
from tests.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

WITH_PLUGINS = {"ARES_AGENT_MODULES": "tests.integration.celery.agents,tests.integration.celery.plug_ins"}
GOOD = ["teller", "unsure", "basic_recovery", "observer"]


def told(fleet: CeleryFleet, name: str) -> list[str]:
    """Types of a plug-in's events."""
    return [event.type for event in fleet.manager.events.read(f"@plugin:{name}")]


def journal(fleet: CeleryFleet) -> list[tuple[str, str]]:
    """What the observer copied: agent and type."""
    return [(str(e.metadata["source"]["stream_id"]), e.type) for e in fleet.manager.events.read("@journal")]


def test_a_worker_runs_plugins_asks_them_and_stops_them_in_reverse(fleet: CeleryFleet) -> None:
    """Started in order; one that raises, one that answers rubbish and one that hangs at the end are contained."""
    worker = fleet.worker("a1", env=WITH_PLUGINS)
    # They start beside the first agents, and hear of what happens from then on.
    wait_until(lambda: told(fleet, "stuck") == ["plugin.started"], "the last plug-in to start")
    fleet.start("counter", "c")
    fleet.start("plain", "p")
    for name in GOOD:
        assert told(fleet, name) == ["plugin.started"]
    (failed,) = fleet.manager.events.read("@plugin:raising")
    assert (failed.type, failed.payload["call"], failed.payload["worker"]) == ("plugin.failed", "start", "a1@host")
    assert "SystemExit: 5" in failed.payload["error"]
    assert "plug-ins: teller, unsure, basic_recovery, observer, stuck" in worker.log()
    assert f"teller {worker.pid} hosts=True supervises=True" in worker.log()

    # One dies that may come back, one that may not; a proven death, as its own process reports it.
    for agent_id in ("c", "p"):
        fleet.manager.notify_agent_dead(agent_id, "seen dead", epoch=fleet.info(agent_id).epoch)
    fleet.until("c", "running", incarnation=2)
    assert (fleet.until("p", "parked").cause, fleet.info("p").incarnation) == ("plugin", 1)
    wait_until(lambda: ("p", "agent.parked") in journal(fleet) and ("c", "failover.completed") in journal(fleet))
    seen = journal(fleet)
    assert ("c", "counter.ticked") in seen, "what agents emit, too"
    assert len([one for one in seen if one == ("c", "agent.started")]) == 1
    wait_until(lambda: fleet.manager.stats().counters.get("plugin_failures") == 3, "raising once, unsure twice")

    assert worker.terminate() == 0
    for name in GOOD:
        assert told(fleet, name)[-1] == "plugin.stopped", name
    assert told(fleet, "stuck") == ["plugin.started", "plugin.failed"]
    stops: list[Event] = [fleet.manager.events.read(f"@plugin:{name}")[-1] for name in reversed(GOOD)]
    assert [e.time for e in stops] == sorted(e.time for e in stops), "in reverse order of registration"
    assert fleet.manager.stats().counters["plugin_timeouts"] == 1


def test_each_process_of_a_prefork_worker_has_its_own_plugins(fleet: CeleryFleet) -> None:
    """The main process supervises, its children host: a lost child is judged by the plug-ins of the main process."""
    worker = fleet.worker("a1", pool="prefork", slots=2, env=WITH_PLUGINS)
    fleet.start("counter", "c")
    fleet.start("plain", "p")
    wait_until(lambda: told(fleet, "stuck").count("plugin.started") == 3, "three processes to start their plug-ins")
    log = worker.log()
    assert f"teller {worker.pid} hosts=False supervises=True" in log
    for child in (fleet.pid_of("c"), fleet.pid_of("p")):
        assert f"teller {child} hosts=True supervises=False" in log
    for agent_id in ("c", "p"):
        os.kill(fleet.pid_of(agent_id), signal.SIGKILL)
    fleet.until("c", "running", incarnation=2)
    assert fleet.until("p", "parked").cause == "plugin"
    started: list[Any] = [e.payload for e in fleet.manager.events.read("@plugin:teller")]
    assert {payload["worker"] for payload in started} == {"a1@host"}
