"""Places in limits that the whole fleet shares, as the agents of one process hold them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from datetime import timedelta
from types import TracebackType
from typing import Final, Protocol, TypeVar

from ares_celery.errors import AresError
from ares_celery.model.fault import Fault
from ares_celery.model.limits import Admission, FleetLimit, LimitAsk
from ares_celery.store.limits import AsyncLimitStore, LimitStore

__all__ = ["AsyncLimit", "AsyncPlace", "AsyncWaits", "HeldPlaces", "SyncLimit", "SyncPlace", "SyncWaits", "held_place"]

log: Final = logging.getLogger(__name__)
T = TypeVar("T")
#: A wait ends a little behind its turn, never a little before it.
_BEHIND: Final = 0.001
#: Seconds from which on people see that an agent waits.
_LONG: Final = 1.0


class HeldPlaces:
    """The places that the agents of this process hold; kept with each beat of the lease keeper, on its thread.

    Safe to share between threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, dict[str, _Place]] = {}
        self._told: set[str] = set()

    def add(self, place: _Place) -> None:
        """One was given."""
        with self._lock:
            self._held.setdefault(place.limit.name, {})[place.member] = place

    def discard(self, place: _Place) -> None:
        """One is given back."""
        with self._lock:
            places = self._held.get(place.limit.name, {})
            places.pop(place.member, None)
            if not places:
                self._held.pop(place.limit.name, None)

    @property
    def holds_any(self) -> bool:
        """There is something to be kept."""
        with self._lock:
            return bool(self._held)

    def keep(self, store: LimitStore) -> None:
        """Tells the store that they are still held. A store that does not answer is asked again with the next beat."""
        with self._lock:
            held = {
                name: [member for member, place in places.items() if place.is_kept]
                for name, places in self._held.items()
            }
        for name, members in held.items():
            try:
                kept = store.keep_limit(name, members) if members else 0
            except AresError as error:
                log.warning("limit %r: its places could not be kept (%s); tried again", name, error)
                continue
            if kept < len(members):
                log.warning("limit %r: %d places of this process were given away meanwhile", name, len(members) - kept)

    def note(self, limit: FleetLimit, answer: Admission) -> None:
        """Warns, once for each limit, when agents do not agree on what it is."""
        if answer.before is None:
            return
        with self._lock:
            is_new = limit.name not in self._told
            self._told.add(limit.name)
        if is_new:
            log.warning(
                "limit %r is now %s; it was %s: the last one that asks counts, so say the same everywhere",
                limit.name,
                limit.told(),
                answer.before.told(),
            )


class _Holder(Protocol):
    """The incarnation that holds a place."""

    @property
    def fenced(self) -> bool:
        """It is over."""
        ...

    @property
    def is_cut_off(self) -> bool:
        """A fault keeps it from its store."""
        ...

    def next_op(self) -> str:
        """A fresh operation id."""
        ...


class SyncWaits(_Holder, Protocol):
    """What a limit needs of the context of a plain agent."""

    def show(self, name: str, *, waits: bool) -> None:
        """Shows people that a limit is waited for, or is no longer; where the store does not answer, it does not."""
        ...

    def persist(self, call: Callable[[], T], /) -> T:
        """Repeats a call of the store until it answers, or the incarnation is over."""
        ...

    def wait(self, seconds: float, /) -> None:
        """Waits; raises a signal when the incarnation is asked to end, or is over."""
        ...


class AsyncWaits(_Holder, Protocol):
    """The same of an async one."""

    def show(self, name: str, *, waits: bool) -> Awaitable[None]:
        """See :meth:`SyncWaits.show`."""
        ...

    def persist(self, call: Callable[[], Awaitable[T]], /) -> Awaitable[T]:
        """See :meth:`SyncWaits.persist`."""
        ...

    def wait(self, seconds: float, /) -> Awaitable[None]:
        """See :meth:`SyncWaits.wait`."""
        ...


class _Place:
    """One place in a limit, from the asking on.

    Attributes:
        limit: Which.
        member: Who the store knows it by.
        outer: The place around it.
        tries: How often the request at hand was sent.
        held: Seconds that it was held.
    """

    def __init__(self, limit: FleetLimit, holder: _Holder) -> None:
        self.limit = limit
        self.member = holder.next_op()
        self.outer = held_place()
        self.is_left = False
        self._holder = holder
        self.tries = 0
        self.held = 0.0
        self._calls = 0

    @property
    def is_kept(self) -> bool:
        """Its holder lives, as far as others can know: one that is over, or cut off, leaves the place to others."""
        return not (self._holder.fenced or self._holder.is_cut_off)

    def next_ask(self) -> tuple[str, LimitAsk]:
        """How the next call asks. The first came with the place, so it only looks whether the limit is still open."""
        self._calls += 1
        return f"{self.member}/{self._calls}", "look" if self._calls == 1 else "call"


_HELD: Final[ContextVar[_Place | None]] = ContextVar("ares_limit_place", default=None)


def held_place() -> _Place | None:
    """The place that the code at hand holds: the innermost one, in whatever task or thread it has begun something."""
    place = _HELD.get()
    while place is not None and place.is_left:
        place = place.outer
    return place


def _put_on(place: _Place, entered: list[_Place]) -> None:
    entered.append(place)
    _HELD.set(place)


def _take_off(entered: list[_Place]) -> _Place:
    """The place that a block ends with: the one that its own code holds, where several tasks are in such a block."""
    held = held_place()
    place = held if held in entered else entered[-1]
    entered.remove(place)
    place.is_left = True
    if place is held:
        _HELD.set(place.outer)
    return place


