"""What every test may ask for: a Redis server of the suite's own, a namespace of the test's own."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.fleet import Fleet
from tests.redis_server import NoRedisServerError, RedisServer
from tools.marked import check_marks

#: `.ci/run` sets it: a missing server is then a failure, not a skip.
REQUIRE_REDIS = os.environ.get("ARES_REQUIRE_REDIS", "") not in {"", "0"}
#: Path of the server under test, for runs against another version than the one on PATH.
REDIS_BINARY = os.environ.get("ARES_TEST_REDIS_SERVER") or None

# Tests never touch a fleet of the person who runs them, neither here nor in the processes they start.
for _name in [name for name in os.environ if name.startswith(("ARES_", "CELERY_"))]:
    del os.environ[_name]

# A shared machine stalls now and then: examples have no deadline, the test's own timeout is the limit.
_patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("dev", _patient, max_examples=50)
settings.register_profile("ci", _patient, max_examples=100, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a `spec` or `pain` mark that names a statement which does not exist."""
    check_marks(items)


def _start_server(*, appendonly: bool) -> RedisServer:
    try:
        server = RedisServer(appendonly=appendonly, binary=REDIS_BINARY)
    except NoRedisServerError as error:
        if REQUIRE_REDIS:
            pytest.fail(str(error))
        pytest.skip(str(error))
    server.start()
    return server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """The suite's server, without persistence: shared by all tests, which keep apart by `namespace`."""
    server = _start_server(appendonly=False)
    yield server
    server.close()


@pytest.fixture
def make_redis_server() -> Iterator[Callable[..., RedisServer]]:
    """Start servers that this test alone uses: `make_redis_server(appendonly=True)`; they end with the test."""
    servers: list[RedisServer] = []

    def make(*, appendonly: bool = False) -> RedisServer:
        servers.append(_start_server(appendonly=appendonly))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture
def namespace() -> str:
    """A namespace that no other test has."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def make_fleet(
    make_redis_server: Callable[..., RedisServer], namespace: str, tmp_path: Path
) -> Iterator[Callable[..., Fleet]]:
    """Start fleets of real processes on a server of their own: `make_fleet(LEASE_TTL="2s")`; they end with the test."""
    fleets: list[Fleet] = []

    def make(*, appendonly: bool = False, **settings: str) -> Fleet:
        fleets.append(Fleet(make_redis_server(appendonly=appendonly), namespace, tmp_path, settings))
        return fleets[-1]

    yield make
    for fleet in fleets:
        fleet.close()


@pytest.fixture
def fleet(make_fleet: Callable[..., Fleet]) -> Fleet:
    """A fleet with the suite's fast settings; no process runs yet."""
    return make_fleet()
