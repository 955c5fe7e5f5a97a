"""Where our parts join a worker, and where they stay out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery, signals

from ares_celery.celery_app.factory import create_app
from ares_celery.celery_app.wiring import wiring_of
from ares_celery.config import ProcessSettings

HOOKED = (
    signals.after_setup_logger,
    signals.after_setup_task_logger,
    signals.worker_process_init,
    signals.worker_process_shutdown,
    signals.worker_ready,
    signals.worker_shutting_down,
    signals.worker_shutdown,
)


@pytest.fixture(autouse=True)
def unhook() -> Iterator[None]:
    """Celery's signals belong to the process: no hook outlives a test."""
    yield
    for signal in HOOKED:
        signal.disconnect(dispatch_uid="ares-worker")


def make_app(namespace: str, *modules: str) -> Celery:
    """An app that opens nothing."""
    return create_app(ProcessSettings(namespace=namespace, agent_modules=modules), set_as_current=False)


class Worker:
    """As much of Celery's worker as the hooks look at."""

    hostname = "w@here"

    def __init__(self, app: Celery) -> None:
        self.app = app


def begin_worker(app: Celery, *queues: str) -> None:
    """What Celery does when a worker of the app is made."""
    app.amqp.queues.select(list(queues))
    signals.worker_init.send(sender=Worker(app))


def test_a_worker_of_our_queues_supervises(namespace: str) -> None:
    """Services and drain line are there before the pool is forked."""
    app = make_app(namespace)
    begin_worker(app, f"{namespace}.supervision")
    wiring = wiring_of(app)
    assert wiring.services is not None
    assert wiring.drain is not None
    assert not wiring.is_draining
    signals.worker_shutting_down.send(sender="w@here", sig="SIGTERM", how="Warm", exitcode=0)
    assert wiring.is_draining


def test_a_worker_of_other_queues_is_left_alone(namespace: str) -> None:
    """Guests change nothing of a worker that does not work for them."""
    app = make_app(namespace)
    begin_worker(app, "celery", f"{namespace}x.agents")
    assert wiring_of(app).services is None
    assert wiring_of(app).drain is None


def test_a_worker_of_another_app_is_left_alone(namespace: str) -> None:
    """Signals reach every app of the process."""
    app, other = make_app(namespace), make_app("other")
    begin_worker(other, "other.agents")
    assert wiring_of(app).services is None
    assert wiring_of(other).services is not None


def test_a_worker_that_cannot_import_its_agents_does_not_start(namespace: str) -> None:
    """It would take their messages and fail each; only an exit gets through Celery's signals."""
    app = make_app(namespace, "no_such_module_of_agents")
    with pytest.raises(SystemExit, match=r"ARES_AGENT_MODULES.*no_such_module_of_agents"):
        begin_worker(app, f"{namespace}.agents")


def test_a_worker_whose_clock_cannot_be_moved_as_asked_does_not_start(
    namespace: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A scenario about it would pass for nothing; the cure is named. A worker of other queues does not care."""
    settings = ProcessSettings(namespace=namespace, agent_modules=(), clock_file=str(tmp_path / "clock"))
    monkeypatch.setitem(sys.modules, "time_machine", None)
    app = create_app(settings, set_as_current=False)
    begin_worker(app, "celery")
    with pytest.raises(SystemExit, match=r"ARES_CLOCK_FILE cannot be followed: .*ares-celery\[clock\]"):
        begin_worker(app, f"{namespace}.agents")
