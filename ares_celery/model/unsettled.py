"""What people are told of an agent that is parked as nobody knows what became of a step. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from ares_celery.clock import to_datetime
from ares_celery.ids import AgentId
from ares_celery.model.step import StepIntent

__all__ = ["call_of", "how_to_settle", "why_parked"]

#: Characters of a step's arguments that are shown.
_LONGEST: Final = 200
#: Steps that a reason tells in full.
_MOST: Final = 3


def why_parked(
    agent_id: AgentId, intents: Sequence[StepIntent], returned: Mapping[tuple[str, str], str] | None = None
) -> str:
    """Why an agent with steps of unknown outcome does not run, and what to do about it.

    Args:
        agent_id: Which agent.
        intents: The steps.
        returned: By execution and step, why the result of one that returned cannot be recorded.

    Example:
        >>> print(why_parked(AgentId("a"), [StepIntent("main", "charge", "charge", arguments={"args": [7]})]))
        step 'charge' of execution 'main' was begun and nobody knows whether it happened: charge(7), since 1970-01-01T00:00:00+00:00, in incarnation 0; look what it did, then say `ares agents reconcile a --execution main --step charge --done RESULT`, or --retry if it did not happen
    """  # noqa: E501 - one sentence
    if not intents:
        return (
            "a step was begun and nobody knows whether it happened; "
            f"`ares agents show {agent_id}` tells which, `ares agents reconcile {agent_id}` settles it"
        )
    known = returned or {}
    told = [_sentence(agent_id, one, known.get((one.execution, one.step), "")) for one in intents[:_MOST]]
    if len(intents) > _MOST:
        told.append(f"and {len(intents) - _MOST} more steps: `ares agents show {agent_id}`")
    return "; ".join(told)


def _sentence(agent_id: AgentId, intent: StepIntent, problem: str) -> str:
    since = to_datetime(intent.time).isoformat(timespec="seconds")
    if problem:
        # Without a word of a repetition: it has happened.
        return (
            f"step {intent.step!r} of execution {intent.execution!r} was begun, it returned, and its result cannot be "
            f"recorded: {problem}: {call_of(intent)}, since {since}, in incarnation {intent.incarnation}; look what it "
            f"did, then say `{how_to_settle(agent_id, intent)} --done RESULT`"
        )
    return (
        f"step {intent.step!r} of execution {intent.execution!r} was begun and nobody knows whether it happened: "
        f"{call_of(intent)}, since {since}, in incarnation {intent.incarnation}; look what it did, then say "
        f"`{how_to_settle(agent_id, intent)} --done RESULT`, or --retry if it did not happen"
    )


def how_to_settle(agent_id: str, intent: StepIntent) -> str:
    """The command that settles a step, without the word on it."""
    names = f"--execution {shlex.quote(intent.execution)} --step {shlex.quote(intent.step)}"
    return f"ares agents reconcile {agent_id} {names}"


def call_of(intent: StepIntent) -> str:
    """The call that was begun, as code would have it; long arguments are cut.

    Example:
        >>> call_of(StepIntent("main", "charge", "charge", arguments={"args": [7], "kwargs": {"unit": "EUR"}}))
        'charge(7, unit="EUR")'
    """
    given = _table(intent.arguments)
    positional = given.get("args")
    shown = [_shown(value) for value in cast("list[object]", positional if isinstance(positional, list) else [])]
    text = ", ".join(shown + [f"{name}={_shown(value)}" for name, value in _table(given.get("kwargs")).items()])
    return f"{intent.function}({text if len(text) <= _LONGEST else text[: _LONGEST - 1] + '…'})"


def _table(value: object) -> Mapping[str, Any]:
    """What a newer version noted in another way is not shown."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
