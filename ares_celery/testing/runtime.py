"""A whole runtime for integration tests: a private Redis, real worker processes, a manager."""

from __future__ import annotations

import os
import sys
import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeVar

from typing_extensions import override

from ares_celery.celery_app.async_client import AsyncManager
from ares_celery.celery_app.client import Manager
from ares_celery.cli.apps import BUILTIN_APP
from ares_celery.cli.children import Children
from ares_celery.cli.embedded_redis import EmbeddedRedis
from ares_celery.cli.fleet import Fleet, fleet_environment
from ares_celery.cli.up_ready import all_ready
from ares_celery.config import ProcessSettings, RuntimeConfig
from ares_celery.errors import AresError, DidNotHappenError, InvalidSettingError, WaitTimeoutError
from ares_celery.model.agent import LIVE, AgentInfo, AgentState, RuntimeState
from ares_celery.store.base import Store
from ares_celery.store.redis.open import open_store
from ares_celery.testing.waiting import wait_until

__all__ = ["AresRuntime", "RuntimeOptions", "Runtimes"]

T = TypeVar("T")

#: Fast enough for tests, slow enough for a busy machine.
FAST: Final[Mapping[str, Any]] = {
    "heartbeat_interval": "300ms",
    "lease_ttl": "1500ms",
    "health_check_interval": "1s",
    "restore_backoff": "200ms",
    "agent_stop_timeout": "3s",
    "overall_stop_timeout": "6s",
    "drain_timeout": "5s",
    "snapshot_interval": "500ms",
    "stable_after": "2s",
    "start_timeout": "20s",
    "shards": 2,
    "chaos": True,
}
#: Seconds that a worker may take to start on a busy machine.
_START_LIMIT: Final = 60.0
#: Seconds between two looks at workers that died.
_LOOK: Final = 0.05
#: Lines of the workers' logs that are kept, and that a failure shows.
_KEPT_LINES: Final = 5_000
_SHOWN_LINES: Final = 80
_RESTING: Final = frozenset(set(AgentState) - LIVE)


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """What a test wants of its runtime; equal ones share one.

    Attributes:
        agent_modules: Modules that workers import to learn agent types; empty: ``workers.agents``, if there is one.
        workers: How many worker processes.
        pool: Their pool.
        slots: Most agents of each.
        app: The Celery app that they run.
        settings: Fields of RuntimeConfig that are to differ, as items.
    """

    agent_modules: tuple[str, ...] = ()
    workers: int = 1
    pool: str = "threads"
    slots: int = 16
    app: str = BUILTIN_APP
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def config(self) -> RuntimeConfig:
        """The namespace's settings. Raises InvalidSettingError: one of them cannot work."""
        return RuntimeConfig.parse({**FAST, **dict(self.settings)})


@dataclass
class _Log:
    """What the workers print."""

    lines: deque[str] = field(default_factory=lambda: deque[str](maxlen=_KEPT_LINES))

    def __call__(self, name: str, line: str) -> None:
        self.lines.append(f"{name}| {line}")


@dataclass(frozen=True, slots=True, repr=False)
class _NotYet:
    """An agent in another state than a test waits for; false, and with a text for people."""

    info: AgentInfo | None

    def __bool__(self) -> bool:
        return False

    @override
    def __repr__(self) -> str:
        info = self.info
        if info is None:
            return "no agent of that id"
        return f"{info.state}, incarnation {info.incarnation}" + (f" ({info.reason})" if info.reason else "")


