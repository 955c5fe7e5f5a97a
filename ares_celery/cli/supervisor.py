"""``ares supervisor``: who looks after the agents, and when somebody last did."""

from __future__ import annotations

import click

from ares_celery.cli.apps import Session, pass_session
from ares_celery.cli.output import output_option, print_facts, print_json

__all__ = ["supervisor"]


@click.group()
def supervisor() -> None:
    """The supervision of the namespace."""


@supervisor.command()
@output_option
@pass_session
def status(session: Session, output: str) -> None:
    """Show when deadlines were last swept, and which worker processes supervise."""
    age = session.store.sweep_age_ms()
    facts: dict[str, object] = {
        "namespace": session.store.namespace,
        "sweep_age_ms": age if age >= 0 else None,
        "sweep_interval_ms": round(session.config.sweep_interval.total_seconds() * 1000),
        "processes": dict(session.store.hosts()),
    }
    if output == "json":
        print_json(facts)
    else:
        print_facts({**facts, "processes": ", ".join(sorted(session.store.hosts().values()))})


@supervisor.command()
@output_option
@pass_session
def sweep(session: Session, output: str) -> None:
    """Apply every deadline that has passed, now. Expired leases are left to the workers, which know the outages."""
    from ares_celery.supervision.health import check_health
    from ares_celery.supervision.sweep import Sweeper

    health = check_health(session.store, Sweeper(session.store, session.wiring.committer, session.config))
    if output == "json":
        print_json(health)
    else:
        print_facts(
            {
                "runtime": health.runtime,
                "agents": dict(health.agents),
                "sweep_age_ms": health.sweep_age_ms,
                "applied": health.applied,
                "withheld": health.withheld,
                "failed": health.failed,
            }
        )