def _say_closed(limit: FleetLimit, closed: timedelta, by: Fault | None) -> None:
    why = "its provider has refused a call" if by is None else f"fault {by.id} of agent {by.agent_id!r} refuses calls"
    log.warning("limit %r is closed for %.1f s: %s", limit.name, closed.total_seconds(), why)


def _say_left(limit: FleetLimit, error: AresError) -> None:
    log.warning("limit %r: a place could not be given back (%s); it ends by itself", limit.name, error)


class SyncPlace(_Place):
    """Implements :class:`~ares_celery.chaos.transports.Turns`."""

    def __init__(self, limit: SyncLimit) -> None:
        super().__init__(limit.wanted, limit.waits)
        self._of = limit

    def turn(self) -> None:
        """Waits until one more call may be made."""
        self._of.ask(*self.next_ask())

    def close(self, seconds: float, by: Fault | None) -> None:
        """Nobody is to call for so long; with the fault that has made up the refusal, not beyond its end."""
        waits, store = self._of.waits, self._of.store
        op, delay = waits.next_op(), timedelta(seconds=seconds)
        closed = waits.persist(lambda: store.close_limit(self.limit.name, delay, op=op, by=by))
        _say_closed(self.limit, closed, by)

    def wait(self, seconds: float) -> None:
        """Waits; raises a signal when the agent is to end."""
        if seconds > 0:
            self._of.waits.wait(seconds)


class SyncLimit:
    """Implements what ``ctx.limit`` gives plain agents; may be entered again and again."""

    def __init__(self, wanted: FleetLimit, store: LimitStore, waits: SyncWaits, places: HeldPlaces) -> None:
        self.wanted = wanted
        self.store = store
        self.waits = waits
        self._places = places
        self._entered: list[_Place] = []

    def ask(self, member: str, ask: LimitAsk) -> None:
        """Waits for a turn; leaves the queue when the waiting is cut off."""
        waited, is_shown = 0.0, False
        try:
            while True:
                answer = self.waits.persist(lambda: self.store.enter_limit(self.wanted, member, ask))
                self._places.note(self.wanted, answer)
                if answer.admitted:
                    return
                waited += answer.wait
                if waited >= _LONG and not is_shown:
                    is_shown = True
                    self.waits.show(self.wanted.name, waits=True)
                self.waits.wait(answer.wait + _BEHIND)
        except BaseException:
            self._leave(member)
            raise
        finally:
            if is_shown:
                self.waits.show(self.wanted.name, waits=False)

    def __enter__(self) -> None:
        """Waits for a place."""
        place = SyncPlace(self)
        self.ask(place.member, "place")
        self._places.add(place)
        _put_on(place, self._entered)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Gives it back."""
        place = _take_off(self._entered)
        self._places.discard(place)
        self._leave(place.member)

    def _leave(self, member: str) -> None:
        try:
            self.store.leave_limit(self.wanted.name, member)
        except AresError as error:
            _say_left(self.wanted, error)


class AsyncPlace(_Place):
    """Implements :class:`~ares_celery.chaos.transports.AsyncTurns`."""

    def __init__(self, limit: AsyncLimit) -> None:
        super().__init__(limit.wanted, limit.waits)
        self._of = limit

    async def turn(self) -> None:
        """Waits until one more call may be made."""
        await self._of.ask(*self.next_ask())

    async def close(self, seconds: float, by: Fault | None) -> None:
        """Nobody is to call for so long; with the fault that has made up the refusal, not beyond its end."""
        waits, store = self._of.waits, self._of.store
        op, delay = waits.next_op(), timedelta(seconds=seconds)
        closed = await waits.persist(lambda: store.close_limit(self.limit.name, delay, op=op, by=by))
        _say_closed(self.limit, closed, by)

    async def wait(self, seconds: float) -> None:
        """Waits; raises a signal when the agent is to end."""
        if seconds > 0:
            await self._of.waits.wait(seconds)


class AsyncLimit:
    """Implements what ``ctx.limit`` gives async agents; may be entered again and again, by several tasks at once."""

    def __init__(self, wanted: FleetLimit, store: AsyncLimitStore, waits: AsyncWaits, places: HeldPlaces) -> None:
        self.wanted = wanted
        self.store = store
        self.waits = waits
        self._places = places
        self._entered: list[_Place] = []

    async def ask(self, member: str, ask: LimitAsk) -> None:
        """Waits for a turn; leaves the queue when the waiting is cut off."""
        waited, is_shown = 0.0, False
        try:
            while True:
                answer = await self.waits.persist(lambda: self.store.enter_limit(self.wanted, member, ask))
                self._places.note(self.wanted, answer)
                if answer.admitted:
                    return
                waited += answer.wait
                if waited >= _LONG and not is_shown:
                    is_shown = True
                    await self.waits.show(self.wanted.name, waits=True)
                await self.waits.wait(answer.wait + _BEHIND)
        except BaseException:
            await self._leave(member)
            raise
        finally:
            if is_shown:
                await self.waits.show(self.wanted.name, waits=False)

    async def __aenter__(self) -> None:
        """Waits for a place."""
        place = AsyncPlace(self)
        await self.ask(place.member, "place")
        self._places.add(place)
        _put_on(place, self._entered)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Gives it back."""
        place = _take_off(self._entered)
        self._places.discard(place)
        await self._leave(place.member)

    async def _leave(self, member: str) -> None:
        try:
            await self.store.leave_limit(self.wanted.name, member)
        except AresError as error:
            _say_left(self.wanted, error)
