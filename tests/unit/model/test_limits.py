"""What agents may say of a limit: a rate in words, how many at once, and a name."""

from __future__ import annotations

from typing import Any

import pytest

from ares_celery.errors import InvalidSettingError
from ares_celery.model.limits import FleetLimit, check_limit


@pytest.mark.parametrize(
    ("rate", "interval"),
    [
        ("600/min", 100_000),
        (" 600 / minute", 100_000),
        ("10/s", 100_000),
        ("10/sec", 100_000),
        ("10/second", 100_000),
        ("5/30s", 6_000_000),
        ("1/500ms", 500_000),
        ("3600/h", 1_000_000),
        ("3600/hour", 1_000_000),
        ("1/day", 86_400_000_000),
        ("999999999/us", 1),
    ],
)
def test_a_rate_is_so_many_in_a_time(rate: str, interval: int) -> None:
    """As the microseconds between two calls, one at least."""
    assert check_limit("m", rate) == FleetLimit("m", interval)


@pytest.mark.parametrize(
    "rate", ["600", "600/60", "0/min", "-1/s", "1.5/s", "10/", "/s", "10/week", "1/2d", "1/0s", "", 600]
)
def test_a_rate_that_says_nothing_is_refused(rate: object) -> None:
    """With the field, the value and what to write."""
    with pytest.raises(InvalidSettingError, match="write how many and in which time: 600/min, 10/s, 5/30s") as caught:
        check_limit("m", rate)
    assert (caught.value.field, caught.value.value) == ("rate", rate)


@pytest.mark.parametrize("concurrency", [0, -1, 1.5, True, "5", 1_000_001])
def test_a_number_of_places_that_cannot_be_is_refused(concurrency: Any) -> None:
    """Likewise."""
    with pytest.raises(InvalidSettingError) as caught:
        check_limit("m", None, concurrency)
    assert (caught.value.field, caught.value.value) == ("concurrency", concurrency)


@pytest.mark.parametrize("name", ["", " ", "a\nb", "x" * 201, None, 7])
def test_a_name_that_cannot_be_is_refused(name: object) -> None:
    """Likewise; anything else is a name."""
    with pytest.raises(InvalidSettingError) as caught:
        check_limit(name)
    assert caught.value.field == "name"
    assert check_limit("Ä team's quota: gpt/4 {x}").name == "Ä team's quota: gpt/4 {x}"


def test_a_limit_is_told_in_words() -> None:
    """Also one that limits nothing but what its provider refuses."""
    assert FleetLimit("m").told() == "calls at any rate, any number at once"
    assert FleetLimit("m", 1_500, 2).told() == "a call every 1.5 ms, 2 at once"
