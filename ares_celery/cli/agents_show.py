"""The commands of ``ares agents`` that only look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from ares_celery.cli.agent_words import budget_words, seconds_left, state_words, store_time, wait_words
from ares_celery.cli.agents_follow import check_stream_exists
from ares_celery.cli.apps import Session, pass_session
from ares_celery.cli.output import clean, in_units, output_option, print_facts, print_json, print_table, say, shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ares_celery.model.event import Event
    from ares_celery.model.step import StepIntent

__all__ = ["LOOKING"]

_ID = click.argument("agent_id", metavar="ID")
#: Characters of a reason, and of a payload, that a table shows; JSON has all of it.
_REASON_SHOWN: Final = 40
_PAYLOAD_SHOWN: Final = 240
#: Columns of a version while events come one by one, and nobody knows how many will.
_VERSION_WIDTH: Final = 7


@click.command()
@click.option("--state", "states", multiple=True, metavar="STATE", help="Only agents in this state; may be repeated.")
@click.option("--type", "agent_type", help="Only agents of this type.")
@click.option("--parent", metavar="ID", help="Only agents that this one has spawned.")
@output_option
@pass_session
def ls(session: Session, states: tuple[str, ...], agent_type: str | None, parent: str | None, output: str) -> None:
    """List all agents, stopped ones included."""
    from ares_celery.model.agent import AgentState

    known = [state.value for state in AgentState]
    if unknown := [state for state in states if state not in known]:
        raise click.BadParameter(f"{unknown[0]!r} is no state; there are {', '.join(known)}", param_hint="--state")
    if parent is None:
        found = session.manager.list_agents(states=states or None, type=agent_type)
    else:
        spawned = (info for info in session.manager.children(parent) if agent_type in (None, info.type))
        found = [info for info in spawned if not states or info.state.value in states]
    if output == "json":
        print_json(found)
        return
    now = store_time(session, found)
    # Shown where there are any.
    grouped = any(info.group for info in found)
    print_table(
        ("ID", "TYPE", *(["GROUP"] if grouped else []), "STATE", "WORKER", "INCARNATION", "RESTARTS", "REASON"),
        (
            (
                *(info.id, info.type, *([info.group] if grouped else []), state_words(info, now), info.worker),
                *(str(info.incarnation), str(info.restarts), wait_words(info) or shorten(info.reason, _REASON_SHOWN)),
            )
            for info in found
        ),
    )


@click.command()
@_ID
@output_option
@pass_session
def show(session: Session, agent_id: str, output: str) -> None:
    """Show what is known of agent ID."""
    from ares_celery.errors import AgentNotFoundError

    info = session.manager.get_agent_info(agent_id)
    if info is None:
        raise AgentNotFoundError(agent_id=agent_id)
    facts = info.model_dump()
    open_steps = session.manager.checkpoints.intents(agent_id) if info.intents else ()
    if output == "json":
        print_json({**facts, "open_steps": [_intent(one) for one in open_steps]} if open_steps else info)
        return
    left = seconds_left(info, store_time(session, [info]))
    if info.next_attempt is not None and left is not None:
        facts["next_attempt"] = f"{info.next_attempt.isoformat(timespec='milliseconds')} (in {left:.1f} s)"
    if info.state.value == "parked" and info.cause == "budget":
        facts["now"] = f"parked{budget_words(info)}"
    print_facts({**facts, **_open_facts(info.id, open_steps)})


def _open_facts(agent_id: str, intents: Sequence[StepIntent]) -> dict[str, str]:
    """Each step whose outcome is unknown: what was called, since when, and the command that settles it."""
    from ares_celery.clock import to_datetime
    from ares_celery.model.unsettled import call_of, how_to_settle

    return {
        f"open step {number}": f"{one.step} of execution {one.execution}: {call_of(one)}, since "
        f"{to_datetime(one.time).isoformat(timespec='milliseconds')}, incarnation {one.incarnation}; "
        f"`{how_to_settle(agent_id, one)} …`"
        for number, one in enumerate(intents, 1)
    }


def _intent(one: StepIntent) -> dict[str, object]:
    from ares_celery.clock import to_datetime

    return {
        "execution": one.execution,
        "step": one.step,
        "function": one.function,
        "arguments": one.arguments,
        "incarnation": one.incarnation,
        "time": to_datetime(one.time),
    }


@click.command()
@_ID
@click.option(
    "--from",
    "from_version",
    type=click.IntRange(min=0),
    default=0,
    help="First version, inclusive; shows what follows it.",
)
@click.option("--to", "to_version", type=click.IntRange(min=0), default=0, help="Last version, inclusive.")
@click.option(
    "-n", "--limit", type=click.IntRange(min=0), default=50, show_default=True, help="At most so many; 0 = all."
)
@click.option("--newest", is_flag=True, help="Newest first.")
@click.option("-f", "--follow", is_flag=True, help="The last events, then each as it comes, until Ctrl-C.")
@output_option
@pass_session
def events(  # noqa: PLR0913 - one parameter an option
    session: Session,
    *,
    agent_id: str,
    from_version: int,
    to_version: int,
    limit: int,
    newest: bool,
    follow: bool,
    output: str,
) -> None:
    """Show the last events of agent ID, or of @plugin:NAME, in their order; with --from those that begin there.

    What is left out is said on stderr. With --follow, -o json prints one line an event.
    """
    from ares_celery.model.event import ReadOptions

    if follow:
        if from_version or to_version or newest:
            raise click.UsageError("--follow shows the last events (-n) and those to come; leave out the other bounds")
        from ares_celery.cli.agents_follow import follow_events

        show = print_json if output == "json" else _print_event
        follow_events(session, _stream(agent_id), last=limit, show=show)
        return
    ends_late = newest or not from_version
    direction: Any = "descending" if ends_late else "ascending"
    # One more shows whether there are more.
    wanted = limit + 1 if limit else 0
    options = ReadOptions(from_version=from_version, to_version=to_version, limit=wanted, direction=direction)
    read = session.manager.events.read(_stream(agent_id), options)
    found = list(read[:limit] if limit else read)
    if not found:
        check_stream_exists(session, agent_id)
    if len(read) > len(found):
        last = int(found[-1].version)
        say(f"… older ones: --to {last - 1}; all: -n 0" if ends_late else f"… more: --from {last + 1}; all: -n 0")
    if ends_late and not newest:
        found.reverse()
    if output == "json":
        print_json(found)
    else:
        print_table(("VERSION", "TIME", "TYPE", "PAYLOAD"), (_event_row(event) for event in found))


def _stream(name: str) -> str:
    """The stream's id: an agent's, or one whose mark no agent's id may have."""
    from ares_celery.ids import check_agent_id

    return name if name.startswith("@") else check_agent_id(name)


