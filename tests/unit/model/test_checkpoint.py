"""The envelope: every age is read, the newest is written, what is newer is refused."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ares_celery.errors import CheckpointSchemaVersionError, UnserialisableError
from ares_celery.model.checkpoint import (
    SCHEMA_VERSION,
    CheckpointEnvelope,
    decode_checkpoint,
    encode_checkpoint,
    read_checkpoint,
)
from tests.parsed import parse_source

ROOT = Path(__file__).parents[3]
GOLDEN = sorted((ROOT / "tests/data/checkpoints").glob("*.json"))
FULL = CheckpointEnvelope(
    user_profile={"name": "Ann"},
    payload={"file": "a.txt"},
    used_experience_id="exp-7",
    step_checkpoint={"row": 3},
    strategy_id="greedy",
    session_id="s-1",
    input_tokens=12,
    output_tokens=8,
    tenant_id="acme",
    last_error="the model was away",
)


@pytest.mark.spec(114)
@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_what_older_versions_stored_is_read_as_they_meant_it(path: Path) -> None:
    """Fields that did not exist yet are empty; a raw value is the step's checkpoint at version 0."""
    golden = json.loads(path.read_text())
    envelope = decode_checkpoint(golden["stored"])
    assert envelope.model_dump() == golden["decoded"]
    assert read_checkpoint(json.dumps(golden["stored"]).encode()) == envelope


def test_every_schema_has_its_golden_file() -> None:
    """A new schema comes with one."""
    assert {path.stem for path in GOLDEN} >= {f"v{version}" for version in range(SCHEMA_VERSION + 1)}


@pytest.mark.spec(113)
def test_an_envelope_of_any_age_is_written_in_the_newest_schema() -> None:
    """Every field comes back equal."""
    for version in range(SCHEMA_VERSION + 1):
        old = FULL.model_copy(update={"schema_version": version})
        stored = json.loads(json.dumps(encode_checkpoint(old)))
        assert stored["schema_version"] == 5
        assert decode_checkpoint(stored) == FULL
    assert decode_checkpoint(encode_checkpoint(CheckpointEnvelope())) == CheckpointEnvelope()
    assert encode_checkpoint(decode_checkpoint(None)) == {"schema_version": 5}
    assert CheckpointEnvelope().schema_version == 5


def test_nothing_is_the_empty_envelope_of_version_0() -> None:
    """It is told from one that somebody wrote."""
    assert decode_checkpoint(None) == CheckpointEnvelope(schema_version=0)


def test_an_envelope_is_taken_as_it_is() -> None:
    """Whatever its version, up to the newest."""
    old = CheckpointEnvelope(schema_version=2, strategy_id="greedy")
    assert decode_checkpoint(old) is old


@pytest.mark.spec(115)
@pytest.mark.parametrize("version", [6, 7.0, 10**12])
def test_a_newer_version_is_refused_as_mapping_and_as_envelope(version: float) -> None:
    """The error says what was found and what is known; the value is not touched."""
    value = {"schema_version": version, "payload": {"n": 1}, "of_tomorrow": True}
    before = json.dumps(value)
    with pytest.raises(CheckpointSchemaVersionError, match="upgrade this worker") as refused:
        decode_checkpoint(value)
    assert (refused.value.found, refused.value.known) == (int(version), 5)
    assert json.dumps(value) == before
    with pytest.raises(CheckpointSchemaVersionError):
        decode_checkpoint(CheckpointEnvelope().model_copy(update={"schema_version": int(version)}))


#: For each field, values of types that it does not take; the step's checkpoint takes any.
WRONG: dict[str, list[Any]] = {
    **{name: [17.5, True, [1], "text", None, -3] for name in ("user_profile", "payload")},
    **{name: [True, [1], {"a": 1}, "12", None, -3, float("nan")] for name in ("input_tokens", "output_tokens")},
    **{
        name: [17.5, True, [1], {"a": 1}, None]
        for name in ("used_experience_id", "strategy_id", "session_id", "tenant_id", "last_error")
    },
    "step_checkpoint": [{1, 2}],
}


@pytest.mark.spec(116)
@pytest.mark.parametrize("name", sorted(set(CheckpointEnvelope.model_fields) - {"schema_version"}))
def test_a_field_of_the_wrong_type_is_ignored_and_the_others_are_read(name: str) -> None:
    """Of each field, with each kind of value that it does not take."""
    for wrong in WRONG[name]:
        envelope = decode_checkpoint({**encode_checkpoint(FULL), name: wrong})
        assert envelope == FULL.model_copy(update={name: CheckpointEnvelope.model_fields[name].default}), wrong


@pytest.mark.spec(116)
@pytest.mark.parametrize("version", ["5", None, [5], {}, True, "newest", float("nan"), -1], ids=repr)
def test_a_version_that_is_no_number_is_0(version: Any) -> None:
    """And the fields are read all the same."""
    envelope = decode_checkpoint({**encode_checkpoint(FULL), "schema_version": version})
    assert envelope == FULL.model_copy(update={"schema_version": 0})


