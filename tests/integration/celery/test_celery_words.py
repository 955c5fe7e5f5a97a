"""What Celery's own tools show of agents and do to them: states, retries, revoke, time limits, results."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
from celery.events.state import State

from ares_celery.celery_app.names import NAMESPACE_HEADER, RUN_AGENT
from ares_celery.errors import AgentNotFoundError, OperationNotSupportedError
from ares_celery.model.agent import AgentSpec
from tests.integration.celery.fleet import AGENTS_ONLY, CeleryFleet
from tests.wait import assert_stays, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]
POOLS = ["threads", "prefork"]
CONTROL_TOO = ("agents", "supervision", "control")


class Watcher:
    """What Flower sees: all events of tasks, and the state that Celery keeps of them."""

    def __init__(self) -> None:
        # Its type stubs do not know what it holds.
        self.state: Any = State()
        self.seen: list[dict[str, Any]] = []

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The events of one type."""
        return [event for event in self.seen if event["type"] == kind]

    def note(self, event: Any) -> None:
        """Keeps an event."""
        self.state.event(event)
        self.seen.append(event)


@contextmanager
def watching(fleet: CeleryFleet) -> Generator[Watcher]:
    """Receives Celery's events while inside."""
    watcher, ended, ready = Watcher(), threading.Event(), threading.Event()

    def receive() -> None:
        with fleet.app.connection() as connection:
            receiver = fleet.app.events.Receiver(connection, handlers={"*": watcher.note})
            with receiver.consumer_context() as (own, _, _):
                ready.set()
                while not ended.is_set():
                    try:
                        own.drain_events(timeout=0.2)
                    except TimeoutError:
                        continue

    thread = threading.Thread(target=receive)
    thread.start()
    assert ready.wait(10)
    try:
        # Kombu subscribes when it first waits, behind the back of whoever asked for it: a word of our own tells.
        with fleet.app.connection() as connection, fleet.app.events.Dispatcher(connection) as dispatcher:
            wait_until(lambda: dispatcher.send("watched") or watcher.of("watched"), "events to be heard", interval=0.05)
        yield watcher
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("pool", POOLS)
def test_a_failing_recovery_shows_as_retry_with_count_and_time_and_ends_parked(pool: str, fleet: CeleryFleet) -> None:
    """The next attempt waits in the store, not in a message that some worker holds."""
    fleet.worker("a1", AGENTS_ONLY, pool=pool)
    fleet.manager.start_agent(AgentSpec(id="f", type="fragile", restore_attempts=3))
    fleet.until("f", "running")
    wait_until(lambda: fleet.store.stored_snapshots(fleet.record("f").id), "its snapshot")
    with watching(fleet) as watcher:
        fleet.manager.restore_agent("f")
        fleet.until("f", "parked")
        wait_until(lambda: len(watcher.of("task-retried")) >= 2, "two retries")
    retried = watcher.of("task-retried")

    assert [event["retries"] for event in retried] == [1, 2]
    assert all(event["eta"] for event in retried)
    assert len({event["uuid"] for event in retried}) == 1, "a retry keeps its task id"
    task = watcher.state.tasks[retried[0]["uuid"]]
    assert task.name == "ares.resurrect_agent"
    assert {event["eta"] for event in watcher.of("task-received")} == {None}, "no message waits in a worker"
    assert len(fleet.events("f", "failover.failed")) == 1
    failed = fleet.app.AsyncResult(retried[0]["uuid"])
    wait_until(lambda: failed.state == "FAILURE", "the last attempt's result")
    assert "cannot restore" in str(failed.result)


@pytest.mark.parametrize("pool", POOLS)
def test_revoking_the_task_stops_the_agent_for_good(pool: str, fleet: CeleryFleet) -> None:
    """Flower's click is a durable stop: no process is signalled, and nothing brings the agent back."""
    fleet.worker("a1", AGENTS_ONLY, pool=pool)
    fleet.start("counter", "c")
    task, host = fleet.task_of("c"), fleet.pid_of("c")

    fleet.app.control.revoke(task, terminate=True, signal="SIGKILL")

    info = fleet.until("c", "stopped")
    assert (info.reason, info.desired, info.charged) == ("revoked", "stopped", 0)
    assert fleet.app.AsyncResult(task).get(timeout=5) == {"state": "stopped", "incarnation": 1}
    fleet.start("plain", "p")
    if pool == "threads":
        assert fleet.pid_of("p") == host, "the process lives on"


def test_a_task_that_was_revoked_before_it_ran_never_runs_and_its_agent_is_stopped(fleet: CeleryFleet) -> None:
    """The worker remembers the id, and makes the wish durable when the message arrives."""
    fleet.worker("a1", AGENTS_ONLY, slots=1)
    fleet.start("plain", "p")
    client, queue = fleet.redis.client(), f"{fleet.namespace}.agents"
    fleet.manager.start_agent(AgentSpec(id="c", type="counter"))
    waiting: Any = wait_until(lambda: client.lindex(queue, -1), "a message that waits for the slot")

    fleet.app.control.revoke(json.loads(waiting)["headers"]["id"])
    fleet.manager.stop_agent("p", wait=False)

    info = fleet.until("c", "stopped")
    assert (info.reason, info.desired) == ("revoked", "stopped")


@pytest.mark.parametrize("pool", POOLS)
def test_the_time_limits_of_a_fleet_do_not_end_an_agent(pool: str, fleet: CeleryFleet) -> None:
    """A worker started with limits of 1 and 2 seconds hosts an agent for longer."""
    fleet.worker("a1", AGENTS_ONLY, pool=pool, options=["--soft-time-limit=1", "--time-limit=2"])
    fleet.start("counter", "c")
    assert_stays(lambda: fleet.info("c").incarnation == 1, "the first incarnation", seconds=3.5, interval=0.1)
    assert fleet.info("c").state == "running"


