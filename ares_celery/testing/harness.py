"""One agent in a test: no server, no thread left over, and an hour of its life in a millisecond."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Iterable, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self, TypeVar, overload

from ares_celery.agents.specs import parse_spec
from ares_celery.config import RuntimeConfig
from ares_celery.errors import (
    AgentNotRunningError,
    AgentStuckError,
    DidNotHappenError,
    InvalidSettingError,
    ProcessTimeoutError,
    error_from_wire,
)
from ares_celery.model.agent import AgentState
from ares_celery.model.arguments import check_timeout
from ares_celery.model.event import Event
from ares_celery.model.message import Chunk
from ares_celery.model.waits import InterruptInfo
from ares_celery.runtime.messages import checked_ids
from ares_celery.runtime.worker_hooks import StateSources
from ares_celery.store.base import MemoryManager, SnapshotStore
from ares_celery.testing.bench import ACTOR, Bench, spec_for, type_of, with_traceback
from ares_celery.testing.faults import Faults
from ares_celery.testing.process import Trap

__all__ = ["AgentHarness"]

T = TypeVar("T")

#: Simulated seconds that a test waits for something.
TIMEOUT: Final = 60.0
#: Real seconds that code of an agent may run on without waiting for anything.
PATIENCE: Final = 10.0
#: Simulated seconds between two looks of a reader of a stream; one that looks much less often counts as gone.
_STREAM_LOOK: Final = 1.0
_ENDED: Final = frozenset({AgentState.COMPLETED, AgentState.STOPPED, AgentState.PARKED, AgentState.REGISTERED})


class AgentHarness(Faults):
    """Runs one agent inside a test, with the runtime's real code and a clock that the test moves.

    Events, snapshots, messages, recovery and every decision are those of production; the store is in memory, and its
    time is the test's: ``ctx.sleep(3600)`` costs nothing. Nothing happens between two calls of the harness: the agent
    runs only while one of them waits for it. The same test gives the same events, times and ids in every run.

    Works the same in plain tests and in async ones: no call needs ``await``, whatever the agent's colour.
    Leaving the block ends the agent's code, ``finally`` blocks included, and leaves no thread.

    Raises:
        AgentFailedError: By any call that lets the agent run, when its own code raises; with its traceback.
        AwaitMissingError: By the same, when its code has called its ctx without ``await``, so that nothing was done.
        AgentStuckError: By the same, when its code goes on without ever waiting; with its stack.

    Example:
        >>> from ares_celery.testing import AgentHarness
        >>> class Ticker:
        ...     def __init__(self, agent_id: str, step: int = 1) -> None:
        ...         self.step, self.total = step, 0
        ...     async def start(self, ctx):
        ...         while not ctx.stop_requested:
        ...             await ctx.emit("ticked", {"by": self.step})
        ...             await ctx.sleep(3600)
        ...     def apply(self, event):
        ...         self.total += event.payload["by"]
        >>> with AgentHarness(Ticker, config={"step": 2}) as harness:
        ...     _ = harness.run_until("ticked", count=24, timeout="24h")
        ...     harness.crash()
        ...     harness.restart()
        ...     harness.agent.total
        48
    """

    def __init__(  # noqa: PLR0913 - each is one thing that a test may want to set
        self,
        agent: Callable[..., Any] | str,
        agent_id: str = "a",
        config: Mapping[str, Any] | None = None,
        *,
        spec: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        memory: MemoryManager | None = None,
        snapshot_store: SnapshotStore | None = None,
        resources: Mapping[str, Any] | None = None,
        tools: Mapping[str, Callable[..., Any]] | None = None,
        mcp: Mapping[str, Any] | None = None,
        missing: Iterable[str] = (),
        patience: float = PATIENCE,
        begins: datetime | None = None,
    ) -> None:
        """Starts the agent; it runs to where it first waits or emits, and no further.

        Args:
            agent: Its class or factory, or the name of a registered type.
            agent_id: Its id.
            config: What its constructor gets as keywords.
            spec: Other fields of its AgentSpec, ``{"restart": "permanent"}``.
            settings: Fields of RuntimeConfig that are to differ from the defaults, ``{"snapshot_every_events": 10}``.
            memory: A memory manager of the agent's.
            snapshot_store: A snapshot store of the agent's.
            resources: What ``ctx.resource(name)`` gives, by name, instead of what is registered.
            tools: Functions that ``ctx.tool(name)`` calls instead.
            mcp: Sessions that ``ctx.mcp(name)`` talks to instead.
            missing: Ids of agents that do not exist: a ``ctx.send`` to one raises AgentNotFoundError. All others are
                taken to be there.
            patience: Real seconds that the agent's code may run on without waiting; raise it to use a debugger.
            begins: The moment at which simulated time begins; ``datetime.now(UTC)`` for code that asks the machine.

        Raises:
            AgentTypeError, InvalidConfigError, InvalidAgentIdError, InvalidSettingError: Something does not fit.
            WorkerResourceError, ToolError, MCPServerError: Nobody registered what is to be replaced.
            OperationNotSupportedError: fakeredis is missing; ``pip install 'ares-celery[testing]'``.
        """
        name, factory = type_of(agent)
        chosen = parse_spec(spec_for(name, agent_id, config, spec or {}))
        runtime = RuntimeConfig.parse({"shards": 1, **(settings or {})})
        instead = {"resource": resources or {}, "tool": tools or {}, "mcp": mcp or {}}
        sources = StateSources(memory, snapshot_store)
        super().__init__(Bench(chosen, runtime, sources=sources, instead=instead, patience=patience, begins=begins))
        self._asked = 0
        self.missing.update([missing] if isinstance(missing, str) else missing)
        try:
            self._bench.use(name, factory)
            self._bench.manager.start_agent(chosen, actor=ACTOR)
            self._bench.bring_up()
        except BaseException:
            self._bench.close()
            raise

    # -- letting it run ---------------------------------------------------------------------------------------------

    def advance(self, seconds: timedelta | float | str) -> None:
        """Lets simulated time pass, and the agent do what it does in it."""
        self._bench.drive(self.now + _seconds(seconds))
        self._raise_failure()

    @overload
    def run_until(self, what: str | int, *, count: int = 1, timeout: timedelta | float | str = TIMEOUT) -> Event: ...

    @overload
    def run_until(self, what: Callable[[], T], *, count: int = 1, timeout: timedelta | float | str = TIMEOUT) -> T: ...

    def run_until(
        self, what: str | int | Callable[[], Any], *, count: int = 1, timeout: timedelta | float | str = TIMEOUT
    ) -> Any:
        """Lets the agent run until something is so; returns at once when it is so already.

        Args:
            what: The type of an event, the runtime's own included; or how many events it has emitted in all; or a
                function that is called whenever the agent waits or is about to emit, and says whether it is so.
            count: Which event of that type, counted from the first of the agent's life.
            timeout: Simulated time.

        Returns:
            The event, or what the function gave.

        Raises:
            DidNotHappenError: It did not come in time, or cannot come as the agent has ended.
        """
        found: list[Any] = []

        def is_so() -> bool:
            value = self._look_for(what, count)
            found[:] = [value]
            return bool(value)

        limit = _seconds(timeout)
        if is_so() or self._bench.drive(self.now + limit, is_so):
            return found[0]
        self._raise_failure()
        raise DidNotHappenError(wanted=_name(what, count), timeout=_plain(limit), instead=self._instead())

    def _look_for(self, what: str | int | Callable[[], Any], count: int) -> Any:  # noqa: ANN401 - whatever is wanted
        if isinstance(what, str):
            found = [event for event in self.all_events if event.type == what]
        elif isinstance(what, int):
            found, count = self.events, what
        else:
            return what()
        return found[count - 1] if len(found) >= count else None

    # -- messages ---------------------------------------------------------------------------------------------------

    def send(self, message: object, *, message_id: str = "") -> str:
        """Puts a message into the agent's inbox, and lets it handle that if it waits; returns the message's id.

        Raises:
            AgentNotRunningError, AgentParkedError: It is in no state to get messages.
        """
        sent = self._id(message_id)
        self._bench.store.send(self._bench.agent_id, message, message_id=sent, wants_reply=False)
        self._settle()
        return sent

    def ask(self, message: object, *, timeout: timedelta | float | str = TIMEOUT, message_id: str = "") -> Any:  # noqa: ANN401
        """Asks the agent and returns its answer; time passes as long as it takes for it.

        Args:
            message: A JSON value.
            timeout: Simulated time.
            message_id: The same id again gets the first answer.

        Raises:
            AgentFailedError: What its ``process`` raised. ProcessTimeoutError: No answer in time.
            AgentNotRunningError, AgentParkedError: It is in no state to get messages.
        """
        asked, limit = self._id(message_id), _seconds(timeout)
        bench = self._bench
        bench.store.send(bench.agent_id, message, message_id=asked, wants_reply=True)
        reply = self._run_for(lambda: bench.store.wait_reply(bench.agent_id, asked, timeout=0), limit)
        if reply is None:
            self._raise_failure()
            raise self._no_answer(asked, limit)
        if reply.error is not None:
            raise with_traceback(error_from_wire(reply.error))
        return reply.value

    def stream(
        self, message: object, *, timeout: timedelta | float | str = TIMEOUT, message_id: str = ""
    ) -> Generator[Chunk]:
        """Asks the agent and yields its answer in pieces; the last one is final and carries the result.

        The agent runs while the next piece is waited for. It may crash and be restarted between two of them. Leaving
        the loop before the end cancels the stream, as a caller that goes away does.

        Args:
            message: A JSON value.
            timeout: Simulated time for each piece.
            message_id: The same id again gets the same pieces.

        Raises:
            AgentFailedError: What the agent raised. ProcessTimeoutError: No piece in time.
            AgentNotRunningError, AgentParkedError: It is in no state to get messages.
        """
        asked, limit = self._id(message_id), _seconds(timeout)
        self._bench.store.send(self._bench.agent_id, message, message_id=asked, wants_reply=True, stream=True)
        return self._chunks(asked, limit)

    def _chunks(self, asked: str, limit: float) -> Generator[Chunk]:
        bench, seq, is_over = self._bench, 0, False

        def look() -> tuple[Chunk, ...] | None:
            return bench.store.read_chunks(bench.agent_id, asked, after=seq, timeout=0) or None

        try:
            while not is_over:
                found, until = look(), self.now + limit
                # A reader that does not look for long has left: time passes in short steps.
                while found is None and self.now < until and self._bench.may_go_on:
                    found = self._run_for(look, min(_STREAM_LOOK, until - self.now))
                if found is None:
                    self._raise_failure()
                    raise self._no_answer(asked, limit)
                for chunk in found:
                    seq, is_over = chunk.seq, chunk.final
                    yield chunk
        finally:
            if not is_over and not bench.is_closed:
                bench.store.cancel(bench.agent_id, asked)

    def _no_answer(self, asked: str, limit: float) -> ProcessTimeoutError:
        what: dict[str, Any] = {"agent_id": self.agent_id, "message_id": asked, "timeout": _plain(limit)}
        if self._bench.has_crashed:
            what["message"] = (
                f"agent {self.agent_id!r} has crashed in this test and answers nothing: call restart(); message "
                f"{asked!r} is in its inbox"
            )
        error = ProcessTimeoutError(**what)
        error.add_note(f"so far{self._instead()}")
        return error

    def _run_for(self, look: Callable[[], T], seconds: float) -> T | None:
        """Lets the agent run until ``look`` gives something, at most so long; gives that, or None."""
        found: list[T] = []

        def is_so() -> bool:
            value = look()
            if value is not None:
                found.append(value)
            return bool(found)

        self._bench.drive(self.now + seconds, is_so)
        return found[0] if found else None

    def _id(self, message_id: str) -> str:
        """The id of a message, by the rules of a manager; without one, the same in every run of a test."""
        if not message_id:
            self._asked += 1
        return checked_ids(self.agent_id, message_id or uuid.UUID(int=self._asked).hex)[1]

    def approve(
        self,
        name: str,
        decision: str | bool = True,  # noqa: FBT001, FBT002 - the name of the Manager's
        payload: object = None,
        *,
        reason: str = "",
    ) -> InterruptInfo:
        """Decides what the agent asked with ``ctx.wait_for_approval``, and lets it go on: see ``Manager.approve``."""
        decided = self._bench.manager.approve(self.agent_id, name, decision, payload, reason=reason, actor=ACTOR)
        self._bench.drive(self.now, self._waits)
        self._raise_failure()
        return decided

    # -- its end, and what comes after ------------------------------------------------------------------------------

    def crash(
        self,
        *,
        before: str | None = None,
        after: str | None = None,
        count: int = 1,
        timeout: timedelta | float | str = TIMEOUT,
    ) -> None:
        """Kills the agent's process, as SIGKILL would: only what the store has by then survives.

        Its code goes no further and no ``finally`` block of it runs, until the harness is closed. The agent stays dead
        until :meth:`restart`.

        Args:
            before: Not now, but when the agent emits an event of this type, before the store has it. ``"*"``: any type.
            after: Instead: when the store has it, but the agent does not know yet.
            count: At which such event from now on.
            timeout: Simulated time in which that has to come.

        Raises:
            DidNotHappenError: No such event came; the agent lives on.
        """
        if not self.is_running:
            raise AgentNotRunningError(agent_id=self.agent_id, state=self.info.state.value, operation="crash")
        if before is not None and after is not None:
            raise InvalidSettingError(
                field="after", value=after, problem="name an event in before= or after=, not both"
            )
        event = before if before is not None else after
        if event is None:
            self._bench.kill()
            return
        world, process, limit = self._bench.world, self._bench.process, _seconds(timeout)
        world.trap = Trap(None if event == "*" else event, count, after=after is not None)
        try:
            self._bench.drive(self.now + limit, lambda: process is not None and process.is_dead)
        finally:
            world.trap = None
        if process is not None and not process.is_dead:
            self._raise_failure()
            raise DidNotHappenError(
                wanted=f"emit {_name(event, count)}", timeout=_plain(limit), instead=self._instead()
            )

    def restart(self, agent: Callable[..., Any] | None = None) -> None:
        """Begins a new incarnation, which recovers: after a crash or an end, or after ending a running one in order.

        A backoff that is due passes in simulated time.

        Args:
            agent: Other code from now on, as a deployment brings it; the type stays.

        Raises:
            AgentFailedError: What its recovery raised. AgentParkedError: It had too many deaths, or a damaged history.
        """
        bench = self._bench
        if agent is not None:
            bench.use(bench.record.spec.type, agent)
        if self.is_running or self.is_waiting:
            bench.manager.restart_agent(self.agent_id, actor=ACTOR)
            bench.settle_end()
        else:
            bench.bury()
            state = bench.record.state
            if state in _ENDED:
                bench.manager.start_agent(self.agent_id, actor=ACTOR)
            elif state is AgentState.PAUSED:
                bench.manager.resume_agent(self.agent_id, actor=ACTOR)
        bench.bring_up()

    def stop(self) -> None:
        """Stops it in order: it may finish, takes its last snapshot and is not started again but by :meth:`restart`.

        One that does not end within agent_stop_timeout, in simulated time, is fenced.
        """
        self._bench.manager.stop_agent(self.agent_id, wait=False, actor=ACTOR)
        self._bench.settle_end()

    def pause(self) -> None:
        """Lets it end in order and rest; messages wait for :meth:`resume`."""
        self._bench.manager.pause_agent(self.agent_id, actor=ACTOR)
        self._bench.settle_end()

    def resume(self) -> None:
        """Lets a paused one run again."""
        self._bench.manager.resume_agent(self.agent_id, actor=ACTOR)
        self._bench.bring_up()

    def drain(self) -> None:
        """Ends its worker in order, as a deployment does: it gets a snapshot, and goes on with :meth:`restart`."""
        process = self._bench.process
        if process is None or not process.lives:
            raise AgentNotRunningError(agent_id=self.agent_id, state=self.info.state.value, operation="drain")
        process.host.drain()
        self._bench.settle_end()

    def close(self) -> None:
        """Ends the agent's code; a second time: no effect.

        Raises:
            AgentStuckError: Its code does not end, as it blocks or catches whatever would end it.
        """
        stuck = self._bench.close()
        if stuck:
            raise AgentStuckError(agent_id=self.agent_id, problem="when the test ended", stack="\n".join(stuck))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the agent's code."""
        try:
            self.close()
        except AgentStuckError:
            # What the test says of itself comes first.
            if error is None:
                raise


def _name(what: object, count: int) -> str:
    if isinstance(what, int):
        return f"event number {what} of the agent's own"
    if callable(what):
        return f"the condition {getattr(what, '__name__', what)!r}"
    return f"event {str(what)!r}" if count == 1 else f"event {str(what)!r} number {count}"


def _seconds(duration: timedelta | float | str) -> float:
    return check_timeout(duration, "duration").total_seconds()


def _plain(seconds: float) -> float:
    """Whole seconds without a fraction."""
    return int(seconds) if seconds.is_integer() else seconds
