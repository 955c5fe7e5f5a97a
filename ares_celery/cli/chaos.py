"""``ares chaos``: faults on purpose, in namespaces that allow them."""

from __future__ import annotations

import click

from ares_celery.cli.apps import Session, pass_session
from ares_celery.cli.options import why_options
from ares_celery.cli.output import output_option, print_facts, print_json

__all__ = ["chaos"]


@click.group()
def chaos() -> None:
    """Faults on purpose; refused unless the namespace allows them: `ares config set chaos true`."""


@chaos.command()
@click.argument("agent_id", metavar="ID")
@click.option("--force", is_flag=True, help="Also when other agents live in the same process.")
@why_options
@output_option
@pass_session
def kill(session: Session, *, agent_id: str, force: bool, reason: str, actor: str, output: str) -> None:
    """Send SIGKILL to the process that hosts agent ID."""
    killed = session.manager.kill_agent(agent_id, force=force, reason=reason, actor=actor)
    if output == "json":
        print_json(killed)
    else:
        print_facts(killed)
