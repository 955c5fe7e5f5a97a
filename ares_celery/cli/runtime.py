"""``ares runtime``: the switch for a whole namespace."""

from __future__ import annotations

import click

from ares_celery.cli.apps import Session, pass_session
from ares_celery.cli.options import why_options
from ares_celery.cli.output import output_option, print_facts, print_json, say

__all__ = ["runtime"]


@click.group()
def runtime() -> None:
    """Start, stop and look at the whole namespace."""


@runtime.command()
@why_options
@pass_session
def start(session: Session, reason: str, actor: str) -> None:
    """Let agents run: those that should are launched. On a running namespace: no effect."""
    session.manager.start(reason=reason, actor=actor)
    _say_state(session)


@runtime.command()
@why_options
@pass_session
def stop(session: Session, reason: str, actor: str) -> None:
    """End every agent in order and keep all from starting until `ares runtime start`."""
    session.manager.stop(reason=reason, actor=actor)
    _say_state(session)


def _say_state(session: Session) -> None:
    state = session.store.runtime().state.value
    meaning = {
        "new": ": nothing runs until its first agents worker or `ares runtime start`",
        "stopped": ": no agent runs until `ares runtime start`",
    }
    say(f"the runtime of namespace {session.store.namespace} is {state}{meaning.get(state, '')}")


@runtime.command()
@output_option
@pass_session
def status(session: Session, output: str) -> None:
    """Show the namespace in numbers."""
    runtime, stats = session.store.runtime(), session.manager.stats()
    facts: dict[str, object] = {
        "namespace": session.store.namespace,
        "state": runtime.state.value,
        "reason": runtime.reason,
        "actor": runtime.actor,
        **stats.model_dump(),
    }
    if output == "json":
        print_json(facts)
    else:
        print_facts(facts)
