"""What Flower shows of a fleet: which agent and which incarnation, what waits until when, and nothing secret."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from celery import Celery

from ares_celery import AgentSpec
from ares_celery.celery_app.names import RESURRECT_AGENT, RUN_AGENT
from tests.fleet import CONTROL, Fleet, Process
from tests.redis_server import free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

#: Planted into agents' configurations.
SECRET = "sk-planted-4711"  # noqa: S105 - a bait
LOGIN = "operator:of-the-test"


class Flower:
    """Flower as a process of a fleet, and its answers."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.port = free_port()
        options = {"FLOWER_PORT": str(self.port), "FLOWER_ADDRESS": "127.0.0.1", "FLOWER_BASIC_AUTH": LOGIN}
        command = [sys.executable, "-m", "celery", "-A", "workers.app", "flower"]
        self.process = Process("flower", command, {**fleet.env, **options}, fleet.folder / "flower.log")
        fleet.processes.append(self.process)
        fleet.wait(lambda: self.get("/healthcheck")[0] == 200, "flower to answer", timeout=40)

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of a page; status 0 while nobody listens."""
        headers = {"Authorization": f"Basic {base64.b64encode(LOGIN.encode()).decode()}"}
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=15)) as connection:
            try:
                connection.request("GET", path, headers=headers)
            except ConnectionError:
                return 0, ""
            with connection.getresponse() as response:
                return response.status, response.read().decode()

    def workers(self) -> dict[str, Any]:
        """The workers that Flower knows."""
        found: dict[str, Any] = json.loads(self.get("/api/workers?status=true")[1])
        return found

    def tasks(self, name: str, agent_id: str) -> list[dict[str, Any]]:
        """What Flower knows of the tasks of one name for one agent."""
        found: dict[str, dict[str, Any]] = json.loads(self.get(f"/api/tasks?taskname={name}")[1])
        return [task for task in found.values() if f"'{agent_id}'" in str(task["args"])]

    def await_task(self, name: str, agent_id: str, state: str) -> dict[str, Any]:
        """Wait until the agent has a task of that name in that state, and return what Flower says of it."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            found[:] = [task for task in self.tasks(name, agent_id) if task["state"] == state]
            return bool(found)

        self.fleet.wait(look, f"{name} of {agent_id} to be {state} in Flower", timeout=30)
        return found[0]

    def everything(self) -> dict[str, str]:
        """Every page and API answer that can be read, by its path."""
        paths = ["/workers", "/tasks", "/broker", "/metrics", "/api/workers?refresh=true", "/api/tasks"]
        paths += ["/api/task/types", "/api/queues/length"]
        for worker in self.workers():
            paths.append(f"/worker/{quote(worker)}")
        for task_id in json.loads(self.get("/api/tasks")[1]):
            paths += [f"/task/{task_id}", f"/api/task/info/{task_id}", f"/api/task/result/{task_id}"]
        answers: dict[str, str] = {}
        for path in paths:
            status, answers[path] = self.get(path)
            assert status == 200, path
        return answers


@pytest.fixture
def flower(make_fleet: Callable[..., Fleet]) -> Flower:
    """Flower beside a fleet whose failed resurrections wait for long enough to be looked at; no worker runs yet."""
    return Flower(make_fleet(RESTORE_BACKOFF="5s"))


def test_the_task_of_an_agent_shows_its_id_and_incarnation(flower: Flower) -> None:
    """One row an incarnation, STARTED while it lives: args name agent and epoch, kwargs the incarnation."""
    fleet = flower.fleet
    first = fleet.worker("first")
    fleet.wait(lambda: "first@host" in flower.workers(), "Flower to know the worker")
    fleet.manager.start_agent(AgentSpec(id="seen", type="ticker"), wait="running", timeout=30)

    task = flower.await_task(RUN_AGENT, "seen", "STARTED")
    assert task["args"] == f"('seen', {fleet.info('seen').epoch})"
    assert task["kwargs"] == "{'incarnation': 1}"
    assert task["worker"] == "first@host"

    fleet.worker("second")
    first.kill()
    fleet.until("seen", "running", incarnation=2, timeout=30)
    task = flower.await_task(RESURRECT_AGENT, "seen", "STARTED")
    assert task["args"] == f"('seen', {fleet.info('seen').epoch})"
    assert task["kwargs"] == "{'incarnation': 2}"
    assert task["worker"] == "second@host"


