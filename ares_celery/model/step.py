"""Durable steps: what is recorded of one, what is noted before one that must not be repeated, and the names of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from inspect import unwrap
from typing import Any, Final

import msgspec
from typing_extensions import override

from ares_celery.errors import UnreadableCheckpointError
from ares_celery.ids import AgentId, Instant

__all__ = [
    "MOST_STEPS",
    "RecordedSteps",
    "StepIntent",
    "StepRecord",
    "decode_intent",
    "decode_step",
    "encode_intent",
    "encode_step",
    "function_identity",
]

#: Recorded steps of one execution: all of them are read when it is opened.
MOST_STEPS: Final = 10_000


class StepRecord(msgspec.Struct, frozen=True):
    """What a step came to; recorded once, and returned from then on instead of running it.

    Attributes:
        id: The step's id, behind those of the steps around it: ``outer/inner``.
        function: The function that ran, see :func:`function_identity`.
        replay: How it may be repeated: safe, keyed or never.
        value: What it returned, a JSON value; None for one that failed.
        error: Of a step that failed and is never repeated: its ``type``, ``message`` and ``traceback``; else None.
        attempts: How often it was tried, the last time included.
        actor: The person who said what came of it; empty: the step itself did.
        number: The how-manieth record of its execution it is, from 1; 0: not known.
        time: When it was recorded, by the clock of Redis.

    Example:
        >>> StepRecord(id="charge", function="charge", replay="keyed", value={"paid": 5}).attempts
        1
    """

    id: str
    function: str
    replay: str
    value: Any = None
    error: Mapping[str, str] | None = None
    attempts: int = 1
    actor: str = ""
    number: int = 0
    time: Instant = Instant(0)


class StepIntent(msgspec.Struct, frozen=True):
    """That a step which must not be repeated was begun, and with what; noted before it runs.

    Attributes:
        execution: Of which execution.
        step: The step's id.
        function: The function that was called.
        replay: How it may be repeated; ``never``.
        arguments: What it was called with, ``{"args": [...], "kwargs": {...}}``, as far as it is JSON.
        incarnation: Which life of the agent began it.
        time: When, by the clock of Redis.
    """

    execution: str
    step: str
    function: str
    replay: str = "never"
    arguments: Any = None
    incarnation: int = 0
    time: Instant = Instant(0)


class _StoredStep(msgspec.Struct, omit_defaults=True):
    function: str = ""
    replay: str = ""
    value: Any = None
    error: dict[str, str] | None = None
    attempts: int = 1
    actor: str = ""


class _StoredIntent(msgspec.Struct, omit_defaults=True):
    execution: str = ""
    step: str = ""
    function: str = ""
    replay: str = "never"
    arguments: Any = None
    incarnation: int = 0


_encoder: Final = msgspec.json.Encoder()
_steps: Final = msgspec.json.Decoder(_StoredStep)
_intents: Final = msgspec.json.Decoder(_StoredIntent)


def encode_step(record: StepRecord) -> tuple[bytes, StepRecord]:
    """A record as it is stored, and as everybody will read it.

    Raises:
        TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError: Something in it is no JSON.
    """
    error = dict(record.error) if record.error is not None else None
    data = _encoder.encode(
        _StoredStep(record.function, record.replay, record.value, error, record.attempts, record.actor)
    )
    return data, _read(record.id, data)


def decode_step(step_id: str, data: bytes) -> StepRecord:
    """The record in what is stored: JSON, behind ``<number>|<microseconds>|``. Fields that are unknown are left out.

    Raises:
        ValueError: It is none.
    """
    number, time, rest = _split(data, 2)
    try:
        return _read(step_id, rest, number, Instant(time))
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def _read(step_id: str, data: bytes, number: int = 0, time: Instant = Instant(0)) -> StepRecord:
    read = _steps.decode(data)
    return StepRecord(
        step_id, read.function, read.replay, read.value, read.error, read.attempts, read.actor, number, time
    )


def encode_intent(intent: StepIntent) -> bytes:
    """An intent as it is stored.

    Raises:
        TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError: Something in it is no JSON.
    """
    return _encoder.encode(
        _StoredIntent(
            intent.execution, intent.step, intent.function, intent.replay, intent.arguments, intent.incarnation
        )
    )


def decode_intent(data: bytes) -> StepIntent:
    """The intent in what is stored: JSON, behind ``<microseconds>|``. Fields that are unknown are left out.

    Raises:
        ValueError: It is none.
    """
    time, rest = _split(data, 1)
    try:
        read = _intents.decode(rest)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    return StepIntent(
        read.execution, read.step, read.function, read.replay, read.arguments, read.incarnation, Instant(time)
    )


def _split(data: bytes, numbers: int) -> tuple[Any, ...]:
    """The numbers that the store puts before the JSON, then the JSON; zeros where it stands alone."""
    if data.startswith(b"{"):
        return (*(0,) * numbers, data)
    *heads, rest = data.split(b"|", numbers)
    if len(heads) != numbers:
        raise ValueError("it is cut off")
    return (*map(int, heads), rest)


class RecordedSteps(Mapping[str, StepRecord]):
    """The steps that an execution has recorded, by id; each is decoded when it is asked for.

    Looking one up raises UnreadableCheckpointError where its bytes are damaged; they stay as they are.
    """

    def __init__(self, agent_id: AgentId, execution_id: str, stored: Mapping[str, bytes]) -> None:
        self._agent_id = agent_id
        self._execution_id = execution_id
        self._stored = stored

    @override
    def __getitem__(self, step_id: str) -> StepRecord:
        """The record of a step."""
        data = self._stored[step_id]
        try:
            return decode_step(step_id, data)
        except (ValueError, RecursionError) as error:
            raise UnreadableCheckpointError(
                agent_id=self._agent_id, execution=self._execution_id, problem=f"step {step_id!r}: {error}"
            ) from error

    @override
    def __contains__(self, step_id: object) -> bool:
        """Whether a step is recorded, without reading it."""
        return step_id in self._stored

    @override
    def __iter__(self) -> Iterator[str]:
        """The ids of the steps, in no order."""
        return iter(self._stored)

    @override
    def __len__(self) -> int:
        """How many there are."""
        return len(self._stored)


def function_identity(function: Callable[..., object]) -> str:
    """What a function is known by in records: its name with those of its classes, whatever module it stands in.

    So moving it to another file changes nothing, renaming it does.

    Example:
        >>> function_identity(StepRecord), function_identity(partial(print, 1))
        ('StepRecord', 'print')
    """
    found: Any = function
    while isinstance(found, partial):
        found = found.func
    name: str | None = getattr(unwrap(found), "__qualname__", None)
    return (name or type(found).__qualname__).rpartition("<locals>.")[2]
