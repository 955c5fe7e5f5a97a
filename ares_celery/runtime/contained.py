"""What user code raises must end in its own agent, also where asyncio would end the whole loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, cast

from ares_celery.errors import AgentSignal
from ares_celery.errors.wording import message_of

__all__ = ["ContainedExit", "contained"]


class ContainedExit(Exception):
    """Carries what is no Exception, SystemExit say, out of user code: past asyncio, which would end the whole loop."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(message_of(error))
        self.error = error


async def contained(awaitable: Awaitable[Any]) -> Any:  # noqa: ANN401 - whatever user code returns
    """Awaits user code; whatever it raises that is no Exception comes as :class:`ContainedExit`.

    Signals and cancellations pass. A signal that ended a task of the agent's own task group comes out of that group.
    """
    try:
        return await awaitable
    except (AgentSignal, asyncio.CancelledError, GeneratorExit, Exception):
        raise
    except BaseException as error:
        signal = _signal_in(error)
        if signal is not None:
            raise signal from error
        raise ContainedExit(error) from error


def _signal_in(error: BaseException) -> AgentSignal | None:
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        found = (_signal_in(one) for one in group.exceptions)
        return next((signal for signal in found if signal is not None), None)
    return error if isinstance(error, AgentSignal) else None
