"""What our messages look like, and what our tasks refuse to send."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from celery import Celery

from ares_celery.celery_app.control_tasks import ControlTask
from ares_celery.celery_app.due_task import TIME_LIMIT
from ares_celery.celery_app.factory import create_app
from ares_celery.celery_app.launcher import CeleryLauncher
from ares_celery.celery_app.message import message_of
from ares_celery.celery_app.names import queue_kind
from ares_celery.celery_app.routing import DeadLetters, route_task
from ares_celery.celery_app.wiring import wiring_of
from ares_celery.config import ProcessSettings
from ares_celery.errors import OperationNotSupportedError
from ares_celery.ids import AgentId, Epoch
from ares_celery.model.plan import Nudge

NUDGE = Nudge(AgentId("counter-1"), Epoch(1795976170953320), 3, None, resurrect=False)


@pytest.fixture
def app(namespace: str) -> Celery:
    """An app with a broker in this process."""
    settings = ProcessSettings(namespace=namespace, broker_url="memory://", result_url="cache+memory://")
    return create_app(settings, set_as_current=False)


def take(app: Celery, queue: str) -> Any:
    """The oldest message of a queue."""
    with app.connection_for_read() as connection:
        message = connection.SimpleQueue(queue).get(timeout=1)
        message.ack()
        return message


def test_a_nudge_says_which_incarnation_it_is_for_and_nothing_more(app: Celery, namespace: str) -> None:
    """Id, epoch and incarnation are shown; the root id is agent and epoch; no code, no config."""
    CeleryLauncher(app, namespace).launch(NUDGE)
    message = take(app, f"{namespace}.agents")
    headers = message.headers
    assert (headers["task"], headers["argsrepr"]) == ("ares.run_agent", "('counter-1', 1795976170953320)")
    assert headers["kwargsrepr"] == "{'incarnation': 3}"
    assert headers["root_id"] == "counter-1@1795976170953320"
    assert headers["ares_namespace"] == namespace
    assert (headers["eta"], headers["expires"], headers["retries"]) == (None, None, 0)
    assert message.content_type == "application/json"
    assert json.loads(message.body)[:2] == [["counter-1", 1795976170953320], {}]


def test_the_worker_stores_the_result_although_the_sender_does_not_wait(app: Celery, namespace: str) -> None:
    """A sender that waited would subscribe to each result for ever."""
    CeleryLauncher(app, namespace).launch(NUDGE)
    assert take(app, f"{namespace}.agents").headers["ignore_result"] is False


def test_only_a_retry_keeps_its_task_id(app: Celery, namespace: str) -> None:
    """Workers remember a revoked id for hours."""
    launcher = CeleryLauncher(app, namespace)
    retry = Nudge(AgentId("a"), Epoch(1), 2, "gpu", resurrect=True, task_id="the-id", retries=2)
    launcher.launch(NUDGE)
    launcher.launch(NUDGE)
    launcher.launch(retry)
    ids = {take(app, f"{namespace}.agents").headers["id"] for _ in range(2)}
    assert len(ids) == 2
    headers = take(app, f"{namespace}.gpu").headers
    assert (headers["id"], headers["retries"], headers["task"]) == ("the-id", 2, "ares.resurrect_agent")


@pytest.mark.parametrize("options", [{"countdown": 5}, {"eta": datetime(2030, 1, 1, tzinfo=UTC)}])
@pytest.mark.parametrize("task", ["ares.start_agent", "ares.run_agent", "ares.health_check"])
def test_a_countdown_is_refused(task: str, options: dict[str, Any], app: Celery) -> None:
    """The worker that holds such a message loses it when it dies."""
    with pytest.raises(OperationNotSupportedError, match="countdown or eta"):
        app.tasks[task].apply_async(args=("a", 1), **options)


def test_a_retry_is_not_sent_at_all(app: Celery, namespace: str) -> None:
    """Its deadline stands in the store; only its result is named."""
    options: dict[str, Any] = {"retries": 1, "countdown": 5, "root_id": "a@2"}
    result = app.tasks["ares.resurrect_agent"].apply_async(args=("a", 2), task_id="the-id", **options)
    assert result.id == "the-id"
    with app.connection_for_read() as connection:
        assert connection.SimpleQueue(f"{namespace}.agents").qsize() == 0


@pytest.mark.parametrize("task", ["ares.start_agent", "ares.run_agent"])
def test_an_eager_app_is_refused(task: str, app: Celery) -> None:
    """With the setting's name; sending by name as well as calling."""
    app.conf.task_always_eager = True
    with pytest.raises(OperationNotSupportedError, match="task_always_eager"):
        app.tasks[task].apply_async(args=("a", 1))
    with pytest.raises(OperationNotSupportedError, match="task_always_eager"):
        app.tasks[task]("a", 1)
    with pytest.raises(OperationNotSupportedError, match="task_always_eager"):
        CeleryLauncher(app, "x").launch(NUDGE)


