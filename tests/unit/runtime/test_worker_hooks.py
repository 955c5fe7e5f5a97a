"""What a worker brings along: one of each, made once, and never the reason that no agent comes back."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from ares_celery.errors import WorkerHookError
from ares_celery.runtime.worker_hooks import HOOKS, StateSources, WorkerHooks, worker_memory, worker_snapshot_store


class Memory:
    def latest_session(self, agent_id: str) -> str | None:
        return None

    def messages(self, agent_id: str, session_id: str) -> tuple[()]:
        return ()


class Snapshots:
    def save(self, agent_id: str, state: Any) -> None: ...

    def load(self, agent_id: str) -> None: ...

    def delete(self, agent_id: str) -> None: ...


def make_memory() -> Memory:
    """A hook."""
    return Memory()


def test_hooks_are_called_once_when_they_are_needed() -> None:
    """Whoever asks later gets the same; without hooks the namespace's own are used."""
    hooks, made = WorkerHooks(), list[int]()

    def snapshots() -> Snapshots:
        made.append(1)
        return Snapshots()

    assert hooks.open() == StateSources(None, None)
    hooks.register("worker_memory", make_memory)
    hooks.register("worker_snapshot_store", snapshots)
    assert len(made) == 0
    first = hooks.open()
    assert hooks.open() is first
    assert len(made) == 1
    assert type(first.memory).__name__ == "Memory"
    assert isinstance(first.snapshots, Snapshots)


def test_a_worker_has_one_of_each() -> None:
    """The same function again, as when its module is loaded anew, is no second one."""
    hooks = WorkerHooks()
    hooks.register("worker_memory", make_memory)
    hooks.register("worker_memory", make_memory)
    with pytest.raises(WorkerHookError, match=r"make_memory holds it already"):
        hooks.register("worker_memory", Memory)
    rubbish: Any = 7
    with pytest.raises(WorkerHookError, match="int is no function"):
        hooks.register("worker_snapshot_store", rubbish)


@pytest.mark.parametrize("how", ["raises", "exits", "gives rubbish", "gives half"])
def test_a_hook_that_fails_is_said_and_the_namespace_takes_its_place(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Loudly, with the function's name and what is missing."""
    hooks = WorkerHooks()

    def broken() -> Any:
        match how:
            case "raises":
                raise OSError("no database")
            case "exits":
                raise SystemExit(1)
            case "gives half":
                return Memory()
            case _:
                return 7

    hooks.register("worker_snapshot_store", broken)
    with caplog.at_level(logging.CRITICAL):
        assert hooks.open().snapshots is None
    assert "broken" in caplog.text
    assert {"raises": "no database", "exits": "SystemExit"}.get(how, "without save, load, delete") in caplog.text


def test_the_decorators_fill_the_hooks_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """And give the function back."""
    monkeypatch.setattr(HOOKS, "_functions", {})
    monkeypatch.setattr(HOOKS, "_made", None)
    assert worker_memory(make_memory) is make_memory
    assert worker_snapshot_store(Snapshots) is Snapshots
    assert type(HOOKS.open().memory).__name__ == "Memory"
    assert isinstance(HOOKS.open().snapshots, Snapshots)


def test_the_event_store_is_handed_over_once_for_each_manager() -> None:
    """To one that takes it."""
    sources = StateSources()
    assert sources.event_taker() is None
    taken: list[object] = []

    class Taker(Memory):
        def set_event_store(self, events: object) -> None:
            taken.append(events)

    memory: Any = Taker()
    sources.memory = memory
    first = sources.event_taker()
    assert first is not None
    streams: Any = "streams"
    first(streams)
    assert sources.event_taker() is None
    plain: Any = Memory()
    sources.memory = plain
    assert sources.event_taker() is None
    assert taken == ["streams"]
