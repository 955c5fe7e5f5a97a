"""The agent of docs/howto/recover-state.md that keeps its state in snapshots alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ares_celery import AgentContext, AgentSpec
from tests.hosting import Runtime
from tests.redis_server import RedisServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]
PAGE = Path(__file__).parents[2] / "docs/howto/recover-state.md"


@pytest.fixture
def runtime(redis_server: RedisServer, namespace: str) -> Iterator[Runtime]:
    """A namespace that runs."""
    with Runtime(redis_server.url, namespace, snapshot_interval="60s") as made:
        made.manager.start()
        yield made


def notebook() -> Any:
    """The class of the page, as printed."""
    block = next(text for text in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "Notebook" in text)
    names: dict[str, Any] = {}
    exec(re.sub(r"^@agent.*$", "", block, flags=re.MULTILINE), names)  # noqa: S102 - of a page of ours
    return names["Notebook"]


def notes_after_an_end_by_force(runtime: Runtime, factory: Any) -> int:
    """How many of two acknowledged notes are there after an end without a last snapshot, and a third one."""
    runtime.register("notebook", factory)
    runtime.manager.start_agent(AgentSpec(id="book", type="notebook"), wait="running")
    assert [runtime.manager.process("book", {name: "x"}) for name in ("a", "b")] == [1, 2]
    runtime.manager.stop_agent("book", force=True)
    assert runtime.launcher.join(5)
    runtime.manager.start_agent("book")
    runtime.until("book", "running", incarnation=2)
    return int(runtime.manager.process("book", {"c": "x"})) - 1


def test_what_was_answered_after_a_snapshot_is_not_lost(runtime: Runtime) -> None:
    """As the page says: the answer is true once the snapshot is stored."""
    assert notes_after_an_end_by_force(runtime, notebook()) == 2


def test_what_was_answered_without_one_is_lost(runtime: Runtime) -> None:
    """As the page warns: nothing tells of it."""

    async def careless(self: Any, ctx: AgentContext, message: dict[str, str]) -> int:
        self.notes |= message
        return len(self.notes)

    made = notebook()
    made.process = careless
    assert notes_after_an_end_by_force(runtime, made) == 0
