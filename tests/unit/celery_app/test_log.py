"""Each line about an agent says which."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from ares_celery.celery_app.log import agent_lines, tag_handlers

Log = tuple[logging.Logger, io.StringIO]


@pytest.fixture
def log() -> Iterator[Log]:
    """A logger of its own that writes messages only."""
    stream = io.StringIO()
    logger = logging.getLogger("test-agent-lines")
    handler = logging.StreamHandler(stream)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    tag_handlers(logger)
    tag_handlers(logger)
    yield logger, stream
    logger.removeHandler(handler)


def test_a_line_with_an_agents_id_ends_with_all_that_is_known(log: Log) -> None:
    """Once, although two handlers may see it."""
    logger, stream = log
    logger.info("%s runs", "a", extra={"agent_id": "a", "incarnation": 3, "epoch": 7, "task_id": "t"})
    assert stream.getvalue() == "a runs [agent=a incarnation=3 epoch=7 task=t]\n"


def test_lines_of_an_agents_thread_are_its_lines(log: Log) -> None:
    """Whoever writes them."""
    logger, stream = log
    with agent_lines(agent_id="a", incarnation=3, epoch=7, task_id="t"):
        logger.info("from a library: %d %%", 5)
        logger.info("about it", extra={"agent_id": "a", "epoch": 8})
        logger.info("about another", extra={"agent_id": "b"})
    logger.info("of nobody")
    assert stream.getvalue().splitlines() == [
        "from a library: 5 % [agent=a incarnation=3 epoch=7 task=t]",
        "about it [agent=a incarnation=3 epoch=8 task=t]",
        "about another [agent=b]",
        "of nobody",
    ]


def test_celerys_own_line_about_an_agents_task_shows_the_safe_texts(log: Log) -> None:
    """Agent, epoch and incarnation, beside the id that Celery shows."""
    logger, stream = log
    data = {"name": "ares.run_agent", "args": "('a', 7)", "kwargs": "{'incarnation': 3}"}
    logger.info("received", extra={"data": data})
    logger.info("received", extra={"data": {"name": "mail", "args": "('secret',)", "kwargs": "{}"}})
    assert stream.getvalue().splitlines() == ["received [agent=('a', 7) {'incarnation': 3}]", "received"]
