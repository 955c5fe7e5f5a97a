"""Waiting for a time or for people, as far as both kinds of agents do the same: what is asked, and what came of it."""

from __future__ import annotations

from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, cast

from ares_celery.clock import instant_from, to_datetime
from ares_celery.errors import ApprovalTimeoutError, InvalidSettingError, StepRejectedError, WaitSignal
from ares_celery.ids import Instant
from ares_celery.model.agent import AgentRecord
from ares_celery.model.arguments import as_shown, check_flags, check_timeout
from ares_celery.model.waits import Approval, InterruptState, Waiting, WaitKind, is_approved, together
from ares_celery.plugins.contract import StepCall
from ares_celery.runtime.handling import current_message
from ares_celery.runtime.incarnation import Incarnation
from ares_celery.runtime.ports import ApprovalWishes
from ares_celery.runtime.step_scope import MAIN, NEVER, SCOPE, execution_of
from ares_celery.store.interrupts import Decided, InterruptLook, Question

__all__ = [
    "LONGEST_WAIT",
    "LOOK",
    "Asking",
    "HeldWait",
    "Sleeps",
    "Waits",
    "Wishes",
    "approval_of",
    "asking_of",
    "check_moment",
    "check_place",
    "demand_yes",
    "outcome_of",
    "question_of",
    "waiting_for",
]

#: Seconds between two looks whether somebody has decided: a hint tells sooner, and the next renewal of the lease does.
LOOK: Final = 300.0
#: Seconds after which a long wait looks at the clock of Redis again, whatever happens.
LONGEST_WAIT: Final = 86_400.0
#: What the ids of steps begin with that ask people.
_QUESTION: Final = "approval:"
#: Characters of a name: it is part of an execution's step.
_LONGEST_NAME: Final = 200


def check_moment(t: object) -> Instant:
    """The moment that somebody waits for.

    Raises:
        InvalidSettingError: It is no datetime, or has no zone.
    """
    if not isinstance(t, datetime):
        problem = "give a datetime with its zone, such as datetime.now(UTC) + timedelta(hours=1)"
        raise InvalidSettingError(field="t", value=as_shown(t), problem=problem)
    if t.utcoffset() is None:
        raise InvalidSettingError(field="t", value=str(t), problem="a time needs its zone, such as UTC")
    return Instant(max(0, instant_from(t)))


def check_place(*, release_slot: bool) -> None:
    """Keeps a wait from ending the incarnation in the middle of a step whose outcome nobody would know then.

    Raises:
        InvalidSettingError: The slot would be given back inside of a step that must not be repeated.
    """
    around = NEVER.get()
    if release_slot and around:
        problem = (
            f"step {around!r} is a never step: given back inside of it, nobody would know how it came out; wait "
            "before the step, or without release_slot"
        )
        raise InvalidSettingError(field="release_slot", value="True", problem=problem)


class Asking(NamedTuple):
    """A question before it is known which execution asks it."""

    name: str
    payload: Any
    timeout: timedelta | None
    release_slot: bool
    turn: int = 1

    @property
    def step_id(self) -> str:
        """The step that its answer is recorded as; a step of its own for each time that it is asked anew."""
        return _QUESTION + (self.name if self.turn == 1 else f"{self.turn}:{self.name}")

    @property
    def anew(self) -> Asking:
        """The same question, asked once more."""
        return self._replace(turn=self.turn + 1)


def asking_of(name: object, payload: object, timeout: object, release_slot: object) -> Asking:
    """What an agent's code wants to know of people.

    Raises:
        InvalidSettingError: Name, timeout or flag cannot be.
    """
    if not isinstance(name, str) or not 1 <= len(name) <= _LONGEST_NAME or not name.isprintable():
        problem = f"give a name of 1 to {_LONGEST_NAME} printable characters"
        raise InvalidSettingError(field="name", value=as_shown(name), problem=problem)
    limit = None if timeout is None else check_timeout(timeout)
    if limit is not None and limit <= timedelta(0):
        problem = "must be above 0; leave it out to wait as long as it takes"
        raise InvalidSettingError(field="timeout", value=as_shown(timeout), problem=problem)
    check_flags(release_slot=release_slot)
    check_place(release_slot=bool(release_slot))
    return Asking(name, payload, limit, bool(release_slot))


def question_of(asking: Asking, incarnation: Incarnation) -> Question:
    """The question of the execution and step that the calling code is in."""
    scope = SCOPE.get()
    if scope is not None and scope.prefix:
        return Question(asking.name, scope.opening.id, scope.prefix[:-1], asking.payload, asking.timeout)
    # Not as a step: a context of its own, in a test.
    message_id = current_message(incarnation)
    execution = MAIN if message_id is None else execution_of(message_id)
    return Question(asking.name, execution, asking.step_id, asking.payload, asking.timeout)


class Wishes:
    """Which steps of an incarnation need a person's word, and what people have said of them."""

    def __init__(self, listener: object, rejected: str = "") -> None:
        """Binds the plug-ins; ``rejected`` is the question whose no has parked the agent."""
        self._rejected = rejected
        self._asked = listener if isinstance(listener, ApprovalWishes) else None
        self._said: dict[tuple[str, str], object] = {}

    def asks(self, step: StepCall) -> bool:
        """Somebody is to be asked whether the step needs a word; a question does not need one itself."""
        is_question = step.step_id.rpartition("/")[2].startswith(_QUESTION)
        return self._asked is not None and self._asked.has_interrupters and not is_question

    def wish(self, step: StepCall) -> Asking | None:
        """Asks the plug-ins; they may take a while. None: the step needs no word."""
        found = self._asked.approval_wish(step) if self._asked is not None else None
        if found is None:
            return None
        # A plug-in does not know what is around the step: inside of a never step the word is waited for in place.
        leaves = found.release_slot and not NEVER.get()
        return Asking(f"step:{step.step_id}", found.payload, found.timeout, leaves)

    def said(self, step: StepCall) -> object:
        """What people have said in this incarnation; None: they were not asked yet."""
        return self._said.get((step.execution, step.step_id))

    def is_over(self, outcome: object, *, asked_anew: bool) -> bool:
        """This answer is a no that has parked the agent before: whoever un-parked it wants people to be asked anew."""
        known = cast("dict[str, Any]", outcome)
        if known["state"] != InterruptState.RESOLVED.value or is_approved(known["decision"]):
            return False
        return asked_anew or bool(self._rejected and known.get("id") == self._rejected)

    def note(self, step: StepCall, outcome: object) -> None:
        """They have said this."""
        self._said[step.execution, step.step_id] = outcome


