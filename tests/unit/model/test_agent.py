"""The spec of an agent and what a person sees of one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from ares_celery.errors import InvalidAgentIdError
from ares_celery.model.agent import AgentSpec, AgentState, RestartType, agent_status


def test_a_spec_needs_an_id_and_a_type_and_has_the_documented_defaults() -> None:
    """Transient, no queue of its own, every policy field from the namespace."""
    spec = AgentSpec(id="counter-1", type="counter")
    assert spec.restart is RestartType.TRANSIENT
    assert (spec.queue, spec.max_restarts, spec.restart_period, spec.config, spec.labels) == (None, None, None, {}, {})


def test_a_spec_survives_json() -> None:
    """As it travels in control tasks and lies in the record."""
    spec = AgentSpec(
        id="tenant:a-1",
        type="t",
        config={"deep": [1, {"x": None}]},
        backoff=timedelta(seconds=2),
        hang_timeout=timedelta(minutes=1),
    )
    assert AgentSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("type", ""),
        ("queue", "no spaces"),
        ("max_restarts", -1),
        ("restore_attempts", 0),
        ("jitter", 1.5),
        ("restart", "often"),
        ("restart_period", "soon"),
        ("restart_period", -1),
        ("backoff", "-1s"),
        ("backoff", -1),
        ("backoff", 0),
        ("backoff_max", -1),
        ("stable_after", -1),
        ("hang_timeout", 0),
        ("config", {"when": object()}),
        ("nonsense", 1),
    ],
)
def test_a_bad_field_is_named(field: str, value: object) -> None:
    """Unknown fields are refused as well."""
    values: dict[str, Any] = {"id": "a", "type": "t", field: value}
    with pytest.raises(ValidationError) as caught:
        AgentSpec.model_validate(values)
    assert {str(error["loc"][0]) for error in caught.value.errors()} == {field}


def test_a_bad_id_is_refused_by_its_own_error_naming_the_rule() -> None:
    """Also where the id is that of the parent."""
    for values in ({"id": "no spaces", "type": "t"}, {"id": "a", "type": "t", "parent": ""}):
        with pytest.raises((InvalidAgentIdError, ValidationError), match="ASCII letters"):
            AgentSpec.model_validate(values)


def test_every_state_has_the_seeds_word() -> None:
    """starting, ready, stopping or offline."""
    words = {state: agent_status(state) for state in AgentState}
    assert words[AgentState.RESURRECTING] == "starting"
    assert words[AgentState.WAITING] == "ready"
    assert words[AgentState.STOPPING] == "stopping"
    assert {words[state] for state in (AgentState.PAUSED, AgentState.PARKED, AgentState.COMPLETED)} == {"offline"}