def _print_event(event: Event) -> None:
    version, *cells = _event_row(event)
    click.echo("  ".join([version.rjust(_VERSION_WIDTH), *(clean(cell) for cell in cells)]))


def _event_row(event: Event) -> tuple[str, ...]:
    import json

    # The runtime's own events repeat whose stream it is.
    shown = {name: value for name, value in event.payload.items() if (name, value) != ("agent_id", event.stream_id)}
    payload = shorten(json.dumps(shown, ensure_ascii=False), _PAYLOAD_SHOWN)
    return str(event.version), event.time.isoformat(timespec="milliseconds"), event.type, payload


@click.command()
@_ID
@click.option("--state", "with_state", is_flag=True, help="With the whole state; JSON always has it.")
@output_option
@pass_session
def snapshots(session: Session, *, agent_id: str, with_state: bool, output: str) -> None:
    """Show the kept snapshots of agent ID, newest first, then damaged ones that were set aside.

    Their state with --state or -o json.
    """
    from ares_celery.clock import to_datetime
    from ares_celery.errors import AgentNotFoundError
    from ares_celery.ids import check_agent_id
    from ares_celery.model.snapshot import Snapshot

    checked = check_agent_id(agent_id)
    found = [*session.store.stored_snapshots(checked), *session.store.damaged_snapshots(checked)]
    if not found and session.manager.get_agent_info(checked) is None:
        raise AgentNotFoundError(agent_id=checked)
    if not found and output != "json":
        config = session.config
        say(
            f"agent {checked} has no snapshot yet: the first comes after {in_units(config.snapshot_interval)}, "
            f"{config.snapshot_every_events} events or an orderly end, if the agent has snapshot()"
        )
        return
    rows: list[dict[str, object]] = [
        {
            "version": item.version,
            "epoch": item.epoch,
            "schema": item.schema,
            "time": to_datetime(item.time),
            "state": item.state,
            "problem": None,
        }
        if isinstance(item, Snapshot)
        else {"version": None, "epoch": None, "schema": None, "time": None, "state": None, "problem": item.problem}
        for item in found
    ]
    if output == "json":
        print_json(rows)
    else:
        shown = ["version", "epoch", "schema", "time", "problem", *(["state"] if with_state else [])]
        print_table([name.upper() for name in shown], ([row[name] for name in shown] for row in rows))


@click.command()
@output_option
@pass_session
def types(session: Session, output: str) -> None:
    """List the agent types that workers reported, with the parameters they take."""
    known = session.store.known_types()
    if output == "json":
        print_json(known)
        return
    rows = [(name, ", ".join(_parameters(description))) for name, description in sorted(known.items())]
    print_table(("TYPE", "PARAMETERS"), rows)


def _parameters(description: Any) -> list[str]:  # noqa: ANN401 - JSON of Registry.describe
    required = set(description["required"])
    named = [name if name in required else f"[{name}]" for name in description["names"]]
    return [*named, "…"] if description["open"] else named


LOOKING: Final = (ls, show, events, snapshots, types)
