"""Managers inside other people's processes: gunicorn --preload, uvicorn, prefork pools, forks, threads, FastAPI."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu import pools
from typing_extensions import override

from ares_celery import (
    AgentInfo,
    AgentSpec,
    AsyncManager,
    EventStoreClosedError,
    Manager,
    OperationNotSupportedError,
    RuntimeConfig,
    StoreUnavailableError,
)
from tests.fleet import ROOT, Fleet, Process
from tests.hosting import FAST
from tests.redis_server import RedisServer
from tests.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

PAGE = ROOT / "docs" / "howto" / "serve-agents-with-fastapi.md"


@pytest.fixture
def running(redis_server: RedisServer, namespace: str) -> Iterator[Manager]:
    """A manager of a namespace that runs, without any worker: agents are started, and wait for a slot."""
    with Manager(RuntimeConfig.parse(FAST), redis_url=redis_server.url, namespace=namespace) as manager:
        manager.start()
        yield manager


class UnixConnection(http.client.HTTPConnection):
    """HTTP to a socket in the file system."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=30)
        self._path = path

    @override
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(30)
        self.sock.connect(str(self._path))


def request(path: Path, method: str, url: str, body: object = None, **headers: str) -> tuple[int, Any]:
    """Status and JSON of one request on a connection of its own."""
    connection = UnixConnection(path)
    try:
        content = json.dumps(body) if body is not None else None
        connection.request(method, url, content, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def serve(command: list[str], server: RedisServer, namespace: str, folder: Path, **env: str) -> Process:
    """A server process that listens at ``folder/socket``."""
    own = {"ARES_REDIS_URL": server.url, "ARES_NAMESPACE": namespace, "PYTHONPATH": str(ROOT)}
    process = Process("service", [sys.executable, "-m", *command], {**os.environ, **own, **env}, folder / "service.log")
    try:
        wait_until(lambda: _answers(folder / "socket") or not process.alive, "the service", timeout=40)
        assert process.alive, process.log()
    except BaseException:
        process.end()
        raise
    return process


def _answers(path: Path) -> bool:
    connection = UnixConnection(path)
    try:
        connection.connect()
    except OSError:
        return False
    finally:
        connection.close()
    return True


def ask_all(path: Path, names: list[str]) -> list[dict[str, Any]]:
    """Many requests at once."""

    def ask(name: str) -> tuple[int, Any]:
        return request(path, "GET", f"/{name}")

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, names))
    assert {status for status, _ in answers} == {200}
    assert [answer["id"] for _, answer in answers] == names
    return [answer for _, answer in answers]


def test_gunicorn_may_preload_a_manager_that_is_used_before_the_fork(
    redis_server: RedisServer, namespace: str, running: Manager, tmp_path: Path
) -> None:
    """Two workers, each with connections of its own, the broker's too; the agents they start are there once each."""
    command = ["gunicorn", "--preload", "-w", "2", "--threads", "4", "-b", f"unix:{tmp_path / 'socket'}"]
    process = serve([*command, "tests.integration.services.wsgi:app"], redis_server, namespace, tmp_path)
    try:
        names = [f"asked-{n}" for n in range(60)]
        answers = ask_all(tmp_path / "socket", names)
        pids = {answer["pid"] for answer in answers}
        for n in range(40):
            if len(pids) == 2:
                break
            pids.update(answer["pid"] for answer in ask_all(tmp_path / "socket", [f"more-{n}-{m}" for m in range(8)]))
        assert len(pids) == 2
        assert {answer["made_in"] for answer in answers} == {process.pid}
        assert process.pid not in pids
        assert process.terminate() == 0
        assert "Traceback" not in process.log()
    finally:
        process.end()
    known = {info.id for info in running.list_agents()}
    assert known >= {"before-the-fork", *names}


def test_uvicorn_workers_share_the_name_of_a_manager_and_nothing_else(
    redis_server: RedisServer, namespace: str, running: Manager, tmp_path: Path
) -> None:
    """An AsyncManager of the module, in two processes."""
    command = ["uvicorn", "--workers", "2", "--uds", str(tmp_path / "socket"), "tests.integration.services.asgi:app"]
    process = serve(command, redis_server, namespace, tmp_path)
    try:
        names = [f"asked-{n}" for n in range(40)]
        ask_all(tmp_path / "socket", names)
        assert process.terminate() == 0
        assert "Traceback" not in process.log()
    finally:
        process.end()
    assert {info.id for info in running.list_agents()} >= set(names)


