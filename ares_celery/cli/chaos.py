"""``ares chaos``: faults on purpose, in namespaces that allow them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ares_celery.cli.apps import Session, pass_session
from ares_celery.cli.options import DURATION, why_options
from ares_celery.cli.output import in_units, output_option, print_facts, print_json, print_table, say
from ares_celery.errors import OperationNotSupportedError

if TYPE_CHECKING:
    from ares_celery.model.fault import Fault
    from ares_celery.model.limits import ClosedLimit

__all__ = ["chaos"]

F = TypeVar("F", bound=Callable[..., Any])

_ID: Final = click.argument("agent_id", metavar="ID")
_ANY_ID: Final = click.argument("agent_id", metavar="[ID]", required=False)
_FOR: Final = click.option(
    "--for", "duration", type=DURATION, help="When the fault ends by itself; default 1m, at most 24h."
)


def _calls(function: F) -> F:
    """Which of an agent's calls a fault affects."""
    function = click.option("--seed", type=click.IntRange(min=0), help="Decides which calls; drawn and shown.")(
        function
    )
    function = click.option(
        "--probability", type=float, default=1.0, show_default=True, help="Of affecting a call, above 0, up to 1."
    )(function)
    return click.option("--count", type=click.IntRange(min=1), help="It also ends after so many calls.")(function)


@click.group()
def chaos() -> None:
    """Faults on purpose; refused unless the namespace allows them: `ares chaos enable --for 1h`.

    Every fault ends by itself, a minute later unless --for says otherwise. `ares config set chaos true` allows them
    for good.
    """


# -- whether they are allowed ------------------------------------------------------------------------------------------


@chaos.command()
@click.option("--for", "duration", type=DURATION, required=True, help="For how long, such as 1h; at most 24h.")
@why_options
@output_option
@pass_session
def enable(session: Session, *, duration: timedelta, reason: str, actor: str, output: str) -> None:
    """Allow faults for a time; with it every fault ends that it allowed."""
    state = session.manager.enable_chaos(duration, reason=reason, actor=actor)
    if output == "json":
        print_json(state)
    else:
        print_facts({"allowed until": state.until, "reason": state.reason, "actor": state.actor})


@chaos.command()
@why_options
@output_option
@pass_session
def disable(session: Session, *, reason: str, actor: str, output: str) -> None:
    """Allow faults no longer, and heal all that are active; what `ares config set chaos true` allows stays allowed."""
    _print(session.manager.disable_chaos(reason=reason, actor=actor), output, "nothing was to be healed")


@chaos.command()
@_ANY_ID
@output_option
@pass_session
def ls(session: Session, *, agent_id: str | None, output: str) -> None:
    """List the active faults of agent ID, or of all agents, and the limits that injected refusals have closed."""
    _print(session.manager.list_faults(agent_id), output, "no fault is active")
    if output != "json":
        closed = (one for one in session.manager.closed_limits() if one.fault)
        _print_limits([one for one in closed if agent_id in (None, one.agent_id)])


# -- faults ------------------------------------------------------------------------------------------------------------


@chaos.command()
@_ID
@click.option("--force", is_flag=True, help="Also when other agents live in the same process; they are named first.")
@why_options
@output_option
@pass_session
def kill(session: Session, /, *, agent_id: str, force: bool, output: str, **why: str) -> None:
    """Send SIGKILL to the process that hosts agent ID; refused while others live in it, unless --force."""
    _kill(lambda forced: session.manager.kill_agent(agent_id, force=forced, **why), "co_tenants", output, force=force)


@chaos.command("kill-worker")
@click.argument("worker", metavar="WORKER")
@click.option("--force", is_flag=True, help="Also when it hosts agents; they are named first.")
@why_options
@output_option
@pass_session
def kill_worker(session: Session, /, *, worker: str, force: bool, output: str, **why: str) -> None:
    """Send SIGKILL to the main process of WORKER, such as agents@host; refused while it hosts agents, unless --force.

    Its pool children go with it.
    """
    _kill(lambda forced: session.manager.kill_worker(worker, force=forced, **why), "agents", output, force=force)


def _kill(do: Callable[[bool], Any], others: str, output: str, *, force: bool) -> None:
    """Kills; names those that die along before they do."""
    try:
        killed = do(False)  # noqa: FBT003 - the only argument
    except OperationNotSupportedError as error:
        named: Sequence[str] = error.fields.get(others, ())
        if not (force and named):
            raise
        say(f"with it die: {', '.join(named)}")
        killed = do(True)  # noqa: FBT003 - as above
    if output == "json":
        print_json(killed)
    else:
        print_facts(killed)


@chaos.command()
@_ID
@click.argument("delay", type=DURATION)
@_FOR
@_calls
@why_options
@output_option
@pass_session
def slow(session: Session, /, *, agent_id: str, delay: timedelta, output: str, **given: Any) -> None:  # noqa: ANN401 - options
    """Let each call of agent ID wait for DELAY first, such as 500ms; 0 clears it."""
    _print_one(session.manager.slow_agent(agent_id, delay, **given), output)


