"""What has to hold in the whole history of an agent, whatever was done to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from ares_celery.model.agent import AgentInfo, AgentState
from ares_celery.model.event import Event, EventType

__all__ = ["INVARIANTS", "Checked", "Judged", "check_invariants"]

#: Violations that are told of one invariant; all are counted.
_MOST_TOLD: Final = 20


@dataclass(frozen=True, slots=True)
class Judged:
    """One agent whose history is looked at.

    Attributes:
        info: What is known of it now; None: it is gone.
        events: Its stream, from the first event that is kept.
        cap: Most charged restarts; 0 = unlimited.
    """

    agent_id: str
    events: Sequence[Event]
    info: AgentInfo | None = None
    cap: int = 0


@dataclass(frozen=True, slots=True)
class Checked:
    """What became of one invariant.

    Attributes:
        name: Which.
        meaning: What it says.
        count: Violations.
        agents: The agents that violate it.
        told: The first violations, in words.
    """

    name: str
    meaning: str
    count: int = 0
    agents: tuple[str, ...] = ()
    told: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Nothing violates it."""
        return self.count == 0

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "name": self.name,
            "meaning": self.meaning,
            "holds": self.holds,
            "count": self.count,
            "agents": list(self.agents),
            "violations": list(self.told),
        }


def _gaps(judged: Judged) -> Iterator[str]:
    for before, after in pairwise(judged.events):
        if after.version != before.version + 1:
            yield f"version {after.version} follows {before.version}"


def _falling_epochs(judged: Judged) -> Iterator[str]:
    highest = 0
    for event in judged.events:
        if event.epoch and event.epoch < highest:
            yield f"version {event.version} is of epoch {event.epoch}, after one of {highest}"
        highest = max(highest, event.epoch)


_OVER: Final = frozenset(
    {
        EventType.AGENT_STOPPED,
        EventType.AGENT_COMPLETED,
        EventType.AGENT_EXHAUSTED,
        EventType.AGENT_PARKED,
        EventType.FAILOVER_TRIGGERED,
    }
)


def _late_writers(judged: Judged) -> Iterator[str]:
    last, over = 0, 0
    for event in judged.events:
        if event.type in _OVER:
            over = last
        elif event.epoch:
            if over and event.epoch <= over:
                yield f"version {event.version} was written by epoch {event.epoch}, which was over"
            last = max(last, event.epoch)


def _doubled_steps(judged: Judged) -> Iterator[str]:
    done: set[tuple[str, str]] = set()
    begun: set[tuple[str, str]] = set()
    for event in judged.events:
        execution = str(event.payload.get("execution", ""))
        step = execution, str(event.payload.get("step", ""))
        match event.type:
            case EventType.STEP_COMPLETED:
                if step in done:
                    yield f"step {step[1]!r} of execution {execution!r} completed again at version {event.version}"
                done.add(step)
                begun.discard(step)
            case EventType.STEP_STARTED:
                if step in done or step in begun:
                    yield f"step {step[1]!r} of execution {execution!r} began again at version {event.version}"
                begun.add(step)
            case EventType.STEP_FAILED:
                begun.discard(step)
            case EventType.STEP_RECONCILED:
                begun.discard(step)
                if event.payload.get("outcome") == "done":
                    done.add(step)
            case EventType.EXECUTION_COMPLETED:
                # An id that is used again means a new execution.
                done = {one for one in done if one[0] != execution}
                begun = {one for one in begun if one[0] != execution}
            case _:
                pass


_BEGINS: Final = frozenset({EventType.AGENT_STARTED, EventType.AGENT_STOPPED})


def _back_from_given_up(judged: Judged) -> Iterator[str]:
    given_up = 0
    for event in judged.events:
        if event.type in {EventType.AGENT_EXHAUSTED, EventType.AGENT_PARKED}:
            given_up = int(event.version)
        elif event.type in _BEGINS:
            given_up = 0
        elif event.type == EventType.FAILOVER_TRIGGERED and given_up:
            yield f"version {event.version} brings it back, which was given up on at version {given_up}"
    info = judged.info
    if info is not None and judged.cap:
        # The death that used the budget up is counted, and is not followed by a restart.
        most = judged.cap + (1 if info.state is AgentState.PARKED else 0)
        if info.charged > most:
            yield f"{info.charged} charged restarts, and the cap is {judged.cap}"


_RULES: Final[Mapping[str, tuple[str, Callable[[Judged], Iterator[str]]]]] = {
    "versions_gapless": ("versions of a stream have no gaps", _gaps),
    "epochs_grow": ("no event of an earlier epoch comes after one of a later", _falling_epochs),
    "one_writer": ("an incarnation that is over writes nothing", _late_writers),
    "steps_once": ("no acknowledged step is lost or done twice", _doubled_steps),
    "restarts_capped": (
        "what was given up on stays so, and charged restarts stay within their cap",
        _back_from_given_up,
    ),
}
#: Their names.
INVARIANTS: Final = tuple(_RULES)


def check_invariants(agents: Sequence[Judged]) -> tuple[Checked, ...]:
    """Each invariant over the histories of all agents."""
    found: list[Checked] = []
    for name, (meaning, rule) in _RULES.items():
        broken = [(one.agent_id, said) for one in agents for said in rule(one)]
        found.append(
            Checked(
                name,
                meaning,
                len(broken),
                tuple(dict.fromkeys(agent_id for agent_id, _ in broken)),
                tuple(f"{agent_id}: {said}" for agent_id, said in broken[:_MOST_TOLD]),
            )
        )
    return tuple(found)
