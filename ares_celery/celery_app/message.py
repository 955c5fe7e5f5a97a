"""Which incarnation a message asks for; whatever else a message may hold is nobody's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from ares_celery.celery_app.names import RESURRECT_AGENT, RUN_AGENT
from ares_celery.errors import InvalidAgentIdError
from ares_celery.ids import AgentId, Epoch, check_agent_id

__all__ = ["AgentMessage", "message_of"]

_DIGITS: Final = re.compile(r"[0-9]{1,16}", re.ASCII)
#: Above it a number is no exact one in Lua; an epoch is far below.
_HIGHEST_EPOCH: Final = 2**53


@dataclass(frozen=True, slots=True)
class AgentMessage:
    """Which incarnation a message is about."""

    agent_id: AgentId
    epoch: Epoch


def message_of(task: str, args: object, kwargs: object) -> AgentMessage | None:
    """Reads the agent and epoch of a message; None when it is not one of ours or cannot be read. Raises nothing.

    Example:
        >>> message_of("ares.run_agent", ["counter-1", 17], {})
        AgentMessage(agent_id='counter-1', epoch=17)
        >>> message_of("ares.run_agent", ["counter-1", float("inf")], {})
    """
    if task not in (RUN_AGENT, RESURRECT_AGENT):
        return None
    given: dict[object, object] = {}
    if isinstance(args, (list, tuple)):
        given.update(zip(("agent_id", "epoch"), cast("Sequence[object]", args), strict=False))
    if isinstance(kwargs, Mapping):
        given.update(cast("Mapping[object, object]", kwargs))
    return _read(given.get("agent_id"), given.get("epoch"))


def _read(agent_id: object, epoch: object) -> AgentMessage | None:
    """The message with these two arguments; None when they name no incarnation. Raises nothing.

    An epoch may come as its digits, as a sender without numbers of 64 bits writes it, but never as a float or a bool.
    """
    try:
        known = check_agent_id(agent_id)
    except InvalidAgentIdError:
        return None
    if isinstance(epoch, str) and _DIGITS.fullmatch(epoch):
        epoch = int(epoch)
    if not isinstance(epoch, int) or isinstance(epoch, bool) or not 0 <= epoch <= _HIGHEST_EPOCH:
        return None
    return AgentMessage(known, Epoch(epoch))
