"""Who asks, and how long a question goes on while the store is away."""

from __future__ import annotations

import functools
import getpass
import socket
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Final

from ares_celery.errors import InvalidSettingError
from ares_celery.ids import AgentId
from ares_celery.model.arguments import LONGEST_SHOWN, as_shown, check_choice, check_flags, check_timeout
from ares_celery.model.command import Command
from ares_celery.runtime.commits import Applied, Committer

__all__ = [
    "apply_asked",
    "as_shown",
    "asking_as",
    "check_choice",
    "check_flags",
    "check_texts",
    "check_timeout",
    "me",
]

#: A lost reply is asked for again under the same op id, for so long.
_PATIENCE: Final = timedelta(seconds=5)
#: Characters of an operation id: it is part of a key, and of the audit stream.
_LONGEST_OP: Final = 400


#: On whose behalf something is done by code that names nobody.
_behalf: Final[ContextVar[str]] = ContextVar("ares_actor", default="")


@contextmanager
def asking_as(actor: str) -> Generator[None]:
    """Makes ``actor`` the default within: whoever had it done, not the user of this process. Empty: that one."""
    token = _behalf.set(actor)
    try:
        yield
    finally:
        _behalf.reset(token)


def me() -> str:
    """The default of ``actor``: whom :func:`asking_as` names, else user@host.

    Example:
        >>> with asking_as("anna"):
        ...     me()
        'anna'
    """
    return _behalf.get() or _user()


@functools.cache
def _user() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def check_texts(**given: object) -> None:
    """Refuses what is no text, before anything is written: from afar any argument may be anything.

    Raises:
        InvalidSettingError: Names the first argument that is none, or holds what no text can, or an ``op`` of more than
            400 characters.

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
                field=field, value=ascii(value)[:LONGEST_SHOWN], problem="holds half of a surrogate pair"
            ) from error
        if field == "op" and len(value) > _LONGEST_OP:
            raise InvalidSettingError(
                field=field,
                value=as_shown(value),
                problem=f"may have {_LONGEST_OP} characters; leave it out for a fresh one",
            )


def apply_asked(committer: Committer, agent_id: AgentId, command: Command, op: str) -> Applied:
    """Applies what somebody asked for; patient enough to learn what became of it when a reply is lost.

    Raises:
        InvalidSettingError: Reason, actor or operation id are no texts.
        AresError: The operation is refused.
    """
    check_texts(reason=command.reason, actor=command.actor, op=op)
    return committer.apply(agent_id, command, op=op, patience=_PATIENCE)
