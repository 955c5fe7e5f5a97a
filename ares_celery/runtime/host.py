"""One hosting process: what all its incarnations share, and the life of one incarnation from claim to release."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from functools import partial

from ares_celery.agents.registry import Registry, colour_of
from ares_celery.background import start_detached
from ares_celery.clock import Clock, SystemClock
from ares_celery.config import ConfigSource, RuntimeConfig, config_source
from ares_celery.errors import (
    EventIntegrityError,
    FencedError,
    FencedSignal,
    NewerStateError,
    StepsUnsettledError,
    StoreUnavailableError,
)
from ares_celery.ids import AgentId, Epoch
from ares_celery.model.agent import Owner
from ares_celery.model.command import Finding, MarkRunning
from ares_celery.model.restart import DeathCause
from ares_celery.model.transitions import demand_settled
from ares_celery.runtime.async_body import AsyncBody
from ares_celery.runtime.commits import Committer
from ares_celery.runtime.compaction import Compactor
from ares_celery.runtime.compaction_duty import CompactionDuty
from ares_celery.runtime.drain_watch import end_in_order, watch_drain
from ares_celery.runtime.ends import Crash, End, Parked, Yielded, agent_failed
from ares_celery.runtime.executions import recover_executions
from ares_celery.runtime.family import Family
from ares_celery.runtime.faults import ActiveFaults, FaultWatch
from ares_celery.runtime.finishing import Finishing
from ares_celery.runtime.ill_health import report_ill
from ares_celery.runtime.incarnation import HostedSet, Incarnation
from ares_celery.runtime.interrupts import Interrupts
from ares_celery.runtime.lease_keeper import LeaseKeeper
from ares_celery.runtime.loop_store import close_loop, connect_store, open_on_loop
from ares_celery.runtime.loop_thread import LoopThread
from ares_celery.runtime.offspring import end_offspring
from ares_celery.runtime.outcome import Delivery, Noop, Outcome
from ares_celery.runtime.ports import EventListener, Wakeups
from ares_celery.runtime.process_identity import ProcessIdentity
from ares_celery.runtime.recoverer import Recoverer
from ares_celery.runtime.replay import PAGE
from ares_celery.runtime.shared_things import Registries, SharedThings
from ares_celery.runtime.sync_body import SyncBody
from ares_celery.runtime.unsettled import parked_instead
from ares_celery.runtime.worker_hooks import StateSources
from ares_celery.store.base import AsyncIncarnationStore, Claimed, Store

__all__ = ["ProcessHost"]

log = logging.getLogger(__name__)
#: Seconds between two tries of a claim while the store does not answer.
_CLAIM_PAUSE = 0.2
_WARM_UP_LIMIT = 10.0
#: Missed heartbeats after which the event loop counts as hung.
_HUNG_HEARTBEATS = 3


class ProcessHost(Finishing):
    """Hosts incarnations in this process; safe to use from many task threads.

    One lease keeper and, once an async agent comes, one event loop serve all of them.
    """

    #: Both run on threads of their own; the testing kit has twins that it steps itself.
    _new_keeper: type[LeaseKeeper] = LeaseKeeper
    _new_loop: Callable[..., LoopThread] = LoopThread

    def __init__(  # noqa: PLR0913 - put together in one place only
        self,
        *,
        store: Store,
        config: RuntimeConfig | ConfigSource,
        committer: Committer,
        registry: Registry,
        open_async: Callable[[], AsyncIncarnationStore],
        wakeups: Wakeups | None = None,
        exclusive: bool = False,
        sources: StateSources | None = None,
        on_stuck: Callable[[], None] | None = None,
        clock: Clock | None = None,
        listener: EventListener | None = None,
        registries: Registries | None = None,
    ) -> None:
        """Starts the keeper.

        Args:
            store: The open namespace.
            config: Its settings; each incarnation is made with those of its moment.
            committer: For every change of an agent's life.
            registry: The agent types of this process.
            open_async: Gives the store for the event loop; called on it, once.
            wakeups: Hints that something was asked of an agent; without them a heartbeat tells.
            exclusive: The process hosts one agent at a time (prefork): processes that it leaves behind are ended.
            sources: Memory manager and snapshot store of the agents; None = those of the worker hooks.
            on_stuck: Called when agents have not ended within drain_timeout: ends the process.
            clock: Injected in tests.
            listener: Told of the events that agents of this process have stored.
            registries: What its agents share; None = what modules registered in this process.
        """
        self._listener = listener
        self._on_stuck = on_stuck
        self._store = store
        self._settings = config_source(config)
        self._committer = committer
        self._registry = registry
        self._open_async = open_async
        self._wakeups = wakeups
        self._exclusive = exclusive
        self._clock = clock or SystemClock()
        self.identity = ProcessIdentity.current()
        self._hosted = HostedSet()
        self._bodies: dict[str, AsyncBody | SyncBody] = {}
        self._recovering: dict[str, tuple[Incarnation, Interrupts]] = {}
        self._draining = threading.Event()
        self._recoverer = Recoverer(
            store, config, registry, clock=self._clock, sources=sources, draining=self._draining
        )
        self._lock = threading.Lock()
        self._shared = SharedThings(
            lambda: self._loop_and_store()[0], registries=registries, notes_offspring=exclusive, clock=self._clock
        )
        self._loop: LoopThread | None = None
        self._async_store: AsyncIncarnationStore | None = None
        self._compaction = CompactionDuty(Compactor(store.events, config).compact, config)
        self._watch = FaultWatch(store, self._clock)
        self._keeper = self._new_keeper(
            store, self._hosted, config, self._clock, on_beat=self._on_beat, watch=self._watch
        )
        self._keeper.start()
        if wakeups is not None:
            wakeups.listen(self._keeper.kick, self._hosted.mail)

    # -- for the worker ---------------------------------------------------------------------------------------------

    def run(self, agent_id: AgentId, epoch: Epoch, delivery: Delivery) -> Outcome:
        """Runs the incarnation of ``epoch`` to its end; blocks for its life.

        A late, doubled or stale message loses the claim and is a logged no-op. Whatever the agent's code raises ends
        here.
        """
        if self._draining.is_set():
            return Noop("draining")
        claimed = self._claim(agent_id, epoch, delivery)
        if isinstance(claimed, Noop):
            log.info(
                "agent %s: message of epoch %s is a no-op (%s)",
                agent_id,
                epoch,
                claimed.reason,
                extra={"agent_id": agent_id, "epoch": epoch, "task_id": delivery.task_id},
            )
            return claimed
        incarnation = Incarnation(claimed.record, delivery.task_id, self._listener, self._committer.judge)
        if claimed.record.faults:
            # Felt from its first call on; where they cannot be read now, each beat tries again.
            incarnation.faults = ActiveFaults(agent_id, (), self._clock)
            self._watch.look(incarnation, claimed.now / 1_000_000 - self._clock.monotonic())
        incarnation.family = Family(self._store, self._committer, self._registry)
        self._hosted.add(incarnation)
        try:
            if self._draining.is_set():
                incarnation.ask("drain")
            return self._host(incarnation, claimed, delivery)
        finally:
            self._hosted.remove(incarnation)
            self._shared.connections.leave(incarnation.fence)
            self._bodies.pop(incarnation.fence, None)
            if self._exclusive:
                end_offspring(self._clock, spare=self._shared.offspring)

    def warm_up(self) -> None:
        """Opens what the first agent would have to wait for: the event loop and its connection."""
        self._recoverer.open()
        loop, store = self._loop_and_store()
        loop.submit(connect_store(store)).result(timeout=_WARM_UP_LIMIT)

    def drain(self) -> None:
        """Asks every incarnation to snapshot and release, and takes no new one. Returns at once.

        What has not ended after drain_timeout is given up: ``on_stuck`` is told, and ends the process.
        """
        first = not self._draining.is_set()
        self._draining.set()
        for incarnation in self._hosted.all():
            incarnation.ask("drain")
        if first and self._on_stuck is not None:
            limit, last = self._settings().drain_timeout, partial(end_in_order, self._shared.close, self._on_stuck)
            start_detached("drain-watch", partial(watch_drain, self.hosted, limit, last, self._clock))

    @property
    def draining(self) -> bool:
        """The process is about to end."""
        return self._draining.is_set()

    def hosted(self) -> dict[AgentId, Epoch]:
        """What runs here now."""
        return {incarnation.agent_id: incarnation.record.epoch for incarnation in self._hosted.all()}

    @property
    def keeper_age(self) -> float:
        """Seconds since leases were last renewed."""
        return self._keeper.age

    def close(self) -> None:
        """Ends the threads; what still runs is left to its lease."""
        self._keeper.close()
        self._compaction.close()
        if self._wakeups is not None:
            self._wakeups.close()
        self._shared.close()
        if self._loop is not None:
            close_loop(self._loop, self._async_store)

    # -- one incarnation --------------------------------------------------------------------------------------------

    def _claim(self, agent_id: AgentId, epoch: Epoch, delivery: Delivery) -> Claimed | Noop:
        token = secrets.token_hex(8)
        owner = Owner(self.identity.encode(), delivery.worker, delivery.task_id)
        while True:
            try:
                schemas = self._registry.schemas()
                return self._store.claim(agent_id, epoch, token=token, owner=owner, page=PAGE, schemas=schemas)
            except FencedError as error:
                return Noop(str(error.fields.get("reason", "fenced")))
            except StoreUnavailableError:
                # The claim may have been made: only the same claimer can find out, so it asks until it is answered.
                if self._clock.wait(self._draining, _CLAIM_PAUSE):
                    return Noop("store unavailable")

    def _host(self, incarnation: Incarnation, claimed: Claimed, delivery: Delivery) -> Outcome:
        recovering, found = Interrupts(), list[Finding]()
        with self._lock:
            self._recovering[incarnation.fence] = (incarnation, recovering)
        try:
            with recovering.allowed():
                body = self._recover(incarnation, claimed, found)
        except EventIntegrityError as error:
            return self._park(incarnation, Parked("integrity", str(error)), found)
        except StepsUnsettledError:
            return self._park(incarnation, parked_instead(self._store.checkpoints, incarnation.agent_id), found)
        except NewerStateError as error:
            return self._leave_to_newer_code(incarnation, error, found)
        except BaseException as error:  # noqa: BLE001 - user code may raise anything; nothing of it may cost the slot
            return self._attempt_failed(incarnation, delivery, error, found)
        finally:
            with self._lock:
                self._recovering.pop(incarnation.fence, None)
        with self._lock:
            self._bodies[incarnation.fence] = body
        try:
            running = self._apply(incarnation, MarkRunning(fence=incarnation.fence, found=tuple(found)))
        except FencedError:
            return Noop("fenced")
        if running.ignored:
            incarnation.ask("stop")
        if running.committed is not None:
            incarnation.last_version = running.committed.version
        log.info(
            "agent %s: incarnation %s runs",
            incarnation.agent_id,
            incarnation.record.incarnation,
            extra=self._facts(incarnation),
        )
        end = Yielded() if running.ignored else self._lived(incarnation, body)
        return self._finish(incarnation, end)

    def _lived(self, incarnation: Incarnation, body: AsyncBody | SyncBody) -> End:
        try:
            return body.run()
        except BaseException as error:
            # A bug of ours: the record must not go on saying that the agent runs.
            log.exception("agent %s: hosting it failed", incarnation.agent_id, extra=self._facts(incarnation))
            return Crash(agent_failed(incarnation.agent_id, error))

    def _recover(self, incarnation: Incarnation, claimed: Claimed, found: list[Finding]) -> AsyncBody | SyncBody:
        patience = self._recoverer.patience(incarnation)
        patience(lambda: recover_executions(self._store.checkpoints, claimed.record))
        demand_settled(claimed.record)
        agent, agent_type = self._recoverer.recover(incarnation, claimed, found)
        if colour_of(agent, agent_type.name):
            loop, store = self._loop_and_store()
            return AsyncBody(
                incarnation,
                agent,
                agent_type,
                config=self._settings(),
                clock=self._clock,
                loop=loop,
                store=self._recoverer.saving_async(store),
                report_ill=self._report_ill,
                shared=self._shared,
            )
        return SyncBody(
            incarnation,
            agent,
            agent_type,
            config=self._settings(),
            clock=self._clock,
            store=self._recoverer.saving(self._store),
            report_ill=self._report_ill,
            shared=self._shared,
        )

    # -- shared by all ----------------------------------------------------------------------------------------------

    def _loop_and_store(self) -> tuple[LoopThread, AsyncIncarnationStore]:
        with self._lock:
            if self._loop is None:
                hung_after = self._settings().heartbeat_interval.total_seconds() * _HUNG_HEARTBEATS
                self._loop = self._new_loop(self._clock, hung_after=hung_after)
            if self._async_store is None:
                self._async_store = self._loop.submit(open_on_loop(self._open_async)).result()
            return self._loop, self._async_store

    def _on_beat(self) -> None:
        """After each renewal, on the keeper's thread: passes the word on, calls nothing of a user."""
        loop_age = self._loop.beat() if self._loop is not None else 0.0
        with self._lock:
            bodies = [body for body in self._bodies.values() if body.wants_pulse]
            over = [interrupts for one, interrupts in self._recovering.values() if one.fenced]
        for body in bodies:
            body.pulse(loop_age)
        self._compaction.look([one for one in self._hosted.all() if one.faults is None or not one.faults.is_cut_off])
        self._shared.places.keep(self._store)
        for interrupts in over:
            interrupts.send(FencedSignal)

    def _report_ill(self, incarnation: Incarnation, problem: str, cause: DeathCause) -> None:
        """The agent is not well, or hangs: asked to give up first, as its process lives."""
        if (faults := incarnation.faults) is not None and faults.is_cut_off:
            return
        report_ill(self._committer, incarnation, problem, cause, self._facts(incarnation))
