"""Runs the processes of ``ares up`` until somebody ends them."""

from __future__ import annotations

import os
import shlex
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

import click

from ares_celery.cli.apps import BUILTIN_APP
from ares_celery.cli.children import Children
from ares_celery.cli.cleanup import made_up_namespace, wipe_namespace
from ares_celery.cli.embedded_redis import free_port, redis_and_folder
from ares_celery.cli.fleet import Fleet, fleet_environment
from ares_celery.cli.interrupts import Interrupts, catch_interrupts
from ares_celery.cli.merged_log import MergedLog
from ares_celery.cli.output import say
from ares_celery.clock import SystemClock
from ares_celery.config import ProcessSettings
from ares_celery.errors import OperationNotSupportedError
from ares_celery.store.redis.open import open_store

__all__ = ["UpOptions", "run_up"]

#: Seconds between two looks at the processes.
_LOOK: Final = 0.2
#: Something to start where nobody has agents of their own.
_SAMPLE_AGENTS: Final = "ares_celery.cli.demo.samples"


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
    if options.flower and find_spec("flower") is None:
        raise OperationNotSupportedError(
            operation="--flower", reason="Flower is not installed; pip install 'ares-celery[flower]'"
        )
    namespace = options.namespace or made_up_namespace("up")
    with ExitStack() as stack:
        interrupts = stack.enter_context(catch_interrupts())
        url, folder = redis_and_folder(stack, options.redis_url)
        # Made here, so that all processes find the same one, and a wrong URL is said before anything runs.
        open_store(ProcessSettings(redis_url=url, namespace=namespace)).close()
        if options.redis_url and not options.namespace:
            stack.callback(wipe_namespace, url, namespace)
        modules = () if options.app != BUILTIN_APP or os.environ.get("ARES_AGENT_MODULES") else (_SAMPLE_AGENTS,)
        environment = fleet_environment(url, namespace, folder, agent_modules=modules)
        children = stack.enter_context(Children(MergedLog(), environment))
        _start(children, options, Fleet(options.app, namespace, folder, task_events=options.flower))
        _print_exports(url, namespace, options.app)
        _print_hints("counter" if modules else "TYPE")
        _watch(children, interrupts)
        children.stop(hurry=interrupts.hurry)
    say("ares up: all processes have ended")
    return 0


def _start(children: Children, options: UpOptions, fleet: Fleet) -> None:
    children.start("agents", fleet.agents_worker("agents", pool="threads", slots=options.concurrency))
    children.start("supervisor", fleet.supervision_worker())
    children.start("beat", fleet.beat())
    if options.flower:
        port = free_port()
        children.start("flower", fleet.flower(port))
        click.echo(f"# Flower: http://127.0.0.1:{port}/")


def _print_exports(url: str, namespace: str, app: str) -> None:
    """What a second terminal needs."""
    for name, value in (("ARES_REDIS_URL", url), ("ARES_NAMESPACE", namespace), ("ARES_APP", app)):
        click.echo(f"export {name}={shlex.quote(value)}")


def _print_hints(agent_type: str) -> None:
    say("ares up: paste the lines above into a second terminal, then try:")
    say("  ares agents types")
    say(f"  ares agents start first-1 --type {agent_type} --wait")
    say("  ares agents ls")
    say("  ares agents ask first-1 '{}'")
    say("ares up: Ctrl-C ends the fleet, a second one at once")


def _watch(children: Children, interrupts: Interrupts) -> None:
    clock = SystemClock()
    while not clock.wait(interrupts.stop, _LOOK):
        for sentence in children.restart_dead():
            say(f"ares up: {sentence}")
    say("ares up: ending the fleet")
