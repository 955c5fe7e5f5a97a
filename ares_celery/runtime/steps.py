"""Durable steps, as far as both kinds of agents do the same: which step it is, and what is known of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextvars import Token
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Any, Final, Generic, Self, TypeVar

import msgspec

from ares_celery.agents.secrets import SECRETS
from ares_celery.agents.steps import DEFAULTS, KEY, UNSET, Replay, StepOptions, Unset, options_of, takes_key
from ares_celery.clock import Clock
from ares_celery.errors import (
    AresError,
    BudgetExceededError,
    ExecutionStateError,
    InvalidExecutionIdError,
    InvalidStepIdError,
    SecretsHookError,
    StepChangedError,
    StepFailedError,
    StepIdReusedError,
    StepLimitError,
    StepOutcomeUnknownError,
    StepRejectedError,
    StepResultTooLargeError,
    StepSignatureError,
    StepThreadError,
    UnserialisableError,
)
from ares_celery.errors.wording import found_in, message_of
from ares_celery.ids import Version, check_execution_id, check_step_id
from ares_celery.model.event import NewEvent
from ares_celery.model.step import StepIntent, StepRecord, function_identity
from ares_celery.runtime.handling import begun_before, current_message
from ares_celery.runtime.incarnation import Incarnation
from ares_celery.runtime.ports import StepHooks
from ares_celery.runtime.step_scope import MAIN, MESSAGE, NEVER, SCOPE, Opening, Scope, execution_of
from ares_celery.runtime.step_words import StepWords
from ares_celery.runtime.step_work import LONGEST_MESSAGE, Work
from ares_celery.store.steps import Begun, OpenExecution, Recorded

__all__ = ["ABSENT", "UNRECORDABLE", "StepCallers", "StepParts", "Steps", "merged_options", "reset_scope"]

#: What is never tried again: the next try would come to the same.
_HOPELESS: Final = (
    BudgetExceededError,
    ExecutionStateError,
    InvalidExecutionIdError,
    InvalidStepIdError,
    StepChangedError,
    StepFailedError,
    StepIdReusedError,
    StepLimitError,
    StepOutcomeUnknownError,
    StepRejectedError,
    StepResultTooLargeError,
    StepSignatureError,
    StepThreadError,
)
#: What the store refuses of a result.
UNRECORDABLE: Final = (SecretsHookError, StepLimitError, StepResultTooLargeError, UnserialisableError)
#: Stands for a function that was not given.
ABSENT: Final[Any] = UNSET
_LONGEST_WAIT: Final = 30.0
S = TypeVar("S", bound="Steps")


@dataclass(frozen=True, slots=True)
class StepParts:
    """What steps need of their context.

    Attributes:
        incarnation: Whose steps.
        clock: Monotonic time.
        next_op: Gives operation ids.
        note_version: Told the version of an event that was stored with a step.
        note_spent: Told how many steps the agent has recorded in its life.
    """

    incarnation: Incarnation
    clock: Clock
    next_op: Callable[[], str]
    note_version: Callable[[Version], None]
    note_spent: Callable[[int], None]


class Steps:
    """The steps of one incarnation; each colour adds the calls that wait."""

    def __init__(self, parts: StepParts) -> None:
        self._incarnation = parts.incarnation
        self._agent_id = parts.incarnation.agent_id
        self._fence = parts.incarnation.fence
        self._clock = parts.clock
        self._next_op = parts.next_op
        self._note_version = parts.note_version
        listener: object = parts.incarnation.listener
        self._hooks = listener if isinstance(listener, StepHooks) else None
        self._words = StepWords(parts.incarnation, parts.clock)
        self._openings: dict[str, Opening] = {}
        self._running: dict[Work, None] = {}
        self._note_spent = parts.note_spent

    @property
    def _is_heard(self) -> bool:
        """Somebody in this process listens to events."""
        listener = self._incarnation.listener
        return listener is not None and listener.wants_events

    @property
    def hosted(self) -> Incarnation:
        """Whose steps."""
        return self._incarnation

    # -- executions ---------------------------------------------------------------------------------------------------

    def _scope(self) -> Scope | None:
        """The block or step that the calling code is in, if it is this incarnation's."""
        scope = SCOPE.get()
        return scope if scope is not None and scope.owner is self else None

    def _current_id(self) -> str:
        """The execution of a step outside of any block: that of the message at hand, or ``main``."""
        message_id = current_message(self._incarnation)
        return MAIN if message_id is None else execution_of(message_id)

    @property
    def is_inside(self) -> bool:
        """The calling code is in an execution: in a block, in a step or in the handling of a message."""
        return self._scope() is not None or current_message(self._incarnation) is not None

    def has(self, step_id: str) -> bool:
        """A step of this id is recorded where the calling code is, in an execution that is open."""
        scope = self._scope()
        opening = scope.opening if scope is not None else self._openings.get(self._current_id())
        prefix = scope.prefix if scope is not None else ""
        return opening is not None and opening.find(prefix + step_id) is not None

    def records(self, options: StepOptions, step_id: str) -> bool:
        """A call of a tool is a step: all but those outside of every execution that may be made again anyway."""
        return bool(step_id) or options.replay != "safe" or self.is_inside

    def finishes(self, message_id: str) -> str:
        """The execution that ends with the answer to a message; empty: there is none."""
        execution_id = execution_of(message_id)
        return execution_id if execution_id in self._openings else ""

    def may_be_left(self, message_id: str) -> str:
        """The execution of a message that an earlier incarnation may have begun, and this one has not; empty: none."""
        if not self._incarnation.record.executions or self.finishes(message_id):
            return ""
        return execution_of(message_id)

    def note_end(self, version: Version | None) -> None:
        """An execution has ended with the answer to its message, and an event told it."""
        if version is not None:
            self._note_version(version)

    def forget(self, message_id: str) -> None:
        """A message was answered: its execution has ended."""
        self._openings.pop(execution_of(message_id), None)

    def is_unsettled(self, message_id: str) -> bool:
        """Nobody knows how some step of a message came out: it cannot be answered before a person has said it."""
        opening = self._openings.get(execution_of(message_id))
        return opening is not None and opening.is_unsettled

    @property
    def has_main(self) -> bool:
        """The execution ``main`` may have to be ended with the agent."""
        return MAIN in self._openings or self._incarnation.record.executions > 0

    def _check_own(self, execution_id: object) -> str:
        """The id of an execution that the agent's code enters."""
        checked = check_execution_id(execution_id)
        if checked == MAIN or checked.startswith(MESSAGE):
            problem = f"execution id {checked!r} is the runtime's own; choose another than 'main' and 'msg:…'"
            raise InvalidExecutionIdError(execution=checked, message=problem)
        if checked in self._openings:
            raise ExecutionStateError(
                agent_id=self._agent_id,
                execution=checked,
                state="running",
                operation="entering it",
                problem="this incarnation has entered it already, and not left it",
            )
        return checked

    def _opened(self, opened: OpenExecution) -> Opening:
        opening = Opening(opened)
        self._openings[opening.id] = opening
        return opening

    def _is_of_earlier_run(self, opened: OpenExecution) -> bool:
        """``main`` of an agent that had completed, and was started again since."""
        execution = opened.execution
        begun_at = self._incarnation.record.begun_at
        return execution.id == MAIN and execution.finished and execution.changed_at <= begun_at

    # -- which step ---------------------------------------------------------------------------------------------------

    @staticmethod
    def _demand_function(step_id: object, function: object) -> None:
        if callable(step_id):
            name = function_identity(step_id)
            raise TypeError(f"a step has an id: write await ctx.step({name.lower()!r}, {name}, argument)")
        if isinstance(function, Unset):
            raise TypeError(f"step {step_id!r} has no function: write await ctx.step({step_id!r}, function, argument)")
        if not callable(function):
            cure = "write await ctx.step('id', function, argument), without calling it"
            raise TypeError(f"step {step_id!r} is given a {type(function).__name__}, not a function: {cure}")

    @staticmethod
    def _emitting(event: NewEvent) -> Work:
        """The step that stores an event; another type of event is another function."""
        return Work(_nothing, name=f"emit:{event.type}", args=(), kwargs={}, options=DEFAULTS)

    def _place_step(self, work: Work, scope: Scope | None, opening: Opening, step_id: str) -> None:
        """It is the step that the agent's code names."""
        path = check_step_id(step_id)
        if scope is not None and scope.prefix:
            path = check_step_id(scope.prefix + path)
        work.place(opening, path, is_inner=_is_inner(scope))
        self._use(work)

    def _place_call(self, work: Work, scope: Scope | None, opening: Opening, step_id: str, digest: str) -> None:
        """It is the step that calls a tool; without an id it is known by its arguments."""
        prefix = scope.prefix if scope is not None else ""
        path = prefix + (step_id or f"{work.name}:{digest}")
        if not step_id and (scope is not None or opening.id != MAIN):
            path = opening.numbered(path)
        work.place(opening, check_step_id(path), is_inner=_is_inner(scope))
        self._use(work)

    def _use(self, work: Work) -> None:
        """Takes the id for it."""
        opening, path = work.opening, work.path
        if opening.use(path):
            return
        whose = {"agent_id": self._agent_id, "execution": opening.id, "step": path}
        if opening.is_lost(path):
            raise StepOutcomeUnknownError(whose)
        if work.tool and opening.id == MAIN:
            problem = (
                f"tool {work.tool!r} was called with these arguments already in execution 'main' of agent "
                f"{self._agent_id!r}, which lasts as long as the agent; say which call it is: "
                f"ctx.tool({work.tool!r}).with_options(step_id=f'round:{{n}}')(…), or call it inside of "
                "ctx.execution(…)"
            )
            raise StepIdReusedError(whose, message=problem)
        raise self._words.reused(work)

    def _free(self, work: Work) -> None:
        """Nothing was recorded of it: its id may be used again."""
        if not work.is_recorded:
            work.opening.free(work.path)

    def _is_done(self, opening: Opening, error: BaseException | None) -> bool:
        """A block that was left is done. One that yields enters it once more: what was done is not run again."""
        return error is None and not opening.is_unsettled and not self._incarnation.yields

    # -- what is known of it ------------------------------------------------------------------------------------------

    def _value(self, work: Work, record: StepRecord) -> Any:  # noqa: ANN401 - a JSON value
        """What a recorded step returns, in the first life as in later ones."""
        work.is_recorded = True
        if record.error is not None:
            raise self._words.failed(work, record.error)
        return SECRETS.reveal(record.value, self._words.place(work, "result")) if SECRETS.is_set else record.value

    def _check(self, work: Work) -> None:
        """Refuses a new step that must not run at all. Completes the arguments of a keyed one."""
        opening, options = work.opening, work.options
        if opening.is_finished:
            raise ExecutionStateError(
                agent_id=self._agent_id,
                execution=opening.id,
                state="finished",
                operation=f"step {work.path!r}",
                problem="what its steps recorded is returned, a new step is not run; choose another execution id",
            )
        if options.replay != "keyed" or KEY in work.kwargs:
            return
        if not takes_key(work.function):
            raise StepSignatureError(
                agent_id=self._agent_id,
                execution=opening.id,
                step=work.path,
                function=work.name,
                parameter=KEY,
                problem=f'a keyed step takes its key: add {KEY}: str = ""',
            )
        work.kwargs = {**work.kwargs, KEY: self._key(work)}

    def _key(self, work: Work) -> str:
        """The same in every life, and of no other step."""
        parts = [str(self._agent_id), self._incarnation.record.created_at, work.opening.id, work.path]
        if work.opening.id == MAIN:
            # Begun anew when a completed agent is started again: those are other steps.
            parts.append(work.opening.created_at)
        return sha256(msgspec.json.encode(parts)).hexdigest()[:40]

    @property
    def _is_too_late(self) -> bool:
        """The agent was asked to end and the time of its code is over; inside of a step that goes on, one more may."""
        after = self._incarnation.no_never_after
        return after is not None and self._clock.monotonic() > after and not NEVER.get()

    # -- running it ---------------------------------------------------------------------------------------------------

    def _begin(self, work: Work) -> None:
        work.began = self._clock.monotonic()
        self._running[work] = None
        self._incarnation.doing = (work.path, work.began)

    def _end(self, work: Work) -> None:
        self._running.pop(work, None)
        newest = next(reversed(self._running), None)
        self._incarnation.doing = None if newest is None else (newest.path, newest.began)

    def _inside(self, work: Work) -> Scope:
        """Steps that its function makes are inside of it."""
        return Scope(self, work.opening, f"{work.path}/")

    # -- when it fails ------------------------------------------------------------------------------------------------

    def _may_retry(self, work: Work, attempt: int, error: Exception) -> bool:
        """It has tries left, and another one may come to something else."""
        return (
            attempt <= work.options.retries
            and not isinstance(error, _HOPELESS)
            and not work.opening.is_unsettled
            and self._incarnation.stopping_reason is None
        )

    @staticmethod
    def _wait_after(attempt: int) -> float:
        """Seconds before the next try."""
        return min(2.0 ** min(attempt - 1, 16), _LONGEST_WAIT)

    # -- recording it -------------------------------------------------------------------------------------------------

    @property
    def _begun_before(self) -> str:
        """What of the message at hand no longer counts once something is recorded: its earlier beginnings."""
        return begun_before(self._incarnation)

    def _settled(self, work: Work, recorded: Recorded) -> StepRecord:
        """The store has it."""
        work.is_recorded = True
        record = recorded.record
        self._note_spent(recorded.steps_spent)
        self._incarnation.progress_at = self._clock.monotonic()
        if recorded.version is not None:
            self._note_version(recorded.version)
        work.opening.keep(record, work.path, is_inner=work.is_inner)
        return record

    def _noted(self, begun: Begun, intent: StepIntent) -> None:
        """The store has the intent, or the step's record."""
        if begun.record is None:
            self._incarnation.begun_never.append((begun.version, intent))
        if begun.version is not None:
            self._note_version(begun.version)

    def _lose(self, work: Work, error: BaseException | None) -> None:
        """It was begun, must not run twice, and nobody knows what it did: this incarnation ends, a person decides.

        If the person says that it may run again, a step inside of it that somebody said no to is asked about anew.
        """
        rejected = found_in(error, StepRejectedError)
        if rejected is not None:
            self._incarnation.rejected = str(rejected.fields.get("question") or "")
        work.opening.lose(work.path)
        self._incarnation.unsettled.setdefault((work.opening.id, work.path), "")
        self._incarnation.ask("stop")

    def _note_returned(self, work: Work, error: Exception) -> None:
        """It has run, and no record of it can be made: whoever is asked what came of it is told that much."""
        self._incarnation.unsettled[(work.opening.id, work.path)] = message_of(error)[:LONGEST_MESSAGE]

    @staticmethod
    def _note_unrecorded(work: Work, error: AresError) -> None:
        """It may run again, and would each time for nothing: uncaught, the error parks the agent."""
        error.fields["unrecorded"] = work.path


