"""``ares demo``."""

from __future__ import annotations

import click

from ares_celery.cli.output import output_option, print_json

__all__ = ["demo"]


@click.command()
@click.option(
    "--agents",
    "agents",
    # Each of them may need a process of its own in either worker.
    type=click.IntRange(2, 64),
    default=16,
    show_default=True,
    help="How many agents share out the files.",
)
@click.option(
    "--redis-url", help="Use this Redis instead of one of the demo's own; a namespace of its own, removed at the end."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Of the choice whom to kill.")
@output_option
def demo(*, agents: int, redis_url: str | None, seed: int, output: str) -> None:
    """Kill processes, a worker and beat under a fleet of agents, and check that nothing was lost.

    Takes less than a minute. ARES_REDIS_URL is not looked at. Exit code 0 means that all of it held.
    """
    from ares_celery.cli.demo.driver import DemoOptions, run_demo
    from ares_celery.cli.demo.report import render

    report = run_demo(DemoOptions(agents, redis_url, seed))
    if output == "json":
        print_json(report.to_json())
    else:
        click.echo("\n" + render(report))
    raise SystemExit(0 if report.ok else 1)
