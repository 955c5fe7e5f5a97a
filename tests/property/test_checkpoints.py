"""Whatever an envelope holds comes back from its stored form, and whatever is stored can be looked at."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ares_celery.errors import CheckpointSchemaVersionError
from ares_celery.model.checkpoint import CheckpointEnvelope, decode_checkpoint, encode_checkpoint, read_checkpoint
from ares_celery.store.redis.json_values import encode_json

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(texts, values, max_size=4)
counts = st.integers(0, 2**63 - 1)
envelopes = st.builds(
    CheckpointEnvelope,
    schema_version=st.integers(0, 5),
    user_profile=objects,
    payload=objects,
    used_experience_id=texts,
    step_checkpoint=values,
    strategy_id=texts,
    session_id=texts,
    input_tokens=counts,
    output_tokens=counts,
    tenant_id=texts,
    last_error=texts,
)


@pytest.mark.spec(113)
@given(envelopes)
def test_an_envelope_comes_back_from_what_is_stored_of_it(envelope: CheckpointEnvelope) -> None:
    """As a mapping and as bytes, stamped with the newest schema, every other field equal."""
    newest = envelope.model_copy(update={"schema_version": 5})
    stored = encode_checkpoint(envelope)
    assert stored["schema_version"] == 5
    assert decode_checkpoint(stored) == newest
    data, _ = encode_json(stored, what="the checkpoint", agent_id="a")
    assert read_checkpoint(data) == newest


@given(st.dictionaries(st.sampled_from([*CheckpointEnvelope.model_fields, "else"]), values) | values)
def test_whatever_json_is_stored_is_read_or_refused_as_newer(value: Any) -> None:
    """Nothing else can happen to a reader; raw values are kept whole."""
    before = json.dumps(value)
    versioned = isinstance(value, dict) and "schema_version" in value
    version: object = value["schema_version"] if versioned else 0
    if isinstance(version, int | float) and not isinstance(version, bool) and int(version) > 5:
        with pytest.raises(CheckpointSchemaVersionError):
            decode_checkpoint(value)
    else:
        envelope = decode_checkpoint(value)
        assert envelope.schema_version <= 5
        assert versioned or envelope.step_checkpoint == value
    assert json.dumps(value) == before
