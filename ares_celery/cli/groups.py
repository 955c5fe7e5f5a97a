"""``ares groups``: agents that are restarted together."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from ares_celery.cli.apps import Session, pass_session
from ares_celery.cli.options import DURATION, why_options
from ares_celery.cli.output import in_units, output_option, print_facts, print_json, print_table, say

if TYPE_CHECKING:
    from ares_celery.model.group import GroupInfo

__all__ = ["groups"]

_NAME = click.argument("name", metavar="NAME")


@click.group()
def groups() -> None:
    """Supervision groups: agents that are restarted together."""


@groups.command()
@output_option
@pass_session
def ls(session: Session, output: str) -> None:
    """List all groups."""
    found = session.manager.list_groups()
    if output == "json":
        print_json(found)
        return
    print_table(
        ("NAME", "STRATEGY", "MEMBERS", "PHASE", "RESTARTS", "LIMIT"),
        (
            (
                *(info.name, info.strategy.value, str(len(info.members)), _phase(info)),
                *(str(info.restarts), _limit(info)),
            )
            for info in found
        ),
    )


@groups.command()
@_NAME
@output_option
@pass_session
def show(session: Session, *, name: str, output: str) -> None:
    """Show group NAME: its members in start order, and where a restart of it stands."""
    from ares_celery.errors import GroupNotFoundError

    info = session.manager.get_group(name)
    if info is None:
        raise GroupNotFoundError(name=name)
    _print(info, output)


@groups.command()
@_NAME
@click.option(
    "--strategy",
    type=click.Choice(["one_for_one", "one_for_all", "rest_for_one"]),
    default="one_for_one",
    show_default=True,
    help="Whom the death of a member takes along: nobody, all, or those that were started after it.",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="Charged restarts in --period after which all members are parked; 0 = unlimited.",
)
@click.option("--period", type=DURATION, default="60s", show_default=True, help="The window of the above.")
@why_options
@output_option
@pass_session
def define(  # noqa: PLR0913 - one parameter an option
    session: Session,
    *,
    name: str,
    strategy: Any,  # noqa: ANN401 - one of the three words, click checked it
    max_restarts: int,
    period: timedelta,
    reason: str,
    actor: str,
    output: str,
) -> None:
    """Define group NAME, or define it anew, which keeps its members; `ares agents start --group NAME` adds one."""
    info = session.manager.define_group(name, strategy, max_restarts, period, reason=reason, actor=actor)
    _print(info, output)


@groups.command()
@_NAME
@why_options
@pass_session
def rm(session: Session, *, name: str, reason: str, actor: str) -> None:
    """Forget group NAME; refused while agents belong to it."""
    session.manager.delete_group(name, reason=reason, actor=actor)
    say(f"group {name} is forgotten")


def _print(info: GroupInfo, output: str) -> None:
    if output == "json":
        print_json(info)
    else:
        print_facts({**info.model_dump(), "members": ", ".join(info.members), "period": in_units(info.period)})


def _phase(info: GroupInfo) -> str:
    return f"{info.phase.value}, at {info.waiting_for}" if info.waiting_for else info.phase.value


def _limit(info: GroupInfo) -> str:
    return f"{info.max_restarts} in {in_units(info.period)}" if info.max_restarts else "none"
