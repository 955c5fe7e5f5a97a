"""Every test that asks for `backend` or `store` runs on fakeredis and on a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import pytest
import redis

from ares_celery.store.redis.connections import Connector
from ares_celery.store.redis.store import RedisStore
from tests.contract.store.acting import run_namespace
from tests.contract.store.backends import Backend, fake_backend


@pytest.fixture(params=["fakeredis", "redis"])
def backend(request: pytest.FixtureRequest, namespace: str) -> Iterator[Backend]:
    """The server under test, with a namespace of the test's own."""
    if request.param == "fakeredis":
        found = fake_backend(namespace)
    else:
        connector = Connector.to(request.getfixturevalue("redis_server").url)
        client = cast("Callable[[], redis.Redis]", connector.driver)
        found = Backend(client=client, async_client=connector.async_driver, namespace=namespace)
    yield found
    found.close()


@pytest.fixture
def store(backend: Backend) -> RedisStore:
    """An open namespace whose runtime runs."""
    return run_namespace(backend.open())


@pytest.fixture
def raw(backend: Backend) -> Iterator[redis.Redis]:
    """A plain client of the same server, to look behind the store."""
    client = backend.client()
    yield client
    client.close()
