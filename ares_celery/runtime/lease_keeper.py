"""The lease keeper: one thread a process renews all its leases with one pipelined call, and learns what was asked."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ares_celery.clock import Clock
from ares_celery.config import ConfigSource, RuntimeConfig, config_source
from ares_celery.errors import AresError, StoreUnavailableError
from ares_celery.ids import AgentId, Instant
from ares_celery.runtime.faults import FaultWatch
from ares_celery.runtime.incarnation import HostedSet, Incarnation
from ares_celery.store.base import AgentStore

__all__ = ["LeaseKeeper"]

log = logging.getLogger(__name__)
#: Pause between tries while the store does not answer: short, as every lease is running out.
_OUTAGE_PAUSE = 0.25

#: Seconds that the store's clock and this process's may go apart between two renewals.
_CLOCK_STEP = 0.5


class LeaseKeeper:
    """Renews leases; never calls user code, so no agent can keep it from renewing the others.

    While the store does not answer for a whole lease, incarnations are suspended: their context calls wait. They end
    only when a renewal says that their fence is gone.
    """

    def __init__(
        self,
        store: AgentStore,
        hosted: HostedSet,
        config: RuntimeConfig | ConfigSource,
        clock: Clock,
        *,
        on_beat: Callable[[], None] | None = None,
        watch: FaultWatch | None = None,
    ) -> None:
        """Prepares the thread; ``start`` runs it.

        Args:
            store: Where the leases are.
            hosted: Whose leases to renew.
            config: heartbeat_interval and lease_ttl.
            clock: For waits and the age of the last renewal.
            on_beat: Called after each renewal, on the keeper's thread; must return at once.
            watch: Brings faults in; None: there are none.
        """
        self._watch = watch
        self._store = store
        self._hosted = hosted
        self._clock = clock
        self._config = config_source(config)
        self._on_beat = on_beat
        self._kicked: set[AgentId] = set()
        self._lock = threading.Lock()
        self._bell = threading.Event()
        self._closed = False
        self._renewed_at = clock.monotonic()
        self._suspended = False
        self._offset: float | None = None
        self._thread = threading.Thread(target=self._run, name="ares-lease-keeper", daemon=True)

    @property
    def _interval(self) -> float:
        return self._config().heartbeat_interval.total_seconds()

    def start(self) -> None:
        """Begins to renew."""
        self._thread.start()

    def kick(self, agent_id: AgentId) -> None:
        """Looks at one agent now: something was asked of it. Returns at once."""
        with self._lock:
            self._kicked.add(agent_id)
        self._bell.set()

    @property
    def age(self) -> float:
        """Seconds since the last successful renewal."""
        return self._clock.monotonic() - self._renewed_at

    def close(self) -> None:
        """Ends the thread; leases run out by themselves."""
        self._closed = True
        self._bell.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    @property
    def offset(self) -> float | None:
        """Seconds that the store's clock was ahead of this process's monotonic one at the last renewal."""
        return self._offset

    def look(self) -> None:
        """Renews all leases now, in the calling thread, and learns what was asked."""
        self._renew(self._hosted.all())

    def _run(self) -> None:
        due = self._clock.monotonic() + self._interval
        while True:
            self._clock.wait(self._bell, due - self._clock.monotonic())
            self._bell.clear()
            if self._closed:
                return
            full = self._clock.monotonic() >= due
            ok = self._renew(self._hosted.all() if full else self._taken())
            if full or not ok:
                due = self._clock.monotonic() + (self._interval if ok else _OUTAGE_PAUSE)
            if full and ok:
                self._beat()

    def _beat(self) -> None:
        if self._on_beat is None:
            return
        try:
            self._on_beat()
        except Exception:
            log.exception("what follows a renewal failed; the lease keeper goes on")

    def _taken(self) -> list[Incarnation]:
        with self._lock:
            kicked, self._kicked = self._kicked, set()
        return self._hosted.of(kicked)

    def _renew(self, incarnations: list[Incarnation]) -> bool:
        disturbed = [one for one in incarnations if one.faults is not None]
        if disturbed:
            incarnations = self._reachable(incarnations, disturbed)
        if not incarnations:
            self._contact()
            return True
        try:
            now = self._clock.monotonic()
            renewal = self._store.renew([incarnation.lease(now) for incarnation in incarnations])
        except StoreUnavailableError as error:
            self._outage(error)
            return False
        except AresError:
            log.exception("leases could not be renewed; tried again")
            self._outage(None)
            return False
        except Exception:
            # A dead keeper would look like a dead process: whatever went wrong, go on renewing.
            log.exception("the lease keeper met an unexpected error; it goes on")
            self._outage(None)
            return False
        self._contact()
        self._compare(renewal.now)
        for change in renewal.changes:
            found = self._hosted.by_fence(change.fence)
            if found is not None:
                if change.fenced:
                    _say_over(found)
                # First, so that a message of which the same renewal tells meets the faults that came before it.
                if self._watch is not None and (change.faults or found.faults is not None):
                    self._watch.look(found, self._offset or 0.0)
                found.take(change)
        return True

    def _reachable(self, incarnations: list[Incarnation], disturbed: list[Incarnation]) -> list[Incarnation]:
        """Looks what still disturbs them; whoever is cut off from the store is not renewed, and hears nothing of it."""
        if self._watch is not None and self._offset is not None:
            for one in disturbed:
                self._watch.look(one, self._offset)
        return [one for one in incarnations if one.faults is None or not one.faults.is_cut_off]

    def _compare(self, now: Instant) -> None:
        """Tells those who wait for a moment when the clock of the store has stepped."""
        offset = now / 1_000_000 - self._clock.monotonic()
        # The first time nobody knows: who waits has looked before, and the clock may have stepped in between.
        stepped = self._offset is None or abs(offset - self._offset) > _CLOCK_STEP
        self._offset = offset
        if stepped:
            for incarnation in self._hosted.all():
                incarnation.note_clock_step()

    def _contact(self) -> None:
        self._renewed_at = self._clock.monotonic()
        if self._suspended:
            self._suspended = False
            log.warning("the store answers again; %d incarnations go on", len(self._hosted))
            for incarnation in self._hosted.all():
                incarnation.suspend(suspended=False)

    def _outage(self, error: AresError | None) -> None:
        if self._suspended or self.age < self._config().lease_ttl.total_seconds():
            return
        self._suspended = True
        log.error("no lease could be renewed for %.1f s (%s): incarnations wait", self.age, error)
        for incarnation in self._hosted.all():
            incarnation.suspend(suspended=True)


def _say_over(found: Incarnation) -> None:
    """Says that a fence is gone: a warning only when nobody here asked for the end of the incarnation."""
    is_expected = found.released or found.completion is not None or found.stopping_reason is not None
    log.log(
        logging.DEBUG if is_expected else logging.WARNING,
        "agent %s: incarnation %s is over%s",
        found.agent_id,
        found.record.incarnation,
        " as it was asked to be" if is_expected else "; it must end",
        extra={"agent_id": found.agent_id, "epoch": found.epoch, "task_id": found.task_id},
    )
