"""Messages that no sender of ours writes: they cost a line in the log, never a slot of the pool."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.worker import state as worker_state
from celery.worker.consumer import consumer as celerys
from hypothesis import given
from hypothesis import strategies as st
from kombu import Message

from ares_celery.celery_app.factory import create_app
from ares_celery.celery_app.message import AgentMessage, message_of
from ares_celery.celery_app.request import AgentRequest
from ares_celery.celery_app.unknown_tasks import UnknownTaskFilter, hide_unknown_bodies
from ares_celery.celery_app.wiring import wiring_of
from ares_celery.config import ProcessSettings

#: Celery's type stubs do not know it.
UNKNOWN_TASK_ERROR: str = vars(celerys)["UNKNOWN_TASK_ERROR"]
SECRET = "hunter2"  # noqa: S105 - what must not be shown
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
BAD = [
    ("a", float("inf")),
    ("a", float("nan")),
    ("a", 7.0),
    ("a", True),
    ("a", -1),
    ("a", 2**63),
    ("a", [7]),
    ("a", "seven"),
    ("a", "9" * 5000),
    ("a", None),
    (None, 7),
    ({"a": 1}, 7),
    ("a\x00b", 7),
    ("a" * 100_000, 7),
    (),
]


@pytest.fixture
def app(namespace: str) -> Celery:
    """An app with a broker in this process."""
    settings = ProcessSettings(namespace=namespace, broker_url="memory://", result_url="cache+memory://")
    return create_app(settings, set_as_current=False)


@pytest.mark.parametrize("args", BAD, ids=lambda args: repr(args)[:40])
def test_garbage_is_nobodys(args: tuple[object, ...]) -> None:
    """By position as by name."""
    assert message_of("ares.run_agent", args, {}) is None
    assert message_of("ares.run_agent", (), dict(zip(("agent_id", "epoch"), args, strict=False))) is None


@given(args=JSON, kwargs=JSON)
def test_reading_a_message_never_fails(args: object, kwargs: object) -> None:
    """Whatever JSON it holds."""
    found = message_of("ares.run_agent", args, kwargs)
    assert found is None or isinstance(found, AgentMessage)


@pytest.mark.parametrize("task", ["ares.run_agent", "ares.resurrect_agent"])
@pytest.mark.parametrize("args", BAD, ids=lambda args: repr(args)[:40])
def test_the_task_answers_garbage_with_a_noop(
    task: str, args: tuple[object, ...], app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    """No exception, no store; the log names the task and not what it carried."""
    assert app.tasks[task].run(*args) == {"noop": "bad message"}
    assert f"{task}[None] names no agent and epoch" in caplog.text


class Failing:
    """A table, a desk, of which every call fails."""

    def __getattr__(self, name: str) -> Any:
        raise OverflowError(name)


class Pool:
    """Keeps what Celery gives to its pool."""

    def apply_async(self, *_: object, **callbacks: Any) -> None:
        self.callbacks = callbacks


def make_request(app: Celery, *args: object) -> AgentRequest:
    """A request as the consumer makes it."""
    headers = {"id": "the-id", "task": "ares.run_agent", "lang": "py", "root_id": "r"}
    body = json.dumps([args, {}, {}])
    message = Message(body, content_type="application/json", content_encoding="utf-8", headers=headers)
    message.payload  # noqa: B018 - decodes
    return AgentRequest(message, app=app, task=app.tasks["ares.run_agent"], on_ack=lambda *_: None)


@pytest.fixture
def broken(app: Celery) -> Iterator[AgentRequest]:
    """A good message in a worker whose every service fails."""
    services: Any = SimpleNamespace(children=Failing(), desk=Failing())
    wiring_of(app).services = services
    yield make_request(app, "a", 7)
    wiring_of(app).services = None


@pytest.mark.parametrize("hook", ["on_accepted", "on_timeout", "on_failure"])
def test_a_hook_of_ours_that_fails_does_not_keep_celery_from_its_own(
    hook: str, broken: AgentRequest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Celery's part acknowledges, and frees the slot: without it the pool gets smaller for ever."""
    arguments: dict[str, tuple[object, ...]] = {
        "on_accepted": (4711, 0.0),
        "on_timeout": (False, 5.0),
        "on_failure": (SimpleNamespace(exception=SystemExit(1)),),
    }
    called: list[str] = []

    def celerys_own(*_: object, **__: object) -> None:
        called.append(hook)

    monkeypatch.setattr(AgentRequest.__mro__[1], hook, celerys_own)
    getattr(broken, hook)(*arguments[hook])
    assert called == [hook]
    assert "what follows from task ares.run_agent[the-id]" in caplog.text
    assert "OverflowError" in caplog.text


def test_hooks_that_have_no_part_of_celery_only_log(broken: AgentRequest, caplog: pytest.LogCaptureFixture) -> None:
    """Their caller is Celery's remote control, which would report them as its own failure."""
    broken.terminate(None)
    assert "what follows from task" in caplog.text


def test_an_infinite_epoch_passes_every_hook(app: Celery) -> None:
    """JSON of Python knows Infinity, and int() of it raises what nobody expects."""
    request: Any = make_request(app, "a", float("inf"))
    request.on_accepted(4711, 0.0)
    assert request.worker_pid == 4711
    assert request in worker_state.active_requests
    worker_state.task_ready(request)


def record_of(name: str, headers: dict[str, Any]) -> logging.LogRecord:
    """Celery's record about a task that a worker does not have."""
    args = (KeyError(name), f"[[{SECRET}]]", headers, {"routing_key": "ares.control"})
    trace: Any = (KeyError, KeyError(name), None)
    return logging.LogRecord("x", logging.ERROR, "f", 1, UNKNOWN_TASK_ERROR, args, trace)


@pytest.mark.parametrize("headers", [{"id": "the-id", "task": "ares.newer", "argsrepr": f"({SECRET})"}, {}])
def test_an_unknown_task_of_ours_is_named_and_nothing_of_it_shown(headers: dict[str, Any]) -> None:
    """A newer sender's message may hold a config; the record becomes a warning."""
    record = record_of("ares.newer", headers)
    assert UnknownTaskFilter().filter(record)
    text = logging.Formatter().format(record)
    assert SECRET not in text
    assert f"message {headers.get('id', 'without id')} for the unknown task ares.newer is discarded" in text
    assert record.levelname == "WARNING"


def test_an_unknown_task_of_somebody_else_is_celerys_to_tell() -> None:
    """A worker may have other tasks than ours."""
    record = record_of("mail.send", {"id": "the-id"})
    assert UnknownTaskFilter().filter(record)
    assert (record.levelname, record.msg) == ("ERROR", UNKNOWN_TASK_ERROR)
    other = logging.LogRecord("x", logging.INFO, "f", 1, "hello %s", ("you",), None)
    assert UnknownTaskFilter().filter(other)
    assert other.getMessage() == "hello you"


def test_the_filter_is_on_celerys_consumer_once() -> None:
    """However many workers a process has had."""
    hide_unknown_bodies()
    hide_unknown_bodies()
    filters = logging.getLogger("celery.worker.consumer.consumer").filters
    assert len([one for one in filters if isinstance(one, UnknownTaskFilter)]) == 1
