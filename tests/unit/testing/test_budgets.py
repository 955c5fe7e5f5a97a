"""Budgets in an agent's life: what is spent stays spent, and who has used it up waits for a person."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest
from typing_extensions import override

from ares_celery import (
    AgentContext,
    AgentFailedError,
    AgentParkedError,
    BudgetExceededError,
    Event,
    InvalidSettingError,
    SyncAgentContext,
    tool,
)
from ares_celery.ids import AgentId
from ares_celery.testing import AgentHarness


@tool("budget-look", replay="safe")
def look() -> str:
    """What every agent here does for its money."""
    return "seen"


class Spends:
    """What both colours share: it counts what it did, and keeps what it was refused."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id, self.done = agent_id, 0
        self.caught: list[BudgetExceededError] = []
        self.stops: list[str | None] = []

    def apply(self, event: Event) -> None:
        """Folds."""
        if event.type == "did":
            self.done += 1


class Spender(Spends):
    """Does what a message says: charges, each behind a tool call."""

    async def process(self, ctx: AgentContext, message: Mapping[str, Any]) -> object:
        """Gives what it has spent."""
        spent: Any = None
        for charge in message["charges"]:
            try:
                await ctx.tool(look)()
            except BudgetExceededError as error:
                self.caught.append(error)
                self.stops.append(ctx.stopping_reason)
                if not message.get("catch"):
                    raise
                continue
            await ctx.emit("did")
            spent = await ctx.charge(**charge)
        return spent


class PlainSpender(Spends):
    """The same, plain."""

    def process(self, ctx: SyncAgentContext, message: Mapping[str, Any]) -> object:
        """As above."""
        spent: Any = None
        for charge in message["charges"]:
            try:
                ctx.tool(look)()
            except BudgetExceededError as error:
                self.caught.append(error)
                self.stops.append(ctx.stopping_reason)
                if not message.get("catch"):
                    raise
                continue
            ctx.emit("did")
            spent = ctx.charge(**charge)
        return spent


COLOURS = pytest.mark.parametrize("made", [Spender, PlainSpender], ids=["async", "plain"])


def harness_of(made: type[Any], budget: Mapping[str, float], **fields: Any) -> AgentHarness:
    """An agent with a budget."""
    return AgentHarness(made, spec={"budget": budget, **fields})


def told_of(info: Any) -> tuple[str, str, int, int, dict[str, int]]:
    """How it stands, and what was charged to it."""
    return info.state.value, info.cause, info.charged, info.restarts, info.deaths


@COLOURS
@pytest.mark.pain("P40")
def test_the_charge_that_crosses_passes_and_the_next_call_is_refused(made: type[Spends]) -> None:
    """The message at hand stays; the agent is parked, with the numbers, an event and no death."""
    with harness_of(made, {"tokens": 100}) as harness:
        assert harness.ask({"charges": [{"tokens": 60}, {"tokens": 41}]}) == {"tokens": 101, "usd": 0.0, "steps": 2}
        harness.advance(5)
        assert told_of(harness.info) == ("running", "", 0, 0, {})
        with pytest.raises(AgentParkedError, match=r"tokens of agent 'a' are used up \(101 of 100\)") as caught:
            harness.ask({"charges": [{"tokens": 1}]}, message_id="m-1")
        assert str(caught.value).count("ares agents update") == 1
        assert [one.message_id for one in harness._bench.store.inbox(AgentId("a"))] == ["m-1"]
        info = harness.info
        assert told_of(info) == ("parked", "budget", 0, 0, {})
        assert "(101 of 100)" in info.reason
        assert (info.budget, info.spent) == ({"tokens": 100}, {"tokens": 101, "usd": 0.0, "steps": 2})
        exceeded, parked = harness.all_events[-2:]
        facts = {"agent_id": "a", "budget": "tokens", "spent": 101, "limit": 100, "whose": "a"}
        assert (exceeded.type, dict(exceeded.payload)) == ("budget.exceeded", facts)
        assert (parked.type, parked.payload["cause"]) == ("agent.parked", "budget")
        assert harness.manager.stats().counters["budgets_exceeded"] == 1
        with pytest.raises(AgentParkedError, match="ares agents update a --budget"):
            harness.ask({"charges": []})


