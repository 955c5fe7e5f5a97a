"""The process that hosts an agent under test: real host, real bodies, real store, on a stage."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar, cast

import msgspec
from typing_extensions import override

from ares_celery.agents.registry import Registry
from ares_celery.errors import AgentNotFoundError, FencedError, FencedSignal
from ares_celery.ids import AgentId, Version
from ares_celery.model.command import MarkRunning
from ares_celery.model.event import Event, EventType, NewEvent, ReadOptions
from ares_celery.model.plan import Nudge, Plan
from ares_celery.model.step import StepIntent, StepRecord
from ares_celery.runtime.commits import Committer
from ares_celery.runtime.host import ProcessHost
from ares_celery.runtime.incarnation import Incarnation
from ares_celery.runtime.lease_keeper import LeaseKeeper
from ares_celery.runtime.outcome import Delivery, Outcome
from ares_celery.runtime.ports import Launcher
from ares_celery.runtime.shared_things import Registries
from ares_celery.runtime.worker_hooks import StateSources
from ares_celery.store.base import AgentRead, AsyncIncarnationStore, Claimed, Committed, DueDeadline, Store
from ares_celery.store.redis.incarnation_store import AsyncRedisIncarnationStore
from ares_celery.store.redis.json_values import decode_json, encode_json
from ares_celery.store.redis.store import RedisStore
from ares_celery.store.steps import Begun, Recorded
from ares_celery.testing.clock import ManualClock
from ares_celery.testing.stage import Stage, SteppedLoop

__all__ = ["AgentProcess", "NamingStore", "SentMessage", "Trap", "World"]

T = TypeVar("T")
log: Final = logging.getLogger(__name__)
WORKER: Final = "harness@test"


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message that the agent under test sent to another agent.

    Attributes:
        agent_id: To whom.
        message: What, as JSON values.
        message_id: Its id, which makes a repeat the same message.
    """

    agent_id: str
    message: Any
    message_id: str


@dataclass(slots=True)
class Trap:
    """Where a process is to die: at a write of the agent's, before or after the store has it."""

    event: str | None
    count: int
    after: bool

    def springs(self, events: Sequence[NewEvent]) -> bool:
        """This is the write."""
        hits = sum(1 for event in events if self.event is None or event.type == self.event)
        self.count -= hits
        return hits > 0 and self.count <= 0


@dataclass(slots=True)
class World:
    """What is there before a process and after it."""

    store: RedisStore
    clock: ManualClock
    registry: Registry
    sources: StateSources
    launcher: Launcher
    registries: Registries
    sent: list[SentMessage] = field(default_factory=list[SentMessage])
    missing: set[str] = field(default_factory=set[str])
    trap: Trap | None = None
    written: int = 0

    def named(self, events: Sequence[NewEvent]) -> tuple[NewEvent, ...]:
        """The events with ids that are the same in every run of a test."""
        found: list[NewEvent] = []
        for event in events:
            self.written += 1
            found.append(msgspec.structs.replace(event, id=event.id or f"{self.written:032x}"))
        return tuple(found)


