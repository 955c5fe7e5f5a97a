"""Every command of compose.yaml, run once as a process: as in the image, but with a Redis of the test's own."""

from __future__ import annotations

import base64
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from ares_celery.model.durations import parse_duration
from tests import compose_file
from tests.compose_file import FOLDER, ROOT
from tests.fleet import Process
from tests.redis_server import RedisServer, free_port
from tests.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

SERVICES = compose_file.services()
LOGIN = "operator:from-dot-env"
#: Seconds; Celery starts in 2 on an idle machine.
START_TIMEOUT = 40.0
#: Words in the log that tell that a service works. Beat says that it starts before its schedule is open, and a SIGTERM
#: at that moment breaks Celery's own handler; so its first alarm is waited for.
READY = {"agents": " ready.", "supervision": " ready.", "beat": "Sending due task ares.health_check"}
#: So that the first alarm comes soon.
SOON = {"ARES_HEALTH_CHECK_INTERVAL": "2500ms"}


@pytest.fixture
def redis_of_compose(tmp_path: Path) -> Iterator[RedisServer]:
    """A server with compose/redis/redis.conf; only where it listens and writes is another place."""
    server = ConfiguredRedis()
    server.start()
    yield server
    server.close()


class ConfiguredRedis(RedisServer):
    """Redis as compose.yaml starts it."""

    @override
    def _command(self, port: int) -> list[str]:
        program, conf = SERVICES["redis"]["command"]
        assert program == "redis-server"
        (mounted,) = [entry for entry in SERVICES["redis"]["volumes"] if entry.split(":")[1] == conf]
        place = {"port": str(port), "bind": "127.0.0.1", "dir": str(self.folder), "logfile": "redis.log"}
        options = [word for name, value in place.items() for word in (f"--{name}", value)]
        return [self._binary, str(FOLDER / mounted.split(":")[0]), *options]


class Container:
    """Starts a service's command with its environment, and with nothing of this repository but what the image has."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self._app = folder / "app"
        self._run = folder / "run"
        self._redis_url = redis_url
        self._site = folder / "site"
        for made in (self._app, self._run, self._site):
            made.mkdir()
        # Stands for the installed wheel.
        (self._site / "ares_celery").symlink_to(ROOT / "ares_celery")
        for source in ("celeryconfig.py", "workers"):
            assert source in compose_file.copied_sources()
            copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
            copy(ROOT / source, self._app / source)

    def environment(self, name: str) -> dict[str, str]:
        """What compose.yaml gives the service, with Redis and ports of this machine."""
        given = compose_file.environment(SERVICES[name], {"FLOWER_BASIC_AUTH": LOGIN})
        assert given["ARES_REDIS_URL"].startswith("redis://redis:6379/")
        given["ARES_REDIS_URL"] = self._redis_url
        modules = os.pathsep.join((str(self._app), str(self._site)))
        image = {"PYTHONPATH": modules, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
        return {"PATH": os.environ["PATH"], **image, **given}

    def files(self) -> set[Path]:
        """What lies beside the code, which is read-only in the container."""
        return set(self._app.rglob("*"))

    def start(self, name: str, extra: Mapping[str, str] | None = None, *, init: bool = False) -> Process:
        """Start the service's command exactly as it is written; with `init`, as the child of what is returned."""
        program, *arguments = SERVICES[name]["command"]
        executable = Path(sys.executable).with_name(program)
        # Only beat writes to its working folder, and has one that can be written to.
        folder = self._run if "working_dir" in SERVICES[name] else self._app
        command = ["env", "-C", str(folder), str(executable), *arguments]
        if init:
            command = ["sh", "-c", '"$@" & wait', "init", *command]
        return Process(name, command, {**self.environment(name), **(extra or {})}, self._run / f"{name}.log")


@pytest.fixture
def container(tmp_path: Path, redis_of_compose: RedisServer) -> Container:
    """A container's surroundings: code, environment, working folder."""
    return Container(tmp_path, redis_of_compose.url)


@pytest.fixture
def start(container: Container) -> Iterator[Callable[..., Process]]:
    """Start services by name; they end with the test."""
    processes: list[Process] = []

    def begin(name: str, extra: Mapping[str, str] | None = None, *, init: bool = False) -> Process:
        processes.append(container.start(name, extra, init=init))
        return processes[-1]

    yield begin
    for process in processes:
        process.end()


