"""Supervision groups as values: whose death takes whom along, and the walk through the restart that follows. Pure.

A group lives in its home shard, its members anywhere. What a member reports and what the walk does next are decided
here; members are only ever asked through the commands of ``rules_group``, so that any sweeper may go on at any step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from ares_celery.clock import micros
from ares_celery.ids import Epoch
from ares_celery.model.agent import AgentRecord, AgentState, Desired, Held, RuntimeState
from ares_celery.model.command import Command, GroupGo, GroupPark, GroupStop
from ares_celery.model.restart import CHARGED, kept_charges

__all__ = [
    "Group",
    "GroupInfo",
    "Limits",
    "Member",
    "Phase",
    "Report",
    "Reported",
    "Strategy",
    "StrategyName",
    "View",
    "Walk",
    "group_info",
    "report_of",
    "take_report",
    "view_of",
    "walk",
]


class Strategy(StrEnum):
    """Whom the death of a member takes along, in OTP's words."""

    ONE_FOR_ONE = "one_for_one"
    ONE_FOR_ALL = "one_for_all"
    REST_FOR_ONE = "rest_for_one"


StrategyName = Literal["one_for_one", "one_for_all", "rest_for_one"]


class Phase(StrEnum):
    """Where a restart of the group stands."""

    IDLE = "idle"
    STOPPING = "stopping"
    STARTING = "starting"
    #: It restarted too often: all members are stopped and given up.
    PARKING = "parking"


@dataclass(frozen=True, slots=True)
class Member:
    """One agent of a group.

    Attributes:
        agent_id: Who.
        since: When it was first registered or started; the order of the group.
        died: The epoch that its last death led to, as far as the group knows of it.
    """

    agent_id: str
    since: int
    died: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """A group as its home shard holds it.

    Instants are in steady time: that of Redis without the steps of its clock.

    Attributes:
        name: Of the group.
        strategy: Whom a death takes along.
        max_restarts: Restarts allowed in ``period``; 0 = unlimited.
        period: The window of the above.
        members: In start order.
        phase: Where a restart stands.
        victims: Whom that restart concerns, in start order.
        left: Whom the phase has not dealt with yet; the first is being dealt with.
        since: Since when the first of ``left`` is dealt with.
        let_go: The epoch at which it was let go, once it was.
        restarts: Restarts ever.
        counted: The instants of those that may still count.
        reason: Why it restarted last.
    """

    name: str
    strategy: Strategy
    max_restarts: int
    period: timedelta
    members: tuple[Member, ...] = ()
    phase: Phase = Phase.IDLE
    victims: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    since: int = 0
    let_go: int = 0
    restarts: int = 0
    counted: tuple[int, ...] = ()
    reason: str = ""

    @property
    def order(self) -> tuple[str, ...]:
        """The members' ids in start order."""
        return tuple(member.agent_id for member in self.members)

    @property
    def in_hand(self) -> frozenset[str]:
        """Members that the restart under way has yet to start, or to give up."""
        match self.phase:
            case Phase.IDLE:
                return frozenset()
            case Phase.STARTING:
                return frozenset(self.left)
            case Phase.STOPPING | Phase.PARKING:
                return frozenset(self.victims)


class GroupInfo(BaseModel):
    """What a person sees of a group.

    Attributes:
        name: Of the group.
        strategy: Whom the death of a member takes along.
        max_restarts: Restarts allowed in ``period``; 0 = unlimited.
        period: The window of the above.
        members: Ids in start order.
        phase: Where a restart stands: idle, stopping, starting, parking.
        waiting_for: Whom the restart deals with just now.
        restarts: Restarts ever.
        recent: Restarts that count now.
        reason: Why it restarted last.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    strategy: Strategy
    max_restarts: int
    period: timedelta
    members: tuple[str, ...]
    phase: Phase
    waiting_for: str | None
    restarts: int
    recent: int
    reason: str


def group_info(group: Group, now: int) -> GroupInfo:
    """The group as a person sees it, at a steady instant."""
    return GroupInfo(
        name=group.name,
        strategy=group.strategy,
        max_restarts=group.max_restarts,
        period=group.period,
        members=group.order,
        phase=group.phase,
        waiting_for=group.left[0] if group.left else None,
        restarts=group.restarts,
        recent=len(_counting(group, now)),
        reason=group.reason,
    )


# -- what members report -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Report:
    """News of one agent for its group.

    Attributes:
        agent_id: Who.
        since: When it was created; 0 = it is gone, and no member any longer.
        died: The epoch that its death led to; 0 = it did not die.
        charged: The death is somebody's fault, and counts as a restart of the group.
        reason: Of the death.
    """

    agent_id: str
    since: int
    died: int = 0
    charged: bool = False
    reason: str = ""


def report_of(record: AgentRecord) -> Report:
    """What a record means for its agent's group."""
    died = record.epoch if record.held is Held.DIED else 0
    return Report(record.spec.id, record.created_at, died, record.cause in CHARGED, record.reason)


