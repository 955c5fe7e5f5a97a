"""What a fault may be: every value is checked by name, and every fault has an end."""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import islice
from statistics import mean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ares_celery.clock import to_datetime
from ares_celery.errors import InvalidAgentIdError, InvalidSettingError
from ares_celery.model.durations import parse_duration
from ares_celery.model.fault import LLM_ERRORS, Draw, Fault, FaultKind, Injection, by_precedence

NAMED = list(FaultKind)


@pytest.mark.spec(140)
def test_partition_memory_mcp_and_llm_come_in_this_order() -> None:
    """Then what only slows or cuts off; of a kind the oldest is felt first."""
    assert [kind.value for kind in NAMED] == ["partition", "memory", "mcp", "llm", "slow", "tool_timeout"]
    faults = [Fault(str(rank), "a", kind, since=to_datetime(10 - rank)) for rank, kind in enumerate(reversed(NAMED))]
    older = Fault("older", "a", FaultKind.MCP, since=to_datetime(1))
    newer = Fault("newer", "a", FaultKind.MCP, since=to_datetime(99))
    ordered = sorted([newer, *faults, older], key=by_precedence)
    assert [fault.kind for fault in ordered] == [
        *(FaultKind.PARTITION, FaultKind.MEMORY),
        *(FaultKind.MCP, FaultKind.MCP, FaultKind.MCP),
        *(FaultKind.LLM, FaultKind.SLOW, FaultKind.TOOL_TIMEOUT),
    ]
    assert [fault.id for fault in ordered if fault.kind is FaultKind.MCP] == ["older", "3", "newer"]


@pytest.mark.parametrize("text", ["2s", 2, 2.0, timedelta(seconds=2), "2000ms"])
def test_durations_are_taken_in_every_form(text: Any) -> None:
    """As everywhere."""
    made = Injection.of("a", FaultKind.SLOW, delay=text, duration=text)
    assert (made.delay, made.duration) == (2.0, timedelta(seconds=2))


def test_a_fault_lasts_a_minute_unless_somebody_says_otherwise() -> None:
    """Up to a day, and it affects all calls until then."""
    made = Injection.of("a", FaultKind.PARTITION)
    assert (made.duration, made.count, made.probability) == (timedelta(minutes=1), None, 1.0)
    assert Injection.of("a", FaultKind.PARTITION, duration="24h").duration == timedelta(hours=24)


def test_a_seed_is_drawn_and_shown() -> None:
    """So that whoever saw something can see it again."""
    drawn = {Injection.of("a", FaultKind.MCP).seed for _ in range(20)}
    assert len(drawn) > 15
    assert Injection.of("a", FaultKind.MCP, seed=0).seed == 0


@pytest.mark.parametrize(
    ("field", "kind", "values"),
    [
        ("duration", FaultKind.MCP, ["25h", timedelta(days=2), 86_400.5, 0, "0s", -1, "soon", True, [], float("nan")]),
        ("delay", FaultKind.SLOW, [None, "25h", -1, 0, "later", {}]),
        ("timeout", FaultKind.TOOL_TIMEOUT, [None, "25h", -1, 0, "later", {}]),
        ("count", FaultKind.MCP, [0, -1, 2**31, 1.5, "3", True]),
        ("probability", FaultKind.MCP, [0, -0.1, 1.1, "1", True, None, float("nan")]),
        ("seed", FaultKind.MCP, [-1, 2**53, 1.5, "7", True]),
        ("error_type", FaultKind.LLM, [None, "", "429", 429, "Rate_Limit"]),
        ("retry_after", FaultKind.LLM, [-1, "soon", True]),
        ("server", FaultKind.MCP, [None, 3, "x" * 201, "a\nb"]),
    ],
)
def test_what_cannot_be_is_refused_by_name(field: str, kind: FaultKind, values: list[Any]) -> None:
    """The error has the argument, its value and the cure."""
    needed: dict[FaultKind, dict[str, Any]] = {
        FaultKind.SLOW: {"delay": 1},
        FaultKind.TOOL_TIMEOUT: {"timeout": 1},
        FaultKind.LLM: {"error_type": "auth"},
    }
    for value in values:
        with pytest.raises(InvalidSettingError) as caught:
            Injection.of("a", kind, **{**needed.get(kind, {}), field: value})
        assert caught.value.fields["field"] == field
        assert caught.value.fields["problem"]
        json.dumps(caught.value.fields)


def test_the_agent_s_id_is_checked() -> None:
    """Before anything else."""
    with pytest.raises(InvalidAgentIdError):
        Injection.of("a b", FaultKind.MCP, count=0)


def test_every_word_for_a_failing_model_is_taken() -> None:
    """And kept."""
    assert len(LLM_ERRORS) == 8
    assert [Injection.of("a", FaultKind.LLM, error_type=word).error_type for word in LLM_ERRORS] == list(LLM_ERRORS)
    assert Injection.of("a", FaultKind.LLM, error_type="rate_limit", retry_after=0).retry_after == 0


def test_a_fault_is_plain_json() -> None:
    """The same names for every kind."""
    shapes = set()
    for kind in NAMED:
        shown = Fault("op", "a", kind, count=2, probability=0.5).to_json()
        assert json.loads(json.dumps(shown))["kind"] == kind.value
        assert shown["until"] == "1970-01-01T00:00:00+00:00"
        shapes.add(tuple(shown))
    assert len(shapes) == 1


@pytest.mark.parametrize(
    ("given_", "counted"),
    [({}, False), ({"count": 1}, True), ({"probability": 0.99}, True), ({"probability": 1}, False)],
)
def test_only_what_may_spare_a_call_is_counted(given_: dict[str, Any], counted: bool) -> None:  # noqa: FBT001 - a parameter of pytest
    """Nobody asks the store about a fault that affects every call."""
    assert Fault("op", "a", FaultKind.SLOW, **given_).is_counted is counted


@given(seed=st.integers(0, 2**53 - 1), probability=st.floats(0.01, 1))
def test_a_draw_is_the_same_each_time(seed: int, probability: float) -> None:
    """And certain at 1."""
    once, again = (list(islice(Draw.hits(seed, probability), 20)) for _ in range(2))
    assert once == again
    assert all(islice(Draw.hits(seed, 1.0), 20))
    # Its products stay exact in floating point.
    assert 0 < Draw.first(seed) < Draw.MODULUS
    assert (Draw.MODULUS - 1) * Draw.FACTOR < 2**53


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_a_draw_affects_as_many_calls_as_it_should(probability: float) -> None:
    """For one seed over many calls, and for the first call over seeds side by side."""
    assert abs(mean(islice(Draw.hits(7, probability), 20_000)) - probability) < 0.02
    assert abs(mean(next(Draw.hits(seed, probability)) for seed in range(5_000)) - probability) < 0.03


@pytest.mark.parametrize(
    ("text", "seconds"), [("1m30s", 90), ("1h0.5s", 3600.5), (" 2h3m4s ", 7384), ("1s500ms", 1.5), ("1d1h", 90_000)]
)
def test_a_duration_may_have_several_parts(text: str, seconds: float) -> None:
    """The largest unit first."""
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["30s1m", "1m1m", "1m30", "m30s", "1m 30s", "1m-30s"])
def test_a_duration_with_a_slip_of_the_pen_is_refused(text: str) -> None:
    """Nobody guesses what was meant."""
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)
