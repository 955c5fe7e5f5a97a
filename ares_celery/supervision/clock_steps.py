"""Following the steps of Redis' clock: what must happen by a time happens after the same wait as without the step."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Final

from ares_celery.clock import Clock
from ares_celery.ids import Instant
from ares_celery.store.base import ClockStand, NamespaceAdmin, Rebased
from ares_celery.supervision.contact import ContactWindow

__all__ = ["ClockSteps"]

log: Final = logging.getLogger(__name__)


class ClockSteps:
    """Notices steps of the server's clock, and has the deadlines moved once for each, whoever else noticed.

    A step is asked for under the generation that follows the one known *before* the contact that preceded the step: so
    whoever moved the deadlines for this very step did it under the same number, and asking again changes nothing.

    Args:
        store: The namespace.
        contact: Shared with the sweep, as it sees steps too.
        clock: Monotonic time of this process.
    """

    def __init__(self, store: NamespaceAdmin, contact: ContactWindow, clock: Clock) -> None:
        self._store = store
        self._contact = contact
        self._clock = clock
        self._known = ClockStand(0, 0, Instant(0))
        self._wanted: ClockStand | None = None
        self._followed = -1

    def look(self) -> None:
        """Speaks with the store once, notes the contact, and follows a step that any contact has shown.

        Raises:
            StoreUnavailableError: The store did not answer; a step that was noticed is not forgotten.
        """
        self._follow()
        sent = self._clock.monotonic()
        stand = self._store.clock()
        self._contact.sample(stand.now, self._clock.monotonic(), sent=sent)
        if self._contact.has_stepped:
            known, step = self._known, self._contact.take_step()
            self._wanted = ClockStand(known.generation + 1, known.offset + step, stand.now)
            self._follow()
            return
        self._known = stand
        if stand.generation != self._followed:
            # Somebody else noticed, and may have died before every shard had followed.
            self._store.rebase(stand)
            self._followed = stand.generation

    def _follow(self) -> None:
        wanted = self._wanted
        if wanted is None:
            return
        step = timedelta(microseconds=wanted.offset - self._known.offset)
        outcome = self._store.rebase(wanted)
        self._wanted = None
        if outcome is Rebased.UNPROVEN:
            log.warning(
                "this process stood still for %s while the sweep went on elsewhere; no deadline was moved", step
            )
            return
        moved = "all deadlines were moved by it" if outcome is Rebased.NOW else "another worker moved all deadlines"
        log.warning("the clock of Redis stepped by %s s; %s", f"{step.total_seconds():+.3f}", moved)
        self._known = wanted
