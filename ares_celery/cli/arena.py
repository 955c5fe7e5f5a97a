"""``ares arena``: scenarios of faults, survival runs, and what came of them."""

from __future__ import annotations

import signal
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import click

from ares_celery.cli.apps import Session, pass_session
from ares_celery.cli.arena_compare import compare
from ares_celery.cli.arena_report import REPORT_FILES, finish, report_options, tell
from ares_celery.cli.exit_codes import ExitCode
from ares_celery.cli.options import why_options
from ares_celery.cli.output import output_option, print_facts, print_json, print_table, say

if TYPE_CHECKING:
    from ares_celery.arena.runner import ScenarioRun
    from ares_celery.arena.survival import SurvivalRun
    from ares_celery.arena.verdict.journal import ScenarioReport

__all__ = ["arena"]

_FILE = click.argument("file", metavar="FILE")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.group()
def arena() -> None:
    """Scenarios of faults against the agents of a namespace that allows them.

    Exit codes: 0 all as it had to be, 1 deviated or ended early, 2 the file is wrong, 5 a precondition was not met.
    """


def _variables(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in value:
        name, equals, text = one.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{one!r} is not NAME=VALUE", ctx, param)
        found[name] = text
    return found


def _importable(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:  # noqa: ARG001
    """Modules of the working folder can be named, as `celery -A` and `ares up` have it; last, so that none is hidden.

    Never those of the file's folder: whoever wrote the file is not whoever allows a module.
    """
    here = str(Path.cwd())
    if value and here not in sys.path:
        sys.path.append(here)
    return value


_VARIABLES = click.option(
    "--var", "variables", multiple=True, metavar="NAME=VALUE", callback=_variables, help="A value for ${NAME}."
)
_MODULES = click.option(
    "--allow-module",
    "modules",
    multiple=True,
    metavar="MODULE",
    callback=_importable,
    help="Functions of this module may be called, too: only if you trust the file. It may lie in the working folder.",
)


@arena.command()
@_FILE
@_VARIABLES
@_MODULES
@report_options
@output_option
@pass_session
def run(
    session: Session,
    /,
    *,
    file: str,
    variables: Mapping[str, str],
    modules: tuple[str, ...],
    output: str,
    **reports: Any,  # noqa: ANN401 - of click
) -> None:
    """Run scenario FILE: a path, or a name of `ares arena list`. Rollbacks run whatever happens, after Ctrl-C too."""
    from ares_celery.arena.loading import load_scenario
    from ares_celery.arena.runner import ScenarioRun

    scenario = load_scenario(file, variables=_typed(variables), allow_modules=modules)
    going = ScenarioRun(session.manager, scenario, allow_modules=modules, listener=tell)
    report = _run_to_its_end(going)
    finish(session, report, output, scenario.agents, **reports)


@arena.command()
@click.argument("files", metavar="FILE…", nargs=-1, required=True)
@_VARIABLES
@_MODULES
@output_option
def validate(*, files: tuple[str, ...], variables: Mapping[str, str], modules: tuple[str, ...], output: str) -> None:
    """Check scenarios without running them; every fault of each is named, with its place.

    A variable without a value is a fault, as it is of a run: give it with --var. Of several FILEs, one has to know it.
    """
    from ares_celery.arena.loading import load_scenario
    from ares_celery.errors import InvalidScenarioError, ScenarioNotFoundError

    found: list[dict[str, Any]] = []
    code = ExitCode.OK
    for file in files:
        try:
            load_scenario(file, variables=_typed(variables), allow_modules=modules)
        except InvalidScenarioError as error:
            found += [{"file": file, **problem} for problem in error.problems]
        except ScenarioNotFoundError as error:
            found.append({"file": file, "place": "file", "problem": str(error)})
            code = ExitCode.NOT_FOUND
    found = _without_what_others_know(found, len(files))
    if output == "json":
        print_json({"valid": not found, "problems": found})
    elif found:
        print_table(
            ("FILE", "LINE", "PLACE", "PROBLEM"),
            ((one["file"], one.get("line"), one["place"], one["problem"]) for one in found),
        )
    else:
        say("valid")
    if found:
        raise click.exceptions.Exit(code or ExitCode.USAGE)


@arena.command("list")
@output_option
def list_ready(output: str) -> None:
    """List the scenarios that come with the package."""
    from ares_celery.arena.loading import load_scenario, ready_scenarios

    found = [(name, load_scenario(name, demand_variables=False)) for name in ready_scenarios()]
    if output == "json":
        print_json(
            [
                {
                    "name": name,
                    "title": one.title,
                    "description": one.description,
                    "tags": list(one.tags),
                    "variables": dict(one.variables),
                }
                for name, one in found
            ]
        )
    else:
        print_table(("NAME", "TITLE", "VARIABLES"), ((name, one.title, _shown(one.variables)) for name, one in found))


def _shown(variables: Mapping[str, Any]) -> str:
    """As people give them, those without a value first."""
    import json

    needed = [name for name, value in variables.items() if value is None]
    given = {name: value for name, value in variables.items() if value is not None}
    told = (f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in given.items())
    return ", ".join([*needed, *told])


@arena.command()
@click.argument("file", metavar="[FILE]", required=False)
@click.option("--seed", type=click.IntRange(min=0), help="Decides faults and targets; default: drawn, and told.")
@click.option("--duration", "--for", "duration", metavar="TIME", help="How long faults come.  [default: 30m]")
@click.option("--interval", "--every", "interval", metavar="TIME", help="Between two faults.  [default: 10s]")
@click.option("--agent", "agents", multiple=True, metavar="ID", help="Only these; default: all that run.")
@click.option("--fault", "faults", multiple=True, metavar="ACTION", help="Only these; default: all but tool-timeout.")
@click.option("--force", is_flag=True, help="A kill may take along the other agents of a process.")
@click.option("--settle", metavar="TIME", help="How long agents may take to come back afterwards.  [default: 60s]")
@click.option("--steady", metavar="TIME", help="How long each of them has to stay up then.  [default: 2s]")
@report_options
@why_options
@output_option
@pass_session
def survival(session: Session, /, *, file: str | None, output: str, **options: Any) -> None:  # noqa: ANN401 - of click
    """Inject faults by chance, one after the other, and see whether all agents come back; FILE may hold the options.

    The same --seed draws the same faults and targets for the same agents. One run a namespace at a time.
    """
    from ares_celery.arena.survival import SurvivalRun, survival_options

    reports = {name: options.pop(name) for name in (*REPORT_FILES, "verdict")}
    said: dict[str, Any] = {}
    if file is not None:
        if not Path(file).is_file():
            raise click.UsageError(f"there is no file {file!r}")
        said = survival_options(Path(file).read_bytes(), file)
    said |= {name: value for name, value in options.items() if value not in (None, (), False, "")}
    going = SurvivalRun(session.manager, listener=tell, **said)
    say(f"seed {going.seed}")
    report = _run_to_its_end(going)
    finish(session, report, output, said.get("agents", ()), **reports)


@arena.command()
@output_option
@pass_session
def status(session: Session, output: str) -> None:
    """Show the survival run that is under way."""
    hold = session.manager.arena()
    if output == "json":
        print_json(hold.to_json() if hold else None)
    elif hold is None:
        say("no survival run is under way")
    else:
        print_facts(hold.to_json())


@arena.command()
@why_options
@output_option
@pass_session
def stop(session: Session, *, reason: str, actor: str, output: str) -> None:
    """Ask the survival run that is under way to end, wherever it runs."""
    hold = session.manager.stop_arena(reason=reason, actor=actor)
    if output == "json":
        print_json(hold.to_json() if hold else None)
    else:
        say("it ends within seconds" if hold else "no survival run is under way")


@arena.command()
@click.option("--to", required=True, metavar="URL", help="The Redis behind it: redis://host:port/database.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="For workers, on this machine; default: any.")
@click.option("--control-port", type=click.IntRange(0, 65535), default=0, help="For actions; default: any.")
@output_option
def link(*, to: str, port: int, control_port: int, output: str) -> None:
    """Stand between workers and Redis, to be slow or cut when redis_latency and redis_outage say so; Ctrl-C ends it."""
    import asyncio

    from ares_celery.arena.link import Link

    async def serve() -> None:
        made, ready = Link(to), asyncio.Event()
        serving = asyncio.create_task(made.run(port=port, control_port=control_port, ready=ready))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
        if ready.is_set():
            if output == "json":
                print_json({"redis_url": made.url, "link": made.control})
            else:
                click.echo(f"export ARES_REDIS_URL={made.url}\nlink={made.control}")
        await serving

    try:
        asyncio.run(serve())
    except KeyboardInterrupt:
        say("the link is gone")
    except OSError as error:
        raise click.UsageError(f"it cannot listen there: {error}") from error


arena.add_command(compare)

# -- inside -----------------------------------------------------------------------------------------------------------


def _typed(variables: Mapping[str, str]) -> dict[str, Any]:
    """Numbers and truths as such, as in a file, unless the file says otherwise; everything else is text."""
    from ares_celery.arena.variables import Typed

    return {name: Typed(text) for name, text in variables.items()}


def _without_what_others_know(found: list[dict[str, Any]], files: int) -> list[dict[str, Any]]:
    """The faults without those variables that one of several files knows."""
    from ares_celery.arena.variables import is_about_given

    refused = Counter(one["place"] for one in found if is_about_given(one["place"]))
    return [one for one in found if refused.get(one["place"], files) == files]


def _run_to_its_end(going: ScenarioRun | SurvivalRun) -> ScenarioReport:
    """Runs it on a thread of its own; Ctrl-C, SIGTERM and the end of the terminal end it in order, with its rollbacks.

    A handler interrupts this thread anywhere, itself included. So it does nothing but note the signal, and the run, its
    locks and its output are another thread's.
    """
    heard: SimpleQueue[int | None] = SimpleQueue()
    ended: Future[ScenarioReport] = Future()

    def run() -> None:
        try:
            ended.set_result(going.run())
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            ended.set_exception(error)
        finally:
            heard.put(None)

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - of a handler
        heard.put(number)

    # Whoever has the end of the terminal ignored wants the run to go on.
    used = [one for one in _SIGNALS if one is not signal.SIGHUP or signal.getsignal(one) is not signal.SIG_IGN]
    before = {one: signal.signal(one, handle) for one in used}
    try:
        threading.Thread(target=run, name="ares-arena-run").start()
        while (number := heard.get()) is not None:
            going.stop(signal.Signals(number).name)
            with suppress(OSError):  # the terminal is gone
                say("the run ends; what it did is set right first")
        return ended.result()
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
