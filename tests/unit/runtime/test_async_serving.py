"""Messages that come with their hint, beside others that are only announced; played store, real loop."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from unittest.mock import AsyncMock, MagicMock

from ares_celery.agents.registry import AgentType
from ares_celery.clock import SystemClock
from ares_celery.ids import AgentId, Epoch, Instant
from ares_celery.model.agent import AgentRecord, AgentSpec, AgentState, Desired
from ares_celery.runtime.async_serving import AsyncServing
from ares_celery.runtime.incarnation import Incarnation
from ares_celery.store.base import InboxMessage, Reply


class Inbox:
    """Messages that were not consumed yet."""

    def __init__(self) -> None:
        self.waiting: list[InboxMessage] = []
        self.answered: list[str] = []

    async def take(self, agent_id: AgentId, fence: str, *, after: str, begin: int) -> tuple[InboxMessage, ...]:
        return tuple(one for one in self.waiting if one.entry > after)

    async def reply(self, agent_id: AgentId, fence: str, message: InboxMessage, reply: Reply, **_: object) -> None:
        self.waiting.remove(message)
        self.answered.append(message.message_id)


class Echo:
    """Answers at once."""

    async def process(self, ctx: object, body: object) -> object:
        return body


class Served:
    """An idle agent of one message at a time."""

    def __init__(self) -> None:
        spec = AgentSpec(id="a", type="echo")
        record = AgentRecord(spec, Desired.RUNNING, AgentState.RUNNING, Epoch(7), "7|token", incarnation=1, signal=3)
        self.incarnation, self.inbox = Incarnation(record, "task-1"), Inbox()
        ctx = MagicMock(settle=AsyncMock())
        ctx.steps.is_unsettled.return_value = False
        self.serving = AsyncServing(
            self.incarnation,
            cast("Any", Echo()),
            AgentType("echo", Echo, concurrency=1, schema=1),
            ctx=ctx,
            store=cast("Any", self.inbox),
            clock=SystemClock(),
            poison_after=3,
            is_ending=lambda: False,
            on_failure=lambda: None,
        )
        self.incarnation.on_mail(self.serving.take_hint)
        self.incarnation.inbox_hint = False

    def message(self, number: int) -> InboxMessage:
        """Puts one into the inbox."""
        made = InboxMessage(f"{number}-0", f"m{number}", number, wants_reply=True, time=Instant(1), signal=3 + number)
        self.inbox.waiting.append(made)
        return made

    async def end(self) -> list[str]:
        """What was answered once there is nothing to do."""
        task = self.serving.task
        assert task is not None
        await asyncio.wait_for(task, 5)
        assert self.serving.failure is None
        return self.inbox.answered


async def test_a_message_that_is_announced_while_another_is_about_to_be_handled_is_answered() -> None:
    """The one that came with its hint is handled without a look at the inbox, which is due for the other all the same.

    A renewal of the lease, on a thread of its own, may say so before the first step of the handling.
    """
    served = Served()
    served.incarnation.mail(served.message(1))
    served.message(2)
    served.incarnation.inbox_hint = True
    served.serving.look()
    assert await served.end() == ["m1", "m2"]


async def test_a_message_that_comes_alone_is_handled_without_reading_the_inbox() -> None:
    """That is what the hint carries it for."""
    served = Served()
    served.incarnation.mail(served.message(1))
    served.message(2)
    assert await served.end() == ["m1"]
    assert not served.incarnation.inbox_hint


async def test_two_that_come_with_their_hints_are_both_answered() -> None:
    """The second finds the agent busy: the inbox is read for it."""
    served = Served()
    served.incarnation.mail(served.message(1))
    served.incarnation.mail(served.message(2))
    assert await served.end() == ["m1", "m2"]
