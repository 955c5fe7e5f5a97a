"""Old states are brought to the schema of the code at hand step by step, or the attempt fails and says where."""

from __future__ import annotations

from typing import Any

import pytest

from ares_celery.agents.upcasting import Upcasters
from ares_celery.errors import AgentTypeError, FencedSignal, StateUpcastError


def first(state: dict[str, Any]) -> dict[str, Any]:
    """The step from 1."""
    return {"total": state["n"]}


def second(state: dict[str, Any]) -> dict[str, Any]:
    """The step from 2."""
    return {**state, "unit": "apples"}


def another(state: dict[str, Any]) -> dict[str, Any]:
    """A step of nobody."""
    return state


@pytest.fixture
def upcasters() -> Upcasters:
    """From 1 over 2 to 3."""
    made = Upcasters()
    made.add("counter", 1, first)
    made.add("counter", 2, second)
    return made


def upcast(upcasters: Upcasters, state: dict[str, Any], found: int, wanted: int) -> dict[str, Any]:
    """As recovery does."""
    return upcasters.upcast(state, agent_id="c", agent_type="counter", found=found, wanted=wanted)


def test_the_steps_are_chained(upcasters: Upcasters) -> None:
    """From any of them on; the stored state stays as it is."""
    stored = {"n": 3}
    assert upcast(upcasters, stored, 1, 3) == {"total": 3, "unit": "apples"}
    assert upcast(upcasters, {"total": 3}, 2, 3) == {"total": 3, "unit": "apples"}
    assert upcast(upcasters, {"total": 3}, 3, 3) == {"total": 3}
    assert stored == {"n": 3}


def test_a_missing_link_is_named_with_type_and_version(upcasters: Upcasters) -> None:
    """And the error says what to write."""
    with pytest.raises(StateUpcastError, match=r"@upcaster\('counter', from_version=3\)") as caught:
        upcast(upcasters, {"n": 3}, 1, 4)
    fields = caught.value.fields
    assert (fields["agent_id"], fields["type"], fields["from_version"], fields["to_version"]) == ("c", "counter", 3, 4)


@pytest.mark.parametrize("error", [KeyError, SystemExit, BaseException], ids=lambda error: error.__name__)
def test_whatever_an_upcaster_raises_is_named(error: type[BaseException]) -> None:
    """What is no Exception too; a signal to the agent passes."""

    def fails(state: dict[str, Any]) -> dict[str, Any]:
        raise error("gone")

    upcasters = Upcasters()
    upcasters.add("counter", 1, fails)
    with pytest.raises(StateUpcastError, match=rf"'counter'.*schema 1 to 2: {error.__name__}: .*gone"):
        upcast(upcasters, {}, 1, 2)


def test_a_signal_passes_through() -> None:
    """The incarnation is over: that is no failure of the upcaster."""

    def fenced(state: dict[str, Any]) -> dict[str, Any]:
        raise FencedSignal

    upcasters = Upcasters()
    upcasters.add("counter", 1, fenced)
    with pytest.raises(FencedSignal):
        upcast(upcasters, {}, 1, 2)


@pytest.mark.parametrize("rubbish", [None, 7, "text", [("a", 1)]])
def test_an_upcaster_that_gives_no_mapping_is_named(rubbish: Any) -> None:
    """What it gave is named too."""
    upcasters = Upcasters()
    upcasters.add("counter", 1, lambda _: rubbish)
    with pytest.raises(StateUpcastError, match=f"returned a {type(rubbish).__name__}, not a mapping"):
        upcast(upcasters, {}, 1, 2)


def test_a_step_has_one_upcaster(upcasters: Upcasters) -> None:
    """The same function again, as when its module is loaded anew, takes its place; another one is refused."""
    upcasters.add("counter", 1, first)
    with pytest.raises(AgentTypeError, match=r"first upcasts from version 1 already"):
        upcasters.add("counter", 1, another)
    with pytest.raises(AgentTypeError, match="version 1 or later, not 0"):
        upcasters.add("counter", 0, another)
    upcasters.add("another type", 1, another)
