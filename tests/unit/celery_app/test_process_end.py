"""A worker that shuts down late is ended, but never under tasks of somebody else."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from celery import Celery
from celery.worker import state as worker_state

from ares_celery import install
from ares_celery.celery_app import process_end


@dataclass(frozen=True)
class Request:
    """As much of Celery's request as is looked at."""

    name: str
    task: Any


@pytest.fixture
def app() -> Celery:
    """An app with a task of its own that is named like ours."""
    app = Celery("shop", broker="memory://", set_as_current=False)

    @app.task(name="ares.theirs", shared=False)
    def theirs() -> None: ...

    _ = theirs
    install(app, namespace="shop", redis_url="redis://127.0.0.1:1/0")
    return app


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The exit codes with which the process would have ended."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(logging, "shutdown", lambda: None)
    yield codes
    worker_state.active_requests.clear()


@pytest.mark.parametrize(("name", "codes"), [("ares.run_agent", [1]), ("ares.theirs", [])])
def test_only_tasks_of_ours_are_ended_with_their_process(
    app: Celery, ended: list[int], name: str, codes: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """What a task is, and not how it is named, tells whose it is."""
    request: Any = Request(name, app.tasks[name])
    worker_state.active_requests.add(request)
    process_end.end_process()
    assert ended == codes
    assert ("waits for tasks that are not ours: ares.theirs" in caplog.text) is (not codes)
