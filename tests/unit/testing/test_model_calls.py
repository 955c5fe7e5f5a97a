"""Calls of language models in an agent's life: limits, budgets and clients, in simulated time."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from ares_celery import AgentContext, AgentFailedError, AgentParkedError, SyncAgentContext
from ares_celery.model.fault import Draw
from ares_celery.model.limits import FleetLimit
from ares_celery.testing import AgentHarness

LIBRARY = next((name for name in ("httpx2", "httpx") if importlib.util.find_spec(name)), "")
needs_http = pytest.mark.skipif(not LIBRARY, reason="neither httpx2 nor httpx is installed")


class Caller:
    """Does what a message says inside of a limit, and tells when, in simulated seconds."""

    def __init__(self, agent_id: str, limit: Mapping[str, Any] | None = None) -> None:
        self.limit = dict(limit or {})

    async def process(self, ctx: AgentContext, message: Mapping[str, Any]) -> object:
        """So many calls, each in a block of its own, at once or one after the other."""
        calls = [self.call(ctx, message.get("takes", 0)) for _ in range(message["calls"])]
        if message.get("at_once"):
            return await asyncio.gather(*calls)
        return [await call for call in calls]

    async def call(self, ctx: AgentContext, takes: float) -> float:
        """One call that takes a while; when it began."""
        async with ctx.limit("model", **self.limit):
            began = ctx._clock.monotonic()  # type: ignore[attr-defined]
            await asyncio.sleep(takes)  # on purpose: simulated time
        return float(began)


def ask(harness: AgentHarness, **message: Any) -> list[float]:
    """When the calls began, in seconds behind the first."""
    found: list[float] = sorted(harness.ask(message, timeout="1h"))
    return [round(at - found[0], 1) for at in found]


def test_calls_are_spaced_by_the_rate() -> None:
    """Evenly, at once or not."""
    with AgentHarness(Caller, config={"limit": {"rate": "30/min"}}) as harness:
        assert ask(harness, calls=4) == [0, 2, 4, 6]
        harness.advance(60)
        assert ask(harness, calls=4, at_once=True) == [0, 2, 4, 6]


def test_no_more_blocks_run_at_once_than_there_are_places() -> None:
    """The next begins soon after one has ended."""
    with AgentHarness(Caller, config={"limit": {"concurrency": 2}}) as harness:
        began = ask(harness, calls=6, at_once=True, takes=5)
        assert began[:2] == [0, 0]
        assert all(5 <= at <= 6.1 for at in began[2:4])
        assert all(10 <= at <= 12.2 for at in began[4:])


def test_what_an_agent_says_of_a_limit_is_checked_before_anything_is_waited_for() -> None:
    """At the call, in the agent's own code."""
    with AgentHarness(Caller, config={"limit": {"rate": "lots"}}) as harness, pytest.raises(AgentFailedError) as caught:
        harness.ask({"calls": 1})
    assert "write how many and in which time" in str(caught.value)


class Holder:
    """Holds the only place for as long as a message says."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def process(self, ctx: AgentContext, message: float) -> None:
        """Tells when it has the place, and when it has had it."""
        async with ctx.limit("model", concurrency=1):
            await ctx.emit("has it")
            await ctx.sleep(message)
            await ctx.emit("had it")


class PlainHolder:
    """The same, plain."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    def process(self, ctx: SyncAgentContext, message: float) -> None:
        """As above."""
        with ctx.limit("model", concurrency=1):
            ctx.emit("has it")
            ctx.sleep(message)
            ctx.emit("had it")


HOLDERS = pytest.mark.parametrize("kind", [Holder, PlainHolder])
MODEL = FleetLimit("model", concurrency=1)


@HOLDERS
def test_a_place_is_kept_for_as_long_as_it_is_held(kind: Callable[..., Any]) -> None:
    """As by a fleet's heartbeats, although a lease of simulated time is over again and again; then it is free."""
    with AgentHarness(kind, settings={"lease_ttl": "8s"}) as harness:
        harness.send(3_600)
        harness.run_until("has it")
        for _ in range(3):
            harness.advance("19m")
            assert not harness._bench.store.enter_limit(MODEL, "other", "place").admitted
            harness._bench.store.leave_limit("model", "other")
        harness.run_until("had it", timeout="4m")
        harness.advance(1)
        assert harness._bench.store.enter_limit(MODEL, "other", "place").admitted


