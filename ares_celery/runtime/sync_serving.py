"""Answering the messages of a plain agent, in its own thread, at its context calls."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
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
)
from ares_celery.model.message import DeadReason, MessageKind, StreamResult
from ares_celery.runtime.chunk_writer import CallerLeft, ChunkWriter
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
from ares_celery.runtime.sync_context import SyncContext
from ares_celery.store.base import InboxMessage, Reply, Store

__all__ = ["SyncServing"]

log: Final = logging.getLogger(__name__)
T = TypeVar("T")


class SyncServing:
    """The messages of one incarnation."""

    def __init__(  # noqa: PLR0913 - the parts of one incarnation
        self,
        incarnation: Incarnation,
        agent: Agent,
        agent_type: AgentType,
        *,
        ctx: SyncContext,
        store: Store,
        clock: Clock,
        poison_after: int,
    ) -> None:
        """Binds the parts.

        Args:
            incarnation: Whose messages.
            agent: What answers them.
            agent_type: Its type.
            ctx: What the agent gets in its hands.
            store: Where messages are.
            clock: For waits.
            poison_after: Deaths after which a message is skipped.
        """
        self._incarnation = incarnation
        self._agent: Any = agent
        self._type = agent_type
        self._store = store
        self._clock = clock
        self._poison_after = poison_after
        self._ctx = ctx
        self._begun = Begun()
        self._hints: deque[InboxMessage] = deque()
        self._seen = "0-0"
        self._writer: tuple[str, ChunkWriter] | None = None
        self._dies_of: BaseException | None = None
        self._process: Any = getattr(agent, "process", None)
        self._stream: Any = getattr(agent, "process_stream", None)

    @property
    def handles(self) -> bool:
        """The agent takes messages."""
        return self._process is not None or self._stream is not None

    def take_hint(self, hint: InboxMessage | str) -> None:
        """A message that came alone, or the inbox entry of a stream whose caller has left; from any thread."""
        if isinstance(hint, InboxMessage):
            self._hints.append(hint)
            self._ctx.wake()
        elif (writer := self._writer) is not None and writer[0] == hint:
            writer[1].leave()

    def serve(self) -> None:
        """Answers what waits."""
        while (self._incarnation.inbox_hint or self._hints) and self._may_serve():
            hint = self._next_hint()
            if hint is not None:
                self._answer(hint)
                continue
            self._incarnation.inbox_hint = False
            self._serve_all()

    def give_back(self) -> None:
        """At an end in order: what was begun and not answered was not the end of this incarnation."""
        while self._hints:
            self._begun.hinted(self._hints.popleft().entry)
        entries = self._begun.entries
        if not entries:
            return
        agent_id, fence = self._incarnation.agent_id, self._incarnation.fence
        try:
            if (faults := self._incarnation.faults) is not None:
                faults.demand_store()
            self._store.give_back(agent_id, fence, entries)
        except (FencedError, StoreUnavailableError) as error:
            log.warning("agent %s: what it was handling counts as met by a death: %s", agent_id, error)

    # -- the inbox --------------------------------------------------------------------------------------------------

    def _next_hint(self) -> InboxMessage | None:
        """A message that need not be read: it is the next one, if nothing else may wait."""
        while self._hints:
            hint = self._hints.popleft()
            if not is_later(hint.entry, self._seen):
                continue
            self._begun.hinted(hint.entry)
            if not self._incarnation.inbox_hint:
                return hint
        return None

    def _may_serve(self) -> bool:
        return not self._incarnation.is_ending

    def _serve_all(self) -> None:
        after, agent_id, fence = "", self._incarnation.agent_id, self._incarnation.fence
        while self._may_serve():
            messages = self._from_store(partial(self._store.take, agent_id, fence, after=after, begin=1))
            self._begun.took(messages, 1)
            if not messages:
                return
            for message in messages:
                if not self._may_serve():
                    return
                after = message.entry
                self._answer(message)

    def _answer(self, message: InboxMessage) -> None:
        if is_later(message.entry, self._seen):
            self._seen = message.entry
        if self._incarnation.faults is not None:
            self._ctx.points.before_call()
        chunks = 0
        with handling(self._incarnation, message):
            if message.began >= self._poison_after:
                outcome = poisoned(self._incarnation.agent_id, message)
            elif not self.handles:
                outcome = unhandled(self._incarnation.agent_id, self._type.name, message)
            elif self._stream is not None and (message.kind is MessageKind.STREAM or self._process is None):
                outcome, chunks = self._outcome_of_stream(message)
            else:
                outcome = self._guarded(message, lambda: self._process_once(message))
        self._settle(message, outcome, chunks)
        if self._dies_of is not None:
            raise self._dies_of
        self._ctx.settle()

    def _settle(self, message: InboxMessage, outcome: Outcome, chunks: int) -> None:
        if self._ctx.steps.is_unsettled(message.message_id):
            # Not answered before a person has said how the step came out: then it is handled again, and goes on.
            raise StopSignal
        if outcome.stays:
            return
        agent_id, then = self._incarnation.agent_id, self._begun.following() if self._may_serve() else ""
        if outcome.reason is not None:
            self._bury(message, outcome.reason, outcome.reply)
            self._begun.answered(message.entry, "")
            self._ctx.steps.forget(message.message_id)
            return
        try:
            self._store_reply(message, outcome.reply, chunks, then)
        except (UnserialisableError, EventTooLargeError) as error:
            # The answer itself is bad: the caller is told, or the message would come again for ever.
            self._store_reply(message, failure_reply(agent_id, message.message_id, error), chunks, then)
        self._begun.answered(message.entry, then)
        self._ctx.steps.forget(message.message_id)

    def _store_reply(self, message: InboxMessage, reply: Reply, chunks: int, then: str) -> None:
        agent_id, fence = self._incarnation.agent_id, self._incarnation.fence
        call = partial(self._store.reply, agent_id, fence, message, reply, chunks=chunks, then=then)
        self._ctx.steps.note_end(self._ending(message, call))

    def _bury(self, message: InboxMessage, reason: DeadReason, reply: Reply) -> None:
        agent_id, fence = self._incarnation.agent_id, self._incarnation.fence
        self._ending(message, partial(self._store.bury, agent_id, fence, message, reason, reply))
        log.warning(
            "agent %s: message %s is a dead letter (%s)", agent_id, message.message_id, reason.value,
            extra={"agent_id": agent_id},
        )  # fmt: skip

    def _ending(self, message: InboxMessage, call: Callable[..., T]) -> T:
        """Consumes the message; the execution of its steps ends with it, whichever incarnation has begun that."""
        steps, message_id = self._ctx.steps, message.message_id
        ends, unless = steps.finishes(message_id), steps.may_be_left(message_id)
        try:
            return self._from_store(partial(call, finishes=ends, unless=unless))
        except ExecutionStateError:
            steps.take_over(message_id)
            return self._from_store(partial(call, finishes=steps.finishes(message_id)))

    # -- one message ------------------------------------------------------------------------------------------------

    def _process_once(self, message: InboxMessage) -> Outcome:
        return Outcome(Reply(message.message_id, self._agent.process(self._ctx, message.body)))

    def _guarded(self, message: InboxMessage, work: Callable[[], Outcome]) -> Outcome:
        """What the agent's code raises is the answer; a signal, and the end of the agent, go on."""
        try:
            return work()
        except AgentSignal:
            raise
        except CallerLeft:
            return left(self._incarnation.agent_id, message)
        except Exception as error:  # noqa: BLE001 - the caller gets what the agent raised
            if is_over_budget(self._incarnation, error):
                return given_back(message)
            park_if_no_answer(error)
            raised: BaseException = error
        except BaseException as error:  # noqa: BLE001 - so does it here, and then the agent dies of it
            self._dies_of = raised = error
        return failed(message, failure_reply(self._incarnation.agent_id, message.message_id, raised))

    def _outcome_of_stream(self, message: InboxMessage) -> tuple[Outcome, int]:
        """What became of a stream, and how many chunks it gave before its end."""
        if message.kind is not MessageKind.STREAM:
            return self._guarded(message, lambda: self._pump(message, lambda _: None)), 0
        agent_id, fence = self._incarnation.agent_id, self._incarnation.fence

        def write(first: int, pieces: list[bytes]) -> int | None:
            call = partial(self._store.write_chunks, agent_id, fence, message, first=first, pieces=pieces)
            return self._from_store(call)

        stored = write(0, [])
        if stored is None:
            return left(agent_id, message), 0
        writer = ChunkWriter(write, self._clock, stored=stored)
        self._writer = (message.entry, writer)
        try:
            outcome = self._guarded(message, lambda: self._drive(message, writer))
        finally:
            self._writer = None
            writer.finish(store=False)
        return outcome, writer.seq

    def _drive(self, message: InboxMessage, writer: ChunkWriter) -> Outcome:
        try:
            return self._pump(message, writer.put)
        finally:
            # What came before an error was said, too; but who has left gets nothing more.
            writer.finish(store=True)

    def _pump(self, message: InboxMessage, put: Callable[[bytes], None]) -> Outcome:
        made: Any = self._stream(self._ctx, message.body)
        if not hasattr(made, "__iter__") or isinstance(made, (str, bytes, dict)):
            problem = (
                f"process_stream gave a {type(cast('object', made)).__name__}; write def process_stream(…) with yield"
            )
            raise AgentTypeError(type=self._type.name, problem=problem)
        values: Iterator[Any] = iter(made)
        result: Any = None
        try:
            while True:
                try:
                    value = next(values)
                except StopIteration as end:
                    result = result if end.value is None else end.value
                    return Outcome(Reply(message.message_id, result))
                if isinstance(value, StreamResult):
                    result = value.value
                else:
                    put(self._store.encode_piece(self._incarnation.agent_id, message, value))
        finally:
            close = getattr(values, "close", None)
            if close is not None:
                close()

    def _from_store(self, call: Callable[[], T]) -> T:
        while True:
            try:
                if (faults := self._incarnation.faults) is not None:
                    faults.demand_store()
                return call()
            except StoreUnavailableError as error:
                if self._incarnation.stopping_reason is not None:
                    raise StopSignal from error
                log.warning("agent %s: the store does not answer (%s); waiting", self._incarnation.agent_id, error)
                self._clock.wait(threading.Event(), OUTAGE_PAUSE)
            except FencedError as error:
                self._incarnation.ask("fenced")
                raise FencedSignal from error
