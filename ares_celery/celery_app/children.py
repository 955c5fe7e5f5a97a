"""What the main process of a prefork worker knows of its children: who hosts which agent, who exited, who is stuck."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Final

from ares_celery.clock import Clock, SystemClock
from ares_celery.config import ConfigSource, RuntimeConfig, config_source
from ares_celery.ids import AgentId, Epoch
from ares_celery.runtime.exit_watcher import ExitWatcher, kill
from ares_celery.runtime.process_identity import ProcessIdentity
from ares_celery.store.base import AgentRead, AgentStore
from ares_celery.supervision.deaths import DeathDesk

__all__ = ["ChildTable", "Reaper", "Tenancy"]

log: Final = logging.getLogger(__name__)

#: Seconds that an incarnation which ended in order may take to end what it started.
_CLEANING_UP: Final = 5.0


@dataclass(frozen=True, slots=True)
class Tenancy:
    """One agent's message in one pool child."""

    agent_id: AgentId
    epoch: Epoch
    task_id: str
    identity: ProcessIdentity


class ChildTable:
    """Watches the pool children that have accepted an agent's message, and tells the desk when one exits.

    Celery's own notice of a lost child takes up to 5 s; a pidfd takes milliseconds. The file is opened at each
    acceptance, so replaced children are covered. All methods may be called from any thread.

    Args:
        desk: Who is told.
        is_running: Tells by its task id whether a message is still with its child; Celery tells nobody of a success.
        kill_process: Injected in tests.
    """

    def __init__(
        self,
        desk: DeathDesk,
        *,
        is_running: Callable[[str], bool],
        kill_process: Callable[[ProcessIdentity], bool] = kill,
    ) -> None:
        self._desk = desk
        self._is_running = is_running
        self._kill = kill_process
        self._lock = Lock()
        self._tenancies: dict[str, Tenancy] = {}
        # Seen to exit; Celery's own notice comes later and asks what was known.
        self._gone: set[ProcessIdentity] = set()
        self._watcher = ExitWatcher(self.exited)

    def start(self) -> None:
        """Begins to watch; what was accepted before is reported too."""
        self._watcher.start()

    def close(self) -> None:
        """Ends the watcher."""
        self._watcher.close()

    def accepted(self, agent_id: AgentId, epoch: Epoch, task_id: str, pid: int) -> None:
        """A pool child has taken the message; a message that this process itself runs (threads) is not noted."""
        if pid == os.getpid():
            return
        identity = ProcessIdentity.of_pid(pid)
        if identity is None:
            # Gone already, or /proc hides it: Celery's own notice and the lease are left.
            return
        with self._lock:
            # Before watching, as an exit may be reported at once.
            self._tenancies[task_id] = Tenancy(agent_id, epoch, task_id, identity)
        self._watcher.watch(identity)

    def ended(self, task_id: str) -> None:
        """The message was dealt with."""
        with self._lock:
            tenancy = self._tenancies.pop(task_id, None)
            if tenancy is None:
                return
            shared = any(other.identity == tenancy.identity for other in self._tenancies.values())
            if not shared:
                self._gone.discard(tenancy.identity)
        if not shared:
            self._watcher.forget(tenancy.identity)

    def find(self, task_id: str) -> Tenancy | None:
        """What is known of a message that a child runs, or ran until it exited."""
        with self._lock:
            return self._tenancies.get(task_id)

    def hosting(self) -> list[Tenancy]:
        """What the children run now."""
        with self._lock:
            tenancies = [one for one in self._tenancies.values() if one.identity not in self._gone]
        over = [tenancy for tenancy in tenancies if not self._is_running(tenancy.task_id)]
        for tenancy in over:
            self.ended(tenancy.task_id)
        return [tenancy for tenancy in tenancies if tenancy not in over]

    def processes(self) -> Collection[ProcessIdentity]:
        """The children that host agents now."""
        return {tenancy.identity for tenancy in self.hosting()}

    def exited(self, identity: ProcessIdentity) -> None:
        """Tells the desk what a child hosted; called by the watcher."""
        with self._lock:
            lost = [tenancy for tenancy in self._tenancies.values() if tenancy.identity == identity]
            if lost:
                self._gone.add(identity)
        for tenancy in lost:
            self._desk.report_tenant_exit(tenancy.agent_id, identity, "process lost")
            log.warning(
                "agent %s: pool process %d that hosted it exited",
                tenancy.agent_id,
                identity.pid,
                extra={"agent_id": tenancy.agent_id, "epoch": tenancy.epoch, "task_id": tenancy.task_id},
            )
        _end_group(identity.pid)

    def kill(self, tenancy: Tenancy) -> bool:
        """Ends the child that runs this message, and nothing else; False when it runs others or is gone."""
        mine = [other for other in self.hosting() if other.identity == tenancy.identity]
        return mine == [tenancy] and self._kill(tenancy.identity)


