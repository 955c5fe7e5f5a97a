"""Callers by task name, many of them: at once, doubled, wrong, and gone before they read their answers."""

from __future__ import annotations

import json
import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection

from ares_celery import AgentAlreadyRegisteredError, AgentFailedError, AgentSpec, AresError, OperationNotSupportedError
from tests.fleet import CONTROL, SUPERVISION, Process
from tests.integration.celery.fleet import AGENTS_ONLY, CeleryFleet
from tests.integration.celery.test_celery_words import watching
from tests.key_leaks import leaked_keys
from tests.redis_server import RedisServer
from tests.wait import wait_until
from tests.without_package import run_without_package

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

CALLERS = 200
STARTS = 50
GONE = 1_000
BACKLOG = 500
SECRET = "hunter2"  # noqa: S105 - what must not be shown


class Crowd:
    """A fleet that the tests of this file share: one worker hosts, another one serves commands and supervision."""

    def __init__(self, server: RedisServer, folder: Path) -> None:
        self.fleet = CeleryFleet(server, f"t{uuid.uuid4().hex[:12]}", folder, {"AGENT_STOP_TIMEOUT": "1s"})
        self.host = self.fleet.start_worker("host", AGENTS_ONLY, pool="threads", slots=30)
        self.child_host = self.fleet.start_worker("child", ("own",), pool="prefork", slots=2)
        self.desk = self.fleet.start_worker("desk", (SUPERVISION, CONTROL), pool="threads", slots=4)
        self.fleet.ready(self.host, self.child_host, self.desk)
        self.client: Any = server.client(decode_responses=True)

    @property
    def waiting(self) -> int:
        """Commands that nobody has taken yet."""
        return int(self.client.llen(f"{self.fleet.namespace}.control"))

    def send(self, task: str, *args: Any, task_id: str | None = None, **kwargs: Any) -> Any:
        """Sends a command; returns what its answer can be got from."""
        return self.fleet.app.send_task(task, args=args, kwargs=kwargs, task_id=task_id)

    def ask(self, agent_id: str, message: Any) -> Any:
        """Asks as the documentation says: the same call again while it is pending."""
        message_id = uuid.uuid4().hex
        while True:
            answer = self.send("ares.process", agent_id, message, message_id).get(timeout=40)
            if answer != {"pending": message_id}:
                return answer


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    """One fleet, with a server of its own, whose keys are nobody else's."""
    with RedisServer() as server:
        made = Crowd(server, tmp_path_factory.mktemp("crowd"))
        yield made
        made.fleet.close()


def at_once(number: int, act: Callable[[int], Any]) -> list[Any]:
    """Runs it in so many threads that begin together; what one raises of ours is its result."""
    together = threading.Barrier(number)

    def run(index: int) -> Any:
        together.wait(20)
        try:
            return act(index)
        except AresError as error:
            return error

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(run, range(number)))


def test_two_hundred_callers_are_answered_while_a_resurrection_goes_on(crowd: Crowd) -> None:
    """Each gets its own answer; the killed agent runs again long before the last of them, as nothing waits for them."""
    fleet = crowd.fleet
    fleet.start("slow", "slow-1", config={"seconds": 0.03})
    fleet.start("counter", "busy-1")
    fleet.manager.start_agent(AgentSpec(id="victim", type="counter", queue="own"), wait="running")
    answered: list[Any] = []
    begun = threading.Event()

    def ask(index: int) -> Any:
        begun.set()
        agent_id = "slow-1" if index % 2 else "busy-1"
        answer = crowd.ask(agent_id, {"n": index})
        answered.append(index)
        return answer

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(at_once, CALLERS, ask)
        assert begun.wait(20)
        os.kill(fleet.pid_of("victim"), signal.SIGKILL)
        fleet.until("victim", "running", incarnation=2)
        first = len(answered)
        answers = asking.result(timeout=60)

    assert first < CALLERS, "the resurrection was not behind the callers"
    assert [answers[index] for index in range(1, CALLERS, 2)] == [{"heard": {"n": n}} for n in range(1, CALLERS, 2)]
    assert all(set(answers[index]) == {"total", "pid"} for index in range(0, CALLERS, 2))
    assert len(fleet.events("victim", "failover.completed")) == 1
    wait_until(lambda: crowd.waiting == 0, "every command to be taken")


def test_supervision_is_not_behind_hundreds_of_commands(crowd: Crowd) -> None:
    """One worker reads both queues, in turn: a report of a death passes the commands that wait."""
    fleet = crowd.fleet
    fleet.start("counter", "reported")
    epoch = fleet.record("reported").epoch
    crowd.desk.freeze()
    try:
        with fleet.app.producer_pool.acquire() as producer:
            for _ in range(BACKLOG):
                fleet.app.send_task("ares.stats", producer=producer, ignore_result=True)
        report = fleet.send("ares.notify_agent_dead", "reported", "seen dead", epoch, queue=SUPERVISION)
    finally:
        crowd.desk.thaw()
    assert fleet.result(report) is None
    assert crowd.waiting > BACKLOG * 0.9
    fleet.until("reported", "running", incarnation=2)
    wait_until(lambda: crowd.waiting == 0, "every command to be taken", timeout=30)


