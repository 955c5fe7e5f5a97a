"""Runs the demo from the first process to the report, and leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from ares_celery.celery_app.factory import create_app
from ares_celery.celery_app.wiring import wiring_of
from ares_celery.cli.children import Children
from ares_celery.cli.cleanup import made_up_namespace, wipe_namespace
from ares_celery.cli.demo.agents import TOKENIZER
from ares_celery.cli.demo.checker import Stream, check, fold
from ares_celery.cli.demo.counting import Counts, library, share_of, source_files
from ares_celery.cli.demo.killing import BEAT, Killer
from ares_celery.cli.demo.report import Report, make_report
from ares_celery.cli.demo.screen import Screen, open_screen
from ares_celery.cli.demo.watch import Watch
from ares_celery.cli.embedded_redis import redis_and_folder
from ares_celery.cli.fleet import Fleet, fleet_environment
from ares_celery.cli.interrupts import Interrupts, catch_interrupts
from ares_celery.cli.output import clean, say
from ares_celery.cli.parent_death import bound_to_parent
from ares_celery.clock import SystemClock
from ares_celery.config import ProcessSettings, RuntimeConfig
from ares_celery.errors import AresError, WaitTimeoutError
from ares_celery.manager import CoreManager
from ares_celery.model.agent import AgentSpec
from ares_celery.store.base import Store

__all__ = ["CONFIG", "DemoOptions", "run_demo"]

#: Short intervals, so that a newcomer does not wait; chaos on, as the demo kills.
CONFIG: Final = RuntimeConfig.parse(
    {
        "chaos": True,
        "heartbeat_interval": "500ms",
        "lease_ttl": "2s",
        "health_check_interval": "1s",
        "snapshot_interval": "1500ms",
        "restore_backoff": "200ms",
        "stable_after": "1s",
        "agent_stop_timeout": "5s",
        "drain_timeout": "4s",
        "start_timeout": "20s",
    }
)
WORKERS: Final = ("one", "two")
#: Seconds that the rests after each file add up to, for each agent: so long there is something to watch and to kill.
_REST: Final = 13.0
#: Slots of each worker: enough for all agents, up to so many; more agents share, and wait for the replacement.
_MOST_SLOTS: Final = 16
_START_LIMIT: Final = 60.0
_WORK_LIMIT: Final = 120.0
_LOOK: Final = 0.1
_LOG_LINES: Final = 400
_LOG_SHOWN: Final = 40


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What was asked on the command line."""

    agents: int
    redis_url: str | None
    seed: int


class _Interrupted(SystemExit):
    """Somebody pressed Ctrl-C."""


def run_demo(options: DemoOptions) -> Report:
    """Runs the demo; its processes, folder and namespace are gone when it returns or raises.

    Raises:
        OperationNotSupportedError: There is no Redis to start. StoreUnavailableError: The given one does not answer.
    """
    clock = SystemClock()
    with ExitStack() as stack:
        interrupts = stack.enter_context(catch_interrupts())
        screen = open_screen(clock)
        _introduce(options, screen)
        url, folder = redis_and_folder(stack, options.redis_url)
        namespace = made_up_namespace("demo")
        settings = ProcessSettings(redis_url=url, namespace=namespace)
        if options.redis_url is not None:
            stack.callback(wipe_namespace, url, namespace)
        app = stack.enter_context(create_app(settings, CONFIG, set_as_current=False))
        wiring = wiring_of(app)
        stack.callback(wiring.close)
        log: deque[str] = deque(maxlen=_LOG_LINES)
        environment = fleet_environment(
            url, namespace, folder, agent_modules=["ares_celery.cli.demo.agents"], keep_settings=False
        )
        children = stack.enter_context(Children(lambda name, line: log.append(f"{name}: {line}"), environment))
        plain = stack.enter_context(_PlainCount(folder))
        demo = _Demo(
            options,
            manager=CoreManager(wiring),
            store=wiring.store,
            children=children,
            screen=screen,
            interrupts=interrupts,
        )
        try:
            report = demo.run(Fleet("ares_celery.cli.demo.app", namespace, folder, "WARNING"), plain)
        except AresError:
            _print_end_of(log)
            raise
        if not report.ok:
            _print_end_of(log)
    return report


def _print_end_of(log: Sequence[str]) -> None:
    say("the last lines of the fleet's log:")
    for line in list(log)[-_LOG_SHOWN:]:
        say(f"  {clean(line)}")


def _introduce(options: DemoOptions, screen: Screen) -> None:
    files = len(source_files())
    screen.note(
        f"{files} Python files of the standard library ({library()}) for {options.agents} agents to count names in"
    )
    screen.note("starting a Redis, two workers for agents, one for supervision, and beat")