@COLOURS
@pytest.mark.pain("P40")
def test_it_is_parked_although_its_code_catches_the_error(made: type[Spends]) -> None:
    """Which says which budget, how much, and whose; the context says that it is to stop."""
    with harness_of(made, {"usd": 0.3}) as harness:
        harness.ask({"charges": [{"usd": 0.1}, {"usd": 0.2}, {"usd": 9}, {"usd": 9}], "catch": True})
        harness.advance(1)
        one, two = harness.agent.caught
        assert (one.budget, one.spent, one.limit, one.whose, one.agent_id) == ("usd", 0.3, 0.3, "a", "a")
        assert two.fields == one.fields
        assert harness.agent.stops == ["stop", "stop"]
        assert (harness.agent.done, told_of(harness.info)) == (2, ("parked", "budget", 0, 0, {}))


@COLOURS
@pytest.mark.pain("P40")
def test_what_was_spent_survives_five_restarts(made: type[Spends]) -> None:
    """By deaths, by hand, by a stop and a new start; none of them opens a fresh allowance."""
    with harness_of(made, {"tokens": 60, "usd": 100}) as harness:
        for life in range(5):
            assert harness.ask({"charges": [{"tokens": 10, "usd": 0.1}]})["tokens"] == (life + 1) * 10
            if life == 3:
                harness.stop()
            elif life != 4:
                harness.crash()
            harness.restart()
        assert harness.info.incarnation == 6
        assert harness.info.spent == {"tokens": 50, "usd": 0.5, "steps": 5}
        harness.ask({"charges": [{"tokens": 10}]})
        with pytest.raises(AgentParkedError, match="60 of 60"):
            harness.ask({"charges": [{"tokens": 10}]})
        assert harness.info.cause == "budget"


@COLOURS
def test_a_death_after_the_crossing_charge_parks_the_next_life(made: type[Spends]) -> None:
    """It knows from its record, before it does anything. A recorded step counts by itself."""
    with harness_of(made, {"steps": 2}) as harness:
        harness.ask({"charges": [{"steps": 1}]})
        harness.crash()
        harness.restart()
        with pytest.raises(AgentParkedError, match="2 of 2"):
            harness.ask({"charges": [{"steps": 1}]})
        assert (harness.agent.done, harness.info.cause) == (1, "budget")


@COLOURS
def test_more_budget_lets_it_go_on(made: type[Spends]) -> None:
    """Unpark and restart are refused until there is more; other limits stay."""
    with harness_of(made, {"tokens": 10, "usd": 5}) as harness:
        harness.ask({"charges": [{"tokens": 10}]})
        with pytest.raises(AgentParkedError):
            harness.ask({"charges": [{"tokens": 1}]}, message_id="m-1")
        for refused in (harness.manager.unpark_agent, harness.manager.restart_agent):
            with pytest.raises(AgentParkedError, match="--budget"):
                refused("a")
        info = harness.manager.update_agent("a", budget={"tokens": 20}, reason="worth it", actor="ann")
        assert info.budget == {"tokens": 20, "usd": 5.0}
        harness.manager.unpark_agent("a", actor="ann")
        harness.restart()
        assert harness.ask({"charges": [{"tokens": 1}]}, message_id="m-1")["tokens"] == 11
        assert [(entry.operation, entry.changed) for entry in harness.manager.audit("a")][-2:] == [
            ("update", ("budget",)),
            ("unpark", ()),
        ]


