"""Calls about records, deadlines and leases: what decides lives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

from ares_celery.clock import micros
from ares_celery.errors import EventIntegrityError, FencedError, UnreadableRecordError
from ares_celery.ids import AgentId, Epoch, Instant, Version
from ares_celery.model.agent import AT_REST, AgentState, Desired, Owner, Request, RuntimeState
from ares_celery.model.audit import AuditNote, note_of
from ares_celery.model.command import Deadline
from ares_celery.model.event import Event
from ares_celery.model.lifecycle import operation_of
from ares_celery.model.plan import Plan
from ares_celery.model.snapshot import type_digest
from ares_celery.store.base import (
    AgentRead,
    Claimed,
    CommitConflict,
    Committed,
    DueDeadline,
    DueShard,
    Lease,
    LeaseChange,
)
from ares_celery.store.redis.audit_calls import audit_words
from ares_celery.store.redis.call import Call, Word
from ares_celery.store.redis.event_calls import FEED_LENGTH
from ares_celery.store.redis.family_calls import deleted_child
from ares_celery.store.redis.keys import Keys, deadline_member
from ares_celery.store.redis.letter_calls import letter_bounds
from ares_celery.store.redis.records import Changes, changes, read_record
from ares_celery.store.redis.replies import as_texts, instant, unknown_reply
from ares_celery.store.redis.stored_events import EncodedEvent, decode_entry
from ares_celery.store.redis.stored_snapshots import decode_snapshot

__all__ = [
    "LEASES_PER_CALL",
    "OUTCOME_TTL",
    "claim",
    "commit",
    "delete_agent",
    "due",
    "read_agent",
    "read_state",
    "renew",
]

#: How long the outcome of an operation id is remembered: well beyond any retry of the same call.
OUTCOME_TTL: Final = timedelta(hours=1)
#: Leases of one script: beyond 100 the saving is small, and nobody else is served meanwhile (1.2 ms for 100).
LEASES_PER_CALL: Final = 100

_KINDS: Final = frozenset(Deadline)
E = TypeVar("E", Request, Desired)


def read_agent(keys: Keys, *, agent_id: AgentId, op: str) -> Call[AgentRead]:
    """Reads a record, its lease and the shard's runtime state, with Redis TIME; never refuses a record."""
    shard = keys.shard_of(agent_id)
    return Call(
        lambda reply: _parse_read(agent_id, reply),
        script="read_agent",
        keys=(keys.agent(agent_id), keys.deadlines(shard), keys.runtime(shard), keys.op(agent_id, op)),
        args=(deadline_member(Deadline.LEASE, agent_id),),
    )


def read_state(keys: Keys, *, agent_id: AgentId) -> Call[str | None]:
    """Reads the word for an agent's state, and nothing else; None when it does not exist."""
    return Call(
        lambda reply: reply.decode() if reply is not None else None, args=("HGET", keys.agent(agent_id), "state")
    )


def _parse_read(agent_id: AgentId, reply: Sequence[Any]) -> AgentRead:
    now, fields, state, generation, lease, outcome = reply
    record, problem = None, ""
    try:
        record = read_record(agent_id, fields)
    except UnreadableRecordError as error:
        problem = str(error.problem)
    return AgentRead(
        record=record,
        now=instant(now),
        runtime=RuntimeState(state.decode()) if state else RuntimeState.NEW,
        generation=int(generation or 0),
        lease_until=instant(lease),
        outcome=_parse_outcome(outcome, repeated=True) if outcome else None,
        problem=problem,
    )


def _parse_outcome(outcome: bytes, *, repeated: bool) -> Committed:
    # Older versions do not say of which operation it is; what they wrote of a group is a revision alone.
    epoch, revision, version, now, operation = ([*outcome.split(b"|"), b"", b"", b"", b""])[:5]
    return Committed(
        Epoch(int(epoch)),
        int(revision or 0),
        Version(int(version or 0)),
        Instant(int(now or 0)),
        repeated=repeated,
        operation=operation.decode(),
    )


def commit(  # noqa: PLR0913 - the parts of one write
    keys: Keys,
    *,
    agent_id: AgentId,
    plan: Plan,
    read: AgentRead,
    op: str,
    guard: DueDeadline | None,
    events: Sequence[EncodedEvent],
) -> Call[Committed]:
    """Applies a plan that leaves a record, or one that only moves deadlines."""
    before, after = plan.before, plan.after
    left = before.state if before else AgentState.REGISTERED
    entered = after.state if after else left
    is_entered = after is not None and (before is None or left is not entered)
    wake = plan.wake_owner and before is not None and before.owner is not None
    shard = keys.shard_of(agent_id)
    args: list[Word] = [
        agent_id,
        before.revision if before else "",
        before.epoch if before else 0,
        read.generation,
        _member(guard) if guard else "",
        guard.score if guard else 0,
        int(OUTCOME_TTL.total_seconds()),
        FEED_LENGTH,
        keys.wake_prefix + before.owner.identity if wake and before and before.owner else "",
        after.epoch if after else 0,
        int(is_entered),
    ]
    change = changes(before, after)
    args += [
        change.signal,
        read.lease_until if plan.on_lease else "",
        keys.resting if is_entered and after is not None and after.state in AT_REST else "",
        operation_of(plan.command).value,
        *_lists(agent_id, plan, change, guard, events, now=read.now),
    ]
    return Call(
        lambda reply: _parse_commit(agent_id, reply),
        script="commit",
        keys=(
            keys.agent(agent_id),
            keys.op(agent_id, op),
            keys.runtime(shard),
            keys.deadlines(shard),
            keys.counters(shard),
            keys.hosts(shard),
            keys.events(agent_id),
            keys.feed(shard),
            keys.streams(shard),
            keys.state(shard, left),
            keys.state(shard, entered),
            keys.audit(shard),
            keys.rest(agent_id),
        ),
        args=(*args, *_audit_list(plan, op)),
    )


