"""``ares agents steps``: what an agent's steps have recorded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import click

from ares_celery.cli.apps import Session, pass_session
from ares_celery.cli.output import output_option, print_json, print_table, shorten

if TYPE_CHECKING:
    from ares_celery.model.step import StepRecord

__all__ = ["steps"]

#: Characters of a value that a table shows; JSON has all of it.
_SHOWN: Final = 120


@click.command()
@click.argument("agent_id", metavar="ID")
@click.argument("execution", required=False)
@output_option
@pass_session
def steps(session: Session, agent_id: str, execution: str | None, output: str) -> None:
    """Show what the steps of agent ID recorded in EXECUTION, in their order; without it, list the executions.

    Steps outside of a message and of ctx.execution are in execution main, those of a message in msg:MESSAGE-ID.
    Finished executions are kept for a day, if nothing else is set.
    """
    from ares_celery.errors import AgentNotFoundError, ExecutionNotFoundError

    if session.manager.get_agent_info(agent_id) is None:
        raise AgentNotFoundError(agent_id=agent_id)
    stored = session.manager.checkpoints
    if execution is None:
        listed = [
            {"execution": one.id, "state": one.state.value, "steps": len(stored.steps(agent_id, one.id))}
            for one in stored.list_executions(agent_id)
        ]
        if output == "json":
            print_json(listed)
        else:
            print_table(("EXECUTION", "STATE", "STEPS"), [tuple(map(str, one.values())) for one in listed])
        return
    found = stored.steps(agent_id, execution)
    if not found and stored.load(agent_id, execution) is None:
        raise ExecutionNotFoundError(agent_id=agent_id, execution=execution)
    told = [_told(one) for one in found]
    if output == "json":
        print_json(told)
        return
    columns = ("STEP", "FUNCTION", "REPLAY", "TIME", "VALUE")
    print_table(columns, [_row(one) for one in found])


def _told(one: StepRecord) -> dict[str, object]:
    from ares_celery.clock import to_datetime

    return {
        "step": one.id,
        "function": one.function,
        "replay": one.replay,
        "time": to_datetime(one.time),
        "value": one.value,
        "error": one.error,
        "attempts": one.attempts,
        "actor": one.actor,
    }


def _row(one: StepRecord) -> tuple[str, ...]:
    from ares_celery.clock import to_datetime

    value = json.dumps(one.value, ensure_ascii=False)
    if one.error is not None:
        value = f"failed: {one.error.get('type', '')}: {one.error.get('message', '')}"
    time = to_datetime(one.time).isoformat(timespec="milliseconds")
    return one.id, one.function, one.replay, time, shorten(value, _SHOWN)