def _nothing() -> None:
    """What runs in a step that only stores an event."""


class StepCallers(Generic[S]):
    """What ``ctx.step`` is, but for the call: each colour adds it."""

    __slots__ = ("_changes", "_steps")

    def __init__(self, steps: S, changes: dict[str, Any] | None = None) -> None:
        self._steps = steps
        self._changes = changes

    def with_options(
        self,
        *,
        replay: Replay | Unset = UNSET,
        retries: int | Unset = UNSET,
        timeout: timedelta | float | str | Unset | None = UNSET,
        formerly: Iterable[str] | Unset = UNSET,
    ) -> Self:
        """The same with other options than those of the function."""
        given = {"replay": replay, "retries": retries, "timeout": timeout, "formerly": formerly}
        return type(self)(self._steps, merged_options(self._changes, given))

    def _options(self, function: Callable[..., Any]) -> StepOptions:
        options = options_of(function)
        return options.changed(**self._changes) if self._changes else options


def _is_inner(scope: Scope | None) -> bool:
    return scope is not None and bool(scope.prefix)


def merged_options(before: Mapping[str, Any] | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a call with more of them; those that were not given are left out.

    Raises:
        InvalidSettingError: One of them cannot work.
    """
    merged = {**(before or {}), **{name: value for name, value in given.items() if not isinstance(value, Unset)}}
    DEFAULTS.changed(**merged)
    return merged


def reset_scope(outside: Token[Scope | None] | None) -> None:
    """Ends a scope; also where a generator is closed by somebody else's code."""
    if outside is None:
        return
    try:
        SCOPE.reset(outside)
    except ValueError:
        SCOPE.set(None)