def wait_for(process: Process, condition: Callable[[], object], what: str) -> None:
    """Wait for a condition; a process that ended, or the wait's failure, shows the log."""
    try:
        wait_until(lambda: condition() or not process.alive, what, timeout=START_TIMEOUT)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{process.log()}") from None
    assert process.alive, process.log()


def is_healthy(init: Process, note: Path) -> bool:
    """Run the containers' health check on what the process started."""
    check = [str(FOLDER / "healthcheck"), str(init.pid), str(note)]
    return subprocess.run(check, capture_output=True, check=False).returncode == 0


def status_of(port: int, path: str, login: str | None = None, method: str = "GET", *, host: str = "127.0.0.1") -> int:
    """Return the status of a page of Flower; 0 while nobody listens."""
    headers = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"} if login else {}
    with closing(HTTPConnection(host, port, timeout=5)) as connection:
        try:
            connection.request(method, path, headers=headers)
        except ConnectionError:
            return 0
        with connection.getresponse() as response:
            response.read()
            return response.status


def test_redis_with_the_conf_keeps_what_it_acknowledges_and_forgets_nothing(redis_of_compose: RedisServer) -> None:
    """The server runs with the shipped file: append-only, a second at most, no eviction."""
    settings = {
        name: redis_of_compose.client(decode_responses=True).config_get(name)[name]
        for name in ("appendonly", "appendfsync", "maxmemory-policy", "maxmemory", "save", "timeout")
    }
    assert settings == {
        "appendonly": "yes",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
        "maxmemory": str(1 << 30),
        "save": "",
        "timeout": "0",
    }


def test_redis_with_the_conf_has_its_data_after_a_kill(redis_of_compose: RedisServer) -> None:
    """SIGKILL of the server, and a start on the same folder: what was answered is there."""
    redis_of_compose.client().set("k", "v")
    redis_of_compose.kill()
    redis_of_compose.start()
    assert redis_of_compose.client().get("k") == b"v"


def test_the_health_check_of_redis_tells_a_server_from_none(redis_of_compose: RedisServer) -> None:
    """The shipped check succeeds on a running server and fails on a dead one."""
    client = shutil.which("redis-cli")
    if client is None:
        pytest.skip("no redis-cli on PATH")
    kind, program, *arguments = SERVICES["redis"]["healthcheck"]["test"]
    assert (kind, program) == ("CMD", "redis-cli")
    check = [client, "-p", str(redis_of_compose.port), *arguments]
    assert subprocess.run(check, capture_output=True, check=False).returncode == 0
    redis_of_compose.kill()
    assert subprocess.run(check, capture_output=True, check=False).returncode != 0


@pytest.mark.parametrize("name", READY)
def test_a_command_runs_and_ends_in_order(
    name: str, start: Callable[..., Process], container: Container, redis_of_compose: RedisServer
) -> None:
    """It gets ready, writes nothing beside the code, and SIGTERM ends it with exit code 0 within its grace."""
    before = container.files()
    process = start(name, SOON)
    wait_for(process, lambda: READY[name] in process.log(), f"{name} to be ready")
    if name == "beat":
        # Celery's beat logs an error when SIGTERM meets it in the middle of sending; it says so before it sends.
        client: Any = redis_of_compose.client()
        wait_for(process, lambda: client.llen("ares.supervision") > 0, "the first alarm to be sent")
        # And to be answered: the server has an alarm before beat has read that it has.
        wait_for(process, lambda: all(map(_is_idle, client.client_list())), "beat to sleep until the next one")
    grace = parse_duration(SERVICES[name]["stop_grace_period"]).total_seconds()
    assert process.terminate(timeout=grace) == 0, process.log()
    assert container.files() == before
    assert "Traceback" not in process.log()


