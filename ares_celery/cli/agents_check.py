"""``ares agents check``: would the stored states load into the code at hand?"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

from ares_celery.cli.apps import Session, pass_session
from ares_celery.cli.output import output_option, print_json, print_table, say

if TYPE_CHECKING:
    from ares_celery.runtime.state_check import StateCheck

__all__ = ["check"]


@click.command()
@click.argument("agent_ids", metavar="[ID]...", nargs=-1)
@click.option("--type", "agent_type", help="Only agents of this type.")
@click.option("--all", "all_types", is_flag=True, help="A type that the code at hand does not know is a failure, too.")
@output_option
@pass_session
def check(
    session: Session, *, agent_ids: tuple[str, ...], agent_type: str | None, all_types: bool, output: str
) -> None:
    """Try to load every stored state into the code at hand, and list those that would not load.

    The code is what ARES_AGENT_MODULES names, as for a worker. States of types that it does not know are counted apart;
    with --all, or when they were asked for by ID or --type, they count as failures. Nothing is changed: run it before a
    deployment. Exit code 1 when there is one that would not load, or when none could be tried.
    """
    results = _results(session, agent_ids, agent_type)
    everything = all_types or agent_type is not None or bool(agent_ids)
    bad = [one for one in results if not one.loads and (one.tried or everything)]
    unknown = Counter(one.type for one in results if not one.tried)
    tried = len(results) - unknown.total()
    if output == "json":
        print_json({"checked": tried, "failed": bad, "unknown": dict(sorted(unknown.items()))})
    elif bad:
        columns = ("ID", "TYPE", "VERSION", "SCHEMA", "KNOWN", "PLACE", "PROBLEM")
        rows = [(one.agent_id, one.type, one.version, one.schema, one.known, one.place, one.problem) for one in bad]
        print_table(columns, rows)
    if output != "json":
        _say_counts(tried, sum(one.tried for one in bad), unknown)
    if bad or (unknown and not tried):
        raise click.exceptions.Exit(1)


def _say_counts(tried: int, failed: int, unknown: Counter[str]) -> None:
    say(f"{tried} stored states tried, {failed} would not load")
    if unknown:
        types = ", ".join(f"{name} ({number})" for name, number in sorted(unknown.items()))
        say(f"{unknown.total()} not tried, as the code at hand (ARES_AGENT_MODULES) does not know their type: {types}")


def _results(session: Session, agent_ids: tuple[str, ...], agent_type: str | None) -> list[StateCheck]:
    from ares_celery.agents.registry import REGISTRY, load_modules
    from ares_celery.errors import AgentNotFoundError
    from ares_celery.ids import check_agent_id
    from ares_celery.runtime.elsewhere import SnapshotsElsewhere
    from ares_celery.runtime.state_check import check_states
    from ares_celery.runtime.worker_hooks import HOOKS

    try:
        load_modules(session.settings.agent_modules)
    except ImportError as error:
        raise click.UsageError(f"ARES_AGENT_MODULES cannot be loaded: {error}") from error
    store, wanted = session.store, [check_agent_id(agent_id) for agent_id in agent_ids]
    for agent_id in wanted:
        if session.manager.get_agent(agent_id) is None:
            raise AgentNotFoundError(agent_id=agent_id)
    snapshots = HOOKS.open().snapshots
    elsewhere = SnapshotsElsewhere(snapshots, store.events) if snapshots is not None else None
    ids = wanted or store.list_ids()
    return list(check_states(store, REGISTRY, ids, elsewhere=elsewhere, agent_type=agent_type))
