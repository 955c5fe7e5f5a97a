"""A fleet of real processes for one test: its own Redis, real Celery workers and beat, all ended with the test."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from celery import Celery

from ares_celery import AgentInfo, AgentState, Event, Manager, ReadOptions, RuntimeConfig
from ares_celery.celery_app.factory import create_app
from ares_celery.config import ProcessSettings
from ares_celery.ids import AgentId
from ares_celery.model.agent import AgentRecord
from ares_celery.store.base import Store
from tests.redis_server import RedisServer
from tests.wait import wait_until

ROOT = Path(__file__).parent.parent
AGENTS = "agents"
SUPERVISION = "supervision"
CONTROL = "control"
#: Fast enough for tests, slow enough for two shared cores.
FAST: Mapping[str, str] = {
    "HEARTBEAT_INTERVAL": "300ms",
    "LEASE_TTL": "1500ms",
    "HEALTH_CHECK_INTERVAL": "1s",
    "RESTORE_BACKOFF": "500ms",
    "AGENT_STOP_TIMEOUT": "3s",
    "OVERALL_STOP_TIMEOUT": "6s",
    "DRAIN_TIMEOUT": "5s",
    "SNAPSHOT_INTERVAL": "500ms",
    "STABLE_AFTER": "5s",
    "START_TIMEOUT": "10s",
    "SHARDS": "4",
    "CHAOS": "true",
}
START_TIMEOUT = 40.0


class Process:
    """One process of a fleet, with its log."""

    def __init__(self, name: str, command: list[str], env: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.log_path = log
        self._file: IO[bytes] = log.open("ab")
        # A session of its own: a signal to its group reaches nobody else.
        self.popen = subprocess.Popen(
            command,
            cwd=ROOT,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=self._file,
            stderr=self._file,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.popen.pid

    @property
    def alive(self) -> bool:
        """It has not exited."""
        return self.popen.poll() is None

    def is_settled(self) -> bool:
        """A worker that consumes, or one that has ended."""
        return " ready." in self.log() or not self.alive

    def log(self) -> str:
        """What it said so far."""
        return self.log_path.read_text(errors="replace")

    def children(self) -> list[int]:
        """Pool children, oldest first."""
        found: list[int] = []
        for task in Path(f"/proc/{self.pid}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
        return sorted(found)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.signal(signal.SIGKILL)
        self.popen.wait(10)

    def freeze(self) -> None:
        """SIGSTOP of the process and its pool children."""
        for pid in (self.pid, *self.children()):
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        for pid in (self.pid, *self.children()):
            os.kill(pid, signal.SIGCONT)

    def terminate(self, timeout: float = 20) -> int:
        """SIGTERM, wait for the end; returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.popen.wait(timeout)

    def signal(self, number: int) -> None:
        """Sends a signal to this process only."""
        self.popen.send_signal(number)

    def end(self) -> None:
        """Ends it and its children, whatever state they are in."""
        if self.alive:
            # It may end by itself at this moment.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.popen.wait(10)
        self._file.close()


