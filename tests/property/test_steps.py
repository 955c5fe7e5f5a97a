"""Whatever a step returned comes back from its stored form."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ares_celery.ids import Instant
from ares_celery.model.step import StepIntent, StepRecord, decode_intent, decode_step, encode_intent, encode_step

NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(JSON, st.text(), st.integers(1, 9), st.none() | st.dictionaries(st.text(), st.text(), max_size=3))
def test_a_record_is_read_as_it_was_written(
    value: Any, function: str, attempts: int, error: dict[str, str] | None
) -> None:
    """Also behind the number and the moment that the store puts before it, whatever bars the value holds."""
    record = StepRecord("a|b", function, "keyed", value, error, attempts, "ada")
    data, read = encode_step(record)
    assert read == record == decode_step("a|b", data)
    assert decode_step("a|b", b"12|1790000000000000|" + data) == StepRecord(
        "a|b", function, "keyed", value, error, attempts, "ada", 12, Instant(1790000000000000)
    )


@given(JSON, st.text(), st.text())
def test_an_intent_is_read_as_it_was_written(arguments: Any, execution: str, step: str) -> None:
    """With the moment that the store puts before it."""
    intent = StepIntent(execution, step, "charge", "never", arguments, 3)
    assert decode_intent(b"1790000000000000|" + encode_intent(intent)) == StepIntent(
        execution, step, "charge", "never", arguments, 3, Instant(1790000000000000)
    )
