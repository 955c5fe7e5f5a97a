"""The stream of events, as Server-Sent Events: it goes on until the client goes away."""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from tornado.iostream import StreamClosedError
from tornado.web import HTTPError
from typing_extensions import override

from ares_celery.async_manager.ports import AsyncEventSubscription
from ares_celery.errors import AgentNotFoundError, AresError, EventGapError, EventIntegrityError
from ares_celery.ids import check_agent_id
from ares_celery.model.event import Event, EventFilter, is_runtime_event
from ares_celery.web.flower_extension.answers import as_json
from ares_celery.web.flower_extension.base import ApiHandler

__all__ = ["EventStream"]

#: Seconds without an event after which a comment is sent: proxies cut connections on which nothing comes.
QUIET: Final = 10.0
#: Clients at a time; each holds a connection and reads the feed of events.
MOST_STREAMS: Final = 50
_FIELDS: Final = ("agent_id", "types", "cursor")
#: Characters of a cursor, which grows with the agents that it has met: up to the first it goes with each event, up to
#: the second once a second, and one that is longer fits into no header of the request that resumes. A client that
#: resumes from an older one gets some events again.
_SHORT: Final = 1_000
_LONG: Final = 16_000
_RARELY: Final = 1.0


class EventStream(ApiHandler):
    """Follows the events of all agents, or of one; from where ``Last-Event-ID`` says, so that none is left out.

    Some may come twice after that: ``agent_id`` and ``version`` tell.

    Events of the runtime itself, those of faults among them. What agents emit comes only where ``types`` names it: it
    is theirs.
    """

    _told_cursor_at = 0.0

    @override
    async def get(self) -> None:
        """Follows."""
        try:
            subscription, named = await self._subscribe()
        except AresError as error:
            self.refuse(error)
            return
        closing: list[asyncio.Task[None]] = []
        self.gone.append(lambda: closing.append(asyncio.ensure_future(subscription.close())))
        self.desk.streams += 1
        try:
            await self._follow(subscription, named=named)
        except StreamClosedError:
            # The client has left, as every client of a stream does at some time.
            pass
        finally:
            self.desk.streams -= 1
            await subscription.close()

    async def _subscribe(self) -> tuple[AsyncEventSubscription, bool]:
        if self.desk.streams >= MOST_STREAMS:
            raise HTTPError(503, f"{MOST_STREAMS} clients follow events here already")
        query = self.asked((), _FIELDS).query
        agent_id = query.get("agent_id")
        if agent_id is not None and await self.desk.manager.get_agent_info(check_agent_id(agent_id)) is None:
            raise AgentNotFoundError(agent_id=agent_id)
        types = [name for name in query.get("types", "").split(",") if name]
        wanted = EventFilter(streams=[agent_id] if agent_id else None, types=types or None)
        cursor = self.request.headers.get("Last-Event-ID") or query.get("cursor")
        subscription = self.desk.manager.events.subscribe(wanted, cursor=cursor)
        await subscription.begin()
        return subscription, bool(types)

    async def _follow(self, subscription: AsyncEventSubscription, *, named: bool) -> None:
        self.set_header("Content-Type", "text/event-stream; charset=UTF-8")
        # Of nginx: it is to pass on each event at once.
        self.set_header("X-Accel-Buffering", "no")
        await self._send(f"retry: 2000\n{self._id(subscription)}: it has begun\n\n")
        while not subscription.closed:
            try:
                event = await subscription.poll(QUIET)
            except (EventGapError, EventIntegrityError) as error:
                await self._send(self._id(subscription) + _frame("ares.problem", error.fields))
                continue
            if event is None:
                await self._send(": nothing new\n\n")
            elif named or is_runtime_event(event):
                await self._send(self._id(subscription) + _frame(event.type, _told(event)))

    def _id(self, subscription: AsyncEventSubscription) -> str:
        """The line with the cursor, when it is to be told."""
        cursor, now = subscription.cursor, self.desk.clock.monotonic()
        is_due = len(cursor) <= _SHORT or now - self._told_cursor_at >= _RARELY
        if len(cursor) > _LONG or not is_due:
            return ""
        self._told_cursor_at = now
        return f"id: {cursor}\n"

    async def _send(self, text: str) -> None:
        cast("Any", self).write(text)
        # Waits for a client that reads slowly; raises when it has gone.
        await self.flush()


def _frame(name: str, data: object) -> str:
    # The name of an agent's own event may have anything in it; a line break would end the field.
    return f"event: {' '.join(name.split())}\ndata: {as_json(data)}\n\n"


def _told(event: Event) -> dict[str, Any]:
    return {
        "agent_id": event.stream_id,
        "version": event.version,
        "type": event.type,
        "time": event.time,
        "epoch": event.epoch,
        "payload": dict(event.payload),
    }