def test_our_tasks_carry_their_own_options(app: Celery) -> None:
    """Whatever a fleet has set for its own tasks."""
    app.conf.update(task_time_limit=2, task_soft_time_limit=1, task_acks_late=True, task_ignore_result=True)
    for name, task in app.tasks.items():
        if name.startswith("ares."):
            assert (task.time_limit, task.soft_time_limit) == (TIME_LIMIT, TIME_LIMIT - 1), name
            assert (task.acks_late, task.ignore_result, task.reject_on_worker_lost) == (False, False, False), name
            is_control = isinstance(task, ControlTask)
            assert (task.track_started, task.serializer) == (not is_control, "json"), name


def test_an_app_does_not_become_the_current_one_unless_asked(app: Celery) -> None:
    """A Manager is a guest in its process."""
    from celery import current_app

    assert current_app.main != app.main
    assert set(app.tasks) - {name for name in app.tasks if name.startswith("celery.")} == {
        name for name in app.tasks if name.startswith("ares.")
    }
    assert not any(name.startswith("ares.") for name in current_app.tasks)


def test_two_apps_of_one_process_keep_apart(app: Celery) -> None:
    """Each with its own namespace."""
    other = create_app(ProcessSettings(namespace="other"), set_as_current=False)
    assert wiring_of(other).namespace == "other"
    assert wiring_of(app) is not wiring_of(other)
    assert vars(type(other.tasks["ares.run_agent"]))["ares_namespace"] == "other"
    with pytest.raises(OperationNotSupportedError, match="create_app"):
        wiring_of(Celery("somebody's", set_as_current=False))


def test_each_task_has_its_queue(app: Celery, namespace: str) -> None:
    """By name alone, also for a service that only knows the names."""
    assert route_task(namespace, "ares.resurrect_agent") == f"{namespace}.agents"
    assert route_task(namespace, "ares.notify_agent_dead") == f"{namespace}.supervision"
    app.send_task("ares.start_agent", kwargs={"agent": {"id": "a", "type": "t"}})
    assert take(app, f"{namespace}.control").headers["task"] == "ares.start_agent"
    assert queue_kind("a.b", "a.b.gpu") == "gpu"
    assert queue_kind("a", "ab.gpu") is None


def test_beat_has_one_entry_that_never_expires(app: Celery, namespace: str) -> None:
    """An expiry is compared by the wall clock of a worker."""
    (entry,) = app.conf.beat_schedule.values()
    assert (entry["task"], entry["options"]["queue"]) == ("ares.health_check", f"{namespace}.supervision")
    assert "expires" not in entry["options"]


@pytest.mark.parametrize(
    ("args", "kwargs"), [(["a", 7], {}), ([], {"agent_id": "a", "epoch": 7}), (["a"], {"epoch": "7"})]
)
def test_hooks_know_the_incarnation_from_the_message(args: list[Any], kwargs: dict[str, Any]) -> None:
    """However it was sent."""
    message = message_of("ares.run_agent", args, kwargs)
    assert message is not None
    assert (message.agent_id, message.epoch) == ("a", 7)


@pytest.mark.parametrize(("task", "args"), [("other", ["a", 7]), ("ares.run_agent", ["a"]), ("ares.run_agent", None)])
def test_what_cannot_be_read_is_nobodys(task: str, args: list[Any] | None) -> None:
    """No hook fails on it."""
    assert message_of(task, args, {}) is None


def test_dead_letters_are_counted_by_namespace() -> None:
    """For a person to wonder about."""
    letters = DeadLetters()
    assert [letters.add("a"), letters.add("a"), letters.add("b")] == [1, 2, 1]
    assert letters.counts() == {"a": 2, "b": 1}