@COLOURS
@pytest.mark.parametrize("budget", [{"tokens": 10}, {"usd": 1}])
def test_limits_reach_an_agent_that_runs(made: type[Spends], budget: Mapping[str, float]) -> None:
    """Within a second of its next call, whether less is allowed than was spent, or no limit is left."""
    with harness_of(made, {"tokens": 100, **budget}) as harness:
        harness.ask({"charges": [{"tokens": 9, "usd": 0.9}]})
        harness.manager.update_agent("a", budget={"tokens": 5} if "usd" in budget else {"tokens": None})
        harness.advance(1.5)
        if "usd" in budget:
            with pytest.raises(AgentParkedError, match="9 of 5"):
                harness.ask({"charges": [{}]})
        else:
            assert harness.ask({"charges": [{"tokens": 500}, {}]})["tokens"] == 509
            assert harness.info.budget is None


@COLOURS
def test_money_is_exact(made: type[Spends]) -> None:
    """0.1 and 0.2 are 0.3, two hundred tenths of a cent are twenty cents, and no charge is too small to count."""
    with harness_of(made, {"usd": 1_000}) as harness:
        assert harness.ask({"charges": [{"usd": 0.1}, {"usd": 0.2}]})["usd"] == 0.3
        assert harness.ask({"charges": [{"usd": 0.001}] * 200})["usd"] == 0.5
        assert harness.ask({"charges": [{"usd": 1e-9}] * 10})["usd"] == 0.50001


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("tokens", -1, "must not be below zero"),
        ("tokens", True, "must be a number"),
        ("tokens", "7", "must be a number"),
        ("tokens", 1.5, "must be a whole number"),
        ("tokens", 10**400, "must be at most 1000000000"),
        ("steps", float("nan"), "must be a finite number"),
        ("usd", float("inf"), "must be a finite number"),
        ("usd", Decimal("NaN"), "must be a finite number"),
        ("usd", 10**7, "must be at most 1000000"),
        ("usd", None, "must be a number"),
    ],
)
def test_a_charge_that_cannot_be_is_refused_by_name(field: str, value: object, problem: str) -> None:
    """And nothing of it is recorded, the other numbers neither."""
    found: list[InvalidSettingError] = []

    class Wrong:
        async def start(self, ctx: AgentContext) -> None:
            good = "usd" if field != "usd" else "tokens"
            try:
                await ctx.charge(**{good: 3, field: value})  # type: ignore[arg-type]
            except InvalidSettingError as error:
                found.append(error)

    def make(agent_id: str) -> Wrong:
        return Wrong()

    with AgentHarness(make) as harness:
        harness.advance(1)
        assert [(error.field, problem in str(error)) for error in found] == [(field, True)]
        assert harness.info.spent == {"tokens": 0, "usd": 0.0, "steps": 0}


class Spree:
    """Spends at once, in many tasks; then goes on as its mode says."""

    def __init__(self, agent_id: str, mode: str = "") -> None:
        self.agent_id, self.mode, self.calls = agent_id, mode, 0

    async def start(self, ctx: AgentContext) -> object:
        """Fifty charges, none waiting for another."""
        await asyncio.gather(*(ctx.charge(tokens=2, usd=0.1, steps=1) for _ in range(50)))
        if self.mode == "complete":
            return "done"
        try:
            while self.mode == "charge" and not ctx.stop_requested:
                self.calls += 1
                await ctx.charge(tokens=1)
            await ctx.tool(look)()
        except BudgetExceededError:
            if self.mode == "settle":
                ctx.complete("what there was")
            elif self.mode == "loop":
                while True:
                    self.calls += 1
                    try:
                        await ctx.tool(look)()
                    except BudgetExceededError:
                        continue
            elif self.mode != "return":
                raise RuntimeError("its own words") from None
        return None


def test_concurrent_charges_all_count() -> None:
    """Each once."""
    with AgentHarness(Spree, config={"mode": "complete"}) as harness:
        harness.run_until("agent.completed")
        assert harness.info.spent == {"tokens": 100, "usd": 5.0, "steps": 50}


@pytest.mark.parametrize("mode", ["raise", "return", "charge", "loop"])
@pytest.mark.parametrize("restart", ["permanent", "transient", "temporary"])
def test_however_its_code_ends_it_is_parked(mode: str, restart: str) -> None:
    """Raising what it likes, returning, going on to charge, or asking again and again until it is cut off."""
    with AgentHarness(Spree, config={"mode": mode}, spec={"budget": {"tokens": 100}, "restart": restart}) as harness:
        harness.run_until("agent.parked")
        assert told_of(harness.info) == ("parked", "budget", 0, 0, {})
        assert harness.agent.calls <= 50


