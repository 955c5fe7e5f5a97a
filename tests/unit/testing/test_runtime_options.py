"""What the mark of the pytest plug-in says is checked before anything is started."""

from __future__ import annotations

from typing import Any, cast

import pytest
from typing_extensions import override

from ares_celery.errors import InvalidSettingError
from ares_celery.testing.runtime import AresRuntime, options_from


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ({"lease_tl": "1s"}, "did you mean lease_ttl.*agent_modules"),
        ({"workers": 0}, "whole number from 1 on"),
        ({"workers": True}, "whole number from 1 on"),
        ({"slots": "many"}, "whole number from 1 on"),
    ],
)
def test_a_mark_that_cannot_be_is_refused(mark: dict[str, Any], said: str) -> None:
    """With what it takes."""
    with pytest.raises(InvalidSettingError, match=said):
        options_from((), [mark])


def test_the_nearest_mark_wins() -> None:
    """Settings and options side by side."""
    options = options_from(("a",), [{"workers": 2, "lease_ttl": "1s"}, {"workers": 3}])
    assert (options.workers, options.settings, options.agent_modules) == (3, (("lease_ttl", "1s"),), ("a",))


class _Stub(AresRuntime):
    """Workers are not needed for a look."""

    def __init__(self) -> None:
        self.manager = cast("Any", self)
        self.info: Any = None

    def get_agent_info(self, agent_id: str) -> object:
        return self.info

    @override
    def logs(self, lines: int = 80) -> str:
        return "the logs"


def test_who_waits_for_a_state_is_told_the_one_that_is() -> None:
    """And which states there are, for one that is none."""
    runtime = _Stub()
    with pytest.raises(InvalidSettingError, match=r"runing.*running"):
        runtime.until("a", "runing")
    with pytest.raises(AssertionError, match="last seen: no agent of that id\nthe logs"):
        runtime.until("a", "running", timeout=0)
    runtime.info = type("Info", (), {"state": "parked", "incarnation": 3, "reason": "too many deaths"})
    with pytest.raises(AssertionError, match=r"last seen: parked, incarnation 3 \(too many deaths\)"):
        runtime.until("a", "running", timeout=0)
