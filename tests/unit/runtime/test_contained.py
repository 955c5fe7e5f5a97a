"""What an agent's code raises ends the agent, and neither the loop nor more than it."""

from __future__ import annotations

import asyncio

import pytest

from ares_celery.errors import FencedSignal, StopSignal
from ares_celery.runtime.contained import ContainedExit, contained


class OwnError(BaseException):
    """No Exception: code that catches those lets it pass."""


async def raising(error: BaseException) -> None:
    """Code of an agent."""
    raise error


async def in_a_group(*errors: BaseException) -> None:
    """Code of an agent that does several things at once."""
    async with asyncio.TaskGroup() as group:
        for error in errors:
            group.create_task(raising(error))


@pytest.mark.parametrize(
    "error", [OwnError("x"), SystemExit(3), KeyboardInterrupt(), BaseExceptionGroup("g", [OwnError()])]
)
async def test_what_is_no_exception_is_carried(error: BaseException) -> None:
    """The caller of the message is told of it, and the agent dies of it, as of any other error."""
    with pytest.raises(ContainedExit) as carried:
        await contained(raising(error))
    assert carried.value.error is error


@pytest.mark.parametrize("error", [ValueError(), asyncio.CancelledError(), StopSignal(), FencedSignal()])
async def test_exceptions_signals_and_cancellations_pass(error: BaseException) -> None:
    """Each has a meaning of its own."""
    with pytest.raises(type(error)):
        await contained(raising(error))


async def test_a_signal_in_a_task_group_of_the_agent_is_no_crash() -> None:
    """Told to stop while its tasks call the context, it stops: the group around the signal is asyncio's."""
    with pytest.raises(StopSignal):
        await contained(in_a_group(StopSignal()))
    with pytest.raises(FencedSignal):
        await contained(in_a_group(ValueError(), FencedSignal()))
    with pytest.raises(ExceptionGroup):
        await contained(in_a_group(ValueError()))
    with pytest.raises(ContainedExit):
        await contained(in_a_group(OwnError()))
