"""What the process's event loop says of tasks that nobody has waited for."""

from __future__ import annotations

import asyncio
import gc
from concurrent.futures import Future

import pytest

from ares_celery.clock import SystemClock
from ares_celery.errors import StopSignal, WaitSignal
from ares_celery.runtime.loop_thread import LoopThread


@pytest.mark.parametrize(("error", "is_said"), [(WaitSignal(), False), (StopSignal(), False), (OSError("x"), True)])
def test_a_task_of_an_agents_own_that_a_signal_has_ended_is_no_problem(
    error: BaseException, *, is_said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its end is not an error in the log; that of any other is, as ever."""
    loop = LoopThread(SystemClock(), hung_after=60)

    async def ends() -> None:
        raise error

    async def leaves_it() -> None:
        await asyncio.wait({asyncio.ensure_future(ends())})

    done: Future[None] = loop.submit(leaves_it())
    loop.wait(done)
    gc.collect()
    loop.submit(asyncio.sleep(0)).result(5)
    loop.close()
    assert ("never retrieved" in caplog.text) is is_said
