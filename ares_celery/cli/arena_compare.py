"""``ares arena compare``: the reports of two versions of an agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import click
from typing_extensions import override

from ares_celery.cli.exit_codes import ExitCode
from ares_celery.cli.output import output_option, print_json, print_table

__all__ = ["compare"]


class _ListsOfFiles(click.Command):
    """Takes all files that follow an option, as a shell makes them of a pattern: ``--before old-*.json``."""

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        told: list[str] = []
        option = ""
        for word in args:
            if word.startswith("-"):
                option = word if word in {"--before", "--after"} else ""
            elif option and told[-1] != option:
                told.append(option)
            told.append(word)
        return super().parse_args(ctx, told)


@click.command(cls=_ListsOfFiles)
@click.option("--before", "before", multiple=True, required=True, metavar="FILE…", help="Reports of the old version.")
@click.option("--after", "after", multiple=True, required=True, metavar="FILE…", help="Reports of the new version.")
@click.option("--metric", "metrics", multiple=True, help="mttr, availability, consistency, score; default: all.")
@click.option("--alpha", type=float, default=0.05, show_default=True, help="Below it a difference is not chance.")
@output_option
def compare(
    *, before: tuple[str, ...], after: tuple[str, ...], metrics: tuple[str, ...], alpha: float, output: str
) -> None:
    """Compare reports (--report) of runs with two versions of an agent; exit code 1 when something got worse.

    Exit code 5 when these are so few that no difference could show: it takes four of each, unless --alpha is above.
    """
    from ares_celery.arena.verdict.compare import METRICS
    from ares_celery.arena.verdict.compare import compare as compared

    old, new = [_read_report(file) for file in before], [_read_report(file) for file in after]
    found = compared(old, new, metrics=metrics or tuple(METRICS), alpha=alpha)
    if output == "json":
        print_json([one.to_json() for one in found])
    else:
        print_table(
            ("METRIC", "RUNS", "BEFORE", "AFTER", "P", "RESULT"),
            (
                (one.metric, f"{one.before}, {one.after}", one.median_before, one.median_after, one.p_value, one.result)
                for one in found
            ),
        )
    if any(one.result == "worse" for one in found):
        raise click.exceptions.Exit(ExitCode.FAILED)


def _read_report(file: str) -> dict[str, Any]:
    import json

    try:
        found: Any = json.loads(Path(file).read_bytes())
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{file} is no report: {error}") from error
    if not isinstance(found, dict) or "verdict" not in found:
        raise click.UsageError(f"{file} is no report of `ares arena run` or `ares arena survival`")
    return cast("dict[str, Any]", found)
