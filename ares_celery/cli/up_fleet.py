"""Runs the processes of ``ares up`` until somebody ends them."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import click

from ares_celery.cli.apps import BUILTIN_APP
from ares_celery.cli.children import Children
from ares_celery.cli.cleanup import made_up_namespace, wipe_namespace
from ares_celery.cli.embedded_redis import free_port, redis_and_folder
from ares_celery.cli.fleet import Fleet, fleet_environment
from ares_celery.cli.flower import demand_flower
from ares_celery.cli.interrupts import Interrupts, catch_interrupts
from ares_celery.cli.merged_log import MergedLog
from ares_celery.cli.output import clean, say
from ares_celery.cli.up_ready import all_ready, print_exports, say_what_to_try
from ares_celery.clock import Clock, SystemClock
from ares_celery.config import ProcessSettings
from ares_celery.errors import StoreUnavailableError
from ares_celery.store.base import Store
from ares_celery.store.redis.open import open_store

__all__ = ["UpOptions", "run_up"]

#: Seconds between two looks at the processes.
_LOOK: Final = 0.2
#: Something to start where nobody has agents of their own.
_SAMPLE_AGENTS: Final = "ares_celery.cli.demo.samples"
#: Those whose readiness is told by the store.
_WORKERS: Final = ("agents", "supervisor")
#: A process that fails so often before it was ever ready will not do better the next time.
_FAILED_STARTS: Final = 2


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What was asked on the command line."""

    app: str
    redis_url: str | None
    namespace: str | None
    flower: bool
    concurrency: int


def run_up(options: UpOptions) -> int:
    """Runs the fleet; returns the exit code when it has ended.

    Raises:
        OperationNotSupportedError: There is no Redis to start, or Flower is not installed.
        StoreUnavailableError: The given Redis does not answer.
    """
    if options.flower:
        demand_flower("--flower")
    namespace = options.namespace or made_up_namespace("up")
    with ExitStack() as stack:
        interrupts = stack.enter_context(catch_interrupts())
        url, folder = redis_and_folder(stack, options.redis_url)
        # Made here, so that all processes find the same one, and a wrong URL is said before anything runs.
        store = open_store(ProcessSettings(redis_url=url, namespace=namespace))
        stack.callback(store.close)
        if options.redis_url and not options.namespace:
            stack.callback(wipe_namespace, url, namespace)
        modules = () if options.app != BUILTIN_APP or os.environ.get("ARES_AGENT_MODULES") else (_SAMPLE_AGENTS,)
        environment = fleet_environment(url, namespace, folder, agent_modules=modules)
        children = stack.enter_context(Children(MergedLog(), environment, give_up_after=_FAILED_STARTS))
        flower = _start(children, options, Fleet(options.app, namespace, folder, task_events=options.flower))
        fleet = _UpFleet(children, store, interrupts, SystemClock())

        def introduce() -> None:
            types = store.known_types()
            if flower is not None:
                click.echo(f"# Flower: {flower}")
            print_exports(url, namespace, options.app)
            say_what_to_try(types, children["agents"].pid)

        code = fleet.watch(introduce)
        say("ares up: ending the fleet")
        children.stop(hurry=interrupts.hurry)
    say("ares up: all processes have ended")
    return code


def _start(children: Children, options: UpOptions, fleet: Fleet) -> str | None:
    """Starts all processes; returns Flower's address, if it was asked for."""
    commands = {
        "agents": fleet.agents_worker("agents", pool="threads", slots=options.concurrency),
        "supervisor": fleet.supervision_worker(),
        "beat": fleet.beat(),
    }
    port = free_port() if options.flower else None
    if port is not None:
        commands["flower"] = fleet.flower(port)
    for name, command in commands.items():
        say(f"ares up: {name} started (pid {children.start(name, command).pid})")
    return None if port is None else f"http://127.0.0.1:{port}/"


@dataclass
class _UpFleet:
    """The running fleet, looked at until it ends."""

    children: Children
    store: Store
    interrupts: Interrupts
    clock: Clock
    _is_store_away: bool = False

    def watch(self, introduce: Callable[[], None]) -> int:
        """Restarts what dies, and calls ``introduce`` once all workers are ready; returns the exit code."""
        is_introduced = False
        while not self.clock.wait(self.interrupts.stop, _LOOK):
            for sentence in self.children.restart_dead():
                say(f"ares up: {sentence}")
            failed = self.children.given_up
            if failed is not None:
                say(f"ares up: {failed.name} cannot start: {clean(failed.last_line)}")
                return 1
            is_introduced = is_introduced or self._try_to_introduce(introduce)
        return 0

    def _try_to_introduce(self, introduce: Callable[[], None]) -> bool:
        try:
            if not all_ready(self.store, self.children, _WORKERS):
                return False
            introduce()
        except StoreUnavailableError as error:
            if not self._is_store_away:
                say(f"ares up: {error}")
            self._is_store_away = True
            return False
        return True