@HOLDERS
@pytest.mark.parametrize("end", ["crash", "partition"])
def test_a_place_of_whoever_has_died_or_is_cut_off_is_free_when_its_lease_has_run_out(
    kind: Callable[..., Any], end: str
) -> None:
    """No heartbeat keeps it any longer."""
    with AgentHarness(kind, settings={"lease_ttl": "8s", "heartbeat_interval": "2s"}) as harness:
        harness.send(3_600)
        harness.run_until("has it")
        harness.advance(60)
        if end == "crash":
            harness.crash()
        else:
            harness.inject("partition")
        store = harness._bench.store
        harness.advance(5.5)
        assert not store.enter_limit(MODEL, "other", "place").admitted
        store.leave_limit("model", "other")
        if end == "partition":
            harness.run_until("has it", count=2, timeout=10)
        else:
            harness.advance(3)
            assert store.enter_limit(MODEL, "other", "place").admitted


class Waiter:
    """Wants a place that is taken for an hour."""

    def __init__(self, agent_id: str) -> None:
        self.log: list[str] = []

    async def start(self, ctx: AgentContext) -> None:
        async with ctx.limit("model", concurrency=1):
            await ctx.emit("has it")
            try:
                async with ctx.limit("model", concurrency=1):
                    self.log.append("twice?")
            finally:
                self.log.append("gone")

    async def stop(self, ctx: AgentContext) -> None:
        self.log.append("stopped")


class PlainWaiter:
    """The same, plain."""

    def __init__(self, agent_id: str) -> None:
        self.log: list[str] = []

    def start(self, ctx: SyncAgentContext) -> None:
        with ctx.limit("model", concurrency=1):
            ctx.emit("has it")
            try:
                with ctx.limit("model", concurrency=1):
                    self.log.append("twice?")
            finally:
                self.log.append("gone")

    def stop(self, ctx: SyncAgentContext) -> None:
        self.log.append("stopped")


@pytest.mark.parametrize("kind", [Waiter, PlainWaiter])
def test_a_wait_for_a_place_ends_when_the_agent_is_to_end(kind: Callable[..., Any]) -> None:
    """At once and in order; what it held is free for others then."""
    with AgentHarness(kind) as harness:
        harness.run_until("has it")
        harness.advance(2)
        before, agent = harness.now, harness.agent
        harness.stop()
        assert agent.log == ["gone", "stopped"]
        assert harness.now - before < 1
        assert harness.all_events[-1].type == "agent.stopped"
        harness.restart()
        harness.run_until("has it", count=2, timeout=1)


class Provider:
    """What stands in for the network: answers as it is told, and knows when it was asked."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.harness: AgentHarness | None = None
        self.asked: list[float] = []
        self.refuses_until = 0.0

    def transport(self) -> Any:
        """For a client."""
        module: Any = importlib.import_module(LIBRARY)

        def answer(_: Any) -> Any:
            assert self.harness is not None
            self.asked.append(self.harness.now)
            if self.harness.now < self.refuses_until:
                return module.Response(429, headers={"retry-after": "7"}, json={})
            status, headers = self.answers.pop(0) if self.answers else (200, {})
            return module.Response(status, headers=headers, json={})

        return module.MockTransport(answer)


PROVIDER = Provider()


class Chatter:
    """Calls a model for each message, and charges what it is told."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def process(self, ctx: AgentContext, message: Mapping[str, Any]) -> int:
        """The status that it got."""
        client = ctx.llm_http_client(transport=PROVIDER.transport())
        if not message.get("limited"):
            return int((await client.post("http://provider/v1/messages")).status_code)
        async with ctx.limit("model"):
            status = int((await client.post("http://provider/v1/messages")).status_code)
        await ctx.charge(tokens=message.get("tokens", 0))
        return status


