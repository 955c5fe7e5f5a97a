"""When a sweeper may believe that a lease ran out: an outage of the store, or of the sweeper itself, is no death."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from ares_celery.clock import micros
from ares_celery.ids import Instant

__all__ = ["MOST_DRIFT", "ContactWindow"]

#: How far server time and the own monotonic clock may part within one window: more is a step of a clock, or a freeze.
MOST_DRIFT: Final = timedelta(seconds=1)
#: A pause between two contacts that is never taken for an outage, however short the lease.
_LEAST_GAP: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class _Contact:
    server: Instant
    monotonic: float


class ContactWindow:
    """Remembers unbroken contact with the store; pure, time comes in with each contact.

    An owner that could not reach the store either was not able to renew, so leases are only judged after a whole
    ``lease_ttl`` in which this process spoke with the store without a gap and both clocks advanced alike: by then every
    living owner has had the time to renew.

    Args:
        lease_ttl: How long the window has to be.

    Example:
        >>> window = ContactWindow(timedelta(seconds=2))
        >>> for second in (0, 1, 2):
        ...     window.sample(Instant(second * 1_000_000), 50.0 + second)
        >>> window.may_judge
        True
        >>> window.reset()
        >>> window.may_judge
        False
    """

    def __init__(self, lease_ttl: timedelta) -> None:
        self._length = lease_ttl.total_seconds()
        self._most_gap = max(_LEAST_GAP, lease_ttl / 4).total_seconds()
        self._contacts: deque[_Contact] = deque()

    @property
    def look_interval(self) -> timedelta:
        """How often somebody who keeps this window has to speak with the store, with room for slow answers."""
        return timedelta(seconds=self._most_gap / 2)

    @property
    def may_judge(self) -> bool:
        """Contact was unbroken for a whole lease."""
        if not self._contacts:
            return False
        return self._contacts[-1].monotonic - self._contacts[0].monotonic >= self._length

    def sample(self, server: Instant, monotonic: float) -> None:
        """Notes a contact; after a gap or a step of a clock the window begins anew with it.

        Args:
            server: Redis TIME from the answer.
            monotonic: This process's clock when the answer was there, in seconds.
        """
        contact = _Contact(server, monotonic)
        if self._contacts and self._is_broken_by(contact):
            self._contacts.clear()
        self._contacts.append(contact)
        # The oldest contact stays the one that makes the window long enough: drift over days is no step.
        while len(self._contacts) > 2 and monotonic - self._contacts[1].monotonic >= self._length:  # noqa: PLR2004
            self._contacts.popleft()

    def reset(self) -> None:
        """Notes that a call failed: nothing is known until contact has been unbroken again."""
        self._contacts.clear()

    def _is_broken_by(self, contact: _Contact) -> bool:
        first, last = self._contacts[0], self._contacts[-1]
        if contact.monotonic - last.monotonic > self._most_gap:
            return True
        return any(self._drift(earlier, contact) > micros(MOST_DRIFT) for earlier in (first, last))

    @staticmethod
    def _drift(earlier: _Contact, later: _Contact) -> float:
        own = (later.monotonic - earlier.monotonic) * 1_000_000
        return abs(later.server - earlier.server - own)
