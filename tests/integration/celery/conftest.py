"""A fleet of a test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.celery.fleet import CeleryFleet
from tests.redis_server import RedisServer


@pytest.fixture
def fleet(redis_server: RedisServer, namespace: str, tmp_path: Path) -> Iterator[CeleryFleet]:
    """A fleet with fast settings; workers are started by the test and end with it."""
    with CeleryFleet(redis_server, namespace, tmp_path, {"AGENT_STOP_TIMEOUT": "1s"}) as made:
        yield made