def _no_counts() -> Mapping[str, int]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Reported:
    """What a report leads to.

    Attributes:
        after: The group as it shall be.
        waits: The agent has to wait for the group, if it does.
        begins: A restart begins, or begins again: look at the group now.
        counters: Namespace counters to raise.
    """

    after: Group
    waits: bool = False
    begins: bool = False
    counters: Mapping[str, int] = field(default_factory=_no_counts)


def take_report(group: Group, report: Report, now: int) -> Reported:
    """Decides what news of a member mean; the same news again change nothing.

    A death in an idle group begins a restart. One of a member that the restart under way has yet to start is part of
    it; one of a member that it has started already is a new one.
    """
    if not report.since:
        members = tuple(member for member in group.members if member.agent_id != report.agent_id)
        return Reported(replace(group, members=members))
    group = _joined(group, report)
    known = next(member for member in group.members if member.agent_id == report.agent_id)
    if report.died <= known.died:
        return Reported(group, waits=report.agent_id in group.in_hand)
    group = _noted(group, report)
    if report.agent_id in group.in_hand and not _was_let_go(group, report):
        return Reported(group, waits=True)
    if group.phase is Phase.PARKING:
        one = (report.agent_id,)
        return Reported(replace(group, victims=group.victims + one, left=group.left + one), waits=True, begins=True)
    if group.phase is Phase.IDLE or report.agent_id in group.victims:
        return _restarted(group, report, now)
    return _restarting(group, report.agent_id, now)


def _was_let_go(group: Group, report: Report) -> bool:
    """It is being started just now, and died after it was let go: no part of what the restart began with."""
    is_next = group.phase is Phase.STARTING and group.left[:1] == (report.agent_id,)
    return is_next and 0 < group.let_go < report.died


def _joined(group: Group, report: Report) -> Group:
    others = [member for member in group.members if member.agent_id != report.agent_id]
    known = [member for member in group.members if member.agent_id == report.agent_id]
    died = known[0].died if known and known[0].since == report.since else 0
    members = sorted([*others, Member(report.agent_id, report.since, died)], key=lambda one: (one.since, one.agent_id))
    return replace(group, members=tuple(members))


def _noted(group: Group, report: Report) -> Group:
    members = (replace(one, died=report.died) if one.agent_id == report.agent_id else one for one in group.members)
    return replace(group, members=tuple(members))


def _counting(group: Group, now: int) -> tuple[int, ...]:
    oldest = now - micros(group.period)
    return tuple(at for at in group.counted if at > oldest)


def _restarted(group: Group, report: Report, now: int) -> Reported:
    """A restart begins, or the group has restarted too often: then all its members are given up."""
    counting = kept_charges((*_counting(group, now), *((now,) if report.charged else ())), group.max_restarts + 1)
    group = replace(group, reason=f"{report.agent_id}: {report.reason}", restarts=group.restarts + 1, since=now)
    if group.max_restarts and len(counting) > group.max_restarts:
        order = group.order
        parked = replace(group, phase=Phase.PARKING, victims=order, left=order[::-1], counted=(), let_go=0)
        return Reported(parked, waits=True, begins=True, counters={"groups_exhausted": 1})
    group, counters = replace(group, counted=counting), {"group_restarts": 1}
    if group.strategy is Strategy.ONE_FOR_ONE and group.phase is Phase.IDLE:
        return Reported(group, counters=counters)
    return replace(_restarting(group, report.agent_id, now), counters=counters)


def _restarting(group: Group, agent_id: str, now: int) -> Reported:
    """Whom the death takes along is stopped in reverse order, and then started in order."""
    victims = _taken_along(group, agent_id)
    stopping = replace(group, phase=Phase.STOPPING, victims=victims, left=victims[::-1], since=now, let_go=0)
    return Reported(stopping, waits=True, begins=True)