class PlainChatter:
    """The same, plain."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    def process(self, ctx: SyncAgentContext, message: Mapping[str, Any]) -> int:
        """As above."""
        client = ctx.llm_http_client(transport=PROVIDER.transport())
        if not message.get("limited"):
            return int(client.post("http://provider/v1/messages").status_code)
        with ctx.limit("model"):
            status = int(client.post("http://provider/v1/messages").status_code)
        ctx.charge(tokens=message.get("tokens", 0))
        return status


@pytest.fixture
def provider() -> Provider:
    """Fresh for each test."""
    PROVIDER.answers, PROVIDER.asked, PROVIDER.refuses_until = [], [], 0.0
    return PROVIDER


COLOURS = pytest.mark.parametrize("kind", [Chatter, PlainChatter])


@needs_http
@COLOURS
def test_a_call_that_is_refused_is_held_as_long_as_it_asks(kind: Callable[..., Any], provider: Provider) -> None:
    """And a little longer, so that not all come back at once; the agent learns nothing of it."""
    with AgentHarness(kind) as harness:
        provider.harness = harness
        provider.answers = [(429, {"retry-after": "7"}), (529, {"retry-after": "20"})]
        assert harness.ask({"limited": True}) == 200
        first, second, third = provider.asked
        assert 7 <= second - first <= 9.6
        assert 20 <= third - second <= 22.6
        assert harness.ask({"limited": False}) == 200
        provider.answers = [(429, {"retry-after": "7"})]
        assert harness.ask({"limited": False}) == 429


@needs_http
@COLOURS
def test_a_provider_that_refuses_for_two_minutes_is_asked_every_seven_seconds(
    kind: Callable[..., Any], provider: Provider
) -> None:
    """Not more often by many calls at once; nobody dies of it, and all goes on when it has recovered."""
    with AgentHarness(kind) as harness:
        provider.harness = harness
        provider.refuses_until = harness.now + 120
        began = harness.now
        answers = [harness.ask({"limited": True}, timeout="10m") for _ in range(4)]
        refused = [at - began for at in provider.asked if at < provider.refuses_until]
        assert all(7 <= later - before <= 9.6 for before, later in itertools.pairwise(refused))
        assert 12 <= len(refused) <= 18
        assert (answers[-1], harness.info.incarnation, harness.info.restarts) == (200, 1, 0)
        assert harness.now - provider.refuses_until < 60


@needs_http
@COLOURS
def test_a_failure_on_purpose_is_met_by_the_next_call(kind: Callable[..., Any], provider: Provider) -> None:
    """So many times as it says; inside of a limit it is waited out as a real one is."""
    with AgentHarness(kind) as harness:
        provider.harness = harness
        harness.inject("llm", error_type="rate_limit", retry_after=7, count=1)
        assert harness.ask({"limited": False}) == 429
        assert provider.asked == []
        assert harness.ask({"limited": False}) == 200
        harness.inject("llm", error_type="overloaded", retry_after=7, count=2)
        began = harness.now
        assert harness.ask({"limited": True}) == 200
        assert 14 <= provider.asked[-1] - began <= 19.2


@needs_http
@COLOURS
@pytest.mark.pain("P38")
def test_an_injected_refusal_holds_up_the_whole_quota_once_and_is_no_crash(
    kind: Callable[..., Any], provider: Provider
) -> None:
    """429 with Retry-After 7: nobody in the quota calls for 7 s, then with jitter; one layer repeats, nobody dies."""
    with AgentHarness(kind) as harness:
        provider.harness = harness
        assert harness.ask({"limited": True}) == 200
        began = harness.now
        fault = harness.inject("llm", error_type="rate_limit", retry_after=7, count=1)
        harness.send({"limited": True})
        harness.advance(0.5)
        other = harness._bench.store.enter_limit(FleetLimit("model"), "of another agent", "place")
        assert (other.admitted, other.why) == (False, "closed"), "the whole quota, not only the agent that was refused"
        (closed,) = harness._bench.store.closed_limits()
        assert (closed.name, closed.agent_id, closed.fault) == ("model", fault.agent_id, fault.id)
        assert 7 <= (closed.until - fault.since).total_seconds() <= 7.5
        assert harness.info.waiting_on == "limit:model"
        harness.advance(6.4)
        assert len(provider.asked) == 1
        assert harness.ask({"limited": True}) == 200
        back = [at - began for at in provider.asked[1:]]
        assert len(back) == 2
        assert 7 <= back[0] <= 9.6
        assert (harness.info.incarnation, harness.info.restarts, harness.info.charged) == (1, 0, 0)


@needs_http
@COLOURS
def test_an_injected_refusal_closes_the_quota_no_longer_than_its_fault_lasts(
    kind: Callable[..., Any], provider: Provider
) -> None:
    """A minute is asked for, the fault ends before; so does the closing, although it was counted out."""
    with AgentHarness(kind) as harness:
        provider.harness = harness
        fault = harness.inject("llm", error_type="rate_limit", retry_after=60, count=1, duration="10s")
        began = harness.now
        harness.send({"limited": True})
        harness.advance(3)
        assert (harness.faults, harness.info.waiting_on) == ((), "limit:model")
        assert [one.until for one in harness._bench.store.closed_limits()] == [fault.until]
        harness.advance(11)
        assert [10 <= at - began <= 13.1 for at in provider.asked] == [True]
        assert (harness.info.waiting_on, harness._bench.store.closed_limits()) == (None, ())


@needs_http
@COLOURS
@pytest.mark.spec(139)
@pytest.mark.parametrize("count", [1, None])
def test_a_healed_refusal_opens_the_quota_again(
    kind: Callable[..., Any], provider: Provider, count: int | None
) -> None:
    """Also one that has ended by its count; whoever waits is let through within seconds, and nobody else waits."""
    with AgentHarness(kind) as harness:
        provider.harness = harness
        harness.inject("llm", error_type="rate_limit", retry_after=100, count=count, duration="1h")
        harness.send({"limited": True})
        harness.advance(30)
        assert (provider.asked, harness.info.waiting_on) == ([], "limit:model")
        harness.heal()
        healed = harness.now
        assert harness._bench.store.closed_limits() == ()
        harness.advance(5)
        assert [0 <= at - healed <= 3.6 for at in provider.asked] == [True]
        assert (harness.info.waiting_on, harness.info.restarts) == (None, 0)
        assert harness.ask({"limited": True}) == 200
        assert harness.now - healed < 8


@needs_http
@COLOURS
def test_two_failures_at_once_are_drawn_one_after_the_other(kind: Callable[..., Any], provider: Provider) -> None:
    """What the first spares the second may meet, each by its own seed: so many, and no others."""
    first, second = Draw.hits(5, 0.2), Draw.hits(6, 0.2)
    expected = [429 if next(first) else 401 if next(second) else 200 for _ in range(60)]
    assert (expected.count(429), expected.count(401), expected.count(200)) == (11, 12, 37)
    with AgentHarness(kind) as harness:
        provider.harness = harness
        harness.inject("llm", error_type="rate_limit", seed=5, probability=0.2)
        harness.inject("llm", error_type="auth", seed=6, probability=0.2)
        assert [harness.ask({"limited": False}) for _ in range(60)] == expected
        assert len(provider.asked) == 37, "what is failed is not sent"
        assert [fault.used for fault in harness.faults] == [11, 12]
        harness.heal()
        harness.inject("llm", error_type="rate_limit", count=2)
        harness.inject("llm", error_type="auth", count=3)
        statuses = [harness.ask({"limited": False}) for _ in range(7)]
        assert statuses == [429, 429, 401, 401, 401, 200, 200]


@needs_http
@COLOURS
def test_an_agent_that_is_to_end_does_not_wait_for_a_provider(kind: Callable[..., Any], provider: Provider) -> None:
    """A held request ends with it; the message is handled again in its next life."""
    with AgentHarness(kind) as harness:
        provider.harness = harness
        provider.answers = [(429, {"retry-after": "60"})]
        harness.send({"limited": True})
        harness.advance(1)
        before = harness.now
        harness.stop()
        assert harness.now - before < 1
        harness.restart()
        assert len(provider.asked) == 1, "the limit is still closed, for everybody"
        harness.advance(65)
        assert len(provider.asked) == 2


@needs_http
@COLOURS
def test_a_spent_budget_is_refused_before_the_call(kind: Callable[..., Any], provider: Provider) -> None:
    """Nothing is sent, and the agent waits for a person."""
    with AgentHarness(kind, spec={"budget": {"tokens": 100}}) as harness:
        provider.harness = harness
        assert harness.ask({"limited": True, "tokens": 100}) == 200
        with pytest.raises(AgentParkedError, match="the tokens of agent 'a' are used up"):
            harness.ask({"limited": False})
        assert len(provider.asked) == 1
        assert harness.info.state == "parked"
        with pytest.raises(AgentParkedError):
            harness.ask({"limited": True})