def _audit_list(plan: Plan, op: str) -> list[Word]:
    """The last list of the arguments."""
    note = note_of(plan, op)
    return [0] if note is None else [1, *audit_words(note)]


def _lists(
    agent_id: AgentId,
    plan: Plan,
    change: Changes,
    guard: DueDeadline | None,
    events: Sequence[EncodedEvent],
    *,
    now: Instant,
) -> list[Word]:
    """The lists at the end of the arguments, each behind its length."""
    old = plan.before.owner.identity if plan.before and plan.before.owner else ""
    new = plan.after.owner.identity if plan.after and plan.after.owner and not plan.free_host else ""
    deadlines: dict[str, Word] = {
        deadline_member(kind, agent_id): "" if due is None else due for kind, due in plan.deadlines.items()
    }
    if plan.left_group:
        deadlines[deadline_member(Deadline.GROUP, agent_id, plan.left_group)] = now
    if guard:
        # The guard is what the plan answers: unless the plan sets it anew, it has done its duty.
        deadlines.setdefault(_member(guard), "")
    lists: tuple[tuple[int, list[Word]], ...] = (
        (2, [word for item in change.put.items() for word in item]),
        (1, list(change.clear)),
        (1, [f"{new}|{agent_id}"] if new and new != old else []),
        (1, [f"{old}|{agent_id}"] if old and new != old else []),
        (2, [word for item in deadlines.items() for word in item]),
        (2, [word for item in plan.counters.items() for word in item]),
        (2, [word for event in events for word in (event.data, event.type)]),
    )
    return [word for width, items in lists for word in (len(items) // width, *items)]


def _member(deadline: DueDeadline) -> str:
    return deadline_member(deadline.kind, deadline.agent_id, deadline.name)


def _parse_commit(agent_id: AgentId, reply: Sequence[bytes]) -> Committed:
    match reply:
        case [b"done", outcome]:
            return _parse_outcome(outcome, repeated=False)
        case [b"repeated", outcome]:
            return _parse_outcome(outcome, repeated=True)
        case [b"conflict", what]:
            raise CommitConflict(agent_id=agent_id, changed=what.decode())
        case _:
            raise unknown_reply("commit", reply)


def claim(  # noqa: PLR0913 - the parts of one write
    keys: Keys,
    *,
    agent_id: AgentId,
    epoch: Epoch,
    token: str,
    owner: Owner,
    lease_ttl: timedelta,
    start_timeout: timedelta,
    restore_timeout: timedelta,
    tried_elsewhere: timedelta,
    page: int,
    schemas: Mapping[str, int],
) -> Call[Claimed]:
    """Takes the fence of an epoch and loads what recovery needs; ``schemas`` by agent type."""
    shard = keys.shard_of(agent_id)
    return Call(
        lambda reply: _parse_claim(agent_id, epoch, page, reply),
        script="claim",
        keys=(
            keys.agent(agent_id),
            keys.runtime(shard),
            keys.deadlines(shard),
            keys.hosts(shard),
            keys.events(agent_id),
            keys.snapshots(agent_id),
        ),
        args=(
            agent_id,
            epoch,
            f"{epoch}|{token}",
            owner.identity,
            owner.worker,
            owner.task_id,
            micros(lease_ttl),
            micros(start_timeout),
            page + 1,  # one more than wanted shows whether there are more
            micros(restore_timeout),
            micros(tried_elsewhere),
            *(word for kind, schema in schemas.items() for word in (type_digest(kind), schema)),
        ),
    )


def _parse_claim(agent_id: AgentId, epoch: Epoch, page: int, reply: Sequence[Any]) -> Claimed:
    if reply[0] == b"refused":
        raise FencedError(agent_id=agent_id, epoch=epoch, reason=reply[1].decode())
    outcome, now, fields, blob, entries = reply
    record = read_record(agent_id, fields)
    if record is None:
        raise unknown_reply("claim", reply)
    events = _undamaged(agent_id, entries[:page])
    return Claimed(
        record=record,
        now=instant(now),
        snapshot=None if blob is None else decode_snapshot(blob),
        events=events,
        more=len(entries) > len(events),
        repeated=outcome == b"repeated",
    )


def _undamaged(agent_id: AgentId, entries: Sequence[Any]) -> tuple[Event, ...]:
    """The events before the first damaged one: the claim itself went well, and recovery reads on from there."""
    events: list[Event] = []
    try:
        events.extend(decode_entry(agent_id, entry) for entry in entries)
    except EventIntegrityError:
        return tuple(events)
    return tuple(events)


def renew(
    keys: Keys, *, shard: int, leases: Sequence[Lease], lease_ttl: timedelta
) -> Call[tuple[Instant, list[LeaseChange]]]:
    """Renews leases of one shard; answers only those with news."""
    args: list[Word] = [micros(lease_ttl)]
    for lease in leases:
        args += (lease.agent_id, lease.fence, lease.signal, lease.step, lease.step_micros)
    return Call(
        lambda reply: (instant(reply[0]), [_parse_change(leases, news) for news in reply[1:]]),
        script="renew",
        keys=(keys.deadlines(shard), *(keys.agent(lease.agent_id) for lease in leases)),
        args=tuple(args),
    )


def _parse_change(leases: Sequence[Lease], news: Sequence[Any]) -> LeaseChange:
    lease: Lease = leases[int(news[0])]
    if news[1] == b"fenced":
        return LeaseChange(lease.agent_id, lease.fence, fenced=True)
    signal, request, desired, reason, faults = as_texts(news[2:])
    return LeaseChange(
        lease.agent_id,
        lease.fence,
        fenced=False,
        signal=int(signal),
        request=_known(Request, request, Request.NONE),
        desired=_known(Desired, desired, Desired.RUNNING),
        reason=reason,
        faults=int(faults),
    )


def _known(kind: type[E], text: str, otherwise: E) -> E:
    """What a newer version asks of one agent must not keep the leases that were renewed with it."""
    try:
        return kind(text)
    except ValueError:
        return otherwise


def due(keys: Keys, *, shard: int, limit: int) -> Call[DueShard]:
    """Reads the deadlines of a shard that have passed."""
    return Call(lambda reply: _parse_due(shard, reply), script="due", keys=(keys.deadlines(shard),), args=(limit,))


def _parse_due(shard: int, reply: Sequence[Any]) -> DueShard:
    now, members, following = reply
    passed = (_parse_deadline(member, score) for member, score in zip(members[::2], members[1::2], strict=True))
    return DueShard(
        shard=shard,
        now=instant(now),
        due=tuple(deadline for deadline in passed if deadline is not None),
        next_at=instant(following[1]) if following else Instant(0),
    )


def _parse_deadline(member: bytes, score: bytes) -> DueDeadline | None:
    kind, _, rest = member.decode().partition("|")
    agent_id, _, name = rest.partition("|")
    if kind not in _KINDS:
        return None  # of a newer version: a worker that knows it will see to it
    return DueDeadline(Deadline(kind), AgentId(agent_id), name, instant(score))


def delete_agent(
    keys: Keys,
    *,
    agent_id: AgentId,
    read: AgentRead,
    op: str,
    executions: Sequence[str] = (),
    note: AuditNote | None = None,
) -> Call[None]:
    """Removes an agent and all that it owns, the listed executions included."""
    shard, record = keys.shard_of(agent_id), read.record
    return Call(
        lambda reply: _parse_delete(agent_id, reply),
        script="delete_agent",
        keys=(
            keys.agent(agent_id),
            keys.op(agent_id, op),
            keys.deadlines(shard),
            keys.hosts(shard),
            keys.state(shard, record.state if record else AgentState.REGISTERED),
            keys.events(agent_id),
            keys.snapshots(agent_id),
            keys.inbox(agent_id),
            keys.audit(shard),
            keys.damaged(agent_id),
            keys.sessions(agent_id),
            keys.memory(agent_id),
            keys.summaries(agent_id),
            keys.feed(shard),
            keys.handling(agent_id),
            keys.rest(agent_id),
            keys.dead(shard),
            keys.counters(shard),
            keys.disturbed(shard),
            keys.intents(agent_id),
            keys.settled(agent_id),
            keys.executions(agent_id),
            keys.budget(agent_id),
            keys.children(agent_id),
            keys.interrupts(agent_id),
            keys.faults(agent_id),
            *(keys.checkpoint(agent_id, execution_id) for execution_id in executions),
        ),
        args=(
            agent_id,
            record.revision if record else 0,
            record.epoch if record else 0,
            int(OUTCOME_TTL.total_seconds()),
            *audit_words(note),
            FEED_LENGTH,
            deadline_member(Deadline.GROUP, agent_id, record.spec.group) if record and record.spec.group else "",
            deleted_child(record),
            keys.resting,
            *letter_bounds(),
            *(kind.value for kind in Deadline),
        ),
    )


def _parse_delete(agent_id: AgentId, reply: Sequence[bytes]) -> None:
    match reply:
        case [b"done"] | [b"repeated", _]:
            return
        case [b"conflict"]:
            raise CommitConflict(agent_id=agent_id, changed="revision")
        case _:
            raise unknown_reply("delete_agent", reply)
