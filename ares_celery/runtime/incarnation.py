"""One incarnation as its process sees it: the flags that the keeper's thread sets and the agent's code looks at."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ares_celery.agents.context import StoppingReason
from ares_celery.clock import to_datetime
from ares_celery.ids import AgentId, Version
from ares_celery.model.agent import AgentRecord, Desired, Request
from ares_celery.model.command import Finding
from ares_celery.model.step import StepIntent
from ares_celery.model.waits import Waiting
from ares_celery.runtime.family import Family
from ares_celery.runtime.faults import ActiveFaults
from ares_celery.runtime.ports import EventListener, RecoveryJudge
from ares_celery.store.base import InboxMessage, Lease, LeaseChange

__all__ = ["Completion", "HostedSet", "Incarnation", "Parked", "facts_of"]

#: Intents that are remembered: more than an agent notes in what a crash of the store may take.
_MOST_BEGUN: Final = 200


@dataclass(frozen=True, slots=True)
class Completion:
    """The agent said that it is done."""

    result: Any


@dataclass(frozen=True, slots=True)
class Parked:
    """The incarnation ends in order, and a person has to settle something before the next one.

    Attributes:
        cause: The record's.
        reason: The sentence for people: what was found, and what to do.
        found: What is told and counted with it.
        rejected: The question to which a person said no, which is asked anew in the next life; empty: none.
    """

    cause: str
    reason: str
    found: tuple[Finding, ...] = ()
    rejected: str = ""


class Incarnation:
    """Shared between the keeper's thread and the thread or loop that runs the agent.

    Flags only ever go one way (not stopping → stopping → fenced), so reading them needs no lock; ``wake`` is called
    after every change.
    """

    __slots__ = (
        "_disturbed",
        "_mail",
        "_stop_asked",
        "_wake",
        "agent_id",
        "at_hand",
        "begun_never",
        "clock_steps",
        "completion",
        "doing",
        "family",
        "faults",
        "fence",
        "forgotten",
        "inbox_hint",
        "judge",
        "kept_version",
        "last_version",
        "listener",
        "no_never_after",
        "observed",
        "open_never",
        "origin",
        "parking",
        "progress_at",
        "record",
        "rejected",
        "released",
        "rolled_back",
        "signal",
        "stopping_reason",
        "suspended",
        "task_id",
        "told_version",
        "unsettled",
        "waits",
    )

    def __init__(
        self,
        record: AgentRecord,
        task_id: str,
        listener: EventListener | None = None,
        judge: RecoveryJudge | None = None,
    ) -> None:
        """Begins with the record of a won claim."""
        #: Asked before a step that failed is tried again.
        self.judge = judge
        #: Told of the events that the agent has stored.
        self.listener = listener
        self.record = record
        self.agent_id: AgentId = record.id
        self.fence = record.fence
        self.task_id = task_id
        self.signal = record.signal
        #: Last version of the stream that this incarnation has seen, applied or skipped.
        self.last_version: Version = record.version
        #: Of the newest event that the store has written along with something else, whatever lies before it.
        self.told_version: Version = record.version
        self.stopping_reason: StoppingReason | None = None
        #: The agent's code has seen that it should stop: its return is a yield.
        self.observed = False
        self.completion: Completion | None = None
        #: Only a person can settle what was found: its agent is parked when it ends.
        self.parking: Parked | None = None
        #: Who makes agents for it; None where nobody can.
        self.family: Family | None = None
        #: Its own process commits its end: that its fence is gone is what was wanted.
        self.released = False
        #: Messages may wait in the inbox; set at the start, as nobody tells what came before.
        self.inbox_hint = True
        #: What disturbs it on purpose; None: nothing, which is all that whoever is not disturbed looks at.
        self.faults: ActiveFaults | None = None
        self._disturbed: tuple[Callable[[], None], ...] = ()
        #: Messages that its code handles now.
        self.at_hand = 0
        #: Set while the store is away: context calls wait.
        self.suspended = False
        self.progress_at = 0.0
        #: Calls of its ctx that were never awaited; a test that hosts it fails.
        self.forgotten: list[str] = []
        #: The step that runs now, its path and when it began (monotonic); the keeper tells the store.
        self.doing: tuple[str, float] | None = None
        #: Steps that must not run twice and run now: an end in order waits for them.
        self.open_never = 0
        #: When, monotonic, its code's time to end is over: then no step begins that must not be cut off.
        self.no_never_after: float | None = None
        #: The newest ones that it has begun, with the versions of the events that tell it; None: not known.
        self.begun_never: deque[tuple[Version | None, StepIntent]] = deque(maxlen=_MOST_BEGUN)
        #: Such steps that this incarnation has begun, by execution and path, and whose outcome nobody knows: a person
        #: has to settle them. With why, of one that returned what cannot be recorded.
        self.unsettled: dict[tuple[str, str], str] = {}
        #: The question to which a person said no inside of such a step; it is asked anew if that runs again.
        self.rejected = ""
        #: The store came back older than what this incarnation has seen: it must begin again from what is there.
        self.rolled_back = False
        #: The version that it came back with.
        self.kept_version = Version(0)
        #: What it waits for without its slot; its code is over then.
        self.waits: Waiting | None = None
        #: How often the clock of the store was seen to step.
        self.clock_steps = 0
        #: What takes its snapshots, see model/snapshot.py; known once it is recovered.
        self.origin = ""
        self._wake: Callable[[], None] | None = None
        self._stop_asked: Callable[[], None] | None = None
        self._mail: Callable[[InboxMessage | str], None] | None = None

    @property
    def epoch(self) -> int:
        """The fencing token."""
        return self.record.epoch

    @property
    def fenced(self) -> bool:
        """The incarnation is over: nothing more may be written."""
        return self.stopping_reason == "fenced"

    @property
    def newest_version(self) -> Version:
        """The stream has at least this version, unless the store came back older."""
        return max(self.last_version, self.told_version)

    @property
    def is_ending(self) -> bool:
        """Its code is to end soon: it was asked to, or has said so itself."""
        return self.stopping_reason is not None or self.completion is not None or self.waits is not None

    @property
    def yields(self) -> bool:
        """What its code leaves now, the next one goes on with: it has seen that it should end, and says not "done"."""
        return self.observed and self.completion is None

    def wait(self, waiting: Waiting) -> None:
        """It gives its slot back, until this is over."""
        self.waits = waiting
        self._tell()

    def note_clock_step(self) -> None:
        """Whoever waits for a moment is to look at the store's clock again."""
        self.clock_steps += 1
        self._tell()

    def lease(self, now: float) -> Lease:
        """What the keeper renews; ``now`` is monotonic."""
        doing = self.doing
        if doing is None:
            return Lease(self.agent_id, self.fence, self.signal)
        step, began = doing
        return Lease(self.agent_id, self.fence, self.signal, step, max(0, int((now - began) * 1_000_000)))

    def on_change(self, wake: Callable[[], None], stop_asked: Callable[[], None]) -> None:
        """Who is told of changes; called from the keeper's thread, so both must only pass the word on."""
        self._wake = wake
        self._stop_asked = stop_asked
        if self.stopping_reason is not None:
            stop_asked()

    def on_mail(self, take: Callable[[InboxMessage | str], None] | None) -> None:
        """Who takes messages that come with their hint; None: nobody any more."""
        self._mail = take

    def mail(self, hint: InboxMessage | str) -> None:
        """A message came, or the caller of a stream left (then its inbox entry); from any thread."""
        if not isinstance(hint, str) and hint.signal == self.signal + 1:
            # Nothing else was asked meanwhile: the next renewal need not have all that got a message look again.
            self.signal = hint.signal
        take = self._mail
        if (faults := self.faults) is not None and faults.is_cut_off:
            take = None
        if take is not None:
            take(hint)
        elif not isinstance(hint, str):
            self.inbox_hint = True

    def take(self, change: LeaseChange) -> None:
        """Takes over what a renewal found."""
        if change.fenced:
            self.ask("fenced")
            return
        self.signal = change.signal
        self.inbox_hint = True
        if change.request is not Request.NONE:
            paused = change.request is Request.PAUSE or change.desired is Desired.PAUSED
            self.ask("pause" if paused else "stop")
        self._tell()

    def ask(self, reason: StoppingReason) -> None:
        """Asks the agent's code to end; fenced overrides every other reason."""
        if self.stopping_reason is None or (reason == "fenced" and not self.fenced):
            self.stopping_reason = reason
            if self._stop_asked is not None:
                self._stop_asked()
        self._tell()

    def park(self, parked: Parked) -> None:
        """Asks the agent's code to end, however that ends then, and has the agent parked; the first reason counts."""
        if self.parking is None:
            self.parking = parked
        self.ask("stop")

    def disturb(self, faults: ActiveFaults | None) -> None:
        """What disturbs it on purpose from now on; from any thread. Waits that faults caused look again."""
        if faults is None and self.faults is None:
            return
        self.faults = faults
        for tell in self._disturbed:
            tell()
        self._tell()

    def on_disturbed(self, tell: Callable[[], None]) -> None:
        """Who else is told that faults have begun or ended; from any thread, so it must only pass the word on."""
        self._disturbed += (tell,)

    def roll_back(self, kept: Version) -> None:
        """The store was found to be older than what this incarnation has seen; the first finding counts."""
        if not self.rolled_back:
            self.rolled_back, self.kept_version = True, kept

    def suspend(self, *, suspended: bool) -> None:
        """Context calls wait while the lease cannot be renewed."""
        self.suspended = suspended
        self._tell()

    def _tell(self) -> None:
        if self._wake is not None:
            self._wake()