def demand_yes(asking: Asking, agent_id: str, step: StepCall, outcome: object) -> None:
    """Lets the step run, or not.

    Raises:
        StepRejectedError: Somebody said no. ApprovalTimeoutError: Nobody said anything in time.
    """
    word = approval_of(asking, agent_id, outcome)
    if not word:
        raise StepRejectedError(
            agent_id=agent_id,
            execution=step.execution,
            step=step.step_id,
            tool=step.tool,
            decision=word.decision,
            answer=word.payload,
            actor=word.actor,
            question=cast("dict[str, Any]", outcome).get("id", ""),
        )


def waiting_for(asking: Asking, look: InterruptLook) -> Waiting:
    """Why the slot is given back."""
    return Waiting(WaitKind.APPROVAL, asking.name, look.expires_at, look.decisions)


def outcome_of(question_id: str, decided: Decided) -> dict[str, Any]:
    """What came of a question, as it is recorded."""
    return {
        "id": question_id,
        "state": decided.state.value,
        "decision": decided.decision,
        "payload": decided.answer,
        "actor": decided.actor,
        "reason": decided.reason,
        "time": to_datetime(decided.time).isoformat(),
    }


def approval_of(asking: Asking, agent_id: str, outcome: object) -> Approval:
    """What was recorded, as the agent's code gets it.

    Raises:
        ApprovalTimeoutError: Nobody decided.
    """
    known = cast("dict[str, Any]", outcome)
    if known["state"] != InterruptState.RESOLVED.value:
        limit = asking.timeout.total_seconds() if asking.timeout is not None else None
        raise ApprovalTimeoutError(agent_id=agent_id, name=asking.name, timeout=limit, state=known["state"])
    time = datetime.fromisoformat(known["time"])
    return Approval(asking.name, known["decision"], known["payload"], known["actor"], time)


class Sleeps:
    """Waits for a time without a slot: how many of them the incarnation has behind it already.

    An agent's code begins from the top each time. A time that it computes from the present moment is a later one then:
    without this it would never come to an end.
    """

    def __init__(self, record: AgentRecord) -> None:
        # An incarnation in between that has done something began where the timers were behind it.
        is_fresh = record.woken_at > 0 and record.last_progress <= record.woken_at
        self._granted = record.woken_sleeps if is_fresh else 0
        self._mark: int = 0
        self._has_warned = False
        #: How many are over since the agent's code last did something.
        self.over: int = 0

    def begin(self, progress: int) -> None:
        """One more begins.

        Args:
            progress: Grows with whatever the incarnation has emitted or recorded.
        """
        if progress != self._mark:
            self._mark = progress
            self.over = self._granted = 0

    @property
    def is_behind(self) -> bool:
        """This incarnation was woken after one more than are over: the next of those that still wait is that one."""
        return self.over < self._granted

    def first_warning(self) -> bool:
        """Nobody was warned yet."""
        first, self._has_warned = not self._has_warned, True
        return first


class HeldWait:
    """One wait of the agent's code, as a block.

    Attributes:
        waiting: What ends it.
        is_there: That is known: it has looked at the store, and waits now.
        place: Execution and beginning of the step ids of the code that waits; None: outside of every execution.
    """

    __slots__ = ("_all", "is_there", "place", "waiting")

    def __init__(self, of: dict[HeldWait, None], waiting: Waiting) -> None:
        self._all = of
        self.waiting = waiting
        self.is_there = False
        scope = SCOPE.get()
        self.place = None if scope is None else (scope.opening.id, scope.prefix)

    def __enter__(self) -> Self:
        """It begins."""
        self._all[self] = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """It is over; one that has unloaded the agent goes on until something wakes that."""
        if not isinstance(error, WaitSignal):
            self._all.pop(self, None)


class Waits:
    """All waits of an incarnation at this moment: when it gives its slot back, the first that is over brings it on."""

    def __init__(self) -> None:
        self._held: dict[HeldWait, None] = {}

    def held(self, waiting: Waiting) -> HeldWait:
        """One more."""
        return HeldWait(self._held, waiting)

    @property
    def are_there(self) -> bool:
        """None of them has still to find out whether it is over."""
        return all(one.is_there for one in tuple(self._held))

    def are_inside(self, execution: str, path: str) -> bool:
        """Some of them is waited for inside of this step."""
        within = f"{path}/"
        return any(
            one.place is not None and one.place[0] == execution and one.place[1].startswith(within)
            for one in tuple(self._held)
        )

    @property
    def next_sleep(self) -> HeldWait | None:
        """Of those for a time without a slot the one that is over first."""
        sleeps = [one for one in tuple(self._held) if one.waiting.sleeps]
        return min(sleeps, key=lambda one: one.waiting.until, default=None)

    def together(self, over: int) -> Waiting:
        """All of them as one."""
        return together([one.waiting for one in tuple(self._held)], over=over)
