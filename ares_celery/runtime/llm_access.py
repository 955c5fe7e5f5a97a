"""The part of both contexts that leads to language models: HTTP clients that know the agent, and limits it shares."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from ares_celery.chaos.http_kit import find_kit
from ares_celery.chaos.llm_clients import make_client
from ares_celery.chaos.transports import AsyncFaultTransport, FaultTransport
from ares_celery.errors import AresError
from ares_celery.model.fault import Fault
from ares_celery.model.limits import check_limit
from ares_celery.runtime.incarnation import Incarnation
from ares_celery.runtime.limits import AsyncLimit, AsyncPlace, SyncLimit, SyncPlace, held_place
from ares_celery.runtime.shared_things import SharedThings
from ares_celery.store.limits import AsyncLimitStore, LimitStore

__all__ = ["AsyncModels", "SyncModels"]

T = TypeVar("T")


class _Persist(Protocol):
    def __call__(self, call: Callable[[], T], /) -> T: ...


class _AsyncPersist(Protocol):
    def __call__(self, call: Callable[[], Awaitable[T]], /) -> Awaitable[T]: ...


class _Models:
    """What both kinds share."""

    def __init__(self, incarnation: Incarnation, things: SharedThings, next_op: Callable[[], str]) -> None:
        self._incarnation = incarnation
        self._things = things
        self.next_op = next_op
        #: What is waited for, by however many of the agent's tasks; and what people were shown last.
        self._waits: list[str] = []
        self._shown = ""

    def _note(self, name: str, *, waits: bool) -> str | None:
        """What people are to be shown now; None: what they are."""
        if waits:
            self._waits.append(name)
        else:
            self._waits.remove(name)
        text = self._waits[0] if self._waits else ""
        return None if text == self._shown else text

    @property
    def fenced(self) -> bool:
        """The incarnation is over."""
        return self._incarnation.fenced

    @property
    def is_cut_off(self) -> bool:
        """A partition keeps it from the store, as its lease is not renewed either."""
        faults = self._incarnation.faults
        return faults is not None and faults.is_cut_off


class SyncModels(_Models):
    """For plain agents.

    Implements :class:`~ares_celery.chaos.transports.LLMGate` and :class:`~ares_celery.runtime.limits.SyncWaits`.

    Args:
        incarnation: Who calls.
        things: What its process shares.
        store: Asked for places.
        persist: Repeats a call of the store until it answers.
        permit: Called before each request; raises when the agent may do no more.
        take: Likewise; gives the fault that the request is to meet.
        wait: Waits; raises a signal when the incarnation is asked to end.
        next_op: A fresh operation id.
    """

    def __init__(  # noqa: PLR0913 - the parts of one incarnation
        self,
        incarnation: Incarnation,
        things: SharedThings,
        *,
        store: LimitStore,
        persist: _Persist,
        permit: Callable[[], None],
        take: Callable[[], Fault | None],
        wait: Callable[[float], None],
        next_op: Callable[[], str],
    ) -> None:
        super().__init__(incarnation, things, next_op)
        self._store = store
        self.persist = persist
        self.permit = permit
        self.take = take
        self.wait = wait

    def client(self, options: dict[str, Any]) -> Any:  # noqa: ANN401 - the library's
        """See :meth:`~ares_celery.agents.models.SyncModelCalls.llm_http_client`."""
        kit = find_kit()

        def wrap(inner: Any) -> FaultTransport:  # noqa: ANN401 - as above
            return FaultTransport(inner, kit, self)

        return make_client(kit, self._things.model_connections, wrap, options, is_async=False)

    def limit(self, name: object, rate: object, concurrency: object) -> SyncLimit:
        """See :meth:`~ares_celery.agents.models.SyncModelCalls.limit`."""
        return SyncLimit(check_limit(name, rate, concurrency), self._store, self, self._things.places)

    def show(self, name: str, *, waits: bool) -> None:
        """Shows people that a limit is waited for, or is no longer."""
        text = self._note(name, waits=waits)
        if text is not None:
            with suppress(AresError):
                self._store.note_limited(self._incarnation.agent_id, self._incarnation.fence, text)
                self._shown = text

    def turns(self) -> SyncPlace | None:
        """The place that the code at hand holds."""
        place = held_place()
        return place if isinstance(place, SyncPlace) else None


class AsyncModels(_Models):
    """For agents on the event loop; see :class:`SyncModels`."""

    def __init__(  # noqa: PLR0913 - the parts of one incarnation
        self,
        incarnation: Incarnation,
        things: SharedThings,
        *,
        store: AsyncLimitStore,
        persist: _AsyncPersist,
        permit: Callable[[], Awaitable[None]],
        take: Callable[[], Awaitable[Fault | None]],
        wait: Callable[[float], Awaitable[None]],
        next_op: Callable[[], str],
    ) -> None:
        super().__init__(incarnation, things, next_op)
        self._store = store
        self.persist = persist
        self.permit = permit
        self.take = take
        self.wait = wait

    def client(self, options: dict[str, Any]) -> Any:  # noqa: ANN401 - the library's
        """See :meth:`~ares_celery.agents.models.ModelCalls.llm_http_client`."""
        kit = find_kit()

        def wrap(inner: Any) -> AsyncFaultTransport:  # noqa: ANN401 - as above
            return AsyncFaultTransport(inner, kit, self)

        return make_client(kit, self._things.model_connections, wrap, options, is_async=True)

    def limit(self, name: object, rate: object, concurrency: object) -> AsyncLimit:
        """See :meth:`~ares_celery.agents.models.ModelCalls.limit`."""
        return AsyncLimit(check_limit(name, rate, concurrency), self._store, self, self._things.places)

    async def show(self, name: str, *, waits: bool) -> None:
        """Shows people that a limit is waited for, or is no longer."""
        text = self._note(name, waits=waits)
        if text is not None:
            with suppress(AresError):
                await self._store.note_limited(self._incarnation.agent_id, self._incarnation.fence, text)
                self._shown = text

    def turns(self) -> AsyncPlace | None:
        """The place that the code at hand holds."""
        place = held_place()
        return place if isinstance(place, AsyncPlace) else None
