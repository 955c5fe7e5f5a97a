"""Identifiers with a meaning, and the check of those that people choose."""

from __future__ import annotations

import re
from typing import NewType

from ares_celery.errors import InvalidAgentIdError, InvalidExecutionIdError, InvalidSettingError, InvalidStepIdError

__all__ = [
    "AgentId",
    "Epoch",
    "Instant",
    "Version",
    "check_agent_id",
    "check_execution_id",
    "check_namespace",
    "check_step_id",
    "invalid_agent_id",
]

AgentId = NewType("AgentId", str)
#: Raised by whoever ends an incarnation or allows the next; microseconds of Redis TIME, so 16 digits.
Epoch = NewType("Epoch", int)
#: A moment as microseconds since 1970 by the clock of Redis, never by that of a worker.
Instant = NewType("Instant", int)
#: Position in an agent's event stream, from 1, without gaps; 0 means before the first event.
Version = NewType("Version", int)

#: Characters of an execution's id, and of a step's.
_LONGEST_EXECUTION_ID = 400
_AGENT_ID = re.compile(r"[A-Za-z0-9._:\-]{1,200}", re.ASCII)
_NAMESPACE = re.compile(r"[A-Za-z0-9._\-]{1,100}", re.ASCII)


def check_agent_id(value: object) -> AgentId:
    """Returns the id when it is acceptable.

    Raises:
        InvalidAgentIdError: It is not 1 to 200 ASCII letters, digits, ``.``, ``_``, ``:`` or ``-``.

    Example:
        >>> check_agent_id("tenant:counter-1")
        'tenant:counter-1'
    """
    if isinstance(value, str) and _AGENT_ID.fullmatch(value):
        return AgentId(value)
    raise invalid_agent_id(value)


def invalid_agent_id(value: object) -> InvalidAgentIdError:
    """The error for what is no agent id; of what is no text it says so, as the text 'None' would look like an id."""
    if isinstance(value, str) and value:
        return InvalidAgentIdError(agent_id=value[:250])
    shown = "" if value == "" else ascii(value)[:250]
    problem = "an agent id is missing" if value is None or not shown else f"agent id {shown} is no text"
    rule = "give 1 to 200 characters of ASCII letters, digits and the four marks . _ : -"
    return InvalidAgentIdError(agent_id=shown, message=f"{problem}: {rule}")


def check_execution_id(value: object) -> str:
    """Returns the id of an execution when it is acceptable.

    Raises:
        InvalidExecutionIdError: It is not 1 to 400 printable characters.

    Example:
        >>> check_execution_id("msg:42")
        'msg:42'
    """
    if isinstance(value, str) and value and value.isprintable() and len(value) <= _LONGEST_EXECUTION_ID:
        return value
    shown = value[:450] if isinstance(value, str) else repr(value)[:450]
    raise InvalidExecutionIdError(execution=shown)


def check_step_id(value: object) -> str:
    """Returns the id of a step, with those of the steps around it before it, when it is acceptable.

    Raises:
        InvalidStepIdError: It is not 1 to 400 printable characters.

    Example:
        >>> check_step_id("order:7/charge")
        'order:7/charge'
    """
    if isinstance(value, str) and value and value.isprintable() and len(value) <= _LONGEST_EXECUTION_ID:
        return value
    if not isinstance(value, str):
        problem = (
            f"a step id is a str, not {value!r:.200} ({type(value).__name__}); put a number in one: f'fetch:{{i}}'"
        )
        raise InvalidStepIdError(step=repr(value)[:450], message=problem)
    raise InvalidStepIdError(step=value[:450])


def check_namespace(value: str) -> str:
    """Returns the namespace when it can be part of keys and queue names.

    Raises:
        InvalidSettingError: It is not 1 to 100 ASCII letters, digits, ``.``, ``_`` or ``-``.
    """
    if _NAMESPACE.fullmatch(value):
        return value
    raise InvalidSettingError(
        field="namespace", value=value[:120], problem="use 1 to 100 ASCII letters, digits and the marks . _ -"
    )