def test_a_message_that_comes_five_times_runs_one_incarnation(fleet: CeleryFleet) -> None:
    """Late ones lose the claim and say so in their results."""
    fleet.worker("a1", AGENTS_ONLY)
    fleet.start("counter", "c")
    epoch = fleet.record("c").epoch

    results = [fleet.app.send_task(RUN_AGENT, args=("c", epoch), queue=f"{fleet.namespace}.agents") for _ in range(5)]

    assert [list(result.get(timeout=8)) for result in results] == [["noop"]] * 5
    assert fleet.info("c").incarnation == 1
    stale = fleet.app.send_task(RUN_AGENT, args=("c", epoch - 1), queue=f"{fleet.namespace}.agents")
    assert stale.get(timeout=8) == {"noop": "epoch"}


def test_a_message_of_another_namespace_is_sent_home_once(fleet: CeleryFleet) -> None:
    """It finds its own queue; when it comes back it is dropped and counted, never run."""
    worker = fleet.worker("a1", AGENTS_ONLY)
    send = fleet.app.send_task
    queue, headers = f"{fleet.namespace}.agents", {NAMESPACE_HEADER: "elsewhere"}

    first = send(RUN_AGENT, args=("c", 1), queue=queue, headers=headers).get(timeout=8)

    client = fleet.redis.client()
    assert first == {"noop": "foreign namespace, sent on"}
    assert client.llen("elsewhere.agents") == 1
    again = send(RUN_AGENT, args=("c", 1), queue=queue, headers={**headers, "ares_forwarded": True}).get(timeout=8)
    assert again == {"noop": "foreign namespace, dropped"}
    assert client.llen("elsewhere.agents") == 1
    assert "do two namespaces share" in worker.log()
    client.delete("elsewhere.agents")


def test_nothing_secret_is_shown_of_an_agents_task(fleet: CeleryFleet) -> None:
    """Events and logs carry the id, the epoch and the incarnation; the spec's config stays in the store."""
    worker = fleet.worker("a1", AGENTS_ONLY)
    with watching(fleet) as watcher:
        fleet.start("counter", "c", config={"step": 424_242})
        received = wait_until(lambda: watcher.of("task-received"))[0]
    assert received["args"] == f"('c', {fleet.record('c').epoch})"
    assert received["kwargs"] == "{'incarnation': 1}"
    assert received["root_id"] == f"c@{fleet.record('c').epoch}"
    assert "424242" not in worker.log()
    assert "[agent=c incarnation=1" in worker.log()


def test_control_tasks_answer_in_json_and_refuse_with_typed_errors(fleet: CeleryFleet) -> None:
    """Another service needs names and JSON alone."""
    fleet.worker("a1", CONTROL_TOO)
    started = fleet.call("ares.start_agent", agent={"id": "c", "type": "counter"}, reason="a service asked")
    assert (started["id"], started["desired"]) == ("c", "running")
    fleet.until("c", "running")
    assert fleet.call("ares.process", "c", {"ask": 1})["total"] >= 0
    assert fleet.call("ares.get_agent", "nobody") is None
    assert [agent["id"] for agent in fleet.call("ares.list_agents", states=["running"])] == ["c"]
    assert fleet.call("ares.stats")["active_agents"] == 1
    assert fleet.call("ares.register_agent_dag", "evolution", {"nodes": ["c"]}, actor="ann") is None
    assert fleet.call("ares.get_agent_dag", key="evolution") == {"nodes": ["c"]}
    assert fleet.call("ares.get_agent_dag", key="unknown") is None
    shown = fleet.call("ares.introspect")
    assert (shown["agents"]["listed"][0]["id"], shown["dags"], shown["seq"]) == ("c", {"keys": ["evolution"]}, 1)
    assert fleet.call("ares.health_check")["agents"] == {"running": 1}
    with pytest.raises(AgentNotFoundError) as refused:
        fleet.call("ares.stop_agent", "nobody")
    assert refused.value.args[0]["code"] == "agent_not_found"
    with pytest.raises(OperationNotSupportedError, match="do not fit"):
        fleet.call("ares.stop_agent", agent="c")
    assert fleet.call("ares.stop_agent", "c", reason="done") is None
    assert fleet.until("c", "stopped").actor.startswith("task ")


def test_a_control_task_that_comes_twice_acts_once(fleet: CeleryFleet) -> None:
    """The task's id is the operation id."""
    fleet.worker("a1", CONTROL_TOO)
    fleet.start("counter", "c")
    for _ in range(2):
        fleet.app.send_task("ares.restart_agent", args=("c",), task_id="restart-once").get(timeout=8)
        fleet.until("c", "running", incarnation=2)
    assert_stays(lambda: fleet.info("c").incarnation == 2, "one restart", seconds=0.5)


def test_an_answer_that_takes_long_is_asked_for_again(fleet: CeleryFleet) -> None:
    """A control task waits a second at most, then says under which id to ask again; the agent hears it once."""
    fleet.worker("a1", CONTROL_TOO)
    fleet.start("slow", "s")
    answers = [fleet.call("ares.process", "s", "hello", "m-1") for _ in range(2)]
    assert answers == [{"pending": "m-1"}, {"heard": "hello"}]


def test_an_app_that_runs_tasks_eagerly_is_refused(fleet: CeleryFleet) -> None:
    """An agent cannot live in its caller: the error names the setting."""
    fleet.app.conf.task_always_eager = True
    with pytest.raises(OperationNotSupportedError, match="task_always_eager"):
        fleet.app.tasks["ares.stats"].apply_async()
