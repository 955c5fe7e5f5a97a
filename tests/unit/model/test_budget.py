"""Budgets: what may stand in a spec, and what follows for an agent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ares_celery.config import RuntimeConfig
from ares_celery.errors import AgentParkedError, BudgetExceededError, InvalidConfigError, InvalidSettingError
from ares_celery.ids import Instant
from ares_celery.model.agent import AgentRecord, AgentSpec, AgentState, Desired
from ares_celery.model.budget import (
    NO_LIMITS,
    Exceeded,
    Limits,
    Spending,
    Spent,
    changed_budget,
    check_changes,
    exceeded_by,
    readable_budget,
)
from ares_celery.model.command import Command, Restart, Start, Unpark, Update
from ares_celery.model.info import agent_info
from ares_celery.model.lifecycle import decide
from ares_celery.model.plan import Plan, Situation
from ares_celery.store.redis.records import changes, decode_record, fields_of

NOW = Instant(1_795_975_978_273_137)
PARKED = AgentRecord(
    AgentSpec(id="a", type="t", budget={"tokens": 10, "usd": 1}),
    Desired.RUNNING,
    AgentState.PARKED,
    cause="budget",
    spent_tokens=6,
    shared_tokens=4,
)


def decided(record: AgentRecord, command: Command) -> Plan:
    """What follows from a command."""
    return decide(Situation(record, NOW, RuntimeConfig().policy_for(record.spec)), command)


@pytest.mark.parametrize(
    ("budget", "problem"),
    [
        ({"pages": 3}, "there is no budget 'pages'; there are tokens, usd, steps"),
        ({3: 3}, "there is no budget 3"),
        ({"tokens": -1}, "tokens=-1 must not be below zero"),
        ({"usd": -0.01}, "usd=-0.01 must not be below zero"),
        ({"steps": 1.5}, "steps=1.5 must be a whole number"),
        ({"tokens": True}, "tokens=True must be a number"),
        ({"tokens": "5"}, "tokens='5' must be a number"),
        ({"tokens": None}, "tokens=None must be a number"),
        ({"usd": float("nan")}, "must be a finite number"),
        ({"usd": float("inf")}, "must be a finite number"),
        ({"tokens": 10**16}, "must be at most 1000000000000000"),
        ([], "give a mapping of tokens, usd, steps"),
    ],
)
def test_a_budget_that_cannot_be_is_refused_by_name(budget: object, problem: str) -> None:
    """When the spec is made, and when it is to be changed."""
    with pytest.raises(InvalidConfigError, match="budget: ") as refused:
        AgentSpec(id="a", type="t", budget=budget)  # type: ignore[arg-type]
    assert problem in str(refused.value)
    if budget == {"tokens": None}:
        return
    with pytest.raises(InvalidSettingError) as unchanged:
        check_changes(budget)
    assert unchanged.value.field == "budget"
    assert problem in str(unchanged.value)


def test_whole_numbers_may_come_as_floats() -> None:
    """JSON of other languages has no others; an empty budget is none."""
    assert AgentSpec(id="a", type="t", budget={"tokens": 5.0, "steps": 0}).budget == {"tokens": 5.0, "steps": 0.0}
    assert AgentSpec(id="a", type="t", budget={}).budget is None
    assert Limits.of({}) is NO_LIMITS
    assert Limits.of({"tokens": 5.0, "usd": 1e-9}) == Limits(tokens=5, usd=1)


@pytest.mark.parametrize(
    ("own", "below", "limits", "found"),
    [
        (Spent(9), Spent(), Limits(tokens=10), None),
        (Spent(10), Spent(), Limits(tokens=10), Exceeded("tokens", 10, 10, "a")),
        (Spent(5), Spent(6), Limits(tokens=10), Exceeded("tokens", 11, 10, "a")),
        (Spent(usd=299_999), Spent(), Limits(usd=300_000), None),
        (Spent(steps=3), Spent(usd=1), Limits(steps=3, usd=0), Exceeded("usd", 0.000001, 0.0, "a")),
        (Spent(10**15), Spent(), NO_LIMITS, None),
        (Spent(), Spent(), Limits(steps=0), Exceeded("steps", 0, 0, "a")),
    ],
)
def test_a_budget_is_used_up_when_as_much_was_spent(
    own: Spent, below: Spent, limits: Limits, found: Exceeded | None
) -> None:
    """By itself and those below together; the first of several is named."""
    assert exceeded_by(Spending(own, below, limits), "a") == found


def test_limits_are_changed_one_by_one() -> None:
    """None takes one away, the last one too."""
    assert changed_budget({"tokens": 1.0}, {"usd": 2}) == {"tokens": 1.0, "usd": 2.0}
    assert changed_budget({"tokens": 1.0}, {"tokens": None}) is None
    assert changed_budget(None, {"steps": 3, "usd": None}) == {"steps": 3.0}
    assert readable_budget({"tokens": "x", "usd": 2, "pages": 1}) == {"usd": 2.0}


@pytest.mark.parametrize("command", [Unpark(actor="ann"), Restart(actor="ann")])
def test_nobody_unparks_an_agent_whose_own_budget_is_used_up(command: Command) -> None:
    """More of it, or none, lets it go on; so does a budget that was another's, or another cause."""
    with pytest.raises(AgentParkedError, match=r"allow more with `ares agents update a --budget") as refused:
        decided(PARKED, command)
    assert refused.value.cause == "budget"
    for more in ({"tokens": 11}, {"tokens": None}):
        allowed = decided(PARKED, Update(actor="ann", budget=more)).after
        assert allowed is not None
        after = decided(allowed, command).after
        assert after is not None
        assert (after.state, after.spent_tokens, after.shared_tokens) == (AgentState.STARTING, 6, 4)
    for free in (replace(PARKED, spent_tokens=5), replace(PARKED, cause="cap")):
        assert decided(free, command).after is not None