class AresRuntime:
    """One namespace with real workers on a private Redis; what the fixture ``ares_runtime`` gives.

    Attributes:
        redis_url: Where its Redis is.
        namespace: Its namespace.
        manager: A manager of it.
        env: The environment for processes of a test's own, and of the workers.
    """

    def __init__(self, redis_url: str, folder: Path, options: RuntimeOptions) -> None:
        """Starts the workers and waits until they consume; :meth:`close` ends them.

        Raises:
            DidNotHappenError: They do not start; the text shows what they said.
        """
        self.redis_url = redis_url
        self.namespace: str = f"test-{uuid.uuid4().hex[:12]}"
        self.options = options
        self._log = _Log()
        self._started = 0
        self._pause = threading.Event()
        self._names: list[str] = []
        fleet = Fleet(options.app, self.namespace, folder)
        self._command = fleet.worker
        self.env: dict[str, str] = fleet_environment(
            redis_url, self.namespace, folder, agent_modules=options.agent_modules, keep_settings=False
        )
        self.env |= {"PYTHONPATH": _import_path(self.env), "ARES_APP": options.app}
        with ExitStack() as stack:
            settings = ProcessSettings(redis_url=redis_url, namespace=self.namespace)
            # Made here, with the settings of the test, before any worker could make it with others.
            self._store: Store = open_store(settings, options.config)
            stack.callback(self._store.close)
            self.manager = Manager(options.config, redis_url=redis_url, namespace=self.namespace)
            stack.callback(self.manager.close)
            self._children = stack.enter_context(Children(self._log, self.env))
            for _ in range(options.workers):
                self.start_worker(wait=False)
            self._wait_for_workers()
            self._stack = stack.pop_all()

    @property
    def async_manager(self) -> AsyncManager:
        """A new manager for event loops: ``async with ares_runtime.async_manager as manager``."""
        return AsyncManager(self.options.config, redis_url=self.redis_url, namespace=self.namespace)

    # -- workers ----------------------------------------------------------------------------------------------------

    @property
    def workers(self) -> list[str]:
        """The names of the workers that run, oldest first."""
        return [name for name in self._names if self._children[name].is_running]

    def worker_pid(self, worker: str | None = None) -> int:
        """The process of a worker; None: the oldest."""
        return self._children[worker or self.workers[0]].pid

    def start_worker(self, *, wait: bool = True) -> str:
        """Starts one more worker, by default waits until it consumes, and returns its name."""
        self._started += 1
        name = f"worker-{self._started}"
        self._children.start(name, self._command(name, pool=self.options.pool, slots=self.options.slots))
        self._names.append(name)
        if wait:
            self._wait_for_workers()
        return name

    def kill_worker(self, worker: str | None = None, *, replace: bool = True) -> int:
        """Kills a worker's process with SIGKILL, and every agent in it; returns its process id.

        Args:
            worker: Which; None: the oldest.
            replace: Start another one at once, without waiting for it.
        """
        name = worker or self.workers[0]
        pid = self._children.kill(name)
        if replace:
            self.start_worker(wait=False)
        return pid

    def restart_dead_workers(self) -> None:
        """Starts workers again that died, each after a moment; call it often, from the thread that made the runtime."""
        for said in self._children.restart_dead():
            self._log("runtime", said)

    def restore_workers(self) -> None:
        """Waits until every worker that died runs again and consumes."""
        while self._children.dead():
            self.restart_dead_workers()
            self._pause.wait(_LOOK)
        self._wait_for_workers()

    # -- looking ----------------------------------------------------------------------------------------------------

    def until(
        self, agent_id: str, state: AgentState | str, *, incarnation: int = 0, timeout: float = 30.0
    ) -> AgentInfo:
        """Waits until an agent is in a state, and at least in this incarnation.

        Raises:
            AssertionError: It is not; the text shows where it is, and what the workers said.
            InvalidSettingError: There is no such state.
        """
        states = [str(one) for one in AgentState]
        if state not in states:
            raise InvalidSettingError(field="state", value=state, problem=f"it is one of {', '.join(states)}")
        found: list[AgentInfo] = []

        def there() -> AgentInfo | _NotYet:
            info = self.manager.get_agent_info(agent_id)
            if info is not None and info.state == state and info.incarnation >= incarnation:
                found.append(info)
                return info
            return _NotYet(info)

        self.wait_until(there, f"agent {agent_id!r} to be {state}", timeout=timeout)
        return found[0]

    def wait_until(self, condition: Callable[[], T], what: str = "the condition", *, timeout: float = 30.0) -> T:
        """Waits for a condition in real time and returns its first truthy value.

        Raises:
            AssertionError: It did not come; the text shows what the workers said last.
        """
        try:
            return wait_until(condition, what, timeout=timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    def logs(self, lines: int = _SHOWN_LINES) -> str:
        """What the workers printed last."""
        return "\n".join(list(self._log.lines)[-lines:])

    def _wait_for_workers(self) -> None:
        names = self._names

        def ready() -> bool:
            running = [name for name in names if not self._children[name].expected]
            return all_ready(self._store, self._children, running) or any(
                not self._children[name].is_running for name in running
            )

        wait_until(ready, "workers", timeout=_START_LIMIT)
        ended = [child.name for child in self._children.dead()]
        if ended:
            wanted = f"the start of {', '.join(ended)}"
            raise DidNotHappenError(wanted=wanted, timeout=_START_LIMIT, message=f"{wanted} failed:\n{self.logs()}")

    # -- the end ----------------------------------------------------------------------------------------------------

    def clear(self) -> bool:
        """Makes it as new: forgets all agents; False when it cannot be used by another test."""
        try:
            if self._store.runtime().state is not RuntimeState.RUNNING:
                return False
            infos = self.manager.list_agents()
            for info in infos:
                self.manager.stop_agent(info.id, wait=False, reason="the test is over")
            for info in infos:
                self.manager.wait_for(info.id, _RESTING, timeout=self.options.config.agent_stop_timeout * 2)
                self.manager.delete_agent(info.id, reason="the test is over")
            for name in self.manager.list_groups():
                self.manager.delete_group(name.name)
        except (AresError, WaitTimeoutError):
            return False
        self._log.lines.clear()
        return len(self.workers) == self.options.workers and not self._children.dead()

    def close(self) -> None:
        """Ends the workers, at once, and closes the manager."""
        for name in self.workers:
            self._children.kill(name)
        self._stack.close()


class Runtimes:
    """The runtimes of one test session: one Redis, and the newest runtime is kept for the next test that fits."""

    def __init__(self) -> None:
        """Nothing is started before it is asked for."""
        self._stack = ExitStack()
        self._redis: EmbeddedRedis | None = None
        self._kept: AresRuntime | None = None
        #: What a person should know of the Redis.
        self.warning: str = ""

    def lend(self, options: RuntimeOptions) -> AresRuntime:
        """A runtime without agents. Raises OperationNotSupportedError: there is no Redis to start."""
        if self._kept is not None and self._kept.options == options:
            return self._kept
        self._forget()
        if self._redis is None:
            redis = EmbeddedRedis()
            self.warning = redis.server.warning
            self._redis = self._stack.enter_context(redis)
        self._kept = AresRuntime(self._redis.url, self._redis.folder, options)
        return self._kept

    def take_back(self, runtime: AresRuntime) -> None:
        """After a test: kept for the next one if it can be made as new."""
        if not runtime.clear():
            self._forget()

    def close(self) -> None:
        """Ends everything."""
        self._forget()
        self._stack.close()

    def _forget(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()


def options_from(modules: Sequence[str], marks: Sequence[Mapping[str, Any]]) -> RuntimeOptions:
    """Puts together what marks say, the nearest last. Raises InvalidSettingError: a mark says what cannot be."""
    asked: dict[str, Any] = {"agent_modules": tuple(modules)}
    for mark in marks:
        asked |= mark
    known = {name: asked.pop(name) for name in list(asked) if name in RuntimeOptions.__slots__ and name != "settings"}
    given = known["agent_modules"]
    known["agent_modules"] = (given,) if isinstance(given, str) else tuple(given)
    for name in ("workers", "slots"):
        if name in known and (type(known[name]) is not int or known[name] < 1):
            raise InvalidSettingError(field=name, value=known[name], problem="use a whole number from 1 on")
    for name, value in asked.items():
        if name not in RuntimeConfig.model_fields:
            names = sorted({*RuntimeOptions.__slots__, *RuntimeConfig.model_fields} - {"settings"})
            near = get_close_matches(name, names, n=1)
            problem = f"the mark ares has no such option{f'; did you mean {near[0]}?' if near else ''}; it takes "
            raise InvalidSettingError(field=name, value=value, problem=problem + ", ".join(names))
    return RuntimeOptions(**known, settings=tuple(sorted(asked.items())))


def _import_path(env: Mapping[str, str]) -> str:
    """Where the tests' modules come from, so that workers find the same ones."""
    entries = [entry or str(Path.cwd()) for entry in sys.path]
    entries += env.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys(entry for entry in entries if entry and Path(entry).is_dir()))
