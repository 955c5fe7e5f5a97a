"""The spec of an agent and what a person sees of one."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from ares_celery.errors import AresError, InvalidAgentIdError, InvalidConfigError
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


@pytest.mark.parametrize(
    ("fields", "kind", "said"),
    [
        ({"id": "no spaces", "type": "t"}, InvalidAgentIdError, "agent id 'no spaces' is not valid"),
        ({"id": 7, "type": "t"}, InvalidAgentIdError, "agent id 7 is no text"),
        ({"type": "t"}, InvalidAgentIdError, "an agent id is missing"),
        ({"id": "a", "type": "t", "parent": "no spaces"}, InvalidAgentIdError, "agent id 'no spaces' is not valid"),
        ({"id": "a", "type": "t", "max_restarts": -1}, InvalidConfigError, "spec of agent 'a': max_restarts: .* 0"),
        ({"id": "a", "type": "t", "hang_timeout": 0}, InvalidConfigError, "hang_timeout: must be longer than zero"),
        ({"id": "a", "type": "t", "backoff": "soon"}, InvalidConfigError, "backoff: "),
        ({"id": "a", "type": "t", "config": {"when": {1}}}, InvalidConfigError, r"config\.when"),
        (
            {"id": "a", "type": "t", "nonsense": 1},
            InvalidConfigError,
            "nonsense: there is no such field; there are",
        ),
        ({"id": "a", "type": ""}, InvalidConfigError, "type: "),
        ({"id": "a"}, InvalidConfigError, "spec of agent 'a': type is missing"),
    ],
)
def test_the_constructor_refuses_with_the_errors_of_the_product(
    fields: dict[str, Any], kind: type[Exception], said: str
) -> None:
    """Whoever catches AresError, or ValueError, gets each; pydantic's own error is the cause."""
    with pytest.raises(kind, match=said) as caught:
        AgentSpec(**fields)
    assert isinstance(caught.value, AresError)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value.__cause__, ValidationError)
    with pytest.raises(ValidationError):
        AgentSpec.model_validate(fields)


def test_a_spec_is_made_the_same_by_each_way_in() -> None:
    """The constructor, a dict and JSON; a copy is not checked again."""
    made = AgentSpec(id="a", type="t", config={"n": 1}, backoff="2s", restart="permanent")
    read = AgentSpec.model_validate({"id": "a", "type": "t", "config": {"n": 1}, "backoff": 2, "restart": "permanent"})
    assert made == read == AgentSpec.model_validate_json(made.model_dump_json())
    assert made.model_copy(update={"type": "u"}).type == "u"
    assert inspect.signature(AgentSpec).parameters.keys() == AgentSpec.model_fields.keys()


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