@chaos.command("tool-timeout")
@_ID
@click.argument("timeout", type=DURATION)
@_FOR
@_calls
@why_options
@output_option
@pass_session
def tool_timeout(session: Session, /, *, agent_id: str, timeout: timedelta, output: str, **given: Any) -> None:  # noqa: ANN401 - options
    """Cut each call of a tool by agent ID off after TIMEOUT; 0 clears it."""
    _print_one(session.manager.tool_timeout(agent_id, timeout, **given), output)


@chaos.command()
@_ID
@_FOR
@why_options
@output_option
@pass_session
def partition(session: Session, /, *, agent_id: str, output: str, **given: Any) -> None:  # noqa: ANN401 - options
    """Cut the running incarnation of agent ID off from its store: it is brought back elsewhere."""
    _print_one(session.manager.partition_network(agent_id, **given), output)


@chaos.command("corrupt-memory")
@_ID
@_FOR
@click.option("--seed", type=click.IntRange(min=0), help="Decides how the snapshot is damaged; drawn and shown.")
@why_options
@output_option
@pass_session
def corrupt_memory(session: Session, /, *, agent_id: str, output: str, **given: Any) -> None:  # noqa: ANN401 - options
    """Damage the newest snapshot of agent ID, and end its instance at the next call."""
    _print_one(session.manager.corrupt_memory(agent_id, **given), output)


@chaos.command("disconnect-mcp")
@_ID
@click.option("--server", default="", help="Only this MCP server; default all.")
@_FOR
@_calls
@why_options
@output_option
@pass_session
def disconnect_mcp(session: Session, /, *, agent_id: str, output: str, **given: Any) -> None:  # noqa: ANN401 - options
    """Cut the connections of agent ID to its MCP servers."""
    _print_one(session.manager.disconnect_mcp(agent_id, **given), output)


@chaos.command("llm-failure")
@_ID
@click.argument("error_type", metavar="[ERROR]", default="rate_limit")
@click.option("--retry-after", type=DURATION, help="What the failing model asks to wait; default: it does not say.")
@_FOR
@_calls
@why_options
@output_option
@pass_session
def llm_failure(session: Session, /, *, agent_id: str, error_type: str, output: str, **given: Any) -> None:  # noqa: ANN401 - options
    """Let calls of language models by agent ID fail with ERROR.

    ERROR is rate_limit (the default), timeout, connection, server_error, overloaded, auth, malformed or cut_stream.
    """
    _print_one(session.manager.inject_llm_failure(agent_id, error_type, **given), output)


@chaos.command()
@_ANY_ID
@click.option("--fault", help="Only this one: its id, or a kind, such as slow or disconnect-mcp; default all.")
@why_options
@output_option
@pass_session
def heal(session: Session, *, agent_id: str | None, fault: str | None, reason: str, actor: str, output: str) -> None:
    """End faults of agent ID, or of all agents, before their time."""
    _print(session.manager.heal(agent_id, fault, reason=reason, actor=actor), output, "nothing was to be healed")


# -- what is printed ---------------------------------------------------------------------------------------------------


def _print_one(fault: Fault | None, output: str) -> None:
    if output == "json":
        print_json(None if fault is None else fault.to_json())
    elif fault is None:
        say("it is cleared")
    else:
        shown = {name: value for name, value in fault.to_json().items() if value not in ("", None, 0)}
        print_facts(shown)


def _print(faults: Sequence[Fault], output: str, nothing: str) -> None:
    if output == "json":
        print_json([fault.to_json() for fault in faults])
    elif not faults:
        say(nothing)
    else:
        rows = (
            (fault.agent_id, fault.kind, _what(fault), _calls_of(fault), _time(fault.until), fault.id)
            for fault in faults
        )
        print_table(("AGENT", "KIND", "WHAT", "CALLS", "UNTIL", "ID"), rows)


def _print_limits(closed: Sequence[ClosedLimit]) -> None:
    if closed:
        say("")
        rows = ((one.name, _time(one.until), one.agent_id, one.fault) for one in closed)
        print_table(("CLOSED LIMIT", "UNTIL", "BY A FAULT OF", "ID"), rows)


def _what(fault: Fault) -> str:
    """What the kind has of its own."""
    seconds = fault.delay or fault.timeout or fault.retry_after
    shown = [fault.error_type, fault.server, in_units(timedelta(seconds=seconds)) if seconds else ""]
    return " ".join(part for part in shown if part)


def _calls_of(fault: Fault) -> str:
    """How many calls it has affected, and may."""
    if not fault.is_counted:
        return "all"
    of = f" of {fault.count}" if fault.count else ""
    return f"{fault.used}{of}" + (f" (p {fault.probability:g}, seed {fault.seed})" if fault.probability < 1 else "")


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")
