"""What an agent waits for without being hosted, and what people answered. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from math import inf
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from ares_celery.ids import Instant

__all__ = ["Approval", "InterruptInfo", "InterruptState", "WaitKind", "Waiting", "is_approved", "together"]

#: Words that say yes, in any case.
_YES: Final = frozenset(
    {"approve", "approved", "accept", "accepted", "allow", "allowed", "yes", "y", "ok", "true", "1"}
)


class WaitKind(StrEnum):
    """What ends a wait."""

    TIMER = "timer"
    APPROVAL = "approval"


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why an agent has given its slot back, and what brings it on again.

    Attributes:
        kind: What it waits for first.
        name: Of the interrupt; empty for a timer.
        until: When it goes on in any case, by the clock of Redis; 0 = only a decision brings it on.
        decisions: How many decisions about the agent there were when its code last looked; -1 = they do not matter.
        sleeps: Timers that its code has waited for since it last recorded or emitted something, those that end with
            this wait included.
    """

    kind: WaitKind = WaitKind.TIMER
    name: str = ""
    until: Instant = Instant(0)
    decisions: int = -1
    sleeps: int = 0

    def encode(self) -> str:
        """As one text.

        Example:
            >>> Waiting(WaitKind.APPROVAL, "deploy", Instant(5), 1).encode()
            'approval|5|1|0|deploy'
        """
        return f"{self.kind.value}|{self.until}|{self.decisions}|{self.sleeps}|{self.name}"

    @classmethod
    def decode(cls, text: str) -> Waiting | None:
        """What :meth:`encode` wrote; None for the empty text.

        Raises:
            ValueError: It is none of these.
        """
        if not text:
            return None
        kind, until, decisions, sleeps, name = text.split("|", 4)
        return cls(WaitKind(kind), name, Instant(int(until)), int(decisions), int(sleeps))


def together(waits: Collection[Waiting], *, over: int = 0) -> Waiting:
    """Several waits of one incarnation as one: what comes first ends it.

    Args:
        waits: At least one. A timer of an agent without its slot has ``sleeps`` 1.
        over: How many such timers are behind the agent's code already.

    Example:
        >>> timer, asked = Waiting(until=Instant(9), sleeps=1), Waiting(WaitKind.APPROVAL, "deploy", Instant(5), 2)
        >>> together([timer, asked], over=1)
        Waiting(kind=<WaitKind.APPROVAL: 'approval'>, name='deploy', until=5, decisions=2, sleeps=1)
        >>> together([timer, Waiting(until=Instant(7), sleeps=1)]).sleeps
        1
    """
    first = min(waits, key=lambda one: one.until or inf)
    return Waiting(
        first.kind,
        first.name,
        first.until,
        min((one.decisions for one in waits if one.decisions >= 0), default=-1),
        # Those that are over when the first one is.
        over + sum(one.sleeps for one in waits if 0 < one.until <= first.until),
    )


def is_approved(decision: str | bool) -> bool:  # noqa: FBT001 - a decision is one of both
    """Whether a decision says yes: True, or approve, accept, allow (also with -d or -ed), yes, y, ok, true or 1.

    In any case; every other word is a no.

    Example:
        >>> is_approved(True), is_approved("Approved"), is_approved("true"), is_approved("later")
        (True, True, True, False)
    """
    return decision if isinstance(decision, bool) else decision.strip().lower() in _YES


@dataclass(frozen=True, slots=True)
class Approval:
    """What a person decided about something that an agent asked; true when it was approved.

    Attributes:
        name: What was asked, as the agent named it.
        decision: The word, or True or False.
        payload: What came with it; a JSON value.
        actor: Who decided.
        time: When, by the clock of Redis; aware UTC.

    Example:
        >>> from datetime import UTC, datetime
        >>> bool(Approval("deploy", "no", {"why": "friday"}, "eve", datetime(2026, 1, 2, tzinfo=UTC)))
        False
    """

    name: str
    decision: str | bool
    payload: Any
    actor: str
    time: datetime

    @property
    def approved(self) -> bool:
        """It is a yes: see :func:`is_approved`."""
        return is_approved(self.decision)

    def __bool__(self) -> bool:
        """It is a yes."""
        return self.approved


class InterruptState(StrEnum):
    """How far a question to a person has come."""

    OPEN = "open"
    RESOLVED = "resolved"
    #: Nobody decided in time.
    TIMEOUT = "timeout"
    #: The execution that asked is over.
    ABANDONED = "abandoned"


class InterruptInfo(BaseModel):
    """A question that an agent asked people, and what came of it.

    Attributes:
        id: Of this very question; the same name asked again later has another one.
        name: What is asked, as the agent named it.
        agent_id: Who asks.
        execution: In which of the agent's executions.
        state: ``open`` until somebody decided.
        payload: What the agent says about it; None once it is decided, as the event ``interrupt.created`` keeps it.
        created_at: When it was asked.
        expires_at: When it is too late to decide; None = never.
        decision: What was decided.
        approved: It is a yes; None while nobody has decided.
        answer: What came with the decision.
        actor: Who decided.
        reason: Why.
        decided_at: When.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    name: str
    agent_id: str
    execution: str
    state: InterruptState
    payload: Any = None
    created_at: datetime
    expires_at: datetime | None = None
    decision: str | bool | None = None
    approved: bool | None = None
    answer: Any = None
    actor: str = ""
    reason: str = ""
    decided_at: datetime | None = None
