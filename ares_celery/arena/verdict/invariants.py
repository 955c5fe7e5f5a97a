"""What has to hold in the whole history of an agent, whatever was done to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from typing_extensions import override

from ares_celery.model.agent import AgentInfo, AgentState
from ares_celery.model.event import Event, EventType

__all__ = ["INVARIANTS", "Checked", "InvariantReader", "Judged", "Tally", "check_invariants"]

#: Violations that are told of one invariant; all are counted.
_MOST_TOLD: Final = 20


def _kept(version: int) -> bool:  # noqa: ARG001 - as those who know
    return True


@dataclass(frozen=True, slots=True)
class Judged:
    """One agent whose history is looked at.

    Attributes:
        events: Its stream, from the first event that is kept; read once, and never held as a whole.
        info: What is known of it now; None: it is gone.
        cap: Most charged restarts; 0 = unlimited.
        is_kept: An event of this version is still stored: old ones may be trimmed while the stream is read.
    """

    agent_id: str
    events: Iterable[Event]
    info: AgentInfo | None = None
    cap: int = 0
    is_kept: Callable[[int], bool] = _kept


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


class _Rule(Protocol):
    """Looks at one history, event by event; what it remembers does not grow with the number of events."""

    def see(self, event: Event) -> Iterator[str]:
        """Violations that this event shows."""
        ...

    def end(self) -> Iterator[str]:
        """Those that show when all events were seen."""
        ...


class _EventRule:
    """A rule that needs no look at the end."""

    def __init__(self, judged: Judged) -> None:
        self._judged = judged

    def end(self) -> Iterator[str]:
        """Nothing is left to say."""
        return iter(())


class _Gaps(_EventRule):
    """Versions have no gaps."""

    _last = 0

    def see(self, event: Event) -> Iterator[str]:
        """A version that does not follow the last one, unless that was trimmed meanwhile."""
        last, self._last = self._last, int(event.version)
        if last and event.version != last + 1 and self._judged.is_kept(last):
            yield f"version {event.version} follows {last}"


class _FallingEpochs(_EventRule):
    """Epochs grow."""

    _highest = 0

    def see(self, event: Event) -> Iterator[str]:
        """An event of an earlier epoch than one before it."""
        if event.epoch and event.epoch < self._highest:
            yield f"version {event.version} is of epoch {event.epoch}, after one of {self._highest}"
        self._highest = max(self._highest, event.epoch)


_OVER: Final = frozenset(
    {
        EventType.AGENT_STOPPED,
        EventType.AGENT_COMPLETED,
        EventType.AGENT_EXHAUSTED,
        EventType.AGENT_PARKED,
        EventType.FAILOVER_TRIGGERED,
    }
)


class _LateWriters(_EventRule):
    """Who is over writes nothing."""

    _last = _over = 0

    def see(self, event: Event) -> Iterator[str]:
        """An event of an incarnation that had ended."""
        if event.type in _OVER:
            self._over = self._last
        elif event.epoch:
            if self._over and event.epoch <= self._over:
                yield f"version {event.version} was written by epoch {event.epoch}, which was over"
            self._last = max(self._last, event.epoch)


@dataclass(slots=True)
class _Steps:
    """Those of one execution."""

    done: set[str] = field(default_factory=set[str])
    begun: set[str] = field(default_factory=set[str])


class _DoubledSteps(_EventRule):
    """Steps run once; remembers those of executions that have not completed."""

    def __init__(self, judged: Judged) -> None:
        super().__init__(judged)
        self._open: dict[str, _Steps] = {}

    def see(self, event: Event) -> Iterator[str]:
        """A step that is done or begun, and begins or completes again."""
        if event.type not in _OF_STEPS:
            return
        execution, step = str(event.payload.get("execution", "")), str(event.payload.get("step", ""))
        if event.type == EventType.EXECUTION_COMPLETED:
            # An id that is used again means a new execution.
            self._open.pop(execution, None)
            return
        steps = self._open.setdefault(execution, _Steps())
        if event.type == EventType.STEP_STARTED:
            if step in steps.done or step in steps.begun:
                yield f"step {step!r} of execution {execution!r} began again at version {event.version}"
            steps.begun.add(step)
            return
        steps.begun.discard(step)
        if event.type == EventType.STEP_COMPLETED and step in steps.done:
            yield f"step {step!r} of execution {execution!r} completed again at version {event.version}"
        is_settled = event.type == EventType.STEP_RECONCILED and event.payload.get("outcome") == "done"
        if event.type == EventType.STEP_COMPLETED or is_settled:
            steps.done.add(step)


_OF_STEPS: Final = frozenset(
    {
        EventType.STEP_STARTED,
        EventType.STEP_COMPLETED,
        EventType.STEP_FAILED,
        EventType.STEP_RECONCILED,
        EventType.EXECUTION_COMPLETED,
    }
)
_BEGINS: Final = frozenset({EventType.AGENT_STARTED, EventType.AGENT_STOPPED})
_GIVEN_UP: Final = frozenset({EventType.AGENT_EXHAUSTED, EventType.AGENT_PARKED})


class _BackFromGivenUp(_EventRule):
    """Who was given up on stays so, and restarts are capped."""

    _given_up = 0

    def see(self, event: Event) -> Iterator[str]:
        """A failover of an agent that was given up on."""
        if event.type in _GIVEN_UP:
            self._given_up = int(event.version)
        elif event.type in _BEGINS:
            self._given_up = 0
        elif event.type == EventType.FAILOVER_TRIGGERED and self._given_up:
            yield f"version {event.version} brings it back, which was given up on at version {self._given_up}"

    @override
    def end(self) -> Iterator[str]:
        """More charged restarts than there may be."""
        info, cap = self._judged.info, self._judged.cap
        if info is not None and cap:
            # The death that used the budget up is counted, and is not followed by a restart.
            most = cap + (1 if info.state is AgentState.PARKED else 0)
            if info.charged > most:
                yield f"{info.charged} charged restarts, and the cap is {cap}"


_RULES: Final[Mapping[str, tuple[str, Callable[[Judged], _Rule]]]] = {
    "versions_gapless": ("versions of a stream have no gaps", _Gaps),
    "epochs_grow": ("no event of an earlier epoch comes after one of a later", _FallingEpochs),
    "one_writer": ("an incarnation that is over writes nothing", _LateWriters),
    "steps_once": ("no acknowledged step is lost or done twice", _DoubledSteps),
    "restarts_capped": (
        "what was given up on stays so, and charged restarts stay within their cap",
        _BackFromGivenUp,
    ),
}
#: Their names.
INVARIANTS: Final = tuple(_RULES)


class InvariantReader:
    """Checks one history, which it sees once, event by event.

    Attributes:
        counts: Violations of each invariant that has some.
        told: The first of them in words.
    """

    def __init__(self, judged: Judged) -> None:
        """Nothing was seen yet; the events of ``judged`` are whoever reads them's to show."""
        self._rules: tuple[tuple[str, _Rule], ...] = tuple((name, rule(judged)) for name, (_, rule) in _RULES.items())
        self.counts: Counter[str] = Counter()
        self.told: dict[str, list[str]] = {}

    def see(self, event: Event) -> None:
        """The next event of the stream."""
        for name, rule in self._rules:
            self._note(name, rule.see(event))

    def end(self) -> None:
        """There are no more."""
        for name, rule in self._rules:
            self._note(name, rule.end())

    def _note(self, name: str, violations: Iterator[str]) -> None:
        for said in violations:
            self.counts[name] += 1
            told = self.told.setdefault(name, [])
            if len(told) < _MOST_TOLD:
                told.append(said)


