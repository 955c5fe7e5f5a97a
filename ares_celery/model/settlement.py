"""What a person says of a step that was begun and whose outcome nobody knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from ares_celery.clock import to_datetime
from ares_celery.errors import AgentNotFoundError, AgentNotParkedError, StepIntentNotFoundError, StepSettledError
from ares_celery.ids import AgentId, Instant
from ares_celery.model.step import StepIntent

__all__ = [
    "DONE",
    "RETRY",
    "Done",
    "Settlement",
    "decode_settlement",
    "encode_settlement",
    "intent_not_found",
    "named",
    "not_parked",
    "settled_already",
]

#: The step took effect, and a person knows its result.
DONE: Final = "done"
#: It did not, so it runs again.
RETRY: Final = "retry"
#: Steps that a sentence names.
_MOST_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class Done:
    """The step took effect.

    Attributes:
        value: What it returned, a JSON value; the agent gets it as if the step had returned it.
    """

    value: Any


class Settlement(msgspec.Struct, frozen=True, omit_defaults=True):
    """That a step was settled, how, and by whom; kept for a while, so that a second person is told.

    Attributes:
        execution: Of which execution.
        step: Which step.
        outcome: ``done`` or ``retry``.
        actor: Who said so.
        reason: Why.
        function: What the step had called.
        op: The operation id.
        time: When, by the clock of Redis.
    """

    execution: str
    step: str
    outcome: Literal["done", "retry"]
    actor: str = ""
    reason: str = ""
    function: str = ""
    op: str = ""
    time: Instant = Instant(0)


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Settlement)


def encode_settlement(settlement: Settlement) -> bytes:
    """A settlement as it is stored; its time is the store's."""
    return _encoder.encode(settlement)


def decode_settlement(data: bytes) -> Settlement:
    """The settlement in what is stored: JSON, behind ``<microseconds>|``. Fields that are unknown are left out.

    Raises:
        ValueError: It is none.
    """
    time, _, rest = data.partition(b"|")
    try:
        return msgspec.structs.replace(_decoder.decode(rest), time=Instant(int(time)))
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def named(intents: Sequence[StepIntent]) -> str:
    """Steps as a sentence lists them, some at most."""
    shown = [f"step {intent.step!r} of execution {intent.execution!r} ({intent.function})" for intent in intents]
    more = f", and {len(shown) - _MOST_NAMED} more" if len(shown) > _MOST_NAMED else ""
    return ", ".join(shown[:_MOST_NAMED]) + more


def intent_not_found(agent_id: AgentId, what: str, intents: Sequence[StepIntent]) -> StepIntentNotFoundError:
    """The error for a step of which nothing is to be settled; lists those that are open."""
    listed = f"open are {named(intents)}" if intents else "nothing is left to be settled"
    open_ = [{"execution": intent.execution, "step": intent.step} for intent in intents]
    return StepIntentNotFoundError(agent_id=agent_id, what=what, listed=listed, open=open_)


def settled_already(agent_id: AgentId, settled: Settlement) -> StepSettledError:
    """The error for whoever comes second: who was first, when, and what was said."""
    return StepSettledError(
        agent_id=agent_id,
        execution=settled.execution,
        step=settled.step,
        outcome=settled.outcome,
        actor=settled.actor or "somebody",
        reason=settled.reason,
        time=to_datetime(settled.time).isoformat(timespec="seconds"),
    )


def not_parked(agent_id: AgentId, state: str | None) -> AgentNotFoundError | AgentNotParkedError:
    """The error for an agent that waits for nobody's word."""
    if not state:
        return AgentNotFoundError(agent_id=agent_id)
    message = (
        f"agent {agent_id!r} is {state}, not parked: what became of its steps is asked of a person only while it is "
        "parked (reconcile)"
    )
    return AgentNotParkedError(agent_id=agent_id, state=state, message=message)