class AgentProcess:
    """Runs one incarnation, from its claim to its end, and dies when told to."""

    def __init__(self, world: World, nudge: Nudge, *, number: int) -> None:
        """Prepares it; the first turn of its stage claims the agent."""
        self._world = world
        self._nudge = nudge
        self._number = number
        self.agent_id = nudge.agent_id
        self.stage = Stage(self._run, world.clock, name=f"harness-{nudge.agent_id}-{number}")
        #: Nothing that it does reaches the store any more.
        self.is_dead = False
        #: Its agent was recovered, so that its own code ran.
        self.has_run = False
        self.outcome: Outcome | None = None
        self.failure: BaseException | None = None
        self._forgotten_seen = 0
        store = cast("Store", _ProcessStore(self, world))
        committer = Committer(store, lambda: world.store.config, world.launcher, clock=world.clock)
        self.host = _SteppedHost(
            store=store,
            config=lambda: world.store.config,
            committer=committer,
            registry=world.registry,
            open_async=lambda: cast("AsyncIncarnationStore", _AwaitedStore(store)),
            sources=world.sources,
            registries=world.registries,
            clock=world.clock,
            stage=self.stage,
        )

    @property
    def lives(self) -> bool:
        """It has neither ended nor died."""
        return not self.is_dead and not self.stage.is_over

    def take_forgotten(self) -> str:
        """A call that the agent's code did not await, told once each; empty: none."""
        found = self._forgotten_seen
        calls = self.host.forgotten[found:]
        self._forgotten_seen += len(calls)
        return calls[0] if calls else ""

    def look(self) -> None:
        """Lets it learn what was asked of its agent."""
        self.host.look()
        self.stage.poke()

    def demand_life(self) -> None:
        """Raises FencedError in a process that has died, so that its code ends."""
        if self.is_dead:
            raise FencedError(agent_id=self._nudge.agent_id, epoch=self._nudge.epoch, reason="its process has died")

    def die(self) -> None:
        """Ends it at this very point, as SIGKILL would; called on its own thread, which comes back to unwind only."""
        self.is_dead = True
        self.stage.park(float("inf"))
        raise FencedSignal

    def _run(self) -> None:
        delivery = Delivery(f"task-{self._number}", self._nudge.retries, WORKER)
        try:
            self.outcome = self.host.run(self._nudge.agent_id, self._nudge.epoch, delivery)
        except BaseException as error:
            log.exception("the process of a test failed")
            self.failure = error
        finally:
            self.host.close()


class _SteppedKeeper(LeaseKeeper):
    """A lease keeper without a thread; who steps the process calls ``look``."""

    @override
    def start(self) -> None:
        """Nothing runs by itself."""


class _SteppedHost(ProcessHost):
    """The real host, of which nothing runs by itself."""

    _new_keeper = _SteppedKeeper
    #: What its agent's code called and did not await.
    forgotten: Sequence[str] = ()

    def __init__(self, *, stage: Stage, **parts: Any) -> None:  # noqa: ANN401 - those of ProcessHost
        self._new_loop = partial(SteppedLoop, stage=stage)
        super().__init__(**parts)

    @override
    def _host(self, incarnation: Incarnation, claimed: Claimed, delivery: Delivery) -> Outcome:
        self.forgotten = incarnation.forgotten
        return super()._host(incarnation, claimed, delivery)

    def look(self) -> None:
        """What a heartbeat or a hint of the store would do."""
        self._keeper.look()

    @property
    def is_cut_off(self) -> bool:
        """A fault keeps its agent from the store."""
        hosted = self._hosted.all()
        return any(one.faults is not None and one.faults.is_cut_off for one in hosted)

    @property
    def holds_places(self) -> bool:
        """Its agent holds places in limits."""
        return self._shared.places.holds_any

    def keep_places(self) -> None:
        """What a heartbeat does about them."""
        self._shared.places.keep(self._store)

    @property
    def own_loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop, once an async agent has come."""
        return self._loop.loop if self._loop is not None else None

    def press(self) -> None:
        """What a heartbeat does about plain code that does not yield."""
        for body in list(self._bodies.values()):
            body.pulse(0.0)

    def fence_all(self) -> None:
        """Ends whatever runs here; nothing of it is stored any more."""
        for incarnation in self._hosted.all():
            incarnation.ask("fenced")


class NamingStore:
    """The store of a test: events get ids that are the same in every run."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the store has
        return getattr(self._world.store, name)

    def commit(self, plan: Plan, read: AgentRead, *, op: str, guard: DueDeadline | None = None) -> Committed:
        """Commits a plan."""
        named = replace(plan, events=self._world.named(plan.events))
        return self._world.store.commit(named, read, op=op, guard=guard)


