"""What a manager opens for a loop: once for all callers, again after a failure, closed with the loop."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from ares_celery import AsyncManager, EventStoreClosedError, StoreUnavailableError
from ares_celery.async_manager.per_loop import PerLoop
from ares_celery.clock import SystemClock
from ares_celery.store.async_access import AsyncAccess


class Access:
    """Notes that it was closed; perhaps it takes a turn of the loop, and is cancelled in it."""

    def __init__(self) -> None:
        self.closed = 0
        self.turns = 1

    async def aclose(self) -> None:
        for _ in range(self.turns):
            await asyncio.sleep(0)
        self.closed += 1


class Opening:
    """Counts how often it was opened; may be held up, or fail."""

    def __init__(self) -> None:
        self.opened: list[Access] = []
        self.failures: list[BaseException] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self) -> AsyncAccess:
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop()
        self.opened.append(Access())
        return cast("AsyncAccess", self.opened[-1])


def test_all_callers_of_a_loop_share_one_and_its_end_closes_it() -> None:
    """asyncio.run() cancels what is left, and that closes; the next loop opens its own."""
    opening = Opening()
    loops = PerLoop(opening, SystemClock())

    async def use() -> None:
        states = await asyncio.gather(*(loops.get() for _ in range(50)))
        assert len({id(state) for state in states}) == 1

    for number in (1, 2):
        asyncio.run(use())
        assert [access.closed for access in opening.opened] == [1] * number


async def test_a_caller_that_is_cancelled_takes_the_opening_from_nobody() -> None:
    """The others get it; nothing is opened twice."""
    opening = Opening()
    opening.gate.clear()
    loops = PerLoop(opening, SystemClock())
    first, second = (asyncio.create_task(loops.get()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    opening.gate.set()
    assert (await second).access is cast("Any", opening.opened[0])
    with pytest.raises(asyncio.CancelledError):
        await first
    await loops.close()
    assert [access.closed for access in opening.opened] == [1]


async def test_what_could_not_be_opened_is_tried_again() -> None:
    """Every caller of the failed try hears of it; the next one opens."""
    opening = Opening()
    opening.failures.append(StoreUnavailableError(url="redis://x", problem="away"))
    loops = PerLoop(opening, SystemClock())
    failed = await asyncio.gather(*(loops.get() for _ in range(3)), return_exceptions=True)
    assert {type(one) for one in failed} == {StoreUnavailableError}
    assert (await loops.get()).access is cast("Any", opening.opened[0])
    await loops.close()
    with pytest.raises(EventStoreClosedError, match="make a new one"):
        await loops.get()


def test_closing_that_is_cancelled_is_begun_again() -> None:
    """close() in another loop cancels, and then the loop ends: connections are closed all the same."""
    opening = Opening()
    loops = PerLoop(opening, SystemClock())

    async def use() -> None:
        access = cast("Any", (await loops.get()).access)
        access.turns = 5
        keeper = next(task for task in asyncio.all_tasks() if task.get_name() == "ares-async-manager")
        keeper.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(use())
    assert [access.closed for access in opening.opened] == [1]


async def test_a_store_that_is_away_is_an_error_of_each_call() -> None:
    """Short ones and waits alike, at once, again and again."""
    async with AsyncManager(redis_url="redis://127.0.0.1:1/0") as manager:
        for _ in range(2):
            for call in (manager.stats(), manager.process("a", 1), manager.wait_for("a", {"running"})):
                with pytest.raises(StoreUnavailableError):
                    await call
            with pytest.raises(StoreUnavailableError):
                await manager.events.subscribe()
