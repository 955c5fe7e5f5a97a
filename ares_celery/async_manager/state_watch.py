"""Waits of one event loop for the states of agents: looked at together, however many wait."""

from __future__ import annotations

import asyncio
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from ares_celery.clock import Clock
from ares_celery.errors import AgentNotFoundError, EventStoreClosedError
from ares_celery.ids import AgentId
from ares_celery.model.agent import AgentState
from ares_celery.store.async_access import AsyncAccess

__all__ = ["CLOSED", "StateWatch"]

#: What every call of a closed manager says.
CLOSED: Final = "this manager is closed; make a new one"

#: Seconds between two looks at an agent, at first and at most.
FIRST_LOOK: Final = 0.005
LONGEST_LOOK: Final = 0.1
#: Looks a second that a loop takes in all; beyond, each wait is looked at less often.
MOST_LOOKS: Final = 5_000


@dataclass(eq=False, slots=True)
class _Wait:
    agent_id: AgentId
    words: AbstractSet[str]
    seen: asyncio.Future[None]
    due: float
    pause: float = FIRST_LOOK


class StateWatch:
    """Looks at the agents that somebody waits for; one task, which ends when nobody waits."""

    def __init__(self, access: AsyncAccess, clock: Clock) -> None:
        """Binds it to a loop's way to the store."""
        self._access = access
        self._clock = clock
        self._waits: set[_Wait] = set()
        self._more = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def until(self, agent_id: AgentId, wanted: AbstractSet[AgentState], timeout: float) -> bool:
        """Waits until a look finds the agent in one of the states; False when none did in time. Looks once at least.

        Raises:
            AgentNotFoundError: It does not exist. StoreUnavailableError: A look failed.
        """
        wait = _Wait(
            agent_id,
            {state.value for state in wanted},
            asyncio.get_running_loop().create_future(),
            self._clock.monotonic(),
        )
        self._waits.add(wait)
        self._more.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look_again_and_again(), name="ares-state-watch")
        try:
            # A first look costs a round trip, whatever the timeout.
            await asyncio.wait([wait.seen], timeout=max(timeout, LONGEST_LOOK))
            if not wait.seen.done():
                return False
            wait.seen.result()
            return True
        finally:
            self._waits.discard(wait)
            # Of a caller that was cancelled: asked or not, it is no stray error.
            if not wait.seen.cancel():
                wait.seen.exception()

    def close(self) -> None:
        """Ends the task; whoever waits still gets EventStoreClosedError."""
        if self._task is not None:
            self._task.cancel()
        for wait in self._waits:
            if not wait.seen.done():
                wait.seen.set_exception(EventStoreClosedError(message=CLOSED))

    async def _look_again_and_again(self) -> None:
        while self._waits:
            now = self._clock.monotonic()
            due = [wait for wait in self._waits if wait.due <= now]
            if due:
                await self._look(due)
                continue
            self._more.clear()
            left = min(wait.due for wait in self._waits) - now
            try:
                await asyncio.wait_for(self._more.wait(), left)
            except TimeoutError:
                continue

    async def _look(self, due: list[_Wait]) -> None:
        try:
            states = await self._access.states([wait.agent_id for wait in due])
        except Exception as error:  # noqa: BLE001 - it is theirs who wait
            for wait in due:
                if not wait.seen.done():
                    wait.seen.set_exception(error)
            self._waits.difference_update(due)
            return
        now = self._clock.monotonic()
        longest = max(LONGEST_LOOK, len(self._waits) / MOST_LOOKS)
        for wait, state in zip(due, states, strict=True):
            if state is None and not wait.seen.done():
                wait.seen.set_exception(AgentNotFoundError(agent_id=wait.agent_id))
            elif state in wait.words and not wait.seen.done():
                wait.seen.set_result(None)
            if wait.seen.done():
                self._waits.discard(wait)
            wait.pause = min(wait.pause * 1.5, longest)
            wait.due = now + wait.pause
