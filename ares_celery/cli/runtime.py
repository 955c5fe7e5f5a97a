"""``ares runtime``: the switch for a whole namespace."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import click

from ares_celery.cli.apps import Session, pass_session
from ares_celery.cli.options import why_options
from ares_celery.cli.output import in_units, output_option, print_facts, print_json, print_table, say, shorten

__all__ = ["runtime"]

#: Characters of a reason that the table shows; JSON has all of it.
_REASON_SHOWN: Final = 60


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
        print_facts({**facts, "uptime": in_units(stats.uptime)})


@runtime.command()
@click.argument("agent_id", metavar="[ID]", required=False)
@click.option("--since", metavar="TIME|DURATION", help="Only from then on: an ISO time with its zone, or 10m, 2h ago.")
@click.option("-n", "--limit", type=click.IntRange(min=1), default=100, show_default=True, help="The newest so many.")
@output_option
@pass_session
def audit(session: Session, *, agent_id: str | None, since: str | None, limit: int, output: str) -> None:
    """Show who asked for what and why, of all agents or of agent ID; deleted ones included."""
    found = session.manager.audit(agent_id, since=_since(session, since), limit=limit)
    if output == "json":
        print_json(found)
        return
    print_table(
        ("TIME", "OPERATION", "AGENT", "STATE", "ACTOR", "REASON", "CHANGED"),
        (
            (
                *(entry.time.isoformat(timespec="milliseconds"), entry.operation, entry.agent_id, entry.state),
                *(entry.actor, shorten(entry.reason, _REASON_SHOWN), ", ".join(entry.changed)),
            )
            for entry in found
        ),
    )


def _since(session: Session, text: str | None) -> datetime | str | None:
    """A time as it is; a duration as the time so long ago by Redis' clock."""
    from ares_celery.clock import to_datetime
    from ares_celery.model.durations import parse_duration

    if text is None or _is_iso(text):
        return text
    problem = (
        f"{text!r} is no time; write 10m or 2h for so long ago, or an ISO time with its zone: 2026-07-01T12:00:00Z"
    )
    # A number without a unit may be meant for a year.
    if not text[-1:].isalpha():
        raise click.BadParameter(problem, param_hint="--since")
    try:
        return to_datetime(session.store.server_time()) - parse_duration(text)
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(problem, param_hint="--since") from error


def _is_iso(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
