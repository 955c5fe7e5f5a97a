"""The sweep: whatever must happen by a time happens here, once its time has come. Costs O(due)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from ares_celery.clock import Clock, SystemClock
from ares_celery.config import RuntimeConfig
from ares_celery.errors import StoreUnavailableError
from ares_celery.ids import AgentId, Instant
from ares_celery.model.command import Command, Deadline, DeadlineDue
from ares_celery.runtime.commits import Committer
from ares_celery.store.base import DueDeadline, DueShard, Store
from ares_celery.supervision.contact import ContactWindow
from ares_celery.supervision.postponed import Postponed
from ares_celery.supervision.tenants import LostHosts

__all__ = ["RUNTIME_MEMBER", "SweepReport", "Sweeper"]

log: Final = logging.getLogger(__name__)

#: Stands for the id in the deadline of the namespace's own runtime state; no agent's id may have the mark.
RUNTIME_MEMBER: Final = "@runtime"
#: Deadlines read from a shard at once.
_PAGE: Final = 100
#: Most read at once, however many wait there for their time to be judged.
_LARGEST_PAGE: Final = 10_000
#: Kinds that `decide` knows.
_KNOWN: Final = frozenset(
    {Deadline.LEASE, Deadline.NUDGE, Deadline.ATTEMPT, Deadline.STOP, Deadline.HANG, Deadline.RECONCILE}
)


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What one sweep did.

    Attributes:
        applied: Deadlines whose commit changed something.
        ignored: Deadlines that had moved or lost their meaning.
        withheld: Leases that ran out and may not be judged yet.
        unknown: Deadlines of kinds that this version does not handle; they stay.
        failed: Deadlines whose commit was refused or failed; tried again later.
        more: Some shard had more due than was read: sweep again at once.
        next_in: Until the earliest deadline that was not due; None when there is none.
    """

    applied: int = 0
    ignored: int = 0
    withheld: int = 0
    unknown: int = 0
    failed: int = 0
    more: bool = False
    next_in: timedelta | None = None


class _Tally:
    """Counts while a sweep goes on."""

    def __init__(self) -> None:
        self.applied = self.ignored = self.withheld = self.unknown = self.failed = 0

    @property
    def left(self) -> int:
        """How many stay due and are read again by the next sweep."""
        return self.withheld + self.unknown + self.failed


class Sweeper:
    """Applies every deadline of a namespace that has passed; two of them at once do no harm.

    Args:
        store: The namespace.
        committer: Through which every decision goes.
        config: The namespace's settings.
        contact: When leases may be judged; None = never here (a single look, such as `ares.health_check`).
        clock: Monotonic time of this process.

    Example:
        Sweeper(store, committer, config).sweep_once(judge_leases=False).applied
    """

    def __init__(
        self,
        store: Store,
        committer: Committer,
        config: RuntimeConfig,
        *,
        contact: ContactWindow | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._committer = committer
        self._contact = contact
        self._clock = clock or SystemClock()
        self._lost_hosts = LostHosts(store, config.heartbeat_interval)
        self._postponed = Postponed(self._clock)
        self._page = _PAGE

    def sweep_once(self, *, judge_leases: bool) -> SweepReport:
        """Applies what is due now.

        Args:
            judge_leases: Leases that ran out may be judged, if contact with the store was unbroken for long enough.

        Raises:
            StoreUnavailableError: The store did not answer; whatever was not done stays due.
        """
        shards = self._store.due(limit=self._page)
        if shards:
            self._note(shards[0].now)
        due = [deadline for shard in shards for deadline in shard.due]
        more = any(len(shard.due) >= self._page for shard in shards)
        tally = _Tally()
        may_judge = judge_leases and self._contact is not None and self._contact.may_judge
        leases = [deadline for deadline in due if deadline.kind is Deadline.LEASE]
        others = [deadline for deadline in due if deadline.kind is not Deadline.LEASE]
        # Stops and fences before leases: a verdict by the lease would not know that the end was asked for.
        for deadline in others:
            self._handle(deadline, tally)
        if may_judge:
            self._judge(leases, tally)
        else:
            tally.withheld = len(leases)
        self._postponed.keep_only(due)
        # What stays due must not hide what lies behind it.
        self._page = min(_PAGE + tally.left, _LARGEST_PAGE)
        return SweepReport(
            tally.applied,
            tally.ignored,
            tally.withheld,
            tally.unknown,
            tally.failed,
            more=more and (tally.applied + tally.ignored > 0 or self._page < _LARGEST_PAGE),
            next_in=_until_next(shards),
        )

    def _handle(self, deadline: DueDeadline, tally: _Tally) -> None:
        if deadline.agent_id == RUNTIME_MEMBER:
            self._copy_runtime(deadline, tally)
        elif deadline.kind not in _KNOWN:
            tally.unknown += 1
            if self._postponed.is_ready(deadline):
                self._postponed.put_off(deadline)
                log.warning(
                    "agent %s: a deadline of kind %s has passed, which this version does not handle; it stays",
                    deadline.agent_id,
                    deadline.kind,
                    extra={"agent_id": deadline.agent_id},
                )
        else:
            self._apply(deadline, DeadlineDue(kind=deadline.kind, score=deadline.score), tally)

    def _judge(self, leases: Sequence[DueDeadline], tally: _Tally) -> None:
        if not leases:
            return
        tenants: Mapping[AgentId, int] = self._lost_hosts.tenants_of([lease.agent_id for lease in leases])
        for lease in leases:
            verdict = DeadlineDue(kind=lease.kind, score=lease.score, tenants=tenants.get(lease.agent_id, 1))
            self._apply(lease, verdict, tally)

    def _apply(self, deadline: DueDeadline, command: Command, tally: _Tally) -> None:
        """Commits one; whatever goes wrong with this agent must not keep the others from their deadlines."""
        if not self._postponed.is_ready(deadline):
            tally.failed += 1
            return
        try:
            applied = self._committer.apply(deadline.agent_id, command, guard=deadline)
        except StoreUnavailableError:
            raise
        except Exception:
            tally.failed += 1
            delay = self._postponed.put_off(deadline)
            log.exception(
                "agent %s: its deadline %s could not be applied; tried again in %s",
                deadline.agent_id,
                deadline.kind,
                delay,
                extra={"agent_id": deadline.agent_id},
            )
            return
        self._postponed.forget(deadline)
        if applied.committed is not None:
            self._note(applied.committed.now)
        if applied.ignored:
            tally.ignored += 1
        else:
            tally.applied += 1

    def _copy_runtime(self, deadline: DueDeadline, tally: _Tally) -> None:
        """Finishes a change of the runtime's state whose author died; the reconciler sees the new generation."""
        if not self._postponed.is_ready(deadline):
            tally.failed += 1
            return
        try:
            self._store.copy_runtime()
        except StoreUnavailableError:
            raise
        except Exception:
            tally.failed += 1
            delay = self._postponed.put_off(deadline)
            log.exception("the runtime's state could not be copied to every shard; tried again in %s", delay)
            return
        self._postponed.forget(deadline)
        tally.applied += 1

    def _note(self, server: Instant) -> None:
        """Every answer is a contact, so that a long sweep breaks it as little as a short one."""
        if self._contact is not None:
            self._contact.sample(server, self._clock.monotonic())


def _until_next(shards: Sequence[DueShard]) -> timedelta | None:
    waits = [timedelta(microseconds=max(0, shard.next_at - shard.now)) for shard in shards if shard.next_at]
    return min(waits, default=None)