def test_a_number_with_a_point_is_one_too() -> None:
    """As writers of other languages store them."""
    envelope = decode_checkpoint({"schema_version": 4.0, "input_tokens": 12.0, "output_tokens": 7})
    assert (envelope.schema_version, envelope.input_tokens, envelope.output_tokens) == (4, 12, 7)


def test_a_raw_value_that_is_no_json_says_so() -> None:
    """It was never stored."""
    with pytest.raises(UnserialisableError, match="not plain JSON"):
        decode_checkpoint({1, 2})


@pytest.mark.spec(117)
def test_the_tokens_of_three_steps_add_up() -> None:
    """10, absent and 5 are 15; what is no number adds nothing; the other count is kept apart."""
    envelope = CheckpointEnvelope()
    for report in ({"input_tokens": 10}, {}, {"input_tokens": 5}):
        envelope = envelope.with_tokens(report)
    assert (envelope.input_tokens, envelope.output_tokens) == (15, 0)
    for wrong in ("7", None, [1], True, float("nan"), float("inf"), -4):
        assert envelope.with_tokens({"input_tokens": wrong, "output_tokens": 2}).input_tokens == 15
    assert envelope.with_tokens(None) == envelope
    assert envelope.with_tokens({"output_tokens": 2}).output_tokens == 2
    assert envelope.with_tokens({"input_tokens": 2**63}).input_tokens == 2**63 - 1


def test_the_strategy_is_stamped_once() -> None:
    """A later one changes nothing."""
    stamped = CheckpointEnvelope().with_strategy("greedy")
    assert stamped.strategy_id == "greedy"
    assert stamped.with_strategy("patient") is stamped


def test_an_executor_gets_a_copy() -> None:
    """With the step's checkpoint in it; what it does to the copy changes no envelope."""
    envelope = CheckpointEnvelope(payload={"files": ["a"]}, step_checkpoint={"row": 3})
    given = envelope.executor_payload()
    assert given == {"files": ["a"], "checkpoint": {"row": 3}}
    given["files"].append("b")
    given["checkpoint"]["row"] = 4
    assert envelope == CheckpointEnvelope(payload={"files": ["a"]}, step_checkpoint={"row": 3})
    assert CheckpointEnvelope(payload={"a": 1}).executor_payload() == {"a": 1}
    step = {"row": 1}
    kept = CheckpointEnvelope().with_step(step)
    step["row"] = 2
    assert kept.step_checkpoint == {"row": 1}


def test_an_error_text_can_always_be_stored() -> None:
    """Cut when it is long, spelled out where JSON could not carry it; without a cause nothing changes."""
    failed = FULL.with_failure("\ud800" + "x" * 10_000)
    assert len(failed.last_error) < 4_100
    json.dumps(encode_checkpoint(failed)).encode()
    assert FULL.with_failure("") is FULL


def test_an_envelope_is_a_value() -> None:
    """Nothing of it is set from outside, nothing unknown is taken."""
    with pytest.raises(ValidationError):
        setattr(FULL, "session_id", "other")  # noqa: B010 - the checkers know that it is frozen
    with pytest.raises(ValidationError):
        CheckpointEnvelope(of_tomorrow=1)  # type: ignore[call-arg]
    with pytest.raises(ValidationError):
        CheckpointEnvelope(schema_version=6)


def unstamped(name: str, source: str) -> list[str]:
    """Where a file makes an envelope whose version is not the newest, or writes one past the encoder."""
    found: list[str] = []
    for node in ast.walk(parse_source(source)):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        makes = called.split(".")[-1] == "CheckpointEnvelope" or called.startswith("CheckpointEnvelope.")
        chooses = any(keyword.arg in {"schema_version", None} for keyword in node.keywords)
        if makes and (chooses or called.startswith("CheckpointEnvelope.")):
            found.append(f"{name}:{node.lineno}: {called}")
    return found


@pytest.mark.spec(113)
def test_no_producer_leaves_the_version_out() -> None:
    """Only the decoder makes envelopes of other versions; everybody else gets the newest, which the encoder stamps."""
    home = ROOT / "ares_celery/model/checkpoint.py"
    found = [
        place
        for folder in ("ares_celery", "workers")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path != home
        for place in unstamped(path.name, path.read_text())
    ]
    assert found == []
    assert len(unstamped("home", home.read_text())) == 3
    assert unstamped("x", "CheckpointEnvelope.model_construct(payload={})") != []


def test_only_the_encoder_turns_an_envelope_into_what_is_stored() -> None:
    """The store writes what it gives, and nobody else writes the field."""
    writers = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "ares_celery").rglob("*.py"))
        if '"envelope"' in path.read_text()
    ]
    assert writers == ["ares_celery/store/redis/stored_executions.py"]
    assert "encode_checkpoint(" in (ROOT / writers[0]).read_text()
