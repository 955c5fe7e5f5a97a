"""``ares up``: a small fleet in one terminal."""

from __future__ import annotations

import click

from ares_celery.cli.apps import Session, pass_session

__all__ = ["up"]


@click.command()
@click.option("--redis-url", help="Use this Redis instead of one of the fleet's own.")
@click.option("--namespace", help="Use this namespace and keep it; default one of the fleet's own, removed at the end.")
@click.option("--flower", is_flag=True, help="Also serve the web page of the fleet, on 127.0.0.1.")
@click.option(
    "--concurrency", type=click.IntRange(1, 10_000), default=200, show_default=True, help="Most agents at a time."
)
@pass_session
def up(session: Session, *, redis_url: str | None, namespace: str | None, flower: bool, concurrency: int) -> None:
    """Run a Redis, an agents worker, a supervision worker and beat; Ctrl-C ends them all.

    ARES_REDIS_URL is not looked at: only --redis-url leads to a Redis that exists already.
    """
    from ares_celery.cli.up_fleet import UpOptions, run_up

    raise SystemExit(run_up(UpOptions(session.app_name, redis_url, namespace, flower, concurrency)))
