"""``ares agents send`` and ``ask``, and ``ares dead``: messages to agents, their answers, what was given up on."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

import click

from ares_celery.cli.apps import Session, pass_session
from ares_celery.cli.options import DURATION, JSON, why_options
from ares_celery.cli.output import clean, output_option, print_json, print_table, shorten

if TYPE_CHECKING:
    from ares_celery.model.message import DeadLetter

__all__ = ["TALKING", "dead"]

_ID = click.argument("agent_id", metavar="ID")
#: Characters of a text in a table.
_SHOWN: Final = 60


@click.command()
@_ID
@click.argument("message", type=JSON)
@click.option("--message-id", help="The same id again is the same message.")
@output_option
@pass_session
def send(session: Session, agent_id: str, message: object, message_id: str | None, output: str) -> None:
    """Put MESSAGE (JSON; - reads stdin) into the inbox of agent ID; print the message id."""
    sent = session.manager.send(agent_id, message, message_id=message_id)
    if output == "json":
        print_json({"agent_id": agent_id, "message_id": sent})
    else:
        click.echo(sent)


@click.command()
@_ID
@click.argument("message", type=JSON)
@click.option("--timeout", type=DURATION, default="30s", show_default=True, help="Longest wait for the answer.")
@click.option("--message-id", help="Asks for the answer to an earlier message.")
@click.option("--stream", is_flag=True, help="Print the answer piece by piece; Ctrl-C ends it in the agent, too.")
@output_option
@pass_session
def ask(  # noqa: PLR0913 - one parameter an option
    session: Session,
    *,
    agent_id: str,
    message: object,
    timeout: timedelta,
    message_id: str | None,
    stream: bool,
    output: str,
) -> None:
    """Ask agent ID with MESSAGE (JSON; - reads stdin); print the answer."""
    if stream:
        _print_stream(session, agent_id, message, timeout, message_id, output)
        return
    answer = session.manager.process(agent_id, message, timeout, message_id)
    if output == "json":
        print_json(answer)
    else:
        click.echo(_for_people(answer))


def _print_stream(  # noqa: PLR0917 - those of the command
    session: Session, agent_id: str, message: object, timeout: timedelta, message_id: str | None, output: str
) -> None:
    """One chunk a line."""
    with session.manager.process_stream(agent_id, message, timeout=timeout, message_id=message_id) as chunks:
        for chunk in chunks:
            if output == "json":
                print_json({"seq": chunk.seq, "data": chunk.data, "final": chunk.final})
            elif not chunk.final or chunk.data is not None:
                click.echo(_for_people(chunk.data))


def _for_people(value: object) -> str:
    """A text as it is, another JSON value over several lines."""
    import json

    return clean(value) if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=True)


def _in_a_line(value: object) -> str:
    """A text as it is, another JSON value without line ends."""
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@click.command()
@_ID
@click.argument("name", required=False)
@click.argument("decision", default="approve")
@click.option("--payload", type=JSON, help="What the agent is told beside it, JSON; - reads stdin.")
@click.option("--interrupt-id", help="Only if it is still this very question.")
@why_options
@output_option
@pass_session
def approve(  # noqa: PLR0913 - one parameter an option
    session: Session,
    *,
    agent_id: str,
    name: str | None,
    decision: str,
    payload: object,
    interrupt_id: str | None,
    reason: str,
    actor: str,
    output: str,
) -> None:
    """Decide what agent ID has asked under NAME; without a DECISION it is a yes.

    So it is with approve, accept, allow, yes, y, ok, true or 1; every other word is a no. Without NAME it
    lists what the agent asks and has asked.
    """
    if name is None:
        _list_questions(session, agent_id, output)
        return
    decided = session.manager.approve(
        agent_id, name, decision, payload, interrupt_id=interrupt_id, reason=reason, actor=actor
    )
    if output == "json":
        print_json(decided)
    else:
        outcome = "approved" if decided.approved else f"refused (decision {decided.decision!r})"
        click.echo(clean(f"{decided.name} of agent {agent_id} is {outcome}"))


def _list_questions(session: Session, agent_id: str, output: str) -> None:
    found = session.manager.interrupts(agent_id)
    if output == "json":
        print_json(found)
        return
    rows = (
        (
            *(one.name, one.state.value, one.created_at.isoformat(timespec="seconds")),
            one.expires_at.isoformat(timespec="seconds") if one.expires_at else "",
            "" if one.decision is None else f"{one.decision} by {one.actor}",
            "" if one.payload is None else shorten(_in_a_line(one.payload), _SHOWN),
        )
        for one in found
    )
    print_table(("NAME", "STATE", "ASKED", "UNTIL", "DECISION", "PAYLOAD"), rows)


@click.group()
def dead() -> None:
    """Dead letters: messages that no agent will handle to their end."""


@dead.command()
@click.option("--agent", "agent_id", metavar="ID", help="Only those of this agent.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="The newest so many.")
@output_option
@pass_session
def ls(session: Session, *, agent_id: str | None, limit: int, output: str) -> None:
    """List dead letters, newest first, each with its reason."""
    found = session.manager.dead_letters(agent_id, limit=limit)
    if output == "json":
        print_json(found)
        return
    print_table(("TIME", "AGENT", "MESSAGE", "KIND", "REASON", "PROBLEM"), (_row(letter) for letter in found))


def _row(letter: DeadLetter) -> tuple[str, ...]:
    return (
        letter.time.isoformat(timespec="seconds"),
        *(letter.agent_id, letter.message_id, letter.kind.value, letter.reason.value),
        shorten(letter.problem, _SHOWN),
    )


#: The commands of ``ares agents`` in this file.
TALKING: Final = (send, ask, approve)