@pytest.mark.parametrize("way", ["task", "manager"])
def test_of_fifty_starts_of_one_id_at_once_one_is_granted(way: str, crowd: Crowd) -> None:
    """The others learn that it exists, with all fields of the error."""
    fleet, agent_id = crowd.fleet, f"one-{way}"
    found = at_once(STARTS, lambda _: start(crowd, way, agent_id, "error"))

    refused = [one for one in found if isinstance(one, AgentAlreadyRegisteredError)]
    assert len(refused) == STARTS - 1
    assert {one.agent_id for one in refused} == {agent_id}
    info = fleet.until(agent_id, "running")
    assert (info.incarnation, info.restarts) == (1, 0)
    assert len(fleet.events(agent_id, "agent.started")) == 1


@pytest.mark.parametrize("way", ["task", "manager"])
@pytest.mark.parametrize("if_exists", ["return", "update"])
def test_fifty_starts_that_take_what_is_there_all_succeed(if_exists: str, way: str, crowd: Crowd) -> None:
    """One incarnation, no restart."""
    fleet, agent_id = crowd.fleet, f"{if_exists}-{way}"
    found = at_once(STARTS, lambda _: start(crowd, way, agent_id, if_exists))

    assert not [one for one in found if isinstance(one, AresError)]
    info = fleet.until(agent_id, "running")
    assert (info.incarnation, info.restarts, info.manual_restarts) == (1, 0, 0)
    assert len(fleet.events(agent_id, "agent.started")) == 1


@pytest.mark.parametrize("way", ["task", "manager"])
def test_fifty_starts_that_restart_all_succeed_and_one_incarnation_is_left(way: str, crowd: Crowd) -> None:
    """What was not over yet is restarted once for all who asked meanwhile, and nothing is charged."""
    fleet, agent_id = crowd.fleet, f"restart-{way}"
    fleet.start("counter", agent_id)
    found = at_once(STARTS, lambda _: start(crowd, way, agent_id, "restart"))

    assert not [one for one in found if isinstance(one, AresError)]
    info = fleet.until(agent_id, "running", incarnation=2)
    assert 1 <= info.manual_restarts <= STARTS
    assert info.charged == 0
    epochs = [event.epoch for event in fleet.events(agent_id, "counter.ticked")]
    assert epochs == sorted(epochs), "no two incarnations wrote at once"


def start(crowd: Crowd, way: str, agent_id: str, if_exists: Any) -> Any:
    """Asks for an agent to run, in one of two ways."""
    if way == "manager":
        return crowd.fleet.manager.start_agent(AgentSpec(id=agent_id, type="counter"), if_exists=if_exists)
    spec = {"id": agent_id, "type": "counter"}
    return crowd.send("ares.start_agent", agent=spec, if_exists=if_exists).get(timeout=40)


def test_one_message_that_comes_five_times_at_once_acts_once(crowd: Crowd) -> None:
    """The same task id: each delivery gets the first outcome, none is refused."""
    spec, task_id = {"id": "doubled", "type": "counter"}, uuid.uuid4().hex
    found = at_once(5, lambda _: crowd.send("ares.start_agent", agent=spec, task_id=task_id).get(timeout=20))
    assert [one["id"] for one in found] == ["doubled"] * 5
    crowd.fleet.until("doubled", "running")
    entries = crowd.send("ares.audit", "doubled").get(timeout=20)
    assert [entry["operation"] for entry in entries] == ["start"]


def test_an_answer_in_pieces_is_read_by_task(crowd: Crowd) -> None:
    """Each piece once and in order, the result last; what the agent raises in the middle comes after the pieces."""
    crowd.fleet.start("talker", "talker")
    pieces, error = stream(crowd, {"pieces": 20})
    assert error is None
    assert [chunk["seq"] for chunk in pieces] == list(range(1, 22))
    assert [chunk["data"] for chunk in pieces] == [{"piece": n} for n in range(20)] + [{"pieces": 20}]
    assert [chunk["final"] for chunk in pieces] == [False] * 20 + [True]
    pieces, error = stream(crowd, {"pieces": 5, "fails_at": 3})
    assert [chunk["data"] for chunk in pieces] == [{"piece": n} for n in range(3)]
    assert isinstance(error, AgentFailedError)
    assert (error.type, error.error) == ("ValueError", "lost the thread")
    assert "in process_stream" in error.traceback


def stream(crowd: Crowd, message: Any) -> tuple[list[dict[str, Any]], AresError | None]:
    """Reads a whole stream by task, as the documentation says; what was read, and what it ended with."""
    message_id, read = uuid.uuid4().hex, list[dict[str, Any]]()
    assert crowd.send("ares.process_stream", "talker", message, message_id).get(timeout=20) == {"pending": message_id}
    while not (read and read[-1]["final"]):
        after = read[-1]["seq"] if read else 0
        try:
            found = crowd.send("ares.read_chunks", "talker", message_id, after).get(timeout=20)
        except AresError as error:
            return read, error
        read += found.get("chunks", [])
    return read, None


