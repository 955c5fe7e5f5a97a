"""Documents and docstrings are run as tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from doctest import ELLIPSIS

import pytest
from sybil import Sybil
from sybil.integration.pytest import SybilItem
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser
from sybil.parsers.rest import DocTestParser
from sybil.sybil import SybilCollection

from tests.redis_server import NoRedisServerError, RedisServer

#: Documents whose code runs agents: with a Redis of their own at ARES_REDIS_URL.
_WITH_REDIS = (
    "ask-a-person.md",
    "break-things-on-purpose.md",
    "change-settings.md",
    "checkpoints.md",
    "child-agents.md",
    "fork-an-agent.md",
    "manage-agents.md",
    "read-a-verdict.md",
    "talk-to-an-agent.md",
    "write-a-scenario.md",
)
#: Their files are written and run, in tests/integration: test_testing_kit.py, test_arena.py, test_services.py and
#: guests/test_howto.py.
_BY_PYTEST = ("add-it-to-your-app.md", "run-chaos-in-ci.md", "serve-agents-with-fastapi.md", "test-your-agent.md")
_documents = Sybil(
    parsers=[SkipParser(), PythonCodeBlockParser()], patterns=["*.md"], excludes=(*_WITH_REDIS, *_BY_PYTEST)
)
_with_redis = Sybil(
    parsers=[SkipParser(), PythonCodeBlockParser()], patterns=_WITH_REDIS, fixtures=["redis_for_documents"]
)
_docstrings = Sybil(parsers=[DocTestParser(optionflags=ELLIPSIS)], pattern="*.py", path="ares_celery")

pytest_collect_file = SybilCollection([_documents, _with_redis, _docstrings]).pytest()


@pytest.fixture(scope="session")
def server_for_documents() -> Iterator[str]:
    """The address of a Redis server that documents share."""
    try:
        server = RedisServer(appendonly=False, binary=os.environ.get("ARES_TEST_REDIS_SERVER") or None)
    except NoRedisServerError as error:
        if os.environ.get("ARES_REQUIRE_REDIS", "") not in {"", "0"}:
            pytest.fail(str(error))
        pytest.skip(str(error))
    server.start()
    yield server.url
    server.close()


@pytest.fixture
def redis_for_documents(server_for_documents: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the code of a document find its server, as the environment of a worker does."""
    monkeypatch.setenv("ARES_REDIS_URL", server_for_documents)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Examples of one document build on each other: they stay in its order, wherever chance has put them."""
    places = [place for place, item in enumerate(items) if isinstance(item, SybilItem)]
    ordered = sorted((items[place] for place in places), key=lambda item: (str(item.path), item.location[1] or 0))
    for place, item in zip(places, ordered, strict=True):
        items[place] = item
