"""The desk that deaths and wishes are told to: tellers only enqueue, one thread commits."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from queue import SimpleQueue
from typing import Final, TypeVar

from ares_celery.clock import Clock, SystemClock
from ares_celery.errors import AgentNotFoundError, AresError, StoreUnavailableError
from ares_celery.ids import AgentId, Epoch
from ares_celery.model.command import Command, Die, OwnerExited, Stop
from ares_celery.model.restart import DeathCause, Suspicion, lost_together, suspicions
from ares_celery.runtime.commits import Committer
from ares_celery.runtime.process_identity import ProcessIdentity
from ares_celery.store.base import AgentStore

__all__ = ["DeathDesk"]

T = TypeVar("T")
log: Final = logging.getLogger(__name__)

#: Reports that may wait while the store is away. More are dropped and counted: leases show those deaths later.
_MOST_WAITING: Final = 100_000
#: How long one try to commit goes on while the store is away; between tries the desk looks whether it shall close.
_PATIENCE: Final = timedelta(seconds=1)
#: Pause between tries, in seconds.
_OUTAGE_PAUSE: Final = 0.2
#: How long `close` lets the desk finish what was told already.
_CLOSE_TIMEOUT: Final = timedelta(seconds=3)


@dataclass(frozen=True, slots=True)
class _Told:
    """One agent, and what to commit; with an epoch only while the agent is at that epoch."""

    agent_id: AgentId
    command: Command
    epoch: Epoch | None = None


@dataclass(frozen=True, slots=True)
class _Exit:
    """A process is gone, with all that it hosted."""

    identity: str
    tenants: int


class DeathDesk:
    """Takes reports of deaths from any context and commits them on a thread of its own, in order.

    Reporting never blocks and takes no lock, so that signal handlers, hooks and pool callbacks may do it. While the
    store is away the desk keeps trying; the same death told twice changes nothing, as `decide` ignores the second.

    Example:
        desk = DeathDesk()
        desk.report(agent_id, epoch, "signal 9 (SIGKILL)", DeathCause.LOST)   # kept until there is a store
        desk.start(store, committer)
    """

    def __init__(self, *, clock: Clock | None = None, most_waiting: int = _MOST_WAITING) -> None:
        self._clock = clock or SystemClock()
        # A SimpleQueue's put is reentrant, so a signal handler may interrupt another put; a Queue's would deadlock.
        self._told: SimpleQueue[_Told | _Exit | None] = SimpleQueue()
        self._most_waiting = most_waiting
        self._dropped = 0
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    # -- from any context --------------------------------------------------------------------

    def report(self, agent_id: AgentId, epoch: Epoch, reason: str, cause: DeathCause, *, proof: bool = True) -> None:
        """Tells that the incarnation of this epoch is dead; without proof it is first asked to give up."""
        self._put(_Told(agent_id, Die(reason, epoch=epoch, cause=cause, proof=proof)))

    def report_tenant_exit(self, agent_id: AgentId, identity: ProcessIdentity, reason: str) -> None:
        """Tells that a process which hosted this one agent, and nothing else, was seen to exit."""
        self._put(_Told(agent_id, OwnerExited(reason, identity=identity.encode(), cause=DeathCause.LOST)))

    def report_exit(self, identity: ProcessIdentity, *, tenants: int = 1) -> None:
        """Tells that a process was seen to exit: proof for every agent it hosted.

        Args:
            identity: The process.
            tenants: How many agents went down with it or with its worker, as far as the teller knows. With more than
                one it is nobody's fault, and nobody is charged.
        """
        self._put(_Exit(identity.encode(), tenants))

    def request_stop(self, agent_id: AgentId, epoch: Epoch, reason: str, actor: str) -> None:
        """Asks for a durable stop of the agent, unless its incarnation of this epoch is over already."""
        self._put(_Told(agent_id, Stop(reason, actor), epoch))

    def _put(self, item: _Told | _Exit) -> None:
        if self._told.qsize() >= self._most_waiting:
            self._dropped += 1
            return
        self._told.put(item)

    # -- life --------------------------------------------------------------------------------

    def start(self, store: AgentStore, committer: Committer) -> None:
        """Begins to commit what was told, also before; a second call changes nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(store, committer), name="ares-deaths", daemon=True)
            self._thread.start()

    def close(self, timeout: timedelta = _CLOSE_TIMEOUT) -> None:
        """Commits what was told, for at most ``timeout``, and ends the thread; leases show what is left."""
        self._told.put(None)
        if self._thread is None or self._thread is threading.current_thread():
            return
        self._thread.join(timeout.total_seconds())
        self._closing.set()
        if self._thread.is_alive():
            log.warning("%d reports of deaths were not committed before the end; leases show them", self._told.qsize())

    def _run(self, store: AgentStore, committer: Committer) -> None:
        while True:
            item = self._told.get()
            if item is None:
                return
            self._say_dropped()
            if isinstance(item, _Told):
                self._commit(store, committer, item)
                continue
            for told in self._tenants_of(store, item):
                self._commit(store, committer, told)

    def _say_dropped(self) -> None:
        if self._dropped:
            log.error("%d reports of deaths were dropped, as too many waited; leases show those deaths", self._dropped)
            self._dropped = 0

    def _tenants_of(self, store: AgentStore, gone: _Exit) -> Iterator[_Told]:
        agents = self._insist(lambda: store.hosted_by(gone.identity), f"agents of process {gone.identity}")
        if not agents:
            return
        tenants = max(gone.tenants, len(agents))
        cause = DeathCause.CO_TENANT if tenants > 1 else DeathCause.LOST
        log.warning("process %s exited and hosted %d agents (%d with its worker)", gone.identity, len(agents), tenants)
        suspected: Mapping[AgentId, Suspicion] = {}
        if 1 < tenants == len(agents):
            suspected = self._suspected(store, agents)
        for agent_id in agents:
            suspicion = suspected.get(agent_id, Suspicion.NONE)
            command = OwnerExited("process lost", identity=gone.identity, cause=cause, suspicion=suspicion)
            yield _Told(agent_id, command)

    def _suspected(self, store: AgentStore, agents: Sequence[AgentId]) -> Mapping[AgentId, Suspicion]:
        """Whom the loss of their process casts suspicion on; asked before any of them is known to be lost again."""
        reads = self._insist(lambda: store.read_many(agents), "agents of a lost process") or []
        known = {read.record.id: len(lost_together(read.record, read.now)) for read in reads if read.record}
        return suspicions(known) if len(known) == len(agents) else {}

    def _commit(self, store: AgentStore, committer: Committer, told: _Told) -> None:
        op = uuid.uuid4().hex

        def commit() -> str:
            if told.epoch is not None:
                record = store.read(told.agent_id).record
                if record is None or record.epoch != told.epoch:
                    return "the incarnation is over already"
            return committer.apply(told.agent_id, told.command, op=op, patience=_PATIENCE).ignored

        ignored = self._insist(commit, f"{told.command.operation} of agent {told.agent_id}")
        if ignored:
            log.debug(
                "agent %s: %s changes nothing: %s",
                told.agent_id,
                told.command.operation,
                ignored,
                extra={"agent_id": told.agent_id},
            )

    def _insist(self, call: Callable[[], T], what: str) -> T | None:
        """Makes the call again while the store is away; a refusal or a bug is logged, and the desk goes on."""
        while True:
            try:
                return call()
            except StoreUnavailableError as error:
                if self._clock.wait(self._closing, _OUTAGE_PAUSE):
                    log.warning("%s: not committed before the end: %s", what, error)
                    return None
            except AgentNotFoundError:
                return None
            except AresError as error:
                log.warning("%s is refused: %s", what, error)
                return None
            except Exception:
                log.exception("%s failed; the desk goes on", what)
                return None
