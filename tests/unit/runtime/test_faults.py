"""What a hosting process knows of faults: which are felt, in which order, until when; whom the keeper leaves out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, cast

import pytest

from ares_celery.clock import to_datetime
from ares_celery.errors import (
    AgentSignal,
    AgentStuckError,
    FencedSignal,
    MemoryCorruptedError,
    StopSignal,
    StoreUnavailableError,
)
from ares_celery.ids import AgentId, Instant
from ares_celery.model.fault import Fault, FaultKind
from ares_celery.runtime.fault_points import SyncFaultPoints, cut_by
from ares_celery.runtime.faults import ActiveFaults, FaultWatch, StateLostSignal
from ares_celery.runtime.incarnation import Incarnation
from ares_celery.store.base import InboxMessage
from ares_celery.store.faults import FaultUse
from ares_celery.testing import ManualClock
from tests.unit.runtime.test_lease_keeper import Kept, change, incarnation

#: What the store's clock says when the process's says 0.
OFFSET = 1_000.0


def fault(kind: FaultKind, id: str = "", *, seconds: float = 60, **fields: Any) -> Fault:
    """One that is active for so many seconds."""
    until = to_datetime(int((OFFSET + seconds) * 1_000_000))
    return Fault(id or kind.value, "a", kind, to_datetime(0), until, **fields)


class Faults:
    """A store of faults, as a test says."""

    def __init__(self, *faults: Fault) -> None:
        self.active: Sequence[Fault] = faults
        self.is_away = False
        self.hits: list[bool] = []
        self.asked: list[tuple[str, str]] = []
        self.looks: list[str] = []

    def faults(self, agent_id: AgentId) -> tuple[Fault, ...]:
        self.looks.append(agent_id)
        if self.is_away:
            raise StoreUnavailableError(url="redis://x", problem="away")
        return tuple(self.active)

    def use_fault(self, agent_id: AgentId, fault_id: str, *, op: str = "") -> FaultUse:
        if self.is_away:
            raise StoreUnavailableError(url="redis://x", problem="away")
        self.asked.append((fault_id, op))
        return FaultUse(self.hits.pop(0))

    def note_degraded(self, agent_id: AgentId, fence: str, text: str) -> None:
        raise AssertionError(f"no fault here takes anything away from {agent_id}")


def felt(clock: ManualClock, *faults: Fault) -> ActiveFaults:
    """They are active."""
    found = incarnation()
    FaultWatch(Faults(*faults), clock).look(found, OFFSET)
    assert found.faults is not None
    return found.faults


@pytest.mark.spec(140)
def test_the_first_of_several_is_felt_by_precedence() -> None:
    """Partition, memory, MCP, LLM, then slow and tool_timeout, in whatever order they came."""
    clock = ManualClock()
    kinds = list(FaultKind)
    active = felt(clock, *(fault(kind, seconds=60 - n) for n, kind in enumerate(kinds)))
    order: list[str] = []
    found = [fault(kind) for kind in reversed(kinds)]
    while found:
        first = felt(clock, *found).first()
        assert first is not None
        order.append(first.kind.value)
        found = [one for one in found if one.kind is not first.kind]
    assert order == ["partition", "memory", "mcp", "llm", "slow", "tool_timeout"]
    assert [one.kind for one in active.all()] == kinds
    with pytest.raises(StoreUnavailableError, match="cut off from its store on purpose"):
        active.demand()
    with pytest.raises(StateLostSignal) as caught:
        felt(clock, fault(FaultKind.MEMORY, "m")).demand()
    assert isinstance(caught.value.error, MemoryCorruptedError)
    assert caught.value.error.fields["fault"] == "m"


def test_a_fault_ends_by_the_clock_of_the_process() -> None:
    """Nobody has to say so, and no store has to answer."""
    clock = ManualClock()
    active = felt(clock, fault(FaultKind.PARTITION, seconds=5), fault(FaultKind.SLOW, seconds=9, delay=1))
    partition = active.active(FaultKind.PARTITION)
    assert partition is not None
    seen: list[tuple[bool, float]] = []
    for moment in (0, 4.5, 5):
        clock.move_to(moment)
        seen.append((active.is_cut_off, active.left(partition)))
    assert seen == [(True, 5.0), (True, 0.5), (False, 0.0)]
    active.demand()
    assert [one.kind for one in active.all()] == [FaultKind.SLOW]
    clock.move_to(9)
    assert active.first() is None


def test_faults_of_another_incarnation_are_not_felt_and_an_outage_changes_nothing() -> None:
    """What was done to the last one is over with it; what is done to the agent goes on."""
    clock, found = ManualClock(), incarnation()
    assert found.epoch == 7
    store = Faults(fault(FaultKind.PARTITION, epoch=6), fault(FaultKind.MEMORY, epoch=7), fault(FaultKind.SLOW))
    watch = FaultWatch(store, clock)
    watch.look(found, OFFSET)
    assert found.faults is not None
    assert [one.kind for one in found.faults.all()] == [FaultKind.MEMORY, FaultKind.SLOW]
    known, store.is_away = found.faults, True
    watch.look(found, OFFSET)
    assert found.faults is known
    store.is_away, store.active = False, (fault(FaultKind.PARTITION, epoch=6),)
    watch.look(found, OFFSET)
    assert found.faults is None


# -- the keeper -------------------------------------------------------------------------------------------------------


class Watched(Kept):
    """A keeper that looks for faults."""

    def __init__(self) -> None:
        super().__init__()
        self.faults = Faults()
        self.keeper._watch = FaultWatch(self.faults, cast("Any", self.clock))

    def renewed(self) -> list[str]:
        """Whose leases the next round renews."""
        before = len(self.store.renewed)
        self.renew()
        return [lease.agent_id for leases in self.store.renewed[before:] for lease in leases]


def test_the_lease_of_whoever_is_cut_off_is_not_renewed_and_others_are() -> None:
    """It hears nothing, not even that it was asked something; once it is healed it is renewed at once."""
    kept = Watched()
    neighbour = incarnation("b", "8|other")
    kept.hosted.add(neighbour)
    kept.faults.active = (fault(FaultKind.PARTITION, epoch=7, seconds=10**9),)
    kept.store.changes = (change(signal=5, faults=1),)
    assert kept.renewed() == ["a", "b"]
    assert kept.incarnation.faults is not None
    assert neighbour.faults is None
    assert "wake" in kept.told
    kept.store.changes = ()
    assert kept.renewed() == ["b"]
    kept.faults.is_away = True
    assert kept.renewed() == ["b"], "what is known goes on while the store does not answer"
    kept.faults.is_away, kept.faults.active = False, ()
    assert kept.renewed() == ["a", "b"]
    assert kept.incarnation.faults is None


def test_a_renewal_brings_faults_before_the_messages_that_it_tells_of() -> None:
    """So the next call meets them, whoever is quicker."""
    kept = Watched()
    felt_when_told: list[bool] = []

    def wake() -> None:
        if kept.incarnation.inbox_hint:
            felt_when_told.append(kept.incarnation.faults is not None)

    kept.incarnation.inbox_hint = False
    kept.incarnation.on_change(wake, lambda: None)
    kept.faults.active = (fault(FaultKind.SLOW, seconds=10**9),)
    kept.store.changes = (change(signal=5, faults=1),)
    kept.renew()
    assert felt_when_told == [True]


def test_a_message_that_comes_with_its_hint_does_not_reach_whoever_is_cut_off() -> None:
    """It waits in the inbox, where it is found afterwards."""
    cut, taken = incarnation(), list[Any]()
    cut.on_mail(taken.append)
    cut.inbox_hint = False
    cut.disturb(felt(ManualClock(), fault(FaultKind.PARTITION)))
    message = InboxMessage("1-0", "m", {}, wants_reply=True, time=Instant(0))
    cut.mail(message)
    assert (taken, cut.inbox_hint) == ([], True)
    cut.disturb(None)
    cut.mail(message)
    assert taken == [message]


def test_undisturbed_agents_cost_the_store_no_look() -> None:
    """Every message is news; only news of faults makes the process ask for them."""
    kept = Watched()
    looks = kept.faults.looks
    kept.store.changes = (change(signal=5),)
    kept.renew()
    assert looks == []
    kept.store.changes = (change(signal=6, faults=2),)
    kept.renew()
    assert looks == ["a"]


# -- where they are felt ----------------------------------------------------------------------------------------------


class Points:
    """The fault points of one plain agent, in time that waits move."""

    def __init__(self, *faults: Fault) -> None:
        self.clock, self.store, self.incarnation = ManualClock(), Faults(*faults), incarnation()
        self.watch = FaultWatch(self.store, self.clock)
        self.watch.look(self.incarnation, OFFSET)
        self.waits: list[float] = []
        self.during: Callable[[], None] = lambda: None
        self.ops = iter(range(100))
        self.points = SyncFaultPoints(
            self.incarnation,
            self.clock,
            lambda: f"op-{next(self.ops)}",
            store=self.store,
            wait=self.wait,
            refuse=self.refuse,
        )

    def wait(self, seconds: float) -> None:
        """Time passes, and something may happen in it."""
        if len(self.waits) > 50:
            raise AgentStuckError(agent_id="a", problem="it waits for ever", stack="")
        self.waits.append(seconds)
        self.clock.wait(threading.Event(), seconds)
        self.during()

    def refuse(self, signal: AgentSignal) -> NoReturn:
        """At once."""
        raise signal


def test_a_slow_agent_waits_before_each_call_and_no_longer_than_the_fault_lasts() -> None:
    """And that ends early when it is healed, or the agent is asked to end."""
    slow = Points(fault(FaultKind.SLOW, delay=2, seconds=5))
    slow.points.before_call()
    assert slow.clock.monotonic() == 2
    slow.points.before_call()
    slow.points.before_call()
    assert slow.clock.monotonic() == 5, "its end is the end of the wait"
    slow.points.before_call()
    assert slow.clock.monotonic() == 5

    healed = Points(fault(FaultKind.SLOW, delay=50))
    healed.during = lambda: healed.incarnation.disturb(None)
    healed.points.before_call()
    assert len(healed.waits) == 1

    stopped = Points(fault(FaultKind.SLOW, delay=50))
    stopped.during = lambda: stopped.incarnation.ask("stop")
    stopped.points.before_call()
    assert len(stopped.waits) == 1


def test_a_call_of_a_cut_off_agent_waits_for_the_end_or_is_over() -> None:
    """What is felt behind the partition is felt when that is over."""
    cut = Points(fault(FaultKind.PARTITION, seconds=12), fault(FaultKind.MEMORY))
    with pytest.raises(StateLostSignal):
        cut.points.before_call()
    assert cut.clock.monotonic() == 12
    for reason, signal in (("stop", StopSignal), ("fenced", FencedSignal)):
        asked = Points(fault(FaultKind.PARTITION))
        asked.during = lambda asked=asked, reason=reason: asked.incarnation.ask(reason)  # type: ignore[misc]
        with pytest.raises(signal):
            asked.points.take()


def test_a_tool_gets_the_shorter_time() -> None:
    """Of its own limit and that of the fault; other calls are not cut off."""
    late = Points(fault(FaultKind.TOOL_TIMEOUT, timeout=3))
    assert [late.points.before_tool(limit) for limit in (None, 2.0, 9.0)] == [3, 2.0, 3]
    late.incarnation.disturb(None)
    assert late.points.before_tool(None) is None


def test_a_fault_that_spares_calls_is_asked_of_the_store_for_each() -> None:
    """Each under an operation id of its own; where the store does not answer, no call is affected."""
    some = Points(fault(FaultKind.LLM, "l", count=2, error_type="timeout"), fault(FaultKind.MCP, "m", probability=0.5))
    some.store.hits = [False, True]
    assert some.points.take() is None
    met = some.points.take()
    assert met is not None
    assert met.error_type == "timeout"
    assert some.store.asked == [("l", "op-0"), ("l", "op-1")]
    some.store.is_away = True
    assert some.points.take() is None
    assert some.points.before_server("github") is None
    some.store.is_away, some.store.hits = False, [False, True]
    assert some.points.before_server("github") is None
    cut = some.points.before_server("github")
    assert cut is not None
    assert "cut off on purpose (fault m)" in str(cut_by("github", cut))
    assert (some.points.disturbs("github"), some.points.cuts("github")) == (True, False)


def test_a_fault_of_one_server_leaves_the_others() -> None:
    """An empty name means all."""
    one = Points(fault(FaultKind.MCP, server="github"))
    assert one.points.before_server("wiki") is None
    assert one.points.before_server("github") is not None
    assert [one.points.cuts(server) for server in ("wiki", "github")] == [False, True]
    assert Points(fault(FaultKind.MCP)).points.before_server("wiki") is not None


def test_whoever_is_told_of_faults_is_told_of_their_end_too() -> None:
    """Once for each change; nothing is told where nothing was and nothing is."""
    told: list[bool] = []
    one: Incarnation = incarnation()
    one.on_disturbed(lambda: told.append(one.faults is not None))
    one.disturb(None)
    one.disturb(felt(ManualClock(), fault(FaultKind.SLOW, delay=1)))
    one.disturb(None)
    assert told == [True, False]


def test_a_model_fault_that_spares_a_call_leaves_it_to_the_next() -> None:
    """The oldest is asked first; one that affects the call is the only one that is asked, and counted."""
    both = Points(
        fault(FaultKind.LLM, "a", probability=0.1, error_type="rate_limit"),
        fault(FaultKind.LLM, "b", count=3, error_type="timeout"),
        fault(FaultKind.LLM, "c", error_type="auth"),
    )
    both.store.hits = [True, False, True, False, False]
    met = [found.id for found in (both.points.take() for _ in range(3)) if found is not None]
    assert met == ["a", "b", "c"]
    assert [fault_id for fault_id, _ in both.store.asked] == ["a", "a", "b", "a", "b"]
