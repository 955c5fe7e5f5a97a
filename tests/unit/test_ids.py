"""Ids that people choose."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ares_celery.errors import InvalidAgentIdError, InvalidSettingError
from ares_celery.ids import check_agent_id, check_namespace

LETTERS = "ABCXYZabcxyz0189._:-"


@given(st.text(LETTERS, min_size=1, max_size=200))
def test_letters_digits_and_four_marks_make_an_agent_id(text: str) -> None:
    """1 to 200 of them, in any order."""
    assert check_agent_id(text) == text


@pytest.mark.parametrize(
    "value",
    [
        "",
        "a" * 201,
        "with space",
        "tab\t",
        "line\n",
        "a/b",
        "{a}",
        "ümlaut",
        "١٢",
        "a|b",
        "\x00",
        None,
        7,
        b"bytes",
        ["a"],
    ],
)
def test_anything_else_is_refused_with_the_value_and_the_rule(value: object) -> None:
    """Also what only looks like it: digits of other scripts, a trailing line end, another type."""
    with pytest.raises(InvalidAgentIdError, match=r"1 to 200 characters of ASCII letters") as caught:
        check_agent_id(value)
    assert isinstance(caught.value, ValueError)
    assert str(value)[:20] in caught.value.agent_id or repr(value)[:20] in caught.value.agent_id


def test_a_refused_id_of_a_megabyte_makes_no_message_of_a_megabyte() -> None:
    """The error shows its beginning."""
    with pytest.raises(InvalidAgentIdError) as caught:
        check_agent_id("x" * 1_000_000)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("name", ["ares", "shop-1", "a.b_c", "n" * 100])
def test_a_namespace_can_be_part_of_keys_and_queue_names(name: str) -> None:
    """Without the colon that separates the parts of a key."""
    assert check_namespace(name) == name


@pytest.mark.parametrize("name", ["", "a:b", "a b", "{a}", "n" * 101, "ü", "a\n"])
def test_another_namespace_is_refused_naming_the_field(name: str) -> None:
    """Field, value and what to use."""
    with pytest.raises(InvalidSettingError, match="namespace") as caught:
        check_namespace(name)
    assert caught.value.field == "namespace"
    assert caught.value.value == name[:120]
