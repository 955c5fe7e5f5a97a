"""Plain JSON or an error that names the place: nothing is bent on its way into the store."""

from __future__ import annotations

import enum
import math
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ares_celery.errors import UnserialisableError
from ares_celery.store.redis.json_values import decode_json, encode_json


@dataclass
class Point:
    x: int


class Colour(enum.StrEnum):
    RED = "red"


def encode(value: object) -> Any:
    """The value as a reader gets it."""
    data, decoded = encode_json(value, what="the payload", agent_id="a")
    assert decode_json(data) == decoded
    return decoded


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"a": {"b": [0, (1, 2)]}}, "at 'a.b[1]' is a tuple"),
        ({"a": {1, 2}}, "at 'a' is a set"),
        ({"a": datetime(2026, 1, 1, tzinfo=UTC)}, "at 'a' is a datetime"),
        ({"a": b"x"}, "at 'a' is a bytes"),
        ({"a": Decimal("1.5")}, "at 'a' is a Decimal"),
        ({"a": UUID(int=1)}, "at 'a' is a UUID"),
        ({"a": Point(1)}, "at 'a' is a Point"),
        ({"a": object()}, "the value at 'a' is an object"),
        ({"a": MappingProxyType({})}, "at 'a' is a mappingproxy"),
        ({"a": math.nan}, "nan at 'a' is no JSON number"),
        ({"a": [math.inf]}, "inf at 'a[0]' is no JSON number"),
        ({"a": [-math.inf]}, "-inf at 'a[0]' is no JSON number"),
        ({"a": {1: "x"}}, "the key 1 of the object at 'a' is an int, not a str"),
        ({"a": {None: "x"}}, "the key None of the object at 'a' is a NoneType, not a str"),
        ({"a": "\ud800"}, "the text at 'a' holds half of a surrogate pair"),
        ({"\udfff": 1}, "holds half of a surrogate pair"),
        (math.nan, "nan as the outermost value is no JSON number"),
    ],
)
def test_what_has_no_place_in_json_is_refused_with_its_place(value: object, problem: str) -> None:
    """Whatever the encoder would have made of it."""
    with pytest.raises(UnserialisableError) as refused:
        encode(value)
    assert problem in refused.value.problem
    assert (refused.value.what, refused.value.agent_id) == ("the payload", "a")


def test_what_contains_itself_is_refused() -> None:
    """With words, not with a recursion error."""
    value: dict[str, Any] = {}
    value["self"] = value
    with pytest.raises(UnserialisableError, match="nested too deeply"):
        encode(value)


def test_values_that_read_back_as_equal_are_taken() -> None:
    """Ordered dicts, text enums and the outermost mapping, whatever it is."""
    assert encode(MappingProxyType({"a": OrderedDict(b=Colour.RED)})) == {"a": {"b": "red"}}
    assert type(encode({"a": Colour.RED})["a"]) is str
    assert encode({"a": 2**80, "b": -0.0, "c": 1e308, "d": "\x00\u2028"}) == {
        "a": 2**80,
        "b": -0.0,
        "c": 1e308,
        "d": "\x00\u2028",
    }


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(plain)
def test_plain_json_comes_back_as_it_went(value: object) -> None:
    """Of the same types, too: live and replayed values are one."""
    decoded = encode(value)
    assert decoded == value
    assert repr(decoded) == repr(value)
