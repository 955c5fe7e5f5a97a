"""Numbers as servers write them."""

from __future__ import annotations

import pytest

from ares_celery.store.redis.replies import instant


@pytest.mark.parametrize("score", [b"1795970451744744", b"1795970451744744.0", b"1.795970451744744e+15"])
def test_a_score_keeps_its_sixteen_digits(score: bytes) -> None:
    """However it is written."""
    assert instant(score) == 1795970451744744


def test_no_score_is_no_moment() -> None:
    """Zero stands for none."""
    assert instant(None) == 0
