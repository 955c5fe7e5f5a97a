"""``ares agents fork``: a new agent out of the history of another."""

from __future__ import annotations

import click

from ares_celery.cli.agent_words import standing, store_time
from ares_celery.cli.apps import Session, pass_session
from ares_celery.cli.options import why_options
from ares_celery.cli.output import output_option, print_json, say

__all__ = ["fork"]


@click.command()
@click.argument("agent_id", metavar="ID")
@click.option("--as", "new_id", required=True, metavar="NEW", help="Id of the new agent.")
@click.option(
    "--at", type=click.IntRange(min=0), metavar="VERSION", help="Last version of the history; default the newest."
)
@click.option("--start/--no-start", default=True, show_default=True, help="It runs as soon as it is whole.")
@why_options
@output_option
@pass_session
def fork(  # noqa: PLR0913 - one parameter an option
    session: Session,
    *,
    agent_id: str,
    new_id: str,
    at: int | None,
    start: bool,
    reason: str,
    actor: str,
    output: str,
) -> None:
    """Make agent NEW with the state that agent ID had at some version.

    The same call again goes on with one that broke off.
    """
    info = session.manager.fork_agent(agent_id, new_id, at=at, start=start, reason=reason, actor=actor).info()
    if output == "json":
        print_json(info)
    else:
        say(standing(info, store_time(session, [info])))