def test_flower_lets_in_who_has_the_login(start: Callable[..., Process]) -> None:
    """Without the login, or with another, 401; with it the pages and the arena's routes; ends with exit code 0."""
    port = free_port()
    process = start("flower", {"FLOWER_PORT": str(port), "FLOWER_ADDRESS": "127.0.0.1"})
    # The one page that needs no login: the container's health check asks for it.
    wait_for(process, lambda: status_of(port, "/healthcheck") == 200, "flower to answer")

    ours = [f"/api/ares/{path}" for path in ("arena/stats", "arena/scenarios", "chaos/faults")]
    for path in ("/workers", "/tasks", "/broker", "/api/workers", "/api/tasks", *ours):
        assert status_of(port, path) == 401, path
        assert status_of(port, path, "operator:guessed") == 401, path
        assert status_of(port, path, LOGIN) == 200, path

    assert process.terminate() == 0, process.log()
    assert LOGIN.split(":")[1] not in process.log()


@pytest.mark.parametrize(("read_only", "answer", "healed"), [(None, 403, 403), ("false", 404, 200)])
def test_flower_changes_nothing_unless_it_is_told_so(
    read_only: str | None, answer: int, healed: int, start: Callable[..., Process]
) -> None:
    """Read-only is the default, with the login too; with `false` in .env a worker is looked for, and agents healed."""
    port = free_port()
    # The address that compose.yaml gives is heeded: another one in its place is the only one that answers.
    extra = {"FLOWER_PORT": str(port), "FLOWER_ADDRESS": "127.0.0.2"}
    process = start("flower", extra if read_only is None else {**extra, "FLOWER_READ_ONLY": read_only})
    ask = partial(status_of, port, host="127.0.0.2")
    wait_for(process, lambda: ask("/healthcheck") == 200, "flower to answer")
    assert status_of(port, "/healthcheck") == 0
    assert ask("/api/worker/shutdown/celery@anywhere", LOGIN, "POST") == answer
    assert ask("/api/ares/chaos/heal", None, "POST") == 401
    assert ask("/api/ares/chaos/heal", LOGIN, "POST") == healed


def test_the_health_check_tells_a_frozen_worker_from_a_working_one(
    start: Callable[..., Process], tmp_path: Path, redis_of_compose: RedisServer
) -> None:
    """A worker whose main thread runs is healthy, with and without Redis; a frozen or ended one is not."""
    init = start("supervision", init=True)
    wait_for(init, lambda: READY["supervision"] in init.log(), "the worker to be ready")
    (worker,) = init.children()
    note = tmp_path / "note"
    assert is_healthy(init, note)
    wait_until(lambda: is_healthy(init, note), "health again", timeout=30)

    redis_of_compose.pause()
    wait_until(lambda: is_healthy(init, note), "health without Redis", timeout=30)
    redis_of_compose.resume()

    os.kill(worker, signal.SIGSTOP)
    wait_until(lambda: not is_healthy(init, note), "a verdict on the frozen worker")
    os.kill(worker, signal.SIGCONT)
    wait_until(lambda: is_healthy(init, note), "health after the thaw", timeout=30)

    init.end()
    assert not is_healthy(init, note)


def test_the_health_check_finds_a_main_thread_that_stands_still(tmp_path: Path) -> None:
    """A process that is there, but has not run between two looks, is not healthy."""
    init = Process("init", ["sh", "-c", "sleep 600 & wait"], os.environ, tmp_path / "log")
    try:
        wait_until(lambda: any("State:\tS" in status(child) for child in init.children()), "the sleeper to sleep")
        assert is_healthy(init, tmp_path / "note")
        assert not is_healthy(init, tmp_path / "note")
    finally:
        init.end()


def status(pid: int) -> str:
    """What the kernel says of a process."""
    return Path(f"/proc/{pid}/status").read_text()


def test_the_health_check_costs_milliseconds(tmp_path: Path) -> None:
    """Ten looks cost less CPU than a tenth of one `inspect ping`, which takes a second."""
    init = Process("init", ["sh", "-c", "sleep 600 & wait"], os.environ, tmp_path / "log")
    try:
        wait_until(init.children, "the sleeper")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        for _ in range(10):
            is_healthy(init, tmp_path / "note")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    finally:
        init.end()
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.1


def _is_idle(client: dict[str, str]) -> bool:
    """One that has sent an alarm, and nothing else for a second; any other one."""
    return client["cmd"] != "lpush" or int(client["idle"]) >= 1
