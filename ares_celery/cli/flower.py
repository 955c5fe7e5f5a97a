"""``ares flower``: the web page of the fleet, with our routes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

from ares_celery.cli.apps import Session, pass_session
from ares_celery.cli.output import say

__all__ = ["demand_flower", "flower", "flower_config"]

#: Options of Flower each of which names a login.
_LOGINS: Final = frozenset({"auth", "basic_auth"})


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF FLOWER]…")
@pass_session
def flower(session: Session, *, options: tuple[str, ...]) -> None:
    """Serve Flower with the routes of the arena (/api/ares/…), on 127.0.0.1 unless --address says otherwise.

    Options are Flower's own: --port=5555, --basic-auth=NAME:PASSWORD, … Better in the environment, which others do not
    see: FLOWER_BASIC_AUTH. Without a login the routes are closed. A flowerconfig.py in this folder is read.
    """
    demand_flower("ares flower")
    if any(option.partition("=")[0] in {"--conf", "-conf"} for option in options):
        raise click.UsageError(
            "for a configuration of your own, add `from ares_celery.web.flower_extension import load; load()` to it, "
            "and call `celery -A APP flower --conf=FILE`"
        )
    if not _names_a_login(options):
        say(
            "ares flower: no login is named here, so unless flowerconfig.py has one the routes below /api/ares stay "
            "closed; set FLOWER_BASIC_AUTH=NAME:PASSWORD to open them"
        )
    from celery.bin.celery import celery

    arguments = ["-A", session.app_name, "flower", f"--conf={flower_config()}", *options]
    celery.main(args=arguments, prog_name="celery", auto_envvar_prefix="CELERY")


def _names_a_login(options: Sequence[str]) -> bool:
    """Flower's own options, on the command line in any of their spellings or in the environment."""
    told = {option.partition("=")[0].strip("-").replace("-", "_") for option in options}
    return bool(told & _LOGINS) or any(os.environ.get(f"FLOWER_{one.upper()}") for one in _LOGINS)


def demand_flower(operation: str) -> None:
    """Raises OperationNotSupportedError where Flower is not installed."""
    from ares_celery.errors import OperationNotSupportedError

    if find_spec("flower") is None:
        raise OperationNotSupportedError(
            operation=operation, reason="Flower is not installed; pip install 'ares-celery[flower]'"
        )


def flower_config() -> str:
    """Path of the configuration of Flower that brings our routes."""
    found = find_spec("ares_celery.web")
    if found is None or found.origin is None:
        raise click.ClickException("the package is incomplete: there is no ares_celery.web")
    return str(Path(found.origin).parent / "flower_extension" / "flowerconfig.py")
