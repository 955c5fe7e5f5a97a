"""The command ``ares``; the same tree is ``celery -A APP ares``. Commands import what they need when they run."""

from __future__ import annotations

from typing import Any

import click
from typing_extensions import override

from ares_celery.cli.agents import agents
from ares_celery.cli.agents_talk import dead
from ares_celery.cli.apps import Session
from ares_celery.cli.arena import arena
from ares_celery.cli.chaos import chaos
from ares_celery.cli.config import config
from ares_celery.cli.demo.command import demo
from ares_celery.cli.exit_codes import exit_code_of
from ares_celery.cli.flower import flower
from ares_celery.cli.groups import groups
from ares_celery.cli.output import clean, say
from ares_celery.cli.runtime import runtime
from ares_celery.cli.supervisor import supervisor
from ares_celery.cli.up import up
from ares_celery.cli.version import show_version, version
from ares_celery.cli.words import in_cli_words
from ares_celery.errors import AresError, InvalidScenarioError

__all__ = ["cli", "main"]

#: What each fault of a scenario begins with.
_FAULT = "\n  "


class _ErrorsAsExitCodes(click.Group):
    """Turns our errors into a line on stderr and an exit code; any other exception is a bug with its traceback."""

    @override
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except AresError as error:
            # The faults of a scenario are a list; whatever else breaks lines is somebody's text.
            lines = (
                in_cli_words(error).split(_FAULT) if isinstance(error, InvalidScenarioError) else [in_cli_words(error)]
            )
            say(f"ares: {_FAULT.join(map(clean, lines))}")
            ctx.exit(exit_code_of(error))


@click.group(cls=_ErrorsAsExitCodes, name="ares", context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-A", "--app", "app", metavar="APP", help="The Celery app; default ARES_APP, then workers.app, then ours."
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_version,
    help="Show the version and exit.",
)
@click.pass_context
def cli(ctx: click.Context, app: str | None) -> None:
    """Agents that outlive their processes, on Celery and Redis.

    `ares demo` shows it, `ares up` gives you a fleet to play with.

    Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 timed out, 5 precondition, 6 store unreachable.
    """
    celery: Any = ctx.obj
    session = Session(app, given=None if app else getattr(celery, "app", None))
    ctx.obj = session
    ctx.call_on_close(session.close)


for _command in (up, demo, flower, version, runtime, config, agents, dead, groups, chaos, arena, supervisor):
    cli.add_command(_command)


def main() -> None:
    """The console script."""
    cli(prog_name="ares")


if __name__ == "__main__":
    main()
