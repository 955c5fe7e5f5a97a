"""The sweep: whatever must happen by a time happens here, once its time has come. Costs O(due)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from ares_celery.clock import Clock, SystemClock, micros
from ares_celery.config import ConfigSource, RuntimeConfig
from ares_celery.errors import StoreUnavailableError, UnreadableRecordError
from ares_celery.ids import AgentId, Instant
from ares_celery.model.command import Command, Deadline, DeadlineDue
from ares_celery.runtime.commits import Committer
from ares_celery.store.base import DueDeadline, DueShard, Store
from ares_celery.supervision.contact import ContactWindow
from ares_celery.supervision.families import FamilyKeeper
from ares_celery.supervision.faults import FaultKeeper
from ares_celery.supervision.groups import LOOK, GroupKeeper
from ares_celery.supervision.postponed import Postponed
from ares_celery.supervision.queues import QueueRoom
from ares_celery.supervision.tenants import LostHosts, LostWith

__all__ = ["RUNTIME_MEMBER", "SweepReport", "Sweeper"]

log: Final = logging.getLogger(__name__)

#: Stands for the id in the deadline of the namespace's own runtime state; no agent's id may have the mark.
RUNTIME_MEMBER: Final = "@runtime"
#: Deadlines read from a shard at once.
_PAGE: Final = 100
#: Most read at once, however many wait there for their time to be judged.
_LARGEST_PAGE: Final = 10_000
#: Verdicts that charge somebody: an owner that had no store could neither renew nor recover.
_JUDGED: Final = frozenset({Deadline.LEASE, Deadline.HANG})
#: Kinds that `decide` knows.
_KNOWN: Final = frozenset(
    {
        Deadline.LEASE,
        Deadline.NUDGE,
        Deadline.ATTEMPT,
        Deadline.STOP,
        Deadline.HANG,
        Deadline.TIMER,
        Deadline.APPROVAL,
        Deadline.RECONCILE,
        Deadline.GROUP,
        Deadline.CHILDREN,
        Deadline.REPORT,
        Deadline.RESUME,
    }
)


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What one sweep did.

    Attributes:
        applied: Deadlines whose commit changed something.
        ignored: Deadlines that had moved or lost their meaning.
        withheld: Leases and tries that ran out and may not be judged yet.
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
        self.applied = self.ignored = self.withheld = self.unknown = self.failed = self.group_steps = 0

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
        config: RuntimeConfig | ConfigSource,
        *,
        contact: ContactWindow | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._committer = committer
        self._contact = contact
        self._clock = clock or SystemClock()
        self._lost_hosts = LostHosts(store, config)
        self._groups = GroupKeeper(store, committer, config)
        self._families = FamilyKeeper(store, committer)
        self._faults = FaultKeeper(store)
        self._postponed = Postponed(self._clock)
        self._room = QueueRoom(store, committer.waiting, self._clock)
        self._page = _PAGE

    def sweep_once(self, *, judge_leases: bool) -> SweepReport:
        """Applies what is due now.

        Args:
            judge_leases: Leases and tries to recover that ran out may be judged, if contact with the store was unbroken
                for long enough.

        Raises:
            StoreUnavailableError: The store did not answer; whatever was not done stays due.
        """
        sent = self._clock.monotonic()
        shards = self._store.due(limit=self._page)
        for shard in shards:
            self._note(shard.now, sent)
        if self._contact is not None and self._contact.has_stepped:
            # Whether anything is due is known when the deadlines have moved with the clock.
            return SweepReport(more=True)
        due = [deadline for shard in shards for deadline in shard.due]
        more = any(len(shard.due) >= self._page for shard in shards)
        tally = _Tally()
        contact = self._contact if judge_leases else None
        self._nudge([deadline for deadline in due if deadline.kind is Deadline.NUDGE], tally)
        # Stops before the verdicts, which would not know that the end was asked for. A stop is a wish with a bound and
        # charges nobody, so an outage does not put it off.
        for deadline in due:
            if deadline.kind not in _JUDGED and deadline.kind is not Deadline.NUDGE:
                self._handle(deadline, tally)
        self._judge_tries([deadline for deadline in due if deadline.kind is Deadline.HANG], contact, tally)
        self._judge_leases([deadline for deadline in due if deadline.kind is Deadline.LEASE], contact, tally)
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
            next_in=_until_next(shards, LOOK if tally.group_steps else None),
        )

    def _handle(self, deadline: DueDeadline, tally: _Tally) -> None:
        if deadline.agent_id == RUNTIME_MEMBER:
            self._copy_runtime(deadline, tally)
        elif deadline.kind is Deadline.GROUP:
            self._keep(self._groups, deadline, tally)
            tally.group_steps += 1
        elif deadline.kind in (Deadline.CHILDREN, Deadline.REPORT):
            self._keep(self._families, deadline, tally)
        elif deadline.kind is Deadline.FAULT:
            self._keep(self._faults, deadline, tally)
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

    def _nudge(self, nudges: Sequence[DueDeadline], tally: _Tally) -> None:
        if not nudges:
            return
        crowded = self._room.crowded([deadline.agent_id for deadline in nudges])
        for deadline in nudges:
            is_crowded = deadline.agent_id in crowded
            self._apply(deadline, DeadlineDue(kind=deadline.kind, score=deadline.score, crowded=is_crowded), tally)

    def _judge_tries(self, tries: Sequence[DueDeadline], contact: ContactWindow | None, tally: _Tally) -> None:
        """Ends recoveries that took too long; one that had not all its time with the store at hand gets it first."""
        agent_ids = [deadline.agent_id for deadline in tries]
        reads = self._store.read_many(agent_ids) if agent_ids else []
        found = zip(agent_ids, reads, strict=True)
        claimed = {agent_id: read.record.claimed_at for agent_id, read in found if read.record}
        for deadline in tries:
            since = claimed.get(deadline.agent_id, deadline.score)
            if contact is None or micros(contact.unbroken) < deadline.score - since:
                tally.withheld += 1
            else:
                self._apply(deadline, DeadlineDue(kind=deadline.kind, score=deadline.score), tally)

    def _judge_leases(self, leases: Sequence[DueDeadline], contact: ContactWindow | None, tally: _Tally) -> None:
        if contact is None or not contact.may_judge:
            tally.withheld += len(leases)
            return
        if not leases:
            return
        lost: Mapping[AgentId, LostWith] = self._lost_hosts.tenants_of([lease.agent_id for lease in leases])
        for lease in leases:
            found = lost.get(lease.agent_id, LostWith())
            verdict = DeadlineDue(kind=lease.kind, score=lease.score, tenants=found.tenants, suspicion=found.suspicion)
            self._apply(lease, verdict, tally)

    def _apply(self, deadline: DueDeadline, command: Command, tally: _Tally) -> None:
        """Commits one; whatever goes wrong with this agent must not keep the others from their deadlines."""
        if not self._postponed.is_ready(deadline):
            tally.failed += 1
            return
        sent = self._clock.monotonic()
        try:
            applied = self._committer.apply(deadline.agent_id, command, guard=deadline)
        except StoreUnavailableError:
            raise
        except UnreadableRecordError as error:
            tally.failed += 1
            delay = self._postponed.put_off(deadline)
            log.error(  # noqa: TRY400 - the sentence says it all
                "%s; its deadline %s is tried again in %s",
                error,
                deadline.kind,
                delay,
                extra={"agent_id": deadline.agent_id},
            )
            return
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
            self._note(applied.committed.now, sent)
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

    def _keep(self, keeper: GroupKeeper | FamilyKeeper | FaultKeeper, deadline: DueDeadline, tally: _Tally) -> None:
        """Carries news to a group or a family, walks it on, or ends a fault; what goes wrong keeps nobody waiting."""
        if not self._postponed.is_ready(deadline):
            tally.failed += 1
            return
        try:
            keeper.handle(deadline)
        except StoreUnavailableError:
            raise
        except Exception:
            tally.failed += 1
            delay = self._postponed.put_off(deadline)
            log.exception(
                "%s: the news of %s could not be applied; tried again in %s", deadline.kind, deadline.agent_id, delay
            )
            return
        self._postponed.forget(deadline)
        tally.applied += 1

    def _note(self, server: Instant, sent: float) -> None:
        """Every answer is a contact, so that a long sweep breaks it as little as a short one."""
        if self._contact is not None:
            self._contact.sample(server, self._clock.monotonic(), sent=sent)


def _until_next(shards: Sequence[DueShard], new: timedelta | None) -> timedelta | None:
    """Until the earliest deadline, or the one that a step of a group has set meanwhile."""
    waits = [timedelta(microseconds=max(0, shard.next_at - shard.now)) for shard in shards if shard.next_at]
    return min([*waits, *([] if new is None else [new])], default=None)
