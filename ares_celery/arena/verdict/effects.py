"""What came of each action: how its agents died and returned, how long a fault lasted, what else they met meanwhile."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from ares_celery.arena.values import as_list, as_mapping
from ares_celery.arena.verdict.history import Failover
from ares_celery.arena.verdict.journal import ActivityReport, Outcome
from ares_celery.arena.verdict.verdict import FaultEffect
from ares_celery.model.event import Event, EventType

__all__ = ["SLACK", "EffectReader", "Felt", "Targets", "effects_of"]

#: Seconds before an action to which a death may belong: clocks of who injects and who stores agree as well as that.
SLACK: Final = timedelta(milliseconds=50)

#: What an agent meets or does when it is disturbed.
_FELT: Final = frozenset(
    {
        EventType.AGENT_STARTED,
        EventType.AGENT_STOPPED,
        EventType.AGENT_EXHAUSTED,
        EventType.AGENT_PARKED,
        EventType.FAILOVER_TRIGGERED,
        EventType.FAILOVER_COMPLETED,
        EventType.FAILOVER_FAILED,
        EventType.FAILOVER_ABORTED,
        EventType.EXECUTION_FAILED,
        EventType.STEP_FAILED,
        EventType.STEP_REFUSED,
        EventType.MCP_DISCONNECTED,
        EventType.MCP_CONNECTED,
        EventType.SNAPSHOT_FAILED,
        EventType.SNAPSHOT_DAMAGED,
        EventType.INTEGRITY_VIOLATED,
        EventType.REPLAY_TRUNCATED,
        EventType.RECOVERY_DEGRADED,
        EventType.MESSAGE_DEAD_LETTERED,
    }
)
#: Actions that set right what another one did: what the agent meets after them is still that one's.
_RIGHTING: Final = frozenset({"heal", "resume_agent"})
#: Actions that nobody has to die of: a death soon after a return is the agent's own, whatever came in between.
_GENTLE: Final = _RIGHTING | {
    "disconnect_mcp",
    "inject_llm_failure",
    "pause",
    "pause_agent",
    "restart_agent",
    "slow_agent",
    "tool_timeout",
}
_ENDS: Final = frozenset({EventType.FAULT_HEALED, EventType.FAULT_ENDED})


@dataclass(slots=True)
class Felt:
    """What one agent met in the time of one action: from its beginning to that of the next action on the agent."""

    death: Failover | None = None
    events: Counter[str] = field(default_factory=Counter[str])
    injected: datetime | None = None
    lasted: float | None = None
    ended: str = ""


class Targets:
    """Whom the actions of a run were about, in the order of their beginnings.

    Of what an action gave, ``agents``, ``agent_id`` and ``co_tenants`` are targets, and ``incarnations`` are the lives
    that it ended. One that failed disturbed nobody, unless its error says under ``did`` what it had done before.
    """

    def __init__(self, actions: Sequence[ActivityReport]) -> None:
        """Takes those that began."""
        begun = [(one.started, one) for one in actions if one.started is not None]
        begun.sort(key=lambda pair: pair[0])
        #: The actions, and when each began.
        self.actions: tuple[ActivityReport, ...] = tuple(one for _, one in begun)
        self.starts: tuple[datetime, ...] = tuple(started for started, _ in begun)
        #: What each of them gave.
        self.given: tuple[Mapping[str, Any], ...] = tuple(map(_given, self.actions))
        self._numbers: dict[str, list[int]] = {}
        for number, action in enumerate(self.actions):
            for agent_id in () if action.fault in _RIGHTING else _targets(action, self.given[number]):
                self._numbers.setdefault(agent_id, []).append(number)

    @property
    def agents(self) -> frozenset[str]:
        """All that were disturbed."""
        return frozenset(self._numbers)

    def of(self, agent_id: str) -> Sequence[int]:
        """The numbers of the actions that disturbed an agent, in their order."""
        return self._numbers.get(agent_id, ())


def _given(action: ActivityReport) -> Mapping[str, Any]:
    given = as_mapping(action.output)
    return given if action.outcome is Outcome.SUCCEEDED else as_mapping(given.get("did"))


def _targets(action: ActivityReport, given: Mapping[str, Any]) -> Iterator[str]:
    if action.outcome is not Outcome.SUCCEEDED and not given:
        return
    named = (action.target, given.get("agent_id"), *as_list(given.get("agents")), *as_list(given.get("co_tenants")))
    yield from dict.fromkeys(one for one in named if isinstance(one, str) and one)


class EffectReader:
    """Reads the stream of one agent once, and finds what belongs to which action on it."""

    def __init__(self, agent_id: str, targets: Targets, until: datetime) -> None:
        """Nothing was seen yet.

        Args:
            agent_id: Whose stream.
            targets: All actions of the run.
            until: What came later is of no action.
        """
        self._until = until
        self._numbers = targets.of(agent_id)
        self._starts = [targets.starts[number] - SLACK for number in self._numbers]
        #: By the number of the action.
        self.felt: dict[int, Felt] = {number: Felt() for number in self._numbers}
        given = {number: targets.given[number] for number in self._numbers}
        self._faults = {str(one["id"]): number for number, one in given.items() if one.get("id")}
        ended = {number: as_mapping(one.get("incarnations")).get(agent_id) for number, one in given.items()}
        #: Lives of the agent that an action ended, by number.
        self._ended: dict[int, int] = {life: number for number, life in ended.items() if isinstance(life, int)}
        self._deadly = {number for number in self._numbers if targets.actions[number].fault not in _GENTLE}

    def see(self, event: Event) -> None:
        """The next event of the stream."""
        if not self._numbers:
            return
        if event.type in _FELT:
            felt = self._at(event.time)
            if felt is not None:
                felt.events[event.type] += 1
        elif event.type == EventType.FAULT_INJECTED:
            felt = self._of_fault(event)
            if felt is not None:
                felt.injected = event.time
        elif event.type in _ENDS:
            felt = self._of_fault(event)
            if felt is not None and felt.injected is not None:
                felt.lasted = (event.time - felt.injected).total_seconds()
                felt.ended = "healed" if event.type == EventType.FAULT_HEALED else str(event.payload.get("by", ""))

    def died(self, death: Failover) -> None:
        """A death of the run: it belongs to the action that ended that life; else to the one before, if it has none."""
        number = self._ended.get(death.incarnation)
        if number is None:
            number = self._number_at(death.triggered, besides=self._ended.values())
        if number is not None and self.felt[number].death is None:
            self.felt[number].death = death

    def is_ordered(self, before: Failover, death: Failover) -> bool:
        """A death is the work of another action than the one before it; one that may end lives, and says which."""
        if death.incarnation in self._ended:
            return True
        number = self._number_at(death.triggered, besides=self._ended.values())
        return number in self._deadly and number != self._number_at(before.triggered)

    def _at(self, moment: datetime) -> Felt | None:
        number = self._number_at(moment)
        return None if number is None else self.felt[number]

    def _number_at(self, moment: datetime, besides: Collection[int] = ()) -> int | None:
        """The action on the agent that was the last to begin before."""
        last = bisect_right(self._starts, moment) - 1
        number = self._numbers[last] if last >= 0 and moment <= self._until else None
        return None if number in besides else number

    def _of_fault(self, event: Event) -> Felt | None:
        number = self._faults.get(str(event.payload.get("fault")))
        return None if number is None else self.felt[number]


def effects_of(targets: Targets, felt: Mapping[int, Mapping[str, Felt]]) -> Iterator[FaultEffect]:
    """The effect of each action, of what each of its agents felt."""
    for number, action in enumerate(targets.actions):
        yield _effect(action, targets.starts[number], felt.get(number, {}))


def _effect(action: ActivityReport, started: datetime, felt: Mapping[str, Felt]) -> FaultEffect:
    died = {agent_id: one.death for agent_id, one in felt.items() if one.death is not None}
    deaths = list(died.values())
    back = [one.completed for one in deaths if one.completed is not None]
    lasting = next((one for one in felt.values() if one.lasted is not None), Felt())
    events = sum((one.events for one in felt.values()), Counter[str]())
    return FaultEffect(
        action.label or action.name,
        action.fault,
        action.target,
        started,
        action.outcome.value,
        cause=_cause(action, died),
        # Of several agents the last one counts: until then the action was not survived.
        detected=max((max(0.0, (one.triggered - started).total_seconds()) for one in deaths), default=None),
        recovered=(max(back) - started).total_seconds() if back and len(back) == len(deaths) else None,
        agents=tuple(felt),
        deaths=len(deaths),
        relapses=sum(one.relapses for one in deaths),
        backoff=max((one.backoff for one in deaths), default=0.0),
        lasted=lasting.lasted,
        ended=lasting.ended,
        felt=dict(sorted(events.items())),
    )


def _cause(action: ActivityReport, died: Mapping[str, Failover]) -> str:
    """That of the agent which was meant; who was killed is no co-tenant of somebody else's death."""
    if not died:
        return ""
    cause = (died.get(action.target) or next(iter(died.values()))).cause
    is_kill = action.fault.startswith("kill")
    return "killed" if is_kill and cause in {"co_tenant", "suspect"} else cause