def test_an_agent_may_complete_itself_with_what_it_has() -> None:
    """That is final; the event tells all the same. One that never asks for more is none the wiser."""
    with AgentHarness(Spree, config={"mode": "settle"}, spec={"budget": {"usd": 1}}) as harness:
        harness.run_until("agent.completed")
        assert [event.type for event in harness.all_events[-2:]] == ["budget.exceeded", "agent.completed"]
        assert (harness.info.state, harness.info.result) == ("completed", "what there was")
    with AgentHarness(Spree, config={"mode": "complete"}, spec={"budget": {"usd": 1}}) as harness:
        harness.run_until("agent.completed")
        assert (harness.info.result, harness.info.spent["usd"]) == ("done", 5.0)


def test_an_mcp_call_is_refused_too() -> None:
    """As a tool is; what is closed with it, such as a resource, is not."""

    class Session:
        async def call_tool(self, name: str) -> str:
            return name

    class Caller(Spends):
        async def process(self, ctx: AgentContext, message: object) -> object:
            if message == "resource":
                return await ctx.resource("budget-db")
            await ctx.charge(tokens=5)
            return await ctx.mcp("budget-mcp").call_tool("x")

    from ares_celery import mcp_server, worker_resource

    @mcp_server("budget-mcp")
    async def _connect() -> Any:
        yield None

    @worker_resource("budget-db")
    async def _open() -> Any:
        yield None

    with AgentHarness(
        Caller, spec={"budget": {"tokens": 10}}, mcp={"budget-mcp": Session()}, resources={"budget-db": "open"}
    ) as harness:
        assert harness.ask("go") == "x"
        with pytest.raises(AgentParkedError, match="10 of 10"):
            harness.ask("go")


class Stepper(Spends):
    """Takes as many steps as it is told to, at once."""

    async def process(self, ctx: AgentContext, message: int) -> object:
        """Each with a charge inside."""

        async def work(number: int) -> int:
            self.done += 1
            await ctx.charge(usd=0.01)
            return number

        return [await ctx.step(f"work:{number}", work, number) for number in range(message)]


class PlainStepper(Spends):
    """The same, plain."""

    def process(self, ctx: SyncAgentContext, message: int) -> object:
        """As above."""

        def work(number: int) -> int:
            self.done += 1
            ctx.charge(usd=0.01)
            return number

        return [ctx.step(f"work:{number}", work, number) for number in range(message)]


@pytest.mark.parametrize("made", [Stepper, PlainStepper], ids=["async", "plain"])
@pytest.mark.pain("P40")
def test_a_budget_of_five_steps_is_five_steps(made: type[Spends]) -> None:
    """However fast they follow each other; the sixth does not run."""
    with harness_of(made, {"steps": 5}) as harness:
        assert harness.ask(2) == [0, 1]
        with pytest.raises(AgentParkedError, match="steps of agent 'a' are used up") as caught:
            harness.ask(9, message_id="m-9")
        assert "(5 of 5)" in str(caught.value)
        assert (harness.agent.done, told_of(harness.info)) == (5, ("parked", "budget", 0, 0, {}))
        assert harness.info.spent == {"tokens": 0, "usd": 0.05, "steps": 5}


@pytest.mark.parametrize("made", [Stepper, PlainStepper], ids=["async", "plain"])
@pytest.mark.pain("P40")
def test_a_message_over_the_budget_goes_on_when_there_is_more(made: type[Spends]) -> None:
    """What its steps did is not done again; its caller gets the answer under the same id, and no death is counted."""
    with harness_of(made, {"steps": 5}) as harness:
        for limit in (7, 20):
            with pytest.raises(AgentParkedError):
                harness.ask(9, message_id="m-9")
            before = len(harness.steps("msg:m-9"))
            assert before in {5, 7}
            harness.manager.update_agent("a", budget={"steps": limit})
            harness.manager.unpark_agent("a")
            harness.restart()
        assert harness.ask(9, message_id="m-9") == list(range(9))
        assert harness.info.spent == {"tokens": 0, "usd": 0.09, "steps": 9}
        assert harness.manager.dead_letters("a") == []
        assert harness.info.deaths == {}


