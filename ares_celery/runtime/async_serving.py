"""Answering the messages of an async agent, on the process's event loop."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar, cast

from ares_celery.agents.contract import Agent
from ares_celery.agents.registry import AgentType
from ares_celery.clock import Clock
from ares_celery.errors import (
    AgentSignal,
    AgentTypeError,
    EventTooLargeError,
    ExecutionStateError,
    FencedError,
    FencedSignal,
    StopSignal,
    StoreUnavailableError,
    UnserialisableError,
    WaitSignal,
)
from ares_celery.model.message import DeadReason, MessageKind, StreamResult
from ares_celery.runtime.async_context import AsyncContext
from ares_celery.runtime.chunk_writer import LOOK, AsyncChunkWriter, CallerLeft
from ares_celery.runtime.contained import ContainedExit, contained
from ares_celery.runtime.context import OUTAGE_PAUSE
from ares_celery.runtime.ends import failure_reply, is_over_budget, park_if_no_answer
from ares_celery.runtime.handling import (
    Begun,
    Outcome,
    failed,
    given_back,
    handling,
    is_later,
    left,
    poisoned,
    unhandled,
)
from ares_celery.runtime.incarnation import Incarnation
from ares_celery.store.base import AsyncIncarnationStore, InboxMessage, Reply

__all__ = ["AsyncServing"]

log: Final = logging.getLogger(__name__)
T = TypeVar("T")


class AsyncServing:
    """The messages of one incarnation; everything here runs on the loop."""

    def __init__(  # noqa: PLR0913 - the parts of one incarnation
        self,
        incarnation: Incarnation,
        agent: Agent,
        agent_type: AgentType,
        *,
        ctx: AsyncContext,
        store: AsyncIncarnationStore,
        clock: Clock,
        poison_after: int,
        is_ending: Callable[[], bool],
        on_failure: Callable[[], None],
    ) -> None:
        """Binds the parts.

        Args:
            incarnation: Whose messages.
            agent: What answers them.
            agent_type: How many at once.
            ctx: What the agent gets in its hands.
            store: Where messages are.
            clock: For the gathering of chunks.
            poison_after: Deaths after which a message is skipped.
            is_ending: The body has cancelled what runs here.
            on_failure: Called when the incarnation must end because of a message; ``failure`` says what it was.
        """
        self._incarnation = incarnation
        self._agent: Any = agent
        self._type = agent_type
        self._ctx = ctx
        self._store = store
        self._clock = clock
        self._poison_after = poison_after
        self._is_ending = is_ending
        self._on_failure = on_failure
        self._begun = Begun()
        self._hinted: deque[InboxMessage] = deque(maxlen=1)
        self._news = asyncio.Event()
        self._seen = "0-0"
        self._streams: dict[str, asyncio.Task[None]] = {}
        self._dies_of: ContainedExit | None = None
        self._process: Any = getattr(agent, "process", None)
        self._stream: Any = getattr(agent, "process_stream", None)
        #: What runs while there is something to answer.
        self.task: asyncio.Task[None] | None = None
        #: What a message did to the incarnation.
        self.failure: BaseException | None = None

    @property
    def handles(self) -> bool:
        """The agent takes messages."""
        return self._process is not None or self._stream is not None

    @property
    def is_busy(self) -> bool:
        """A message is being answered."""
        return self.task is not None and not self.task.done()

    def look(self) -> None:
        """Begins to answer when messages may wait."""
        if self.is_busy:
            self._news.set()
        elif self._incarnation.inbox_hint or self._hinted:
            self.task = asyncio.get_running_loop().create_task(self._serve())

    def take_hint(self, hint: InboxMessage | str) -> None:
        """A message that came alone, or the inbox entry of a stream whose caller has left."""
        if isinstance(hint, str):
            if (driver := self._streams.get(hint)) is not None:
                driver.cancel()
            return
        is_next = not self.is_busy and not self._incarnation.inbox_hint and is_later(hint.entry, self._seen)
        if is_next and self._type.concurrency == 1:
            self._hinted.append(hint)
        else:
            self._incarnation.inbox_hint = True
        self._begun.hinted(hint.entry)
        self.look()

    async def give_back(self) -> None:
        """At an end in order: what was begun and not answered was not the end of this incarnation."""
        entries = self._begun.entries
        if not entries:
            return
        agent_id, fence = self._incarnation.agent_id, self._incarnation.fence
        try:
            if (faults := self._incarnation.faults) is not None:
                faults.demand_store()
            await self._store.give_back(agent_id, fence, entries)
        except (FencedError, StoreUnavailableError) as error:
            log.warning("agent %s: what it was handling counts as met by a death: %s", agent_id, error)

    # -- the inbox --------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Answers what waits in the inbox; runs only while there is something."""
        try:
            while (self._hinted or self._incarnation.inbox_hint) and self._may_serve():
                if self._hinted:
                    # Whatever came behind it says so by the flag, at any time and from any thread.
                    await self._answer(self._hinted.popleft())
                else:
                    self._incarnation.inbox_hint = False
                    await self._serve_all()
        except (FencedError, FencedSignal):
            self._incarnation.ask("fenced")
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - the agent's end says what it was
            self.failure = error
            self._on_failure()

    def _may_serve(self) -> bool:
        return not self._incarnation.is_ending

    async def _serve_all(self) -> None:
        running: set[asyncio.Task[None]] = set()
        try:
            await self._serve_pages(running)
            await _reap(running, asyncio.ALL_COMPLETED)
        except WaitSignal:
            # The others are not cut off by what one of them waits for; nothing new is begun.
            await _let_end(running)
            raise
        finally:
            # Cut off, or one of them was the end of the agent: the others end with it.
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running, timeout=LOOK)

    async def _serve_pages(self, running: set[asyncio.Task[None]]) -> None:
        """Reads the inbox to its end, and again when news come while messages are still being answered."""
        after, at_once = "", self._type.concurrency
        agent_id, fence = self._incarnation.agent_id, self._incarnation.fence
        while self._may_serve():
            begin = max(at_once - len(running), 1)
            take = partial(self._store.take, agent_id, fence, after=after, begin=begin)
            messages = await self._from_store(take)
            self._begun.took(messages, begin)
            for message in messages:
                if not self._may_serve():
                    return
                after = message.entry
                if at_once == 1:
                    await self._answer(message)
                    continue
                running.add(asyncio.get_running_loop().create_task(self._answer(message)))
                if len(running) >= at_once:
                    await _reap(running, asyncio.FIRST_COMPLETED)
            if not messages:
                if not running:
                    return
                await self._news_or_end(running)

    async def _news_or_end(self, running: set[asyncio.Task[None]]) -> None:
        """Waits until a message may have come, or one is answered; raises what answering it raised."""
        self._news.clear()
        if not self._incarnation.inbox_hint:
            news = asyncio.get_running_loop().create_task(self._news.wait())
            try:
                await asyncio.wait({*running, news}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                news.cancel()
        self._incarnation.inbox_hint = False
        for task in [task for task in running if task.done()]:
            running.discard(task)
            task.result()

    async def _answer(self, message: InboxMessage) -> None:
        if is_later(message.entry, self._seen):
            self._seen = message.entry
        if self._incarnation.faults is not None:
            await self._ctx.points.before_call()
        chunks = 0
        with handling(self._incarnation, message):
            if message.began >= self._poison_after:
                outcome = poisoned(self._incarnation.agent_id, message)
            elif not self.handles:
                outcome = unhandled(self._incarnation.agent_id, self._type.name, message)
            elif self._stream is not None and (message.kind is MessageKind.STREAM or self._process is None):
                outcome, chunks = await self._outcome_of_stream(message)
            else:
                outcome = await self._guarded(message, self._process_once(message))
        await self._settle(message, outcome, chunks)
        if self._dies_of is not None:
            raise self._dies_of
        await self._ctx.settle()

    async def _settle(self, message: InboxMessage, outcome: Outcome, chunks: int) -> None:
        if self._ctx.steps.is_unsettled(message.message_id):
            # Not answered before a person has said how the step came out: then it is handled again, and goes on.
            raise StopSignal
        if outcome.stays:
            return
        agent_id, then = self._incarnation.agent_id, self._begun.following() if self._may_serve() else ""
        if outcome.reason is not None:
            await self._bury(message, outcome.reason, outcome.reply)
            self._begun.answered(message.entry, "")
            self._ctx.steps.forget(message.message_id)
            return
        try:
            await self._store_reply(message, outcome.reply, chunks, then)
        except (UnserialisableError, EventTooLargeError) as error:
            # The answer itself is bad: the caller is told, or the message would come again for ever.
            await self._store_reply(message, failure_reply(agent_id, message.message_id, error), chunks, then)
        self._begun.answered(message.entry, then)
        self._ctx.steps.forget(message.message_id)

    async def _store_reply(self, message: InboxMessage, reply: Reply, chunks: int, then: str) -> None:
        agent_id, fence = self._incarnation.agent_id, self._incarnation.fence
        call = partial(self._store.reply, agent_id, fence, message, reply, chunks=chunks, then=then)
        self._ctx.steps.note_end(await self._ending(message, call))

    async def _bury(self, message: InboxMessage, reason: DeadReason, reply: Reply) -> None:
        agent_id, fence = self._incarnation.agent_id, self._incarnation.fence
        await self._ending(message, partial(self._store.bury, agent_id, fence, message, reason, reply))
        log.warning(
            "agent %s: message %s is a dead letter (%s)", agent_id, message.message_id, reason.value,
            extra={"agent_id": agent_id},
        )  # fmt: skip

    async def _ending(self, message: InboxMessage, call: Callable[..., Awaitable[T]]) -> T:
        """Consumes the message; the execution of its steps ends with it, whichever incarnation has begun that."""
        steps, message_id = self._ctx.steps, message.message_id
        ends, unless = steps.finishes(message_id), steps.may_be_left(message_id)
        try:
            return await self._from_store(partial(call, finishes=ends, unless=unless))
        except ExecutionStateError:
            await steps.take_over(message_id)
            return await self._from_store(partial(call, finishes=steps.finishes(message_id)))

    # -- one message ------------------------------------------------------------------------------------------------

    async def _process_once(self, message: InboxMessage) -> Outcome:
        value = await contained(self._process(self._ctx, message.body))
        return Outcome(Reply(message.message_id, value))

    async def _guarded(self, message: InboxMessage, work: Awaitable[Outcome]) -> Outcome:
        """What the agent's code raises is the answer; a signal, and the end of the agent, go on."""
        agent_id = self._incarnation.agent_id
        try:
            return await work
        except AgentSignal:
            raise
        except CallerLeft:
            return left(agent_id, message)
        except asyncio.CancelledError as error:
            if self._is_ending():
                raise
            # Something inside the agent was cancelled, not the agent: an answer like any other failure.
            task = asyncio.current_task()
            while task is not None and task.cancelling():
                task.uncancel()
            raised: BaseException = error
        except ContainedExit as exit_:
            # The caller is told, so that the message does not come again for ever; then the agent dies of it.
            self._dies_of = exit_
            raised = exit_.error
        except Exception as error:  # noqa: BLE001 - the caller gets what the agent raised
            if is_over_budget(self._incarnation, error):
                return given_back(message)
            park_if_no_answer(error)
            raised = error
        return failed(message, failure_reply(agent_id, message.message_id, raised))

    async def _outcome_of_stream(self, message: InboxMessage) -> tuple[Outcome, int]:
        """What became of a stream, and how many chunks it gave before its end."""
        if message.kind is not MessageKind.STREAM:
            return await self._guarded(message, self._collect(message)), 0
        agent_id, fence = self._incarnation.agent_id, self._incarnation.fence

        async def write(first: int, pieces: list[bytes]) -> int | None:
            call = partial(self._store.write_chunks, agent_id, fence, message, first=first, pieces=pieces)
            return await self._from_store(call)

        stored = await write(0, [])
        if stored is None:
            return left(agent_id, message), 0
        writer = AsyncChunkWriter(write, self._clock, stored=stored, on_left=lambda: self.take_hint(message.entry))
        outcome = await self._guarded(message, self._drive(message, writer, write))
        return outcome, writer.seq

    async def _drive(
        self,
        message: InboxMessage,
        writer: AsyncChunkWriter,
        write: Callable[[int, list[bytes]], Awaitable[int | None]],
    ) -> Outcome:
        """Runs the agent's generator to its end, on a task of its own: its caller may leave at any time."""
        results: list[Any] = []
        driver = asyncio.get_running_loop().create_task(contained(self._pump(message, writer.put, results)))
        self._streams[message.entry] = driver
        try:
            while not driver.done():
                await asyncio.wait({driver}, timeout=LOOK)
                if not driver.done() and await write(0, []) is None:
                    driver.cancel()
            if driver.cancelled() and await write(0, []) is None:
                raise CallerLeft
            try:
                driver.result()
            finally:
                # What came before an error was said, too; but who has left gets nothing more.
                await writer.finish()
        finally:
            del self._streams[message.entry]
            writer.drop()
            if not driver.done():
                driver.cancel()
                await asyncio.wait({driver}, timeout=LOOK)
        return Outcome(Reply(message.message_id, results[-1] if results else None))

    async def _collect(self, message: InboxMessage) -> Outcome:
        """The result of a stream for somebody who wants no chunks."""
        results: list[Any] = []

        async def ignore(_: bytes) -> None:
            pass

        await contained(self._pump(message, ignore, results))
        return Outcome(Reply(message.message_id, results[-1] if results else None))

    async def _pump(self, message: InboxMessage, put: Callable[[bytes], Awaitable[None]], results: list[Any]) -> None:
        made: Any = self._stream(self._ctx, message.body)
        if inspect.isawaitable(made):
            made = await made
        if not isinstance(made, AsyncIterator):
            cure = "write async def process_stream(…) with yield, or return an async iterator"
            problem = f"process_stream gave a {type(made).__name__}; {cure}"
            raise AgentTypeError(type=self._type.name, problem=problem)
        chunks = cast("AsyncIterator[Any]", cast("object", made))
        try:
            async for value in chunks:
                if isinstance(value, StreamResult):
                    results.append(value.value)
                else:
                    await put(self._store.encode_piece(self._incarnation.agent_id, message, value))
        finally:
            close = getattr(chunks, "aclose", None)
            if close is not None:
                await close()

    async def _from_store(self, call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                if (faults := self._incarnation.faults) is not None:
                    faults.demand_store()
                return await call()
            except StoreUnavailableError as error:
                if self._incarnation.stopping_reason is not None:
                    raise StopSignal from error
                log.warning("agent %s: the store does not answer (%s); waiting", self._incarnation.agent_id, error)
                await asyncio.sleep(OUTAGE_PAUSE)


async def _let_end(running: set[asyncio.Task[None]]) -> None:
    """Waits for all of them; raises what is no signal."""
    done = (await asyncio.wait(running))[0] if running else set[asyncio.Task[None]]()
    for task in done:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, AgentSignal):
            raise error


async def _reap(running: set[asyncio.Task[None]], when: str) -> None:
    """Waits for tasks and takes the ended ones out; raises what one of them raised."""
    if not running:
        return
    done, _ = await asyncio.wait(running, return_when=when)
    running -= done
    for task in done:
        task.result()
