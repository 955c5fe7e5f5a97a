"""Tools whose processes are killed and frozen between the parts of a step: what takes effect how often.

FAULT_STEP_KILLS and FAULT_SEED in the environment choose how often in all, and by which chance.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ares_celery import AgentSpec, AgentState
from tests.fleet import AGENTS, CONTROL, SUPERVISION, Fleet

pytestmark = [pytest.mark.fault, pytest.mark.timeout(240)]

KILLS = int(os.environ.get("FAULT_STEP_KILLS", "100"))
SEED = int(os.environ.get("FAULT_SEED", "2"))
REPLAYS = ("safe", "keyed", "never")
#: Agents of each kind.
EACH = 2
#: Enough that nobody is done before it has died as often as it shall.
STEPS = 100
MODULES = {"ARES_AGENT_MODULES": "tests.step_agents"}


@dataclass
class Journal:
    """What an agent's tool has written, read anew each time."""

    path: Path

    def lines(self, kind: str) -> list[list[str]]:
        """The words behind `begin`, `effect` or `killed`, in order."""
        text = self.path.read_text() if self.path.exists() else ""
        return [words[1:] for words in map(str.split, text.splitlines()) if words[0] == kind]

    def effects(self) -> Counter[int]:
        """How often each number took effect."""
        return Counter(int(words[0]) for words in self.lines("effect"))

    def begins(self) -> Counter[int]:
        """How often each number was begun."""
        return Counter(int(words[0]) for words in self.lines("begin"))

    def keys(self) -> dict[int, set[str]]:
        """The idempotency keys of each number."""
        found: dict[int, set[str]] = {}
        for number, _, *key in self.lines("effect"):
            found.setdefault(int(number), set()).update(key or [""])
        return found

    def phases(self) -> list[str]:
        """What the process was doing each time it was killed."""
        return [words[1] for words in self.lines("killed")]


@dataclass
class Stepper:
    """An agent under test, and what was decided for it."""

    fleet: Fleet
    id: str
    replay: str
    journal: Journal
    retried: Counter[int] = field(default_factory=Counter[int])
    settled: int = 0

    @property
    def is_over(self) -> bool:
        """It has done all of its steps."""
        return self.fleet.info(self.id).state is AgentState.COMPLETED

    @property
    def is_late(self) -> bool:
        """Its first incarnation has brought about its first effect."""
        return ["0", "1"] in [words[:2] for words in self.journal.lines("effect")]

    def settle(self) -> None:
        """If it is parked, says what became of its step, as a person does who looks at the file."""
        info = self.fleet.info(self.id)
        if info.state is not AgentState.PARKED:
            return
        assert (self.replay, info.cause) == ("never", "reconcile"), info
        (intent,) = self.fleet.manager.checkpoints.intents(self.id)
        number = int(intent.step.removeprefix("effect:"))
        happened = self.journal.effects()[number]
        assert (intent.execution, intent.function, happened in (0, 1)) == ("work", "effect", True)
        if happened:
            done = {"number": number, "incarnation": intent.incarnation}
            self.fleet.manager.reconcile_agent(self.id, done=done, reason="the file has it", actor="ann")
        else:
            self.fleet.manager.reconcile_agent(self.id, retry=True, reason="the file does not have it", actor="ann")
            self.retried[number] += 1
        self.settled += 1

    def check(self, steps: int, deaths: int) -> None:
        """What took effect how often; and each step is recorded once."""
        effects, numbers = self.journal.effects(), set(range(steps))
        assert set(effects) == numbers, f"{self.id} has lost an effect"
        recorded = [record.id for record in self.fleet.manager.checkpoints.steps(self.id, "work")]
        assert sorted(recorded) == sorted(f"effect:{number}" for number in numbers)
        if self.replay == "never":
            assert set(effects.values()) == {1}, f"{self.id} has repeated an effect"
            # Fewer where it died between the intent and the tool's first word.
            assert self.journal.begins() <= Counter(numbers) + self.retried, f"{self.id} repeats in silence"
            return
        if self.replay == "keyed":
            keys = self.journal.keys()
            assert {len(found) for found in keys.values()} == {1}, f"{self.id}: the key of a step has changed"
            assert len(set.union(*keys.values()) - {""}) == steps, f"{self.id}: two steps share a key"
        assert sum(effects.values()) - steps <= deaths, f"{self.id} repeats what is recorded"


def steppers(fleet: Fleet, folder: Path, count: int, **config: Any) -> Iterator[Stepper]:
    """So many agents of each kind, started."""
    for replay in REPLAYS:
        for number in range(count):
            agent_id, journal = f"{replay}-{number}", folder / f"{replay}-{number}.journal"
            spec = {"journal": str(journal), "replay": replay, **config}
            fleet.manager.start_agent(AgentSpec(id=agent_id, type="stepper", config=spec))
            yield Stepper(fleet, agent_id, replay, Journal(journal))