def test_a_resurrection_that_waits_shows_as_retry_with_its_time(flower: Flower, tmp_path: Path) -> None:
    """RETRY, the attempt's number, and when the next one is due, although no message waits in any worker."""
    fleet = flower.fleet
    fleet.worker("all")
    fleet.wait(lambda: "all@host" in flower.workers(), "Flower to know the worker")
    flag = tmp_path / "flag"
    fleet.manager.start_agent(
        AgentSpec(id="lame", type="unrestorable", config={"flag": str(flag)}), wait="running", timeout=30
    )
    flag.touch()
    fleet.manager.notify_agent_dead("lame", "a test wants it so", epoch=fleet.info("lame").epoch)

    task = flower.await_task(RESURRECT_AGENT, "lame", "RETRY")

    assert task["retries"] == 1
    assert "cannot be made" in task["exception"]
    due = datetime.fromisoformat(task["eta"])
    failed = datetime.fromtimestamp(task["retried"], UTC)
    assert 3 < (due - failed).total_seconds() <= 5.5

    flag.unlink()
    fleet.until("lame", "running", incarnation=2, timeout=30)
    again = flower.await_task(RESURRECT_AGENT, "lame", "STARTED")
    assert again["uuid"] == task["uuid"]


def test_nothing_secret_is_in_any_answer_of_flower(flower: Flower, tmp_path: Path) -> None:
    """An agent's configuration, messages to it and replies are in no page and no API answer, while it runs or waits."""
    fleet = flower.fleet
    fleet.worker("all")
    fleet.wait(lambda: "all@host" in flower.workers(), "Flower to know the worker")
    flag = tmp_path / f"{SECRET}-flag"
    fleet.manager.start_agent(
        AgentSpec(id="runs", type="ticker", config={"journal": str(tmp_path / f"{SECRET}-journal")}),
        wait="running",
        timeout=30,
    )
    fleet.manager.start_agent(
        AgentSpec(id="waits", type="unrestorable", config={"flag": str(flag)}), wait="running", timeout=30
    )
    assert fleet.manager.process("runs", SECRET, timeout=10)["echo"] == SECRET
    flag.touch()
    fleet.manager.notify_agent_dead("waits", "a test wants it so", epoch=fleet.info("waits").epoch)
    flower.await_task(RUN_AGENT, "runs", "STARTED")
    flower.await_task(RESURRECT_AGENT, "waits", "RETRY")

    answers = flower.everything()

    assert any("'runs'" in text for text in answers.values())
    assert [path for path, text in answers.items() if SECRET in text] == []


def test_a_command_of_another_service_shows_no_configuration(flower: Flower, tmp_path: Path) -> None:
    """A service that has only Celery starts an agent: Flower shows the command, and not the agent's configuration."""
    fleet = flower.fleet
    fleet.worker("all")
    fleet.wait(lambda: "all@host" in flower.workers(), "Flower to know the worker")
    service = Celery("another-service", broker=fleet.redis.url, backend=fleet.redis.url, set_as_current=False)
    config = {"journal": str(tmp_path / SECRET)}
    with closing(service):
        sent = service.send_task(
            "ares.start_agent",
            kwargs={"agent": {"id": "asked", "type": "ticker", "config": config}},
            queue=f"{fleet.namespace}.{CONTROL}",
        )
        sent.get(timeout=10)
    flower.await_task(RUN_AGENT, "asked", "STARTED")

    assert [path for path, text in flower.everything().items() if SECRET in text] == []