class Fleet:
    """Redis, workers, beat and a manager of one namespace."""

    def __init__(
        self, redis: RedisServer, namespace: str, folder: Path, settings: Mapping[str, str] | None = None
    ) -> None:
        self.redis = redis
        self.namespace = namespace
        self.folder = folder
        self.settings = {**FAST, **(settings or {})}
        fields = {f"ARES_{name}": value for name, value in self.settings.items()}
        self.config = RuntimeConfig.from_env(fields)
        self.processes: list[Process] = []
        self.manager = Manager(self.config, redis_url=redis.url, namespace=namespace)

    @property
    def env(self) -> dict[str, str]:
        """The environment of the fleet's processes."""
        own = {
            "ARES_REDIS_URL": self.redis.url,
            "ARES_NAMESPACE": self.namespace,
            "ARES_AGENT_MODULES": "tests.fleet_agents",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        }
        return {**os.environ, **own, **{f"ARES_{name}": value for name, value in self.settings.items()}}

    def start_worker(  # noqa: PLR0913 - the options of a worker
        self,
        name: str,
        queues: Iterable[str] = (AGENTS, SUPERVISION, CONTROL),
        *,
        pool: str = "threads",
        slots: int = 8,
        env: Mapping[str, str] | None = None,
        options: Iterable[str] = (),
        app: str = "workers.app",
    ) -> Process:
        """Starts a worker without waiting for it."""
        on = ",".join(f"{self.namespace}.{queue}" for queue in queues)
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            app,
            "worker",
            "-Q",
            on,
            "-P",
            pool,
            "-c",
            str(slots),
        ]
        command += ["-n", f"{name}@host", "-l", "INFO", *options]
        process = Process(name, command, {**self.env, **(env or {})}, self.folder / f"{name}.log")
        self.processes.append(process)
        return process

    def worker(self, name: str, queues: Iterable[str] = (AGENTS, SUPERVISION, CONTROL), **options: Any) -> Process:
        """Starts a worker and waits until it consumes."""
        process = self.start_worker(name, queues, **options)
        self.ready(process)
        return process

    def ready(self, *processes: Process) -> None:
        """Waits until workers consume."""
        for process in processes:
            wait_until(process.is_settled, f"worker {process.name}", timeout=START_TIMEOUT)
            assert process.alive, process.log()

    def beat(self) -> Process:
        """Starts beat."""
        command = [sys.executable, "-m", "celery", "-A", "workers.app", "beat", "-l", "INFO"]
        command += ["-s", str(self.folder / "beat-schedule"), "--pidfile="]
        process = Process("beat", command, self.env, self.folder / "beat.log")
        self.processes.append(process)
        return process

    # -- looking ----------------------------------------------------------------------------------------------------

    def info(self, agent_id: str) -> AgentInfo:
        """The agent; fails when it does not exist."""
        found = self.manager.get_agent_info(agent_id)
        assert found is not None, agent_id
        return found

    def until(self, agent_id: str, state: AgentState | str, *, incarnation: int = 0, timeout: float = 20) -> AgentInfo:
        """Waits until the agent is in a state (and at least in this incarnation)."""
        wanted = AgentState(state)
        found: list[AgentInfo] = []

        def there() -> bool:
            found[:] = [self.info(agent_id)]
            return found[0].state is wanted and found[0].incarnation >= incarnation

        self.wait(there, f"{agent_id} to be {wanted}", timeout=timeout)
        return found[0]

    def wait(self, condition: Callable[[], object], what: str, *, timeout: float = 20) -> None:
        """Waits for a condition; a failure shows the ends of all logs."""
        try:
            wait_until(condition, what, timeout=timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    @property
    def store(self) -> Store:
        """The namespace itself, for what no manager tells."""
        return self.manager._ports.store

    def record(self, agent_id: str) -> AgentRecord:
        """The agent as Redis holds it, with fence and owner; fails when it does not exist."""
        record = self.store.read(AgentId(agent_id)).record
        assert record is not None, agent_id
        return record

    @cached_property
    def app(self) -> Celery:
        """A service's own app: sends tasks by name, and reads their results."""
        settings = ProcessSettings(redis_url=self.redis.url, namespace=self.namespace)
        return create_app(settings, self.config, set_as_current=False)

    def send(self, task: str, *args: object, queue: str, task_id: str | None = None) -> str:
        """Sends a task to one of the namespace's queues; returns its id."""
        return str(self.app.send_task(task, args=args, queue=f"{self.namespace}.{queue}", task_id=task_id).id)

    def result(self, task_id: str, timeout: float = 20) -> Any:
        """Waits for what a task returned."""
        found = self.app.AsyncResult(task_id)
        self.wait(found.ready, f"task {task_id} to end", timeout=timeout)
        return found.result

    def events(self, agent_id: str, type: str | None = None) -> list[Event]:
        """All events of an agent, or those of one type."""
        return [e for e in self.manager.events.read(agent_id, ReadOptions()) if type is None or e.type == type]

    def ticks(self, agent_id: str) -> int:
        """How many ticks are stored."""
        return len(self.events(agent_id, "ticked"))

    def until_ticks(self, agent_id: str, more_than: int, timeout: float = 20) -> int:
        """Waits until more than so many ticks are stored."""
        self.wait(lambda: self.ticks(agent_id) > more_than, f"{agent_id} to tick beyond {more_than}", timeout=timeout)
        return self.ticks(agent_id)

    def host_pid(self, agent_id: str) -> int:
        """The process that hosts the agent, as the agent itself says."""
        return int(self.manager.process(agent_id, "who", timeout=10)["pid"])

    def logs(self) -> str:
        """The ends of all logs, for a failure's message."""
        return "\n".join(f"--- {process.name}\n{process.log()[-6000:]}" for process in self.processes)

    def check_streams(self, agent_id: str) -> None:
        """Versions without gap, epochs never fall, each tick once and in order, each failover closed once."""
        events = self.events(agent_id)
        assert [event.version for event in events] == list(range(1, len(events) + 1))
        own = [event for event in events if event.type == "ticked"]
        assert [event.payload["n"] for event in own] == list(range(1, len(own) + 1)), f"{agent_id} repeats or loses"
        epochs = [event.epoch for event in own]
        assert epochs == sorted(epochs), f"{agent_id}: an epoch fell"
        opened = 0
        for event in events:
            if event.type == "failover.triggered":
                assert opened == 0, f"{agent_id}: a failover was triggered twice"
                opened = 1
            elif event.type in ("failover.completed", "failover.failed", "failover.aborted"):
                assert opened == 1, f"{agent_id}: {event.type} without a trigger"
                opened = 0

    # -- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends every process and the manager."""
        for process in reversed(self.processes):
            process.end()
        self.manager.close()
        if "app" in vars(self):
            self.app.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