class Wrapper(Spends):
    """Several steps at once; catches what they raise if it is told to."""

    async def process(self, ctx: AgentContext, message: str) -> object:
        """In a group of tasks, which raises a group of errors."""
        await ctx.charge(tokens=5)
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(2):
                    group.create_task(ctx.step(f"{message}:{number}", str, number))
        except BaseExceptionGroup:
            if message == "group":
                raise
            if message == "answer":
                return "no more money"
            raise RuntimeError("its own words") from None
        return message


def test_a_group_of_refusals_is_no_answer_and_what_its_code_makes_of_them_is() -> None:
    """Whoever catches the error answers as it likes."""
    with harness_of(Wrapper, {"tokens": 5}) as harness:
        assert harness.ask("answer") == "no more money"
        harness.advance(1)
        assert harness.info.cause == "budget"
    with harness_of(Wrapper, {"tokens": 5}) as harness, pytest.raises(AgentFailedError, match="its own words"):
        harness.ask("other")
    with harness_of(Wrapper, {"tokens": 5}) as harness:
        with pytest.raises(AgentParkedError):
            harness.ask("group", message_id="m")
        harness.manager.update_agent("a", budget={"tokens": None})
        harness.manager.unpark_agent("a")
        harness.restart()
        assert harness.ask("group", message_id="m") == "group"


class Ends(Spends):
    """Counts up, then wants more than it may; keeps how it ended."""

    def __init__(self, agent_id: str) -> None:
        super().__init__(agent_id)
        self.ended: list[str | None] = []

    def snapshot(self) -> dict[str, object]:
        """What it has done."""
        return {"done": self.done}

    def restore_state(self, state: dict[str, Any]) -> None:
        """Back."""
        self.done = state["done"]


class Ender(Ends):
    """Lets the error pass."""

    async def start(self, ctx: AgentContext) -> None:
        """For a second all is well."""
        await ctx.charge(tokens=10)
        await ctx.emit("did")
        await ctx.sleep(1)
        await ctx.tool(look)()

    async def process(self, ctx: AgentContext, message: object) -> object:
        """Takes longer than that."""
        await asyncio.sleep(2)  # on purpose: simulated time
        return message

    async def stop(self, ctx: AgentContext) -> None:
        """Its own end."""
        self.ended.append(ctx.stopping_reason)


class PlainEnder(Ends):
    """The same, plain."""

    def start(self, ctx: SyncAgentContext) -> None:
        """As above."""
        ctx.charge(tokens=10)
        ctx.emit("did")
        ctx.sleep(1)
        ctx.tool(look)()

    def stop(self, ctx: SyncAgentContext) -> None:
        """As above."""
        self.ended.append(ctx.stopping_reason)


@pytest.mark.parametrize("made", [Ender, PlainEnder], ids=["async", "plain"])
def test_who_lets_the_error_pass_ends_in_order(made: type[Ends]) -> None:
    """With its own stop() and a last snapshot, as nothing is wrong with it."""
    with harness_of(made, {"tokens": 10}) as harness:
        one = harness.agent
        harness.run_until("agent.parked")
        assert (one.ended, told_of(harness.info)) == (["stop"], ("parked", "budget", 0, 0, {}))
        assert [shot.state for shot in harness.snapshots] == [{"done": 1}]


def test_the_message_at_hand_is_answered_before_it_is_parked() -> None:
    """Although the agent's main code has raised in the middle of it."""
    with harness_of(Ender, {"tokens": 10}) as harness:
        assert harness.ask("well") == "well"
        harness.run_until("agent.parked")
        assert harness.now == pytest.approx(2, abs=0.5)