def _end_group(pid: int) -> None:
    """Ends what an agent's process left behind; its children lead a process group of their own (see signals)."""
    if pid == os.getpgrp():
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


class Reaper:
    """Kills pool children whose incarnation is over and that go on nevertheless, so that a stuck agent costs no slot.

    One that was fenced by force has a heartbeat to notice it; one that ended in order some time more to clean up.

    Args:
        store: The namespace.
        children: What the children run.
        config: heartbeat_interval: within which a healthy incarnation notices that it was fenced.
        clock: Monotonic time of this process.
    """

    def __init__(
        self,
        store: AgentStore,
        children: ChildTable,
        config: RuntimeConfig | ConfigSource,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._children = children
        self._config = config_source(config)
        self._clock = clock or SystemClock()
        self._over_since: dict[Tenancy, float] = {}

    def look(self) -> list[Tenancy]:
        """Looks once, with one round trip; returns what was killed.

        Raises:
            StoreUnavailableError: The store did not answer; nobody is killed on hearsay.
        """
        hosting = self._children.hosting()
        if not hosting:
            self._over_since.clear()
            return []
        reads = self._store.read_many([tenancy.agent_id for tenancy in hosting])
        now = self._clock.monotonic()
        over_since: dict[Tenancy, float] = {}
        killed: list[Tenancy] = []
        for tenancy, read in zip(hosting, reads, strict=True):
            if not _is_over(tenancy, read):
                continue
            over_since[tenancy] = self._over_since.get(tenancy, now)
            grace = self._config().heartbeat_interval.total_seconds() + (
                0.0 if _was_fenced(tenancy, read) else _CLEANING_UP
            )
            if now - over_since[tenancy] >= grace and self._end(tenancy):
                killed.append(tenancy)
        self._over_since = over_since
        return killed

    def _end(self, tenancy: Tenancy) -> bool:
        killed = self._children.kill(tenancy)
        if killed:
            log.warning(
                "agent %s: process %d of its incarnation %d was over and did not end; killed",
                tenancy.agent_id,
                tenancy.identity.pid,
                tenancy.epoch,
                extra={"agent_id": tenancy.agent_id, "epoch": tenancy.epoch, "task_id": tenancy.task_id},
            )
        return killed


def _is_over(tenancy: Tenancy, read: AgentRead) -> bool:
    """The store says that this child's incarnation is over; one that waits to be claimed is not."""
    record = read.record
    if read.problem:
        # Whether it is over cannot be read: nobody is killed on that.
        return False
    if record is None or record.epoch != tenancy.epoch:
        return True
    return record.owner is not None and record.owner.identity != tenancy.identity.encode()


def _was_fenced(tenancy: Tenancy, read: AgentRead) -> bool:
    """It was ended by force: the store still waits for the proof that its process is gone."""
    record = read.record
    return record is not None and record.owner is not None and record.owner.identity == tenancy.identity.encode()
