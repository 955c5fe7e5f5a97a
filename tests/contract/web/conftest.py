"""A runtime with one agent, and Flower with our routes beside it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from ares_celery import AgentContext, AgentSpec
from tests.contract.web.flower_site import FlowerSite
from tests.hosting import Runtime
from tests.redis_server import RedisServer


class Waiter:
    """Lives, and answers."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def start(self, ctx: AgentContext) -> None:
        await ctx.emit("private", {"word": "of the agent"})
        while not ctx.stop_requested:
            await ctx.sleep(0.2)

    async def process(self, ctx: AgentContext, message: Any) -> Any:
        await ctx.emit("private", {"word": message})
        return message


@contextmanager
def running(redis_url: str, namespace: str) -> Generator[Runtime]:
    """A namespace in which agent ``one`` runs, and faults are allowed."""
    with Runtime(redis_url, namespace, chaos=True) as found:
        found.register("waiter", Waiter)
        found.manager.start()
        found.manager.start_agent(AgentSpec(id="one", type="waiter"))
        found.until("one", "running")
        yield found


@pytest.fixture
def runtime(redis_server: RedisServer, namespace: str) -> Iterator[Runtime]:
    """A runtime of the test's own, with agent ``one``."""
    with running(redis_server.url, namespace) as found:
        yield found


@pytest.fixture(scope="module")
def refusing(redis_server: RedisServer) -> Iterator[FlowerSite]:
    """Flower beside a runtime with agent ``one``, for all tests of a file that change nothing."""
    namespace = f"t{uuid.uuid4().hex[:12]}"
    with running(redis_server.url, namespace), closing(FlowerSite(redis_server.url, namespace)) as site:
        yield site


@pytest.fixture
def make_site(redis_server: RedisServer, namespace: str) -> Iterator[Callable[..., FlowerSite]]:
    """Makes Flowers: ``make_site(read_only=True)``; they end with the test."""
    sites: list[FlowerSite] = []

    def make(**options: Any) -> FlowerSite:
        sites.append(FlowerSite(redis_server.url, namespace, **options))
        return sites[-1]

    yield make
    for site in sites:
        site.close()


@pytest.fixture
def site(runtime: Runtime, make_site: Callable[..., FlowerSite]) -> FlowerSite:
    """Flower with a login, beside the runtime."""
    return make_site()