def test_a_new_start_keeps_what_was_spent() -> None:
    """Also with a spec of its own."""
    spec = AgentSpec(id="a", type="t", budget={"tokens": 100})
    after = decided(
        replace(PARKED, state=AgentState.STOPPED, desired=Desired.STOPPED, root="r"), Start(spec=spec)
    ).after
    assert after is not None
    assert (after.spending, after.root) == (Spending(Spent(6), Spent(4), Limits(tokens=100)), "r")


def test_the_record_has_limits_that_scripts_can_read() -> None:
    """They follow each change of the spec; those of a record that has none yet come with the next change."""
    before = replace(PARKED, spec=AgentSpec(id="a", type="t"))
    change = changes(before, PARKED)
    assert {name: value for name, value in change.put.items() if name.startswith("budget_")} == {
        "budget_tokens": "10",
        "budget_usd": "1000000",
    }
    assert set(changes(PARKED, before).clear) == {"budget_tokens", "budget_usd"}
    assert "budget_tokens" in changes(PARKED, replace(PARKED, reason="x")).put
    assert changes(PARKED, PARKED).put == {}
    assert decode_record(fields_of(PARKED)) == PARKED


def test_a_person_sees_limits_and_what_was_spent() -> None:
    """Whole numbers as such, money in dollars."""
    info = agent_info(replace(PARKED, spent_usd=250_000))
    assert info.budget == {"tokens": 10, "usd": 1.0}
    assert info.spent == {"tokens": 6, "usd": 0.25, "steps": 0}
    assert info.spent_below == {"tokens": 4, "usd": 0.0, "steps": 0}
    assert '"tokens":10,' in info.model_dump_json()
    assert agent_info(AgentRecord(AgentSpec(id="a", type="t"))).spent_below is None


def test_the_error_says_what_whose_and_the_cure() -> None:
    """Also after a way over the wire."""
    error = BudgetExceededError(agent_id="a", budget="usd", spent=5.2, limit=5.0, whose="root")
    assert str(BudgetExceededError(error.fields)) == (
        "agent 'a' may do no more: the usd of agent 'root' are used up (5.2 of 5.0); allow more with "
        "`ares agents update root --budget usd=…`, then `ares agents unpark a`"
    )
