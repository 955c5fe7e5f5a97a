"""``ares agents reconcile``: a person's word on a step whose outcome nobody knows."""

from __future__ import annotations

from typing import Any

import click

from ares_celery.cli.agent_words import standing, store_time
from ares_celery.cli.apps import Session, pass_session
from ares_celery.cli.options import JSON, why_options
from ares_celery.cli.output import output_option, print_json, say

__all__ = ["reconcile"]


@click.command()
@click.argument("agent_id", metavar="ID")
@click.option(
    "--done",
    type=JSON,
    default=...,
    show_default=False,
    metavar="RESULT",
    help="It happened, and this is what it returned, as JSON (null is a result; - reads stdin).",
)
@click.option("--retry", is_flag=True, help="It did not happen: it runs again.")
@click.option("--execution", metavar="EXECUTION", help="Of which execution; where several steps wait for a word.")
@click.option("--step", metavar="STEP", help="Which step; likewise.")
@why_options
@output_option
@pass_session
def reconcile(  # noqa: PLR0913 - one parameter an option
    session: Session,
    *,
    agent_id: str,
    done: Any,  # noqa: ANN401 - a JSON value
    retry: bool,
    execution: str | None,
    step: str | None,
    reason: str,
    actor: str,
    output: str,
) -> None:
    """Say what became of a step of agent ID, which is parked as nobody knows: once, for good.

    When the last such step is settled the agent goes on by itself. `ares agents show ID` lists the steps.
    """
    if (done is not ...) is retry:
        raise click.UsageError("say either --done RESULT or --retry")
    info = session.manager.reconcile_agent(
        agent_id, execution=execution, step=step, done=done, retry=retry, reason=reason, actor=actor
    )
    if output == "json":
        print_json(info)
        return
    said = "its step runs again" if retry else "its step counts as done"
    left = f"; {info.intents} more to settle" if info.intents else ""
    say(f"{said}{left}; {standing(info, store_time(session, [info]))}")
