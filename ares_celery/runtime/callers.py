"""Who asks, and how long a question goes on while the store is away."""

from __future__ import annotations

import functools
import getpass
import socket
from datetime import timedelta
from typing import Final

from ares_celery.ids import AgentId
from ares_celery.model.command import Command
from ares_celery.runtime.commits import Applied, Committer

__all__ = ["apply_asked", "me"]

#: A lost reply is asked for again under the same op id, for so long.
_PATIENCE: Final = timedelta(seconds=5)


@functools.cache
def me() -> str:
    """The default of ``actor``: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def apply_asked(committer: Committer, agent_id: AgentId, command: Command, op: str) -> Applied:
    """Applies what somebody asked for; patient enough to learn what became of it when a reply is lost."""
    return committer.apply(agent_id, command, op=op, patience=_PATIENCE)