class _ProcessStore(NamingStore):
    """The store as one process has it: gone for one that is dead; messages to other agents stay in the test."""

    def __init__(self, process: AgentProcess, world: World) -> None:
        super().__init__(world)
        self._process = process

    @override
    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if not callable(found):
            return found

        def call(*args: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever the method takes
            self._process.demand_life()
            return found(*args, **named)

        return call

    @override
    def commit(self, plan: Plan, read: AgentRead, *, op: str, guard: DueDeadline | None = None) -> Committed:
        """Commits a plan."""
        self._process.demand_life()
        committed = super().commit(plan, read, op=op, guard=guard)
        self._process.has_run |= isinstance(plan.command, MarkRunning)
        return committed

    def append(
        self, agent_id: AgentId, fence: str, events: Sequence[NewEvent], *, op: str, expected: Version
    ) -> tuple[Event, ...]:
        """Stores events; the test has a look before, at a moment at which state and stream agree."""
        world, process = self._world, self._process
        process.stage.park(world.clock.monotonic())
        process.demand_life()
        trap = world.trap if world.trap is not None and world.trap.springs(events) else None
        if trap is not None and not trap.after:
            process.die()
        stored = world.store.append(agent_id, fence, world.named(events), op=op, expected=expected)
        if trap is not None:
            process.die()
        return stored

    def record_step(
        self,
        agent_id: AgentId,
        fence: str,
        execution_id: str,
        record: StepRecord,
        *,
        op: str,
        event: NewEvent | None = None,
        **options: Any,  # noqa: ANN401 - those of the store
    ) -> Recorded:
        """Records a step; the test has a look before, and may end the process before it or after it."""
        store = self._world.store
        kind = EventType.STEP_COMPLETED if record.error is None else EventType.STEP_FAILED
        written = kind if event is None else event.type

        def write(name: str) -> Recorded:
            own = None if event is None else msgspec.structs.replace(event, id=name)
            return store.record_step(agent_id, fence, execution_id, record, op=name, event=own, **options)

        return self._trapped(written, op, write)

    def record_intent(
        self,
        agent_id: AgentId,
        fence: str,
        execution_id: str,
        intent: StepIntent,
        *,
        op: str,
        **options: Any,  # noqa: ANN401 - those of the store
    ) -> Begun:
        """Notes that a step is begun, in the same way."""
        return self._trapped(
            EventType.STEP_STARTED,
            op,
            lambda name: self._world.store.record_intent(agent_id, fence, execution_id, intent, op=name, **options),
        )

    def _trapped(self, kind: str, op: str, write: Callable[[str], T]) -> T:
        """Writes under an operation id that is the same in every run of a test."""
        world, process = self._world, self._process
        process.stage.park(world.clock.monotonic())
        process.demand_life()
        (event,) = world.named([NewEvent(kind, {"op": op})])
        trap = world.trap if world.trap is not None and world.trap.springs([event]) else None
        if trap is not None and not trap.after:
            process.die()
        written = write(event.id)
        if trap is not None:
            process.die()
        return written

    def send(self, agent_id: AgentId, body: object, *, message_id: str, **options: Any) -> None:  # noqa: ANN401
        """Notes a message to another agent; one to the agent itself is really sent."""
        self._process.demand_life()
        if agent_id == self._process.agent_id:
            self._world.store.send(agent_id, body, message_id=message_id, **options)
            return
        data, _ = encode_json(body, what=f"message {message_id!r}", agent_id=agent_id)
        if agent_id in self._world.missing:
            raise AgentNotFoundError(agent_id=agent_id)
        self._world.sent.append(SentMessage(agent_id, decode_json(data), message_id))


class _AwaitedStore:
    """The same, awaitable: each call lets the loop turn before it is made, as a real one would."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the store has
        found = getattr(self._store, name)
        if not inspect.iscoroutinefunction(getattr(AsyncRedisIncarnationStore, name, None)):
            # Computes, and asks nobody.
            return found

        async def call(*args: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever the method takes
            await asyncio.sleep(0)
            return found(*args, **named)

        return call

    async def read(self, stream_id: str, options: ReadOptions) -> tuple[Event, ...]:
        """Reads part of a stream."""
        await asyncio.sleep(0)
        return tuple(self._store.events.read(stream_id, options))

    async def aclose(self) -> None:
        """Nothing is held."""
