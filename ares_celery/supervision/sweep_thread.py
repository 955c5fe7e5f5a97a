"""The sweep thread of every worker: one is elected and sweeps, the others look whether it does."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from typing import Final

from ares_celery.clock import Clock, SystemClock
from ares_celery.config import ConfigSource, RuntimeConfig, config_source
from ares_celery.errors import StoreUnavailableError
from ares_celery.runtime.commits import Committer
from ares_celery.runtime.process_identity import ProcessIdentity
from ares_celery.store.base import Store
from ares_celery.supervision.clock_steps import ClockSteps
from ares_celery.supervision.contact import ContactWindow
from ares_celery.supervision.reconcile import Reconciler
from ares_celery.supervision.sweep import Sweeper

__all__ = ["SweepThread"]

log: Final = logging.getLogger(__name__)

#: Longest time between two looks of a worker that is not elected.
_LOOK_INTERVAL: Final = timedelta(seconds=1)
#: How long the elected sweeper keeps its place without a word; at least three sweeps.
_LEAST_ELECTION: Final = timedelta(milliseconds=750)
#: A sweep that is this many election times late is done by whoever notices.
_MOST_LATE: Final = 3
#: Pause after a failure, in seconds.
_OUTAGE_PAUSE: Final = 0.25
_FAILURE_PAUSE: Final = 1.0
#: Shortest sleep, in seconds: a deadline a microsecond away is no reason to turn in circles.
_LEAST_SLEEP: Final = 0.001
_CLOSE_TIMEOUT: Final = timedelta(seconds=3)


class SweepThread:
    """Sweeps when elected, and watches over the sweep when not; survives outages of the store.

    Args:
        store: The namespace.
        committer: Through which every decision goes.
        config: The namespace's settings.
        identity: This process; who is elected.
        clock: Monotonic time of this process.

    Example:
        thread = SweepThread(store, committer, config, ProcessIdentity.current())
        thread.start()
        thread.close()
    """

    def __init__(
        self,
        store: Store,
        committer: Committer,
        config: RuntimeConfig | ConfigSource,
        identity: ProcessIdentity,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self._identity = identity.encode()
        self._settings = config_source(config)
        self._followed = self._settings()
        self._contact = ContactWindow(self._followed.lease_ttl)
        self._clock_steps = ClockSteps(store, self._contact, self._clock)
        self._sweeper = Sweeper(store, committer, self._settings, contact=self._contact, clock=self._clock)
        self._reconciler = Reconciler(store, committer, clock=self._clock)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ares-sweep", daemon=True)
        self._is_elected = False
        self._is_away = False

    @property
    def is_elected(self) -> bool:
        """This process swept at its last turn."""
        return self._is_elected

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def close(self, timeout: timedelta = _CLOSE_TIMEOUT) -> None:
        """Ends the thread; another worker is elected when this one's time runs out."""
        self._stopping.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout.total_seconds())
            if self._thread.is_alive():
                log.warning("the sweep still waits for the store %s after close; its thread ends after it", timeout)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._clock.wait(self._stopping, self.turn())

    def turn(self) -> float:
        """Sweeps or looks once; returns how many seconds to wait for the next turn. Never raises an error."""
        try:
            pause = self._turn()
        except StoreUnavailableError as error:
            self._contact.reset()
            if not self._is_away:
                log.warning("sweeping waits until the store is back: %s", error)
            self._is_away = True
            return _OUTAGE_PAUSE
        except Exception:
            self._contact.reset()
            log.exception("a sweep failed; the next follows in %s s", _FAILURE_PAUSE)
            return _FAILURE_PAUSE
        if self._is_away:
            log.warning("sweeping goes on; leases are judged after unbroken contact")
        self._is_away = False
        return pause

    @property
    def _interval(self) -> timedelta:
        return self._followed.sweep_interval

    @property
    def _election(self) -> timedelta:
        return max(3 * self._interval, _LEAST_ELECTION)

    @property
    def _look_interval(self) -> timedelta:
        return min(_LOOK_INTERVAL, self._contact.look_interval)

    def _follow_settings(self) -> None:
        """Takes over settings that were changed."""
        config = self._settings()
        if config is not self._followed:
            self._followed = config
            self._contact.resize(config.lease_ttl)

    def _turn(self) -> float:
        self._follow_settings()
        # First of all, as after a step of the clock nothing is due that seems to be.
        self._clock_steps.look()
        elected = self._store.elect(self._identity, ttl_ms=self._election // timedelta(milliseconds=1))
        if elected != self._is_elected:
            log.info("this worker %s", "sweeps from now on" if elected else "no longer sweeps, another does")
        self._is_elected = elected
        if elected or self._is_late():
            return self._sweep()
        return self._look_interval.total_seconds()

    def _is_late(self) -> bool:
        """The elected sweeper keeps its place and does not sweep."""
        age = timedelta(milliseconds=self._store.sweep_age_ms())
        if age <= _MOST_LATE * self._election:
            return False
        log.warning("the last sweep is %s old although a sweeper is elected; this worker sweeps once", age)
        return True

    def _sweep(self) -> float:
        report = self._sweeper.sweep_once(judge_leases=True)
        if self._contact.has_stepped:
            return 0.0
        self._reconciler.step()
        self._store.report_sweep(self._identity)
        if report.more or self._reconciler.is_busy:
            return 0.0
        until_next = self._interval if report.next_in is None else min(self._interval, report.next_in)
        return max(until_next.total_seconds(), _LEAST_SLEEP)
