"""Workers of one machine watch each other's processes: an exit that was seen is proof, milliseconds after the death."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from itertools import takewhile
from pathlib import Path
from typing import Final

from ares_celery.background import work_in_progress
from ares_celery.clock import Clock
from ares_celery.runtime.exit_watcher import ExitWatcher
from ares_celery.runtime.process_identity import ProcessIdentity
from ares_celery.store.base import Store
from ares_celery.supervision.deaths import DeathDesk
from ares_celery.supervision.repeating import Repeating

__all__ = ["HostWatch", "has_ended", "parent_of"]

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
        # Pid of the parent, as it was while the process lived; None for one that was over when it was first looked at.
        self._parents: dict[ProcessIdentity, int | None] = {}
        # How many agents went down with it: said once for all that one exit took along, and never counted again.
        self._lost_with: dict[ProcessIdentity, int] = {}
        # Guards the judging of an exit: the watcher's thread and the timers of children tell.
        self._judging = threading.Lock()
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
            self._note(identity, worker)
            self._watcher.watch(identity)
        self._forget_all_but(peers)

    def _note(self, identity: ProcessIdentity, worker: str) -> None:
        """Remembers whose process it is and how many agents it hosts."""
        hosted = len(self._store.hosted_by(identity.encode()))
        if identity not in self._parents:
            self._parents[identity] = parent_of(identity)
        elif has_ended(identity):
            # Another watcher may have told of some of its agents already: what was there before its death counts.
            return
        self._workers[identity] = worker
        self._tenants[identity] = hosted

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
        for identity in [known for known in self._parents if known not in peers and known not in watched]:
            for known in (self._workers, self._tenants, self._parents, self._lost_with):
                known.pop(identity, None)

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
        return self._main_of(identity, self._namesakes(identity)) != identity

    def _namesakes(self, identity: ProcessIdentity) -> list[ProcessIdentity]:
        """The processes known under the name of its worker, itself included, oldest first.

        Not all are of the same worker: one that was started again has the name of its dead predecessor.
        """
        worker = self._workers.get(identity, "")
        # Copied in one step, as the looking thread changes it.
        found = {other for other, name in list(self._workers.items()) if worker and name == worker}
        return sorted(found | {identity}, key=lambda other: (other.start_ticks, other.pid))

    def _main_of(self, identity: ProcessIdentity, namesakes: Sequence[ProcessIdentity]) -> ProcessIdentity:
        """The main process of the worker that the process belongs to.

        Args:
            identity: The process.
            namesakes: The processes of that name, oldest first.
        """
        older = [*takewhile(lambda other: other != identity, namesakes)]
        parent = self._parents.get(identity)
        if parent is not None:
            return next((other for other in reversed(older) if other.pid == parent), identity)
        # Nobody saw it alive, so its parent is not known: the last main process that was started before it.
        seen = {other.pid for other in namesakes}
        mains = [other for other in older if self._parents.get(other) not in {None, *seen}]
        return mains[-1] if mains else namesakes[0]

    def _tenants_lost_with(self, identity: ProcessIdentity) -> int:
        """How many agents went down with the process: those of its whole worker, if that has ended too.

        A pool child that is killed alone leaves its worker running; when the worker is killed, its children follow, and
        at that moment at least their parent has ended already. What an earlier exit took along does not count again:
        its agents were lost then, and run elsewhere by now.
        """
        with self._judging:
            if identity not in self._lost_with:
                lost = self._lost_at_once(identity)
                total = max(1, sum(self._tenants.get(one, 0) for one in lost))
                self._lost_with.update(dict.fromkeys(lost, total))
            return self._lost_with[identity]

    def _lost_at_once(self, identity: ProcessIdentity) -> list[ProcessIdentity]:
        """The processes that this exit takes along, itself included, without those that had gone before."""
        namesakes = self._namesakes(identity)
        main = self._main_of(identity, namesakes)
        if main != identity and not has_ended(main):
            return [identity]
        family = [other for other in namesakes if self._main_of(other, namesakes) == main]
        return [other for other in family if other not in self._lost_with]


def parent_of(identity: ProcessIdentity) -> int | None:
    """The pid of the process's parent; None when the process is over, or cannot be looked at."""
    if has_ended(identity):
        return None
    try:
        stat = Path(f"/proc/{identity.pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[1])


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