LEAVES = """
import json, os, signal
from celery import Celery

given = json.loads(sys.stdin.read())
app = Celery(broker=given["url"], backend=given["url"])
with app.producer_pool.acquire() as producer:
    for number in range(given["calls"]):
        agent = {"agent_id": "left"}
        name, kwargs = [
            ("stats", {}),
            ("process", {**agent, "message": {"n": number}}),
            ("process_stream", {**agent, "message": {"n": number}}),
            ("get_agent_info", agent),
            ("send", {**agent, "message": {"n": number}}),
        ][number % 5]
        app.send_task(f"ares.{name}", kwargs=kwargs, queue=given["queue"], producer=producer)
print("sent", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_thousand_calls_whose_callers_die_leave_no_key_for_ever(crowd: Crowd, tmp_path: Path) -> None:
    """Every key that they made has an end: a TTL of an hour at most, or an owner that deletes it."""
    fleet = crowd.fleet
    fleet.start("counter", "left")
    before = set(crowd.client.keys())
    given = {"url": fleet.redis.url, "queue": f"{fleet.namespace}.control", "calls": GONE}
    said = run_without_package(LEAVES, tmp_path, given=json.dumps(given), code=-signal.SIGKILL)
    assert said == "sent\n"

    def all_answered() -> bool:
        results = sum(1 for _ in crowd.client.scan_iter(match="celery-task-meta-*", count=1000))
        return crowd.waiting == 0 and results - sum(key.startswith("celery-task-meta-") for key in before) >= GONE

    wait_until(all_answered, "every call to be answered", timeout=60, interval=0.2)
    assert leaked_keys(crowd.client, fleet.namespace) == []
    fresh = [key for key in set(crowd.client.keys()) - before if not key.startswith("{")]
    forever = [key for key in fresh if crowd.client.ttl(key) == -1]
    assert [key for key in forever if not is_the_brokers(key)] == []
    assert max(crowd.client.ttl(key) for key in fresh if key.startswith("celery-task-meta-")) <= 3600


def is_the_brokers(key: str) -> bool:
    """One for each queue, however many messages: what they are bound to, and those that wait."""
    return key.startswith(("_kombu.binding.", "unacked"))


WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (5, {}, "body"),
    ([[], SECRET, {}], {}, "kwargs"),
    ([SECRET, {}, {}], {}, "args"),
    ([[], {"password": SECRET}, {}], {"timelimit": SECRET}, "timelimit"),
]


@pytest.mark.parametrize("queue", ["control", "agents", "supervision"])
def test_messages_that_celery_cannot_take_apart_end_no_worker(queue: str, crowd: Crowd) -> None:
    """Their senders learn what is wrong; agents and commands go on; nothing that they carry is logged."""
    fleet = crowd.fleet
    task = {"control": "ares.process", "agents": "ares.run_agent", "supervision": "ares.health_check"}[queue]
    reader: Process = crowd.host if queue == "agents" else crowd.desk
    ids = [uuid.uuid4().hex for _ in WRONG]
    with Connection(fleet.redis.url) as connection:
        producer = connection.Producer()
        for task_id, (body, headers, _) in zip(ids, WRONG, strict=True):
            producer.publish(
                json.dumps(body),
                exchange=f"{fleet.namespace}.{queue}",
                routing_key=f"{fleet.namespace}.{queue}",
                content_type="application/json",
                content_encoding="utf-8",
                headers={"id": task_id, "task": task, "lang": "other", **headers},
            )
    for task_id, (_, _, field) in zip(ids, WRONG, strict=True):
        error = fleet.result(task_id)
        assert isinstance(error, OperationNotSupportedError)
        assert error.field == field
        assert f"message '{task_id}' for task {task} is dropped: its {field} is wrong" in reader.log()
    assert reader.alive
    assert crowd.send("ares.stats").get(timeout=20)["active_agents"] >= 0
    assert SECRET not in reader.log()


@pytest.mark.parametrize("task", ["ares.process", "ares.process_stream", "ares.send", "ares.read_chunks"])
def test_nothing_that_a_message_says_is_logged(task: str, crowd: Crowd) -> None:
    """Nor told in Celery's events: neither of one that is answered, nor of one that is refused."""
    fleet = crowd.fleet
    fleet.manager.start_agent(AgentSpec(id="secretive", type="counter"), if_exists="return", wait="running")
    with watching(fleet) as watcher:
        sent = [
            crowd.send(task, agent_id="secretive", message={"password": SECRET}, message_id="m-1"),
            crowd.send(task, "secretive", {"password": SECRET}, more=SECRET),
            crowd.send(task, "nobody", {"password": SECRET}),
        ]
        for one in sent:
            wait_until(one.ready, "an answer")
        failed = {one.id for one in sent[1:]}
        wait_until(lambda: failed <= {event["uuid"] for event in watcher.of("task-failed")}, "its events", timeout=25)
    assert SECRET not in repr(watcher.seen)
    log = crowd.desk.log()
    assert all(f"Task {task}[{one.id}] received" in log for one in sent)
    assert SECRET not in log
    assert SECRET not in crowd.host.log()