class Tally:
    """Sums up the invariants over agents."""

    def __init__(self) -> None:
        """Of none so far."""
        self._counts: Counter[str] = Counter()
        self._agents: dict[str, list[str]] = {name: [] for name in _RULES}
        self._told: dict[str, list[str]] = {name: [] for name in _RULES}

    def add(self, agent_id: str, reader: InvariantReader) -> None:
        """What was found in the history of one agent."""
        for name, count in reader.counts.items():
            self._counts[name] += count
            self._agents[name].append(agent_id)
            told = self._told[name]
            told += [f"{agent_id}: {said}" for said in reader.told[name][: _MOST_TOLD - len(told)]]

    def checked(self) -> tuple[Checked, ...]:
        """Each invariant over the histories of all of them."""
        return tuple(
            Checked(name, meaning, self._counts[name], tuple(self._agents[name]), tuple(self._told[name]))
            for name, (meaning, _) in _RULES.items()
        )


def check_invariants(agents: Iterable[Judged]) -> tuple[Checked, ...]:
    """Each invariant over the histories of all agents."""
    tally = Tally()
    for judged in agents:
        reader = InvariantReader(judged)
        for event in judged.events:
            reader.see(event)
        reader.end()
        tally.add(judged.agent_id, reader)
    return tally.checked()