class _PlainCount:
    """The right answer, from a process of its own that knows nothing of agents."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "plain.json"
        with self._path.open("wb") as out:
            self._process = subprocess.Popen(  # noqa: S603 - our own arguments
                bound_to_parent([sys.executable, "-m", "ares_celery.cli.demo.counting"]), stdout=out
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def result(self) -> Counts:
        """Waits for it."""
        if self._process.wait(_WORK_LIMIT) != 0:
            raise AresError(message="the plain count failed; its error is above")
        counts = Counts()
        counts.add(json.loads(self._path.read_bytes()))
        return counts


class _Demo:
    """One run."""

    def __init__(
        self,
        options: DemoOptions,
        *,
        manager: CoreManager,
        store: Store,
        children: Children,
        screen: Screen,
        interrupts: Interrupts,
    ) -> None:
        self._options = options
        self._manager = manager
        self._store = store
        self._children = children
        self._screen = screen
        self._interrupts = interrupts
        self._clock = SystemClock()
        self._began = self._clock.monotonic()
        of = options.agents
        self._shares: Mapping[str, list[str]] = {
            f"demo-{index + 1:02}": share_of(source_files(), index, of) for index in range(of)
        }

    def run(self, fleet: Fleet, plain: _PlainCount) -> Report:
        """From the first process to the report."""
        with self._screen:
            self._start_fleet(fleet)
            self._start_agents()
            killer = Killer(self._manager, self._store, self._children, self._screen.note, seed=self._options.seed)
            watch = Watch(self._manager, {agent_id: len(share) for agent_id, share in self._shares.items()})
            self._watch_work(watch, killer)
            self._screen.note("checking: every event of every agent is read back from Redis")
        self._children.ask_to_stop()
        streams = self._read_streams()
        return make_report(
            check(streams, killer.kills),
            killer.kills,
            agents=self._options.agents,
            files=len(source_files()),
            snapshots=self._merged_snapshots(),
            events=fold(streams),
            plain=plain.result(),
            seconds=self._clock.monotonic() - self._began,
            missed=killer.missed,
        )

    def _start_fleet(self, fleet: Fleet) -> None:
        slots = min(self._options.agents, _MOST_SLOTS + self._options.agents // 2)
        for name in WORKERS:
            self._children.start(name, fleet.agents_worker(name, pool="prefork", slots=slots))
        self._children.start("supervisor", fleet.supervision_worker())
        self._children.start(BEAT, fleet.beat())
        wanted = {*WORKERS, "supervisor"}

        def is_up() -> bool:
            hosts = {worker.partition("@")[0] for worker in self._store.hosts().values()}
            return wanted <= hosts and TOKENIZER in self._store.known_types()

        self._wait(is_up, _START_LIMIT, "the workers did not come up")

    def _start_agents(self) -> None:
        self._screen.note("the fleet is up; the agents start")
        for index, (agent_id, share) in enumerate(self._shares.items()):
            config: dict[str, Any] = {"index": index, "of": self._options.agents, "pace": _REST / max(1, len(share))}
            self._manager.start_agent(AgentSpec(id=agent_id, type=TOKENIZER, config=config), reason="ares demo")

    def _watch_work(self, watch: Watch, killer: Killer) -> None:
        def is_done() -> bool:
            view = watch.look()
            self._screen.show(view)
            killer.look(view, watch)
            return view.is_complete

        if not self._wait(is_done, _WORK_LIMIT, None):
            self._screen.note(f"the agents did not complete within {_WORK_LIMIT:g} s")

    def _wait(self, condition: Callable[[], bool], limit: float, failure: str | None) -> bool:
        """Waits for a condition, keeping the processes alive meanwhile."""
        until = self._clock.monotonic() + limit
        while not condition():
            for sentence in self._children.restart_dead():
                self._screen.note(sentence)
            if self._clock.wait(self._interrupts.stop, _LOOK):
                raise _Interrupted(130)
            if self._clock.monotonic() > until:
                if failure is not None:
                    raise WaitTimeoutError(message=f"{failure} within {limit:g} s")
                return False
        return True

    def _read_streams(self) -> dict[str, Stream]:
        events = self._manager.events
        return {
            agent_id: Stream(events.read(agent_id), events.stream_version(agent_id), share)
            for agent_id, share in self._shares.items()
        }

    def _merged_snapshots(self) -> Counts:
        """What the agents themselves say, as their last snapshots have it."""
        total = Counts()
        for agent_id in self._shares:
            state = self._manager.snapshots.load(agent_id)
            if state is not None:
                total.add(state)
        return total
