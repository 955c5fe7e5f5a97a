"""Who asks, and how long a question goes on while the store is away."""

from __future__ import annotations

import functools
import getpass
import math
import socket
from datetime import timedelta
from typing import Final, cast

from ares_celery.errors import InvalidSettingError
from ares_celery.ids import AgentId
from ares_celery.model.command import Command
from ares_celery.runtime.commits import Applied, Committer

__all__ = ["apply_asked", "as_shown", "check_flags", "check_texts", "me"]

#: A lost reply is asked for again under the same op id, for so long.
_PATIENCE: Final = timedelta(seconds=5)
#: Characters of a refused value that its error carries.
_SHOWN: Final = 200


@functools.cache
def me() -> str:
    """The default of ``actor``: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def check_texts(**given: object) -> None:
    """Refuses what is no text, before anything is written: from afar any argument may be anything.

    Raises:
        InvalidSettingError: Names the first argument that is none, or holds what no text can.

    Example:
        >>> check_texts(reason=7)
        Traceback (most recent call last):
        ares_celery.errors.InvalidSettingError: reason=7 is not valid: must be a text
    """
    for field, value in given.items():
        if not isinstance(value, str):
            raise InvalidSettingError(field=field, value=as_shown(value), problem="must be a text")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidSettingError(
                field=field, value=ascii(value)[:_SHOWN], problem="holds half of a surrogate pair"
            ) from error


def check_flags(**given: object) -> None:
    """Refuses what is neither True nor False: the text "false" would be true.

    Raises:
        InvalidSettingError: Names the first argument that is neither.
    """
    for field, value in given.items():
        if not isinstance(value, bool):
            raise InvalidSettingError(field=field, value=as_shown(value), problem="use True or False")


def as_shown(value: object) -> str | int | float | bool | None:
    """A value that was refused, as an error may carry it: as it is if that is short and plain, else as text."""
    is_plain = value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value))
    if is_plain:
        return cast("int | float | bool | None", value)
    return ascii(value)[:_SHOWN] if not isinstance(value, str) else value[:_SHOWN]


def apply_asked(committer: Committer, agent_id: AgentId, command: Command, op: str) -> Applied:
    """Applies what somebody asked for; patient enough to learn what became of it when a reply is lost.

    Raises:
        InvalidSettingError: Reason, actor or operation id are no texts.
        AresError: The operation is refused.
    """
    check_texts(reason=command.reason, actor=command.actor, op=op)
    return committer.apply(agent_id, command, op=op, patience=_PATIENCE)
