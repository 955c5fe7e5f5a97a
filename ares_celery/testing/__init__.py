"""For the tests of users: an agent in memory with a clock of the test's own, and fixtures with real workers.

Names are loaded on first use.

Example:
    >>> from ares_celery.testing import ManualClock
    >>> ManualClock().monotonic()
    0.0
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ares_celery.testing.arena import Arena
    from ares_celery.testing.clock import ManualClock
    from ares_celery.testing.harness import AgentHarness
    from ares_celery.testing.process import SentMessage
    from ares_celery.testing.runtime import AresRuntime
    from ares_celery.testing.waiting import wait_until

__all__ = [  # noqa: RUF022 - grouped
    # An agent in memory
    "AgentHarness",
    "ManualClock",
    "SentMessage",
    # Real workers
    "Arena",
    "AresRuntime",
    "wait_until",
]

_HOMES: Final = {
    "AgentHarness": "harness",
    "Arena": "arena",
    "AresRuntime": "runtime",
    "ManualClock": "clock",
    "SentMessage": "process",
    "wait_until": "waiting",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name is
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
