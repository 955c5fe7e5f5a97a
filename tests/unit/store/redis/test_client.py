"""What a client says whose driver is closed under a call."""

from __future__ import annotations

from typing import Any

import pytest

from ares_celery.errors import StoreUnavailableError
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.client import RedisClient
from ares_celery.store.redis.driver_errors import DriverErrors


class ClosedMeanwhile:
    """A driver that another thread closes in the middle of a call: what it then raises is no error of its own."""

    def __init__(self) -> None:
        self.client: RedisClient | None = None

    def execute_command(self, *_: Any) -> Any:
        assert self.client is not None
        self.client.close()
        raise ValueError("I/O operation on closed file.")

    def pipeline(self, **_: Any) -> Any:
        return self.execute_command()

    def close(self) -> None:
        """Closed."""


@pytest.mark.parametrize("many", [False, True])
def test_a_call_in_a_store_that_is_closed_under_it_says_so(*, many: bool) -> None:
    """Whatever the driver raises, and for single calls and pipelines alike."""
    driver: Any = ClosedMeanwhile()
    scripts: Any = None
    client = driver.client = RedisClient(driver, scripts, DriverErrors("redis://here"))
    call: Call[Any] = Call(lambda reply: reply, args=("GET", "k"))
    with pytest.raises(StoreUnavailableError, match="closed"):
        _ = client.run_many([call]) if many else client.run(call)
