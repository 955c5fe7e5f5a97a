"""Messages that Celery cannot take apart: they cost a line in the log, never the worker that reads them."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.worker import strategy as celerys
from kombu import Message

from ares_celery.celery_app.factory import create_app
from ares_celery.celery_app.strategy import fault_of, guarded
from ares_celery.config import ProcessSettings
from ares_celery.errors import OperationNotSupportedError

SECRET = "hunter2"  # noqa: S105 - what must not be shown
HEADERS: dict[str, Any] = {"id": "the-id", "task": "ares.stats", "lang": "js", "root_id": "the-id"}
GOOD: list[Any] = [["a"], {"n": 1}, {}]
FAULTS: list[tuple[Any, dict[str, Any], str]] = [
    (5, {}, "body"),
    ("text", {}, "body"),
    (None, {}, "body"),
    ([], {}, "body"),
    ([[], {}], {}, "body"),
    ({}, {}, "body"),
    ([5, {}, {}], {}, "args"),
    (["text", {}, {}], {}, "args"),
    ([{"agent_id": "a"}, {}, {}], {}, "args"),
    ([[], [], {}], {}, "kwargs"),
    ([[], "text", {}], {}, "kwargs"),
    ([[], None, {}], {}, "kwargs"),
    ({"args": [], "kwargs": 7}, {}, "kwargs"),
    ({"args": None, "kwargs": {}}, {}, "args"),
    (GOOD, {"id": None}, "id"),
    (GOOD, {"id": 7}, "id"),
    (GOOD, {"id": "x" * 300}, "id"),
    (GOOD, {"timelimit": "soon"}, "timelimit"),
    (GOOD, {"timelimit": [1]}, "timelimit"),
    (GOOD, {"retries": "1"}, "retries"),
    (GOOD, {"eta": 5}, "eta"),
    (GOOD, {"expires": "never"}, "expires"),
    (GOOD, {"expires": {"a": 1}}, "expires"),
]


def message_of(payload: Any, headers: dict[str, Any], **options: Any) -> Any:
    """A message as the consumer gets it; ``acts`` says what became of it."""
    body = options.pop("body", None) or json.dumps(payload)
    given: dict[str, Any] = {
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "accept": {"application/json"},
        **options,
    }
    acts: list[str] = []
    message: Any = Message(body, headers={**HEADERS, **headers}, delivery_tag="1", channel=SimpleNamespace(), **given)

    def reject(*_: Any) -> None:
        acts.append("rejected")

    message.reject_log_error = reject
    message.acts = acts
    return message


@pytest.fixture
def app(namespace: str) -> Celery:
    """An app with a broker in this process."""
    settings = ProcessSettings(namespace=namespace, broker_url="memory://", result_url="cache+memory://")
    return create_app(settings, set_as_current=False)


@pytest.mark.parametrize(("payload", "headers", "field"), FAULTS, ids=repr)
def test_what_is_wrong_with_a_message_is_named(payload: Any, headers: dict[str, Any], field: str) -> None:
    """The field, and how it is to be."""
    fault = fault_of(message_of(payload, headers), None)
    assert fault is not None
    assert fault[0] == field
    assert fault[1].startswith(("send ", "it cannot be read"))


@pytest.mark.parametrize(
    ("payload", "headers"),
    [
        (GOOD, {}),
        ([[], {}, None], {"timelimit": [None, 5], "retries": 3, "eta": None, "expires": "2030-01-01T00:00:00Z"}),
        ({"args": [], "kwargs": {}}, {}),
    ],
)
def test_a_good_message_has_no_fault(payload: Any, headers: dict[str, Any]) -> None:
    """Of either protocol."""
    assert fault_of(message_of(payload, headers), None) is None
    assert fault_of(message_of(None, {"id": None}), {"id": "x", "task": "t", "args": [], "kwargs": {}}) is not None
    assert fault_of(SimpleNamespace(headers={}), {"id": "x", "args": [], "kwargs": {}}) is None


@pytest.mark.parametrize("options", [{"body": "{", "payload": 0}, {"content_type": "application/x-python-serialize"}])
def test_a_body_that_cannot_be_read_is_a_fault(options: dict[str, Any]) -> None:
    """No pickle is opened, and broken JSON is no error of ours."""
    message = message_of(options.pop("payload", GOOD), {}, **options)
    fault = fault_of(message, None)
    assert fault is not None
    assert (fault[0], "send JSON" in fault[1]) == ("body", True)


@pytest.mark.parametrize(("payload", "headers", "field"), FAULTS, ids=repr)
def test_a_wrong_message_is_dropped_with_a_word_to_its_sender_and_none_of_what_it_carries(
    payload: Any, headers: dict[str, Any], field: str, app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    """Celery's own handler, in which it would end the worker, never sees it."""
    seen: list[Any] = []
    take = guarded_with(seen, app)
    message = message_of(payload, {**headers, "argsrepr": SECRET, "kwargsrepr": SECRET})
    with caplog.at_level(logging.WARNING):
        take(message, None, None, None, [])
    assert (seen, message.acts) == ([], ["rejected"])
    assert f"for task ares.stats is dropped: its {field} is wrong" in caplog.text
    assert SECRET not in caplog.text
    if field == "id":
        return
    with pytest.raises(OperationNotSupportedError, match=f"task ares.stats is not supported: its {field} is wrong"):
        app.AsyncResult("the-id").get(timeout=1)


def test_a_good_message_goes_celerys_way(app: Celery) -> None:
    """With everything that Celery gave."""
    seen: list[Any] = []
    message = message_of(GOOD, {})
    guarded_with(seen, app)(message, None, "ack", "reject", ["callback"])
    assert seen == [(message, None, "ack", "reject", ["callback"])]


def test_a_result_backend_that_is_away_does_not_end_the_worker_either(
    app: Celery, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender is not told, and the log says so."""

    def fail(*_: Any, **__: Any) -> None:
        problem = "away"
        raise ConnectionError(problem)

    monkeypatch.setattr(app.tasks["ares.stats"].backend, "mark_as_failure", fail)
    message = message_of(5, {})
    guarded_with([], app)(message, None, None, None, [])
    assert message.acts == ["rejected"]
    assert "sender of message 'the-id' is not told: ConnectionError: away" in caplog.text


def test_every_task_of_ours_has_the_guard(app: Celery) -> None:
    """Tasks of somebody else keep Celery's own way."""
    for name, task in app.tasks.items():
        assert (task.Strategy == "ares_celery.celery_app.strategy:guarded") is name.startswith("ares."), name


def guarded_with(seen: list[Any], app: Celery) -> Any:
    """The guard in front of a handler that notes what it gets."""

    def celerys_own(*_: Any) -> Any:
        def handle(*args: Any) -> None:
            seen.append(args)

        return handle

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(celerys, "default", celerys_own)
        return guarded(app.tasks["ares.stats"], app, SimpleNamespace(connection_errors=()))
