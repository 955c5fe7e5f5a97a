"""Apps of somebody else, and a RabbitMQ for those that have one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.integration.guests.guest_fleet import GuestFleet
from tests.rabbitmq_server import NoRabbitServerError, RabbitServer
from tests.redis_server import RedisServer


@pytest.fixture(scope="session")
def rabbit_server() -> Iterator[RabbitServer]:
    """A RabbitMQ of the suite's own."""
    try:
        server = RabbitServer()
    except NoRabbitServerError as error:
        if os.environ.get("ARES_REQUIRE_REDIS", "") not in {"", "0"}:
            pytest.fail(str(error))
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture
def make_guests(redis_server: RedisServer, namespace: str, tmp_path: Path) -> Iterator[Callable[..., GuestFleet]]:
    """Make fleets of one app: `make_guests({"broker_url": …}, "other")`; they end with the test."""
    fleets: list[GuestFleet] = []

    def make(settings: Mapping[str, Any], suffix: str = "") -> GuestFleet:
        results = f"file://{tmp_path}/results"
        (tmp_path / "results").mkdir(exist_ok=True)
        fleets.append(GuestFleet(redis_server, namespace + suffix, tmp_path, {"result_backend": results, **settings}))
        return fleets[-1]

    yield make
    for fleet in fleets:
        fleet.close()