class Flaky:
    """A step of three tries, each of which costs something and fails."""

    def __init__(self, agent_id: str) -> None:
        self.tries = 0

    async def start(self, ctx: AgentContext) -> object:
        """Tries."""
        return await ctx.step.with_options(retries=5)("ask", self.ask, ctx)

    async def ask(self, ctx: AgentContext) -> None:
        """Spends, and fails."""
        self.tries += 1
        await ctx.charge(tokens=60)
        raise ConnectionError("no answer")


class PlainFlaky(Flaky):
    """The same, plain."""

    @override
    def start(self, ctx: SyncAgentContext) -> object:  # type: ignore[override]
        """As above."""
        return ctx.step.with_options(retries=5)("ask", self.ask, ctx)

    @override
    def ask(self, ctx: SyncAgentContext) -> None:  # type: ignore[override]
        """As above."""
        self.tries += 1
        ctx.charge(tokens=60)
        raise ConnectionError("no answer")


@pytest.mark.parametrize("made", [Flaky, PlainFlaky], ids=["async", "plain"])
def test_a_budget_that_the_tries_of_a_step_use_up_ends_them(made: type[Flaky]) -> None:
    """Each try is let in by itself, not the first alone; the stream tells that the step is given up."""
    with harness_of(made, {"tokens": 100}) as harness:
        agent = harness.agent
        harness.advance(120)
        assert agent.tries == 2
        assert told_of(harness.info) == ("parked", "budget", 0, 0, {})
        assert harness.info.spent["tokens"] == 120
        told = [one for one in harness.all_events if one.type.startswith("step.")]
        assert [one.type for one in told] == [
            "step.failed",
            "step.recovery.started",
            "step.failed",
            "step.recovery.failed",
        ]
        assert (told[-1].payload["attempts"], "used up" in told[-1].payload["reason"]) == (2, True)
        assert harness.manager.stats().counters["budgets_exceeded"] == 1


class Careful:
    """A step that must not be repeated, with a costly step inside."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def start(self, ctx: AgentContext) -> object:
        """Books."""
        return await ctx.step.with_options(replay="never")("book", self.book, ctx)

    async def book(self, ctx: AgentContext) -> str:
        """Begins, and then needs something."""
        await ctx.emit("booking")
        await ctx.charge(tokens=60)
        return await ctx.step("look", look)


class PlainCareful(Careful):
    """The same, plain."""

    @override
    def start(self, ctx: SyncAgentContext) -> object:  # type: ignore[override]
        """As above."""
        return ctx.step.with_options(replay="never")("book", self.book, ctx)

    @override
    def book(self, ctx: SyncAgentContext) -> str:  # type: ignore[override]
        """As above."""
        ctx.emit("booking")
        ctx.charge(tokens=60)
        return ctx.step("look", look)


@pytest.mark.parametrize("made", [Careful, PlainCareful], ids=["async", "plain"])
def test_a_refusal_inside_of_a_never_step_is_not_its_outcome(made: type[Careful]) -> None:
    """Parked for its budget first; allowed more, a person says whether the step may run again, and it does."""
    with harness_of(made, {"tokens": 60}) as harness:
        harness.advance(1)
        assert told_of(harness.info) == ("parked", "budget", 0, 0, {})
        assert harness.info.intents == 1
        assert harness.manager.checkpoints.steps("a", "main") == ()
        harness.manager.update_agent("a", budget={"tokens": 1_000})
        harness.manager.unpark_agent("a")
        with pytest.raises(AgentParkedError, match="ares agents reconcile a"):
            harness.restart()
        assert told_of(harness.info) == ("parked", "reconcile", 0, 0, {})
        harness.manager.reconcile_agent("a", retry=True, reason="looked", actor="ann")
        harness.restart()
        harness.advance(1)
        assert (harness.info.state.value, harness.info.result) == ("completed", "seen")
        assert [one.type for one in harness.all_events].count("booking") == 2
        assert harness.info.deaths == {}
