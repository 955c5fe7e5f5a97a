"""Workers of one machine watch each other's processes: an exit that was seen is proof, milliseconds after the death."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final

from ares_celery.background import work_in_progress
from ares_celery.clock import Clock
from ares_celery.runtime.exit_watcher import ExitWatcher
from ares_celery.runtime.process_identity import ProcessIdentity
from ares_celery.store.base import Store
from ares_celery.supervision.deaths import DeathDesk
from ares_celery.supervision.repeating import Repeating

__all__ = ["HostWatch", "has_ended"]

log: Final = logging.getLogger(__name__)

#: How often hosts are reported and read.
_INTERVAL: Final = timedelta(seconds=1)
#: From the exit of a pool child until it is told: time for a killed main process to be gone for good.
_SIBLING_GRACE: Final = timedelta(milliseconds=50)
_NOBODY: Final[frozenset[ProcessIdentity]] = frozenset()


def _no_children() -> Collection[ProcessIdentity]:
    return _NOBODY


class HostWatch:
    """Watches every process of this kernel that hosts agents, and tells the desk which of them exited.

    It also tells the others about this process and its pool children. It remembers how many agents each process hosted,
    so that of several watchers none takes the last tenant of a lost host for its only one.

    Args:
        store: The namespace.
        desk: Who is told.
        identity: This process.
        worker: The node name of this process's worker.
        children: The pool children that host agents now; they are watched by their parent itself.
        clock: Monotonic time of this process.
    """

    def __init__(
        self,
        store: Store,
        desk: DeathDesk,
        identity: ProcessIdentity,
        worker: str,
        *,
        children: Callable[[], Collection[ProcessIdentity]] = _no_children,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._desk = desk
        self._identity = identity
        self._worker = worker
        self._children = children
        self._watcher = ExitWatcher(self.exited)
        self._workers: dict[ProcessIdentity, str] = {}
        self._tenants: dict[ProcessIdentity, int] = {}
        # Seen to exit, and still listed for a while.
        self._gone: set[ProcessIdentity] = set()
        self._had_work = False
        self._looks = Repeating("host watch", self.look, _INTERVAL, clock=clock)

    def start(self) -> None:
        """Begins."""
        self._watcher.start()
        self._looks.start()

    def close(self) -> None:
        """Ends both threads; the others see this process exit."""
        self._looks.close()
        self._watcher.close()

    def look(self) -> None:
        """Reports this process and its children, and watches every other one of this kernel.

        Raises:
            StoreUnavailableError: The store did not answer.
        """
        own = {self._identity, *self._children()}
        for identity in own:
            self._store.report_hosts(identity.encode(), self._worker)
        self._report_work()
        peers = self._peers(own)
        for identity, worker in peers.items():
            if identity in self._gone:
                continue
            # Noted first, as a process that has exited already is reported while it is being watched.
            self._workers[identity] = worker
            self._tenants[identity] = len(self._store.hosted_by(identity.encode()))
            self._watcher.watch(identity)
        self._forget_all_but(peers)

    def _report_work(self) -> None:
        """Tells of this process's detached work while there is any, and once when there is none any more."""
        work = work_in_progress()
        if work or self._had_work:
            self._store.report_background(self._identity.encode(), work)
        self._had_work = bool(work)

    def _peers(self, own: Collection[ProcessIdentity]) -> Mapping[ProcessIdentity, str]:
        peers: dict[ProcessIdentity, str] = {}
        for text, worker in self._store.hosts().items():
            try:
                identity = ProcessIdentity.decode(text)
            except ValueError as error:
                log.warning("worker %s reported a host that cannot be read: %s", worker, error)
                continue
            if identity not in own and identity.same_kernel(self._identity):
                peers[identity] = worker
        return peers

    def _forget_all_but(self, peers: Mapping[ProcessIdentity, str]) -> None:
        self._gone.intersection_update(peers)
        watched = self._watcher.watched()
        for identity in [known for known in self._workers if known not in peers and known not in watched]:
            self._workers.pop(identity, None)
            self._tenants.pop(identity, None)

    def exited(self, identity: ProcessIdentity) -> None:
        """Tells the desk; called by the watcher.

        A pool child is told of a moment later. When its whole worker was killed, the main process may still be on its
        way out: only then is it known how many tenants were lost, and until then Redis would hand the messages that
        bring them back to a connection of the dead. A child that was killed alone is told of by its own main process.
        """
        self._gone.add(identity)
        if not self._is_child(identity):
            self._tell(identity)
            return
        timer = threading.Timer(_SIBLING_GRACE.total_seconds(), self._tell, (identity,))
        timer.daemon = True
        timer.start()

    def _tell(self, identity: ProcessIdentity) -> None:
        self._desk.report_exit(identity, tenants=self._tenants_lost_with(identity))

    def _is_child(self, identity: ProcessIdentity) -> bool:
        siblings = self._siblings(identity)
        return len(siblings) > 1 and _oldest(siblings) != identity

    def _siblings(self, identity: ProcessIdentity) -> list[ProcessIdentity]:
        """The processes of its worker, itself included, as far as they are known."""
        worker = self._workers.get(identity, "")
        return [other for other, name in list(self._workers.items()) if worker and name == worker]

    def _tenants_lost_with(self, identity: ProcessIdentity) -> int:
        """How many agents went down with the process: those of its whole worker, if that has ended too.

        A pool child that is killed alone leaves its worker running; when the worker is killed, its children follow, and
        at that moment at least their parent has ended already.
        """
        # Copied in one step, as the looking thread changes it.
        tenants = dict(self._tenants)
        siblings = self._siblings(identity)
        alone = max(1, tenants.get(identity, 1))
        if len(siblings) <= 1 or self._parent_lives(identity, siblings):
            return alone
        return max(alone, sum(tenants.get(sibling, 0) for sibling in siblings))

    def _parent_lives(self, identity: ProcessIdentity, siblings: Collection[ProcessIdentity]) -> bool:
        """True while the worker's main process runs: the oldest of its processes."""
        main = _oldest(siblings)
        return main != identity and not has_ended(main)


def _oldest(siblings: Collection[ProcessIdentity]) -> ProcessIdentity:
    """The main process of a worker: it was there before its children."""
    return min(siblings, key=lambda sibling: (sibling.start_ticks, sibling.pid))


def has_ended(identity: ProcessIdentity) -> bool:
    """Tell whether a process of this kernel is over, or a zombie, which is as good."""
    now = ProcessIdentity.of_pid(identity.pid)
    if now != identity:
        return now is not None or not Path(f"/proc/{identity.pid}").exists()
    try:
        stat = Path(f"/proc/{identity.pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[:1] in (["Z"], ["X"])