def test_a_prefork_pool_may_use_a_manager_of_before_the_fork(
    redis_server: RedisServer, namespace: str, running: Manager, tmp_path: Path
) -> None:
    """In tasks of somebody's own app, which is nobody else's current app."""
    env = {**os.environ, "ARES_REDIS_URL": redis_server.url, "ARES_NAMESPACE": namespace, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "celery", "-A", "tests.integration.services.prefork", "worker", "-c", "2"]
    worker = Process("own", [*command, "--without-gossip", "--without-mingle", "-l", "INFO"], env, tmp_path / "own.log")
    app = Celery("caller", broker=redis_server.url, backend=redis_server.url, set_as_current=False)
    try:
        wait_until(worker.is_settled, "the worker", timeout=40)
        sent = [
            app.send_task("own.start", args=[f"asked-{n}"], queue=f"{namespace}-own", expires=60) for n in range(30)
        ]
        answers = [one.get(timeout=30) for one in sent]
        assert [answer["id"] for answer in answers] == [f"asked-{n}" for n in range(30)]
        assert worker.pid not in {answer["pid"] for answer in answers}
        assert {answer["made_in"] for answer in answers} == {worker.pid}
    finally:
        worker.end()
        app.close()
    assert len(running.list_agents()) == 31


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_in_the_middle_of_calls_shares_nothing(running: Manager, tmp_path: Path) -> None:
    """Threads start agents all the while; each child does so on sockets of its own; the parent notices nothing."""
    stop, failed, count = threading.Event(), list[BaseException](), list[int]()

    def busy(number: int) -> None:
        try:
            done = 0
            while not stop.is_set():
                running.start_agent(AgentSpec(id=f"busy-{number}-{done}", type="ticker"))
                done += 1
            count.append(done)
        except BaseException as error:  # noqa: BLE001 - the test's own thread tells the test
            failed.append(error)

    threads = [threading.Thread(target=busy, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    children: list[int] = []
    try:
        for number in range(6):
            at = 10 * (number + 1)
            while len(running.list_agents()) <= at and not failed:
                stop.wait(0.01)
            pid = os.fork()
            if pid == 0:  # pragma: no cover - the child says by its exit code
                _in_child(running, number, tmp_path)
            children.append(pid)
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 6
    assert failed == []
    known = {info.id for info in running.list_agents()}
    assert known >= {f"child-{number}-{n}" for number in range(6) for n in range(5)}
    assert len([one for one in known if one.startswith("busy")]) == sum(count)


def test_a_child_lets_go_of_nothing_of_its_parents(running: Manager, tmp_path: Path) -> None:
    """No other thread's frames keep them: what was inherited is kept on purpose, and the parent goes on with it."""
    running.start_agent(AgentSpec(id="before", type="ticker"))
    pid = os.fork()
    if pid == 0:  # pragma: no cover - the child says by its exit code
        _in_child(running, 0, tmp_path)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, (tmp_path / "child-0.log").read_text()
    before = _sockets()
    running.start_agent(AgentSpec(id="after", type="ticker"))
    assert _sockets() == before
    assert {info.id for info in running.list_agents()} == {"before", "after", *(f"child-0-{n}" for n in range(5))}


def _in_child(manager: Manager, number: int, folder: Path) -> None:
    """Starts agents in a forked child and ends it."""
    code = 1
    try:
        # What earlier tests left for the collector is nobody's.
        gc.collect()
        mine = _sockets()
        for n in range(5):
            manager.start_agent(AgentSpec(id=f"child-{number}-{n}", type="ticker"))
        # Nothing of the parent's was let go of or put in the place of something else.
        gc.collect()
        assert mine <= _sockets()
        assert len(_sockets() - mine) >= 2  # the store's and the broker's
        manager.close()
        assert mine <= _sockets()
        code = 0
    except BaseException as error:  # noqa: BLE001 - it must not come back into the test
        (folder / f"child-{number}.log").write_text(repr(error))
    finally:
        os._exit(code)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_that_was_forked_beside_a_running_loop_has_loops_of_its_own(
    redis_server: RedisServer, running: Manager, tmp_path: Path
) -> None:
    """An AsyncManager that waits in one thread's loop while another thread forks; both go on."""
    manager = AsyncManager(redis_url=redis_server.url, namespace=running.namespace)
    waiting, done = threading.Event(), list[AgentInfo]()

    async def wait() -> None:
        await manager.start_agent(AgentSpec(id="parent", type="ticker"))
        waits = asyncio.create_task(manager.wait_for("parent", {"stopped"}, timeout=30))
        await asyncio.sleep(0)
        waiting.set()
        done.append(await waits)
        await manager.close()

    thread = threading.Thread(target=asyncio.run, args=(wait(),))
    thread.start()
    assert waiting.wait(20)
    pid = os.fork()
    if pid == 0:  # pragma: no cover - the child says by its exit code
        code = 1
        try:
            asyncio.run(_in_child_loop(manager))
            code = 0
        except BaseException:  # noqa: BLE001 - it must not come back into the test
            (tmp_path / "child.log").write_text(traceback.format_exc())
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, (tmp_path / "child.log").read_text()
    running.stop_agent("parent", wait=False)
    thread.join(20)
    assert [info.id for info in done] == ["parent"]
    assert {info.id for info in running.list_agents()} == {"parent", "child"}


async def _in_child_loop(manager: AsyncManager) -> None:
    gc.collect()
    mine = _sockets()
    async with asyncio.timeout(20):
        await manager.start_agent(AgentSpec(id="child", type="ticker"))
        assert (await manager.wait_for("child", {"starting", "registered"}, timeout=10)).id == "child"
        gc.collect()
        assert mine <= _sockets()
        await manager.close()
        assert mine <= _sockets()


def test_ports_that_were_taken_before_are_refused_on_a_loop_too(running: Manager) -> None:
    """The guard stands before each call of the store, not before the properties alone."""
    events, snapshots, checkpoints = running.events, running.snapshots, running.checkpoints
    subscription = events.subscribe()

    async def misuse() -> None:
        for call in (
            lambda: events.read("a"),
            lambda: snapshots.load("a"),
            lambda: checkpoints.list_executions("a"),
            lambda: subscription.poll(1),
        ):
            with pytest.raises(OperationNotSupportedError, match="AsyncManager"):
                call()

    asyncio.run(misuse())
    assert events.read("a") == ()
    subscription.close()


def _sockets() -> set[str]:
    """The sockets that this process has open, by their names in the kernel."""
    found: set[str] = set()
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names only
        try:
            name = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115 - of what is no file
        except OSError:
            continue
        if name.startswith("socket:"):
            found.add(name)
    return found


def test_a_manager_owns_its_connections_to_the_broker(redis_server: RedisServer, running: Manager) -> None:
    """They are in no pool that others use, and closed with it: those of another one of the same broker go on."""
    running.start_agent(AgentSpec(id="one", type="ticker"))
    shared, before = len(pools.producers), _sockets()
    with Manager(redis_url=redis_server.url, namespace=running.namespace) as other:
        other.start_agent(AgentSpec(id="two", type="ticker"))
        assert len(_sockets() - before) >= 2
    assert not _sockets() - before
    assert len(pools.producers) == shared
    running.start_agent(AgentSpec(id="three", type="ticker"))
    # What tests before this one left behind may go at any time.
    assert not _sockets() - before


def test_thirty_two_threads_share_one_manager(running: Manager) -> None:
    """Each starts agents, reads them, and reads events; nothing is mixed up."""

    def work(number: int) -> list[str]:
        found: list[str] = []
        for n in range(5):
            handle = running.start_agent(AgentSpec(id=f"t{number}-{n}", type="ticker", config={"step": n}))
            info = handle.info()
            assert info.id == f"t{number}-{n}"
            assert running.events.read(info.id) is not None
            found.append(info.id)
        return found

    with ThreadPoolExecutor(32) as pool:
        started = [name for names in pool.map(work, range(32)) for name in names]
    assert sorted(info.id for info in running.list_agents()) == sorted(started)


def test_closing_during_calls_ends_them_with_a_word(redis_server: RedisServer, running: Manager) -> None:
    """Those under way and those that come later; never with whatever a driver says of a closed socket."""
    other = Manager(redis_url=redis_server.url, namespace=running.namespace)
    ended: list[BaseException] = []
    first = threading.Barrier(9, timeout=20)

    threads = [threading.Thread(target=_patiently(other, first, ended)) for _ in range(8)]
    for thread in threads:
        thread.start()
    first.wait()
    other.close()
    for thread in threads:
        thread.join(20)
    assert len(ended) == 8
    assert {type(error) for error in ended} <= {EventStoreClosedError, StoreUnavailableError}
    assert {"closed" in str(error) for error in ended} == {True}
    with pytest.raises(EventStoreClosedError, match="make a new one"):
        other.stats()


def _patiently(manager: Manager, first: threading.Barrier, ended: list[BaseException]) -> Callable[[], None]:
    def call() -> None:
        manager.stats()
        first.wait()
        try:
            while True:
                manager.introspect()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test looks at it
            ended.append(error)

    return call


# -- the page on FastAPI ----------------------------------------------------------------------------------------------


@pytest.fixture
def printed(tmp_path: Path) -> Path:
    """The files of the page, as it prints them."""
    for name, text in re.findall(r"```python\n# (\S+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL):
        (tmp_path / name).write_text(text)
    assert {file.name for file in tmp_path.glob("*.py")} == {"script.py", "service.py", "story_agents.py"}
    return tmp_path


@pytest.mark.timeout(120)
def test_the_service_and_the_script_of_the_page_work_as_printed(fleet: Fleet, printed: Path) -> None:
    """Started, asked, streamed and stopped over HTTP by two processes; a client that leaves ends the agent's stream."""
    paths = f"{printed}:{ROOT}"
    fleet.worker("a", env={"ARES_AGENT_MODULES": "story_agents", "PYTHONPATH": paths})
    at, env = printed / "socket", {**fleet.env, "PYTHONPATH": paths}
    command = ["uvicorn", "service:app", "--workers", "2", "--uds", str(at)]
    process = serve(command, fleet.redis, fleet.namespace, printed, PYTHONPATH=paths)
    try:
        status, info = request(at, "PUT", "/tellers/ben?name=Ben")
        assert (status, info["state"]) == (200, "running"), info
        for _ in range(2):
            asked = request(at, "POST", "/tellers/ben/ask", {"say": "hello"}, **{"Idempotency-Key": "once"})
            assert asked == (200, {"says": "Ben heard hello"})
        too_long = {"Idempotency-Key": "k" * 2_000}
        reused = request(at, "POST", "/tellers/ben/ask", {"say": "other"}, **{"Idempotency-Key": "once"})
        assert (reused[0], reused[1]["code"]) == (409, "message_id_reused")
        wrong = [
            request(at, "PUT", "/tellers/no%20id?name=Ben"),
            request(at, "POST", "/tellers/ben/ask", {}, **too_long),
        ]
        assert [(status, body["code"]) for status, body in wrong] == [
            (422, "invalid_agent_id"),
            (422, "invalid_setting"),
        ]
        missing = request(at, "GET", "/tellers/nobody/tell?text=a")
        assert (missing[0], missing[1]["code"]) == (404, "agent_not_found")
        assert _told(at, "/tellers/ben/tell?text=once+upon+a+time") == [
            *({"seq": n + 1, "data": word, "final": False} for n, word in enumerate(["once", "upon", "a", "time"])),
            {"seq": 5, "data": {"words": 4}, "final": True},
        ]
        _leave_stream(at, f"/tellers/ben/tell?text={'+'.join(['word'] * 2_000)}")
        fleet.wait(
            lambda: [letter.reason for letter in fleet.manager.dead_letters("ben")] == ["caller_left"], "its end"
        )
        assert request(at, "DELETE", "/tellers/ben") == (200, {"stopped": "ben"})
        refused = request(at, "POST", "/tellers/ben/ask", {"say": "hello"})
        assert (refused[0], refused[1]["code"]) == (409, "agent_not_running")
        assert process.terminate() == 0
        assert "Traceback" not in process.log()
    finally:
        process.end()
    said = subprocess.run(
        [sys.executable, "script.py"], cwd=printed, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines() == ["Ann heard hello", "1 once", "2 upon", "3 a", "4 time", "5 {'words': 4}"]
    assert fleet.info("ann").state == "stopped"


def _told(path: Path, url: str) -> list[Any]:
    """All that a stream of server-sent events says."""
    connection = UnixConnection(path)
    connection.request("GET", url)
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("content-type")) == (200, "text/event-stream; charset=utf-8")
    text = answer.read().decode()
    connection.close()
    return [json.loads(part.removeprefix("data: ")) for part in text.split("\n\n") if part]


def _leave_stream(path: Path, url: str) -> None:
    """Reads the first event of a long stream and hangs up."""
    connection = UnixConnection(path)
    connection.request("GET", url)
    answer = connection.getresponse()
    assert answer.readline().startswith(b"data: ")
    answer.close()
    connection.close()