def _taken_along(group: Group, agent_id: str) -> tuple[str, ...]:
    """Whom a death concerns, with those that a restart under way has yet to start."""
    order, waiting = group.order, {agent_id, *group.in_hand}
    match group.strategy:
        case Strategy.ONE_FOR_ALL:
            return order
        case Strategy.REST_FOR_ONE:
            return order[min(order.index(one) for one in order if one in waiting) :]
        case Strategy.ONE_FOR_ONE:
            return tuple(one for one in order if one in waiting)


# -- the walk ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class View:
    """What the walk looks at of a member; read before, so it may be old by now."""

    epoch: Epoch
    state: AgentState
    hosted: bool
    held: bool
    wanted: bool
    waits_on: bool = False


def view_of(record: AgentRecord, group: str, runtime: RuntimeState, now: int) -> View | None:
    """What is seen of a member; None when it belongs to another group by now."""
    if record.spec.group != group:
        return None
    wanted = record.desired is Desired.RUNNING and runtime is RuntimeState.RUNNING
    backs_off = record.next_attempt_at > now
    return View(record.epoch, record.state, record.hosted, record.held is not Held.NO, wanted, backs_off)


@dataclass(frozen=True, slots=True)
class Limits:
    """How long the walk waits for one member.

    Attributes:
        stop: Until it has ended; its own deadline fences it long before.
        start: Until its code runs, after its own backoff.
    """

    stop: timedelta
    start: timedelta


@dataclass(frozen=True, slots=True)
class Walk:
    """How far a restart came.

    Attributes:
        after: The group as it shall be, once ``command`` was given.
        agent_id: Whom it waits for; empty when a phase is over.
        command: What that agent is asked, if anything.
        late: Members that were not waited for any longer.
    """

    after: Group
    agent_id: str = ""
    command: Command | None = None
    late: tuple[str, ...] = ()

    @property
    def goes_on(self) -> bool:
        """The next phase begins: look again at once."""
        return not self.agent_id and self.after.phase is not Phase.IDLE


_CLAIMABLE: Final = frozenset({AgentState.STARTING, AgentState.RESURRECTING})
_LIVE: Final = _CLAIMABLE | {AgentState.STOPPING}


def walk(group: Group, views: Mapping[str, View], now: int, limits: Limits) -> Walk:
    """Goes as far through a restart as the members have come, and says what the next one is asked.

    Whoever is not there, is not wanted, or rests because of an operator is passed over; so is one that takes longer
    than it may.
    """
    late: list[str] = []
    while group.phase is not Phase.IDLE:
        if not group.left:
            # Written down before anybody is asked what the next phase asks: it could not be told from this one.
            return Walk(_next_phase(group, now), late=tuple(late))
        agent_id = group.left[0]
        view = views.get(agent_id)
        done, command = _dealt_with(group, view)
        if view is not None and not done and view.waits_on and group.phase is Phase.STARTING and not view.held:
            group = replace(group, since=now)
        if not done and now - group.since < micros(limits.start if group.phase is Phase.STARTING else limits.stop):
            let_go = command.epoch if isinstance(command, GroupGo) else group.let_go
            return Walk(replace(group, let_go=let_go), agent_id, command, tuple(late))
        late += [] if done else [agent_id]
        group = replace(group, left=group.left[1:], since=now, let_go=0)
    return Walk(group, late=tuple(late))


def _next_phase(group: Group, now: int) -> Group:
    if group.phase is Phase.STOPPING:
        return replace(group, phase=Phase.STARTING, left=group.victims, since=now)
    return replace(group, phase=Phase.IDLE, victims=(), left=(), since=0)


def _dealt_with(group: Group, view: View | None) -> tuple[bool, Command | None]:
    """Whether a member is as the phase wants it; if not, what it is asked."""
    if view is None:
        return True, None
    if group.phase is Phase.STARTING:
        if view.held:
            return False, GroupGo(group.reason, epoch=view.epoch)
        return view.state not in _LIVE, None
    if view.held:
        is_parking = group.phase is Phase.PARKING
        return not is_parking, GroupPark(group.reason, epoch=view.epoch) if is_parking else None
    if not view.hosted and view.state not in _CLAIMABLE:
        return True, None
    asks = view.wanted and view.state is not AgentState.STOPPING
    return False, GroupStop(f"group {group.name} restarts: {group.reason}", epoch=view.epoch) if asks else None
