"""Takes dead letters to the functions that want them, in one worker at a time."""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict
from typing import Final

from ares_celery.agents.dead_letters import HANDLERS, DeadLetterHandlers
from ares_celery.clock import Clock, SystemClock
from ares_celery.model.message import DeadLetter
from ares_celery.runtime.bounded import BoundedCalls
from ares_celery.runtime.process_identity import ProcessIdentity
from ares_celery.store.base import Store

__all__ = ["Postman"]

log: Final = logging.getLogger(__name__)

#: Seconds that a handler may take for one letter.
HANDLER_LIMIT: Final = 30.0
#: How long the elected worker keeps its place without a word: longer than a handler may take.
_ELECTION_MS: Final = 60_000
#: Letters of one look, those apart whose handlers failed before.
_PAGE: Final = 200
#: Seconds until a letter whose handler failed is taken to it again; doubled each time, up to the second number.
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 300.0


class Postman:
    """Calls every handler with every letter until each has returned for it; then the letter is removed.

    At least once: a letter is called for again when its worker dies in between. What a handler raises is logged and
    counted as ``dead_letter_handler_failures``; its letter comes again later and holds up no other.
    """

    def __init__(
        self,
        store: Store,
        identity: ProcessIdentity,
        *,
        handlers: DeadLetterHandlers = HANDLERS,
        clock: Clock | None = None,
        limit: float = HANDLER_LIMIT,
    ) -> None:
        """Binds the parts.

        Args:
            store: Where the letters are.
            identity: Who is elected.
            handlers: Whom to call.
            clock: For the pauses.
            limit: Seconds that a handler may take.
        """
        self._store = store
        self._identity = identity.encode()
        self._handlers = handlers
        self._clock = clock or SystemClock()
        # One for each handler: calls of one that hang use up no other's.
        self._calls: dict[str, BoundedCalls] = defaultdict(lambda: BoundedCalls(limit))
        self._done: dict[str, set[str]] = {}
        self._failed: dict[str, tuple[float, float]] = {}

    def look(self) -> int:
        """Takes what is there to its handlers; returns how many letters were dealt with."""
        if not self._handlers.items() or not self._is_elected():
            return 0
        # The newest come first: those that fail again and again must not hide the ones behind them.
        letters = self._store.dead_letters(limit=_PAGE + len(self._failed))
        known = {letter.id for letter in letters}
        self._done = {key: names for key, names in self._done.items() if key in known}
        self._failed = {key: times for key, times in self._failed.items() if key in known}
        settled = 0
        for letter in reversed(letters):
            _, due = self._failed.get(letter.id, (0.0, 0.0))
            if self._clock.monotonic() < due:
                continue
            if not self._is_elected():
                break
            settled += self._deliver(letter)
        return settled

    def _is_elected(self) -> bool:
        return self._store.elect_postman(self._identity, ttl_ms=_ELECTION_MS)

    def _deliver(self, letter: DeadLetter) -> int:
        done = self._done.setdefault(letter.id, set())
        failures = 0
        for name, handler in self._handlers.items():
            if name in done:
                continue
            problem = self._calls[name].call(handler, letter).problem
            if problem:
                failures += 1
                log.error(
                    "dead letter handler %s failed for message %s of agent %s: %s; it is called again later",
                    name, letter.message_id, letter.agent_id, problem,
                    extra={"agent_id": letter.agent_id},
                )  # fmt: skip
            else:
                done.add(name)
        if failures:
            pause, _ = self._failed.get(letter.id, (0.0, 0.0))
            pause = min(max(2 * pause, _FIRST_PAUSE), _LONGEST_PAUSE)
            self._failed[letter.id] = (pause, self._clock.monotonic() + pause)
            self._store.count({"dead_letter_handler_failures": failures}, op=uuid.uuid4().hex)
            return 0
        self._store.settle_letters([letter])
        return 1