@pytest.mark.pain("P2")
def test_what_takes_effect_how_often_whenever_its_process_is_killed(
    make_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    """SIGKILL before the effect, after it, and before it is recorded.

    Keyed: each effect once by its key. Never: no silent repeat, parked with the intent; once it is settled, each effect
    once. Safe: at least once.
    """
    fleet = make_fleet(
        MAX_RESTARTS_PER_AGENT="0",
        RESTORE_ATTEMPTS="1000",
        RESTORE_BACKOFF="20ms",
        RESTORE_BACKOFF_MAX="20ms",
        LEASE_TTL="3s",
        HEARTBEAT_INTERVAL="500ms",
    )
    agents = len(REPLAYS) * EACH
    fleet.worker("prefork", pool="prefork", slots=2 * agents, env=MODULES)
    lives = -(-KILLS // agents)
    config = {"steps": STEPS, "pause": 0.01, "lives": lives, "longest": 0.2, "seed": SEED}
    found = list(steppers(fleet, tmp_path, EACH, **config))

    def all_over() -> bool:
        for one in found:
            one.settle()
        return all(one.is_over for one in found)

    fleet.wait(all_over, "all steps to be done", timeout=200)

    phases = Counter(phase for one in found for phase in one.journal.phases())
    assert phases.total() >= KILLS, phases
    assert {"before", "after", "returned"} <= set(phases), phases
    for one in found:
        one.check(STEPS, len(one.journal.phases()))
        if one.replay == "never":
            assert one.settled >= sum(phase in ("before", "after") for phase in one.journal.phases())


@pytest.mark.pain("P2")
def test_a_process_that_is_frozen_inside_a_step_and_wakes_up_fenced(
    make_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    """SIGSTOP before the effect, SIGCONT when another incarnation is there: the late effect is the frozen one's own.

    Its record is refused. Keyed: both effects have one key. Never: there is no other incarnation before a person has
    decided. Safe: twice.
    """
    fleet = make_fleet(LEASE_TTL="2s", HEARTBEAT_INTERVAL="300ms", RESTORE_BACKOFF="20ms")
    frozen = fleet.worker("frozen", [AGENTS], pool="prefork", slots=4, env=MODULES)
    go = tmp_path / "go"
    found = list(steppers(fleet, tmp_path, 1, steps=2, pause=1.0, go=str(go)))
    for one in found:
        fleet.until(one.id, "running")
    fleet.worker("rescue", [AGENTS, SUPERVISION, CONTROL], pool="prefork", slots=6, env=MODULES)
    go.touch()
    fleet.wait(lambda: all(one.journal.begins()[0] for one in found), "all to be inside of a step")

    frozen.freeze()
    safe, keyed, never = found
    fleet.until(never.id, "parked", timeout=40)
    fleet.wait(lambda: safe.journal.effects()[0] == 1, "the safe step to be repeated", timeout=40)
    fleet.wait(lambda: keyed.journal.effects()[0] == 1, "the keyed step to be repeated", timeout=40)
    assert never.journal.effects()[0] == 0
    frozen.thaw()
    fleet.wait(lambda: all(one.is_late for one in found), "the late effects")

    for one in (safe, keyed):
        fleet.until(one.id, "completed", timeout=30)
        recorded = fleet.manager.checkpoints.steps(one.id, "work")
        assert [record.value["incarnation"] for record in recorded] == [2, 2]
        assert one.journal.effects() == {0: 2, 1: 1}
        one.check(2, 1)
    assert [len(keys) for keys in keyed.journal.keys().values()] == [1, 1]
    assert (never.journal.begins(), never.journal.effects()) == ({0: 1}, {0: 1})
    assert fleet.info(never.id).cause == "reconcile"
    never.settle()
    fleet.until(never.id, "completed", timeout=30)
    never.check(2, 1)
    assert never.settled == 1


@pytest.mark.pain("P39")
@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_worker_that_is_told_to_end_waits_for_what_must_not_run_twice(
    make_fleet: Callable[..., Fleet], tmp_path: Path, pool: str
) -> None:
    """In the middle of a step, with another worker at hand: it is recorded, nothing is repeated, unknown or charged."""
    # Its code may go on for 1.4 s, and makes such a step after the other: it ends between two of them.
    fleet = make_fleet(AGENT_STOP_TIMEOUT="2s", DRAIN_TIMEOUT="20s")
    workers = {name: fleet.worker(name, pool=pool, slots=2, env=MODULES) for name in ("one", "two")}
    journal = Journal(tmp_path / "journal")
    config = {"journal": str(journal.path), "replay": "never", "steps": 6, "pause": 0.5}
    fleet.manager.start_agent(AgentSpec(id="a", type="stepper", config=config))
    fleet.wait(lambda: journal.begins()[0], "the first step to begin")
    host, _, _ = (fleet.info("a").worker or "").partition("@")

    assert workers[host].terminate() == 0

    info = fleet.until("a", "completed", timeout=20)
    assert (journal.effects(), journal.begins()) == (Counter(range(6)), Counter(range(6)))
    assert (info.incarnation, info.restarts, info.charged, info.intents) == (2, 0, 0, 0)
    assert [event.payload["reason"] for event in fleet.events("a", "agent.stopped")] == ["drain"]
    assert not fleet.events("a", "agent.parked")
