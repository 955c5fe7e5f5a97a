"""When a sweeper may believe that a lease ran out, and when the store's clock stepped. An outage is no death."""

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
#: By how much two clocks in order part, at most, while one of them is slewed: a long outage shows that, and no step.
_SLEW: Final = 0.001


@dataclass(frozen=True, slots=True)
class _Contact:
    server: Instant
    monotonic: float
    #: When the question was sent: the server's answer is from between then and ``monotonic``.
    sent: float


class ContactWindow:
    """Remembers unbroken contact with the store; pure, time comes in with each contact.

    An owner that could not reach the store either was not able to renew, so leases are only judged after a whole
    ``lease_ttl`` in which this process spoke with the store without a gap and both clocks advanced alike: by then every
    living owner has had the time to renew.

    Args:
        lease_ttl: How long the window has to be.

    Example:
        >>> window = ContactWindow(timedelta(seconds=2))
        >>> [window.sample(Instant(second * 1_000_000), 50.0 + second) for second in (0, 1, 2)]
        [0, 0, 0]
        >>> window.may_judge
        True
        >>> window.reset()
        >>> window.may_judge
        False
        >>> window.sample(Instant(603_000_000), 53.0), window.take_step()
        (600000000, 600000000)
    """

    def __init__(self, lease_ttl: timedelta) -> None:
        self.resize(lease_ttl)
        self._contacts: deque[_Contact] = deque()
        self._since = 0.0
        self._last: _Contact | None = None
        self._step = 0

    def resize(self, lease_ttl: timedelta) -> None:
        """Makes the window as long as a lease is now; the contact so far counts."""
        self._length = lease_ttl.total_seconds()
        self._most_gap = max(_LEAST_GAP, lease_ttl / 4).total_seconds()

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

    @property
    def unbroken(self) -> timedelta:
        """For how long this process has spoken with the store without a gap; longer than the window that is kept."""
        return timedelta(seconds=self._contacts[-1].monotonic - self._since if self._contacts else 0.0)

    def sample(self, server: Instant, monotonic: float, *, sent: float | None = None) -> int:
        """Notes a contact; after a gap or a step of a clock the window begins anew with it.

        Args:
            server: Redis TIME from the answer.
            monotonic: This process's clock when the answer was there, in seconds.
            sent: The same clock when the question was sent, so that a slow answer is no step; default: a moment before.

        Returns:
            By how many microseconds the server's clock stepped since the contact before, also across a gap; negative
            when it went back, 0 when it did not step. A machine that was suspended looks like a step forward.
        """
        contact = _Contact(server, monotonic, monotonic if sent is None else sent)
        step = 0 if self._last is None else _step(self._last, contact)
        self._last = contact
        self._step += step
        if self._contacts and self._is_broken_by(contact):
            self._contacts.clear()
        if not self._contacts:
            self._since = monotonic
        self._contacts.append(contact)
        # The oldest contact stays the one that makes the window long enough: drift over days is no step.
        while len(self._contacts) > 2 and monotonic - self._contacts[1].monotonic >= self._length:  # noqa: PLR2004
            self._contacts.popleft()
        return step

    def reset(self) -> None:
        """Notes that a call failed: nothing is known until contact has been unbroken again."""
        self._contacts.clear()

    @property
    def has_stepped(self) -> bool:
        """A step was seen that nobody has taken yet: what seems to be due may not be."""
        return self._step != 0

    def take_step(self) -> int:
        """The microseconds by which the server's clock stepped since this was last asked; each step is given once."""
        step, self._step = self._step, 0
        return step

    def _is_broken_by(self, contact: _Contact) -> bool:
        first, last = self._contacts[0], self._contacts[-1]
        if contact.monotonic - last.monotonic > self._most_gap:
            return True
        return any(self._drift(earlier, contact) > micros(MOST_DRIFT) for earlier in (first, last))

    @staticmethod
    def _drift(earlier: _Contact, later: _Contact) -> float:
        own = (later.monotonic - earlier.monotonic) * 1_000_000
        return abs(later.server - earlier.server - own)


def _step(earlier: _Contact, later: _Contact) -> int:
    """How far the server's clock moved beyond what passed on the own one."""
    passed = later.server - earlier.server
    shortest = round((later.sent - earlier.monotonic) * 1_000_000)
    longest = round((later.monotonic - earlier.sent) * 1_000_000)
    step = passed - longest if passed > longest else min(0, passed - shortest)
    return step if abs(step) > micros(MOST_DRIFT) + longest * _SLEW else 0
