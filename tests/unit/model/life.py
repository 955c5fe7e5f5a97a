"""One agent's life, told command by command."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from ares_celery.ids import Epoch, Instant
from ares_celery.model.agent import AgentRecord, AgentSpec, AgentState, Owner, RuntimeState
from ares_celery.model.command import (
    AttemptFailed,
    Command,
    Deadline,
    DeadlineDue,
    Die,
    MarkRunning,
    OwnerExited,
    Reconcile,
    Release,
    Start,
)
from ares_celery.model.event import EventType
from ares_celery.model.plan import Plan
from ares_celery.model.restart import DeathCause
from tests.property.lifecycle_store import LifecycleStore, default_policy

ID = "counter-1"
SPEC = AgentSpec(id=ID, type="counter")


class Life:
    """An agent, its store and a clock that the test turns; keywords replace numbers of the default policy."""

    def __init__(self, *, runtime: RuntimeState = RuntimeState.RUNNING, **numbers: Any) -> None:
        self.store = LifecycleStore({ID: replace(default_policy(), **numbers)}, runtime=runtime)
        self.claims = 0

    @property
    def record(self) -> AgentRecord:
        return self.store.records[ID]

    @property
    def state(self) -> AgentState:
        return self.record.state

    @property
    def exists(self) -> bool:
        return ID in self.store.records

    def do(self, command: Command) -> Plan:
        return self.store.do(ID, command)

    def start(self) -> Life:
        self.do(Start(spec=SPEC))
        return self

    def claim(self, process: str = "p1", *, epoch: Epoch | None = None, token: str = "") -> str:
        self.claims += 1
        owner = Owner(process, f"{process}@host", f"task-{self.claims}")
        at = self.record.epoch if epoch is None else epoch
        return self.store.claim(ID, at, token or f"token-{self.claims}", owner)

    def run(self, process: str = "p1") -> Life:
        """Claims the incarnation that waits and brings it to its own code."""
        self.do(MarkRunning(fence=self.claim(process)))
        return self

    def release(self) -> Plan:
        return self.do(Release(fence=self.record.fence))

    def crash(self, reason: str = "boom", cause: DeathCause = DeathCause.CRASH) -> Plan:
        """Its own process reports the end of the incarnation now alive."""
        return self.do(Die(reason, epoch=self.record.epoch, cause=cause, proof=True))

    def fail_attempt(self, reason: str = "cannot recover") -> Plan:
        return self.do(AttemptFailed(reason, fence=self.record.fence))

    def exit(self, process: str = "p1") -> Plan:
        return self.do(OwnerExited(identity=process))

    def set_runtime(self, state: RuntimeState) -> Plan:
        self.store.runtime = state
        return self.do(Reconcile())

    def wait(self, seconds: float) -> Life:
        self.store.advance(timedelta(seconds=seconds))
        return self

    def deadline(self, kind: Deadline) -> float | None:
        """Seconds until the deadline; None when it is not set."""
        at = self.store.deadlines.get((ID, kind))
        return None if at is None else (at - self.store.now) / 1_000_000

    def let_pass(self, kind: Deadline, *, tenants: int = 1, crowded: bool = False) -> Plan:
        """Turns the clock to the deadline and acts on it."""
        at = self.store.deadlines[ID, kind]
        self.store.now = Instant(max(self.store.now, at))
        return self.do(DeadlineDue(kind=kind, score=at, tenants=tenants, crowded=crowded))

    def told(self, since: int = 0) -> list[str]:
        """The events so far: their type, with the reason where there is one."""
        return [spoken(event.type, event.payload.get("reason")) for event in self.store.events[ID][since:]]

    def payload(self, kind: EventType) -> dict[str, Any]:
        """The payload of the newest event of this type."""
        return dict(next(event.payload for event in reversed(self.store.events[ID]) if event.type == kind))


def spoken(kind: str, reason: str | None) -> str:
    """An event in a few words."""
    return f"{kind}({reason})" if reason else str(kind)