def facts_of(incarnation: Incarnation) -> dict[str, Any]:
    """What a line of the log carries about an incarnation."""
    return {
        "agent_id": incarnation.agent_id,
        "epoch": incarnation.record.epoch,
        "incarnation": incarnation.record.incarnation,
        "task_id": incarnation.task_id,
        "since": to_datetime(incarnation.record.claimed_at).isoformat(),
    }


class HostedSet:
    """The incarnations that one process hosts; safe to share between threads."""

    def __init__(self) -> None:
        """Begins empty."""
        self._lock = threading.Lock()
        self._hosted: dict[str, Incarnation] = {}

    def add(self, incarnation: Incarnation) -> None:
        """Adds one; keyed by its fence, as an old incarnation of an agent may still be ending here."""
        with self._lock:
            self._hosted[incarnation.fence] = incarnation

    def remove(self, incarnation: Incarnation) -> None:
        """Removes one; of an absent one is no error."""
        with self._lock:
            self._hosted.pop(incarnation.fence, None)

    def all(self) -> list[Incarnation]:
        """Those hosted now."""
        with self._lock:
            return list(self._hosted.values())

    def of(self, agent_ids: set[AgentId]) -> list[Incarnation]:
        """Those of these agents."""
        return [incarnation for incarnation in self.all() if incarnation.agent_id in agent_ids]

    def by_fence(self, fence: str) -> Incarnation | None:
        """The one that holds this fence."""
        with self._lock:
            return self._hosted.get(fence)

    def mail(self, fence: str, hint: InboxMessage | str) -> bool:
        """Passes on what came with a hint for the holder of a fence; False when it is not here."""
        found = self.by_fence(fence)
        if found is not None:
            found.mail(hint)
        return found is not None

    def __len__(self) -> int:
        """How many."""
        return len(self._hosted)
