"""Agents in somebody else's app: what is added, and that nothing of theirs changes."""

from __future__ import annotations

import json
import pickle
import re
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import pytest
from celery import Celery, Task, signals
from celery._state import get_current_app
from kombu import Queue

from ares_celery import InvalidSettingError, Manager, OperationNotSupportedError, install
from ares_celery.celery_app.beat import ENTRY
from ares_celery.celery_app.control_tasks import ControlTask
from ares_celery.celery_app.due_task import TIME_LIMIT, AresTask
from ares_celery.celery_app.guest_amqp import OUR_TASKS, aliased, set_here, use_our_transport
from ares_celery.celery_app.guest_worker import prepare_guest_worker
from ares_celery.celery_app.wiring import wiring_of

#: Nobody listens there.
REDIS = "redis://127.0.0.1:1/0"

#: Every setting that could harm our tasks, or that our tasks' needs could make somebody change.
THEIRS: Mapping[str, Any] = {
    "accept_content": ["json", "pickle", "yaml"],
    "beat_schedule": {"nightly": {"task": "shop.sum", "schedule": 3600.0}},
    "result_backend": "file:///nowhere",
    "result_extended": True,
    "result_serializer": "pickle",
    "task_acks_late": True,
    "task_annotations": {"*": {"rate_limit": "1/m", "time_limit": 7, "acks_late": True, "serializer": "pickle"}},
    "task_compression": "zlib",
    "task_create_missing_queues": False,
    "task_default_priority": 3,
    "task_default_queue": "their-default",
    "task_default_rate_limit": "10/m",
    "task_ignore_result": True,
    "task_protocol": 1,
    "task_queue_max_priority": 10,
    "task_queues": [Queue("their-default"), Queue("mail")],
    "task_reject_on_worker_lost": True,
    "task_routes": {"shop.mail": "mail", "*": {"queue": "their-default"}},
    "task_serializer": "pickle",
    "task_soft_time_limit": 4,
    "task_store_eager_result": True,
    "task_store_errors_even_if_ignored": True,
    "task_time_limit": 5,
    "task_track_started": False,
    "worker_prefetch_multiplier": 4,
}


def make_app(settings: Mapping[str, Any] = MappingProxyType({}), **options: Any) -> Celery:
    """An app of somebody else."""
    app = Celery("shop", broker="memory://", set_as_current=False, **options)
    app.conf.update(settings)

    @app.task(name="shop.sum", shared=False)
    def add(first: int, second: int) -> int:
        return first + second

    _ = add
    return app


def add_agents(app: Celery, **options: Any) -> None:
    """What the owner of the app adds."""
    install(app, **{"namespace": "shop", "redis_url": REDIS, **options})


def settings_of(app: Celery) -> dict[str, Any]:
    """All settings, without what install() may add to."""
    return {name: repr(value) for name, value in dict(app.conf).items() if name != "beat_schedule"}


def queue_of(app: Celery, task: str, **options: Any) -> str:
    """Where a task of this name is sent."""
    return str(app.amqp.router.route(dict(options), task)["queue"].name)


class Source:
    """Settings as a project has them in a module, with Django's prefix."""

    CELERY_TASK_TIME_LIMIT = 5
    CELERY_WORKER_DISABLE_PREFETCH = False
    CELERY_BEAT_SCHEDULE: Mapping[str, Any] = {"nightly": {"task": "shop.sum", "schedule": 3600.0}}
    CELERY_TASK_ROUTES: Mapping[str, Any] = {"*": "their-default"}


# -- when -------------------------------------------------------------------------------------------------------------


def test_it_reads_no_setting_and_finalizes_nothing() -> None:
    """An app may be configured after it got its agents, as Django projects do."""
    app = make_app()
    add_agents(app)
    anything: Any = app
    assert not anything.configured
    assert not anything.finalized


def configure_before(app: Celery) -> None:
    """Django's usual order."""
    app.config_from_object(Source, namespace="CELERY")
    add_agents(app)


def configure_and_read_before(app: Celery) -> None:
    """Somebody has read a setting, and sent a task."""
    app.config_from_object(Source, namespace="CELERY")
    assert app.conf.task_time_limit == 5
    assert app.amqp.queues
    assert app.amqp.router.route({}, "shop.sum")
    add_agents(app)


def configure_after(app: Celery) -> None:
    """install() first."""
    add_agents(app)
    app.config_from_object(Source, namespace="CELERY")


def configure_anew(app: Celery) -> None:
    """A second configuration, after the first was read."""
    add_agents(app)
    assert app.conf.task_time_limit is None
    app.config_from_object(Source, namespace="CELERY", force=True)
    # What Celery had built from the old settings it keeps; so routes are set as Celery wants it then.
    app.conf.update(task_routes=Source.CELERY_TASK_ROUTES)


def configure_late(app: Celery) -> None:
    """An app whose tasks are final."""
    app.finalize()
    add_agents(app)
    app.config_from_object(Source, namespace="CELERY", force=True)


@pytest.mark.parametrize(
    "configure", [configure_before, configure_and_read_before, configure_after, configure_anew, configure_late]
)
def test_it_may_come_before_or_after_the_configuration(configure: Callable[[Celery], None]) -> None:
    """In every order both have everything, and the object that the settings came from is untouched."""
    app = make_app()
    configure(app)
    assert app.conf.task_time_limit == 5
    set_here(app, "worker_disable_prefetch", value=True)
    assert app.conf.worker_disable_prefetch is True
    assert set(app.conf.beat_schedule) == {"nightly", ENTRY}
    assert set(Source.CELERY_BEAT_SCHEDULE) == {"nightly"}
    assert queue_of(app, "shop.sum") == "their-default"
    assert queue_of(app, "ares.process") == "shop.control"
    assert queue_of(app, "ares.run_agent") == "shop.agents"
    assert set(app.tasks) >= OUR_TASKS


def test_entries_that_the_app_adds_later_stand_beside_ours() -> None:
    """The usual handler for periodic tasks."""
    app = make_app()

    def add_periodic(sender: Any, **_: object) -> None:
        sender.add_periodic_task(60.0, app.signature("shop.sum"), name="minutely")

    anything: Any = app
    anything.on_after_configure.connect(add_periodic)
    add_agents(app)
    assert set(app.conf.beat_schedule) == {"minutely", ENTRY}
    assert app.conf.beat_schedule[ENTRY]["schedule"] == timedelta(seconds=10)


# -- theirs -----------------------------------------------------------------------------------------------------------


def test_no_setting_of_theirs_changes() -> None:
    """All of them, whatever they are; the schedule has one entry more."""
    plain, guest = make_app(THEIRS), make_app(THEIRS)
    add_agents(guest)
    assert settings_of(guest) == settings_of(plain)
    schedule = dict(guest.conf.beat_schedule)
    assert schedule.pop(ENTRY)["options"]["queue"] == "shop.supervision"
    assert schedule == plain.conf.beat_schedule == THEIRS["beat_schedule"]


def test_their_tasks_are_as_they_were() -> None:
    """Options from their settings and annotations, and a class of their own."""

    class Their(Task):  # type: ignore[type-arg]
        abstract = True
        priority = 9

    plain, guest = make_app(THEIRS, task_cls=Their), make_app(THEIRS, task_cls=Their)
    add_agents(guest)
    names = [name for name, _ in Task.from_config] + ["max_retries", "throws"]
    for app in (plain, guest):
        assert isinstance(app.tasks["shop.sum"], Their)
    assert {name: getattr(guest.tasks["shop.sum"], name) for name in names} == {
        name: getattr(plain.tasks["shop.sum"], name) for name in names
    }
    assert set(guest.tasks) - set(plain.tasks) == OUR_TASKS
    # A worker lists the modules of all tasks in the setting `include`.
    modules = [{type(task).__module__ for task in app.tasks.values()} for app in (plain, guest)]
    assert modules[0] == modules[1]
    assert not any(isinstance(guest.tasks[name], Their) for name in OUR_TASKS)


class OldRouter:
    """A router of the time before Celery 4."""

    def route_for_task(self, task: str, *_: object) -> dict[str, str]:
        return {"queue": "mail"}


def route_all(name: str, *_: object, **__: object) -> dict[str, str]:
    """A router that is a function."""
    return {"queue": "mail"}


@pytest.mark.parametrize(
    "routes",
    [
        None,
        {"*": "mail"},
        {"ares.*": "mail", "shop.*": {"queue": "mail", "routing_key": "x"}},
        ([("shop.sum", "mail"), (re.compile(".*"), {"queue": "mail"})],),
        route_all,
        (route_all, {"ares.process": "mail"}),
        OldRouter(),
    ],
)
def test_routes_of_theirs_route_their_tasks_only(routes: object) -> None:
    """Whatever form they have: theirs go where they went, even one that is named like ours, and ours to our queues."""
    settings = {**THEIRS, "task_routes": routes}
    plain, guest = make_app(settings), make_app(settings)
    add_agents(guest)
    for name in ("shop.sum", "other", "ares.of_theirs"):
        assert guest.amqp.router.route({}, name) == plain.amqp.router.route({}, name)
    assert {queue_of(guest, name) for name in OUR_TASKS} == {"shop.agents", "shop.supervision", "shop.control"}
    assert queue_of(guest, "ares.run_agent", queue="shop.gpu") == "shop.gpu"
    guest.conf.task_routes = {"*": "their-default"}
    guest.conf.update(task_routes={"*": "their-default"})
    assert queue_of(guest, "shop.sum") == "their-default"
    assert queue_of(guest, "ares.process") == "shop.control"


@pytest.mark.parametrize("queues", [None, [Queue("one"), Queue("two")], {"one": {"exchange": "one"}}])
def test_a_worker_without_a_choice_of_queues_reads_what_it_read(queues: object) -> None:
    """Ours are known, and read only by workers that name them."""
    settings = {**THEIRS, "task_queues": queues}
    plain, guest = make_app(settings), make_app(settings)
    add_agents(guest)
    assert list(guest.amqp.queues.consume_from) == list(plain.amqp.queues.consume_from)
    for app in (plain, guest):
        app.amqp.queues.deselect(["one"])
    assert guest.amqp.queues["shop.gpu"].name == "shop.gpu"
    assert sorted(guest.amqp.queues.consume_from) == sorted(plain.amqp.queues.consume_from)
    guest.amqp.queues.select(["shop.agents", "shop.gpu"])
    assert list(guest.amqp.queues.consume_from) == ["shop.agents", "shop.gpu"]


def test_our_queues_are_declared_alike_by_every_app() -> None:
    """RabbitMQ refuses a queue that two apps declare differently; theirs keep what their settings ask for."""
    settings = {**THEIRS, "task_create_missing_queues": True, "task_create_missing_queue_type": "quorum"}
    guest = make_app(settings)
    add_agents(guest)
    for name in ("shop.agents", "shop.supervision", "shop.control", "shop.gpu"):
        queue = guest.amqp.queues[name]
        assert (queue.queue_arguments, queue.exchange.name, queue.exchange.type) == (None, name, "direct")
        assert (queue.durable, queue.routing_key) == (True, name)
    theirs = guest.amqp.queues["new-one"]
    assert theirs.queue_arguments == {"x-queue-type": "quorum", "x-max-priority": 10}
    assert guest.amqp.queues["mail"].queue_arguments == {"x-max-priority": 10}


def test_a_queue_of_theirs_that_may_not_be_made_on_the_fly_is_still_refused() -> None:
    """Their `task_create_missing_queues` is theirs."""
    guest = make_app(THEIRS)
    add_agents(guest)
    with pytest.raises(KeyError):
        guest.amqp.queues["unknown"]


def test_the_app_becomes_nobodys_current_app() -> None:
    """Neither for this thread nor as the default."""
    before = get_current_app()
    app = make_app()
    add_agents(app)
    app.finalize()
    assert get_current_app() is before is not app


def test_the_app_can_be_pickled() -> None:
    """As a pool does that starts its children afresh; the copy gets its agents where the app's module is imported."""
    settings = {name: value for name, value in THEIRS.items() if name != "task_queues"}
    app = make_app(settings)
    add_agents(app)
    copy: Celery = pickle.loads(pickle.dumps(app))  # noqa: S301 - our own bytes
    assert copy.conf.task_time_limit == 5
    add_agents(copy)
    assert set(copy.conf.beat_schedule) == {"nightly", ENTRY}
    assert queue_of(copy, "ares.process") == "shop.control"


# -- ours -------------------------------------------------------------------------------------------------------------


def test_our_tasks_carry_what_they_need() -> None:
    """Neither settings nor annotations of the app reach them."""
    app = make_app(THEIRS)
    add_agents(app)
    for name in OUR_TASKS:
        assert isinstance(app.tasks[name], AresTask)
        task: Any = app.tasks[name]
        assert (task.time_limit, task.soft_time_limit) == (TIME_LIMIT, TIME_LIMIT - 1)
        assert (task.acks_late, task.reject_on_worker_lost, task.retry_on_worker_lost) == (False, False, False)
        # A command is over in a moment: nobody is told that it began.
        began = not isinstance(task, ControlTask)
        assert (task.serializer, task.ignore_result, task.track_started) == ("json", False, began)
        assert (task.rate_limit, task.priority, task.store_errors_even_if_ignored) == (None, None, False)
        options = task._get_exec_options()
        assert options["serializer"] == "json"
        assert options.get("priority") is None


def test_called_again_it_adds_what_is_new() -> None:
    """Two packages of one project may both have agents; each is added once."""
    app = make_app()
    add_agents(app, agent_modules=["shop.agents"])
    tasks, entry = {name: app.tasks[name] for name in OUR_TASKS}, app.conf.beat_schedule[ENTRY]
    add_agents(app, agent_modules=("shop.agents", "mail.agents"))
    install(app, namespace="shop", redis_url=REDIS)
    assert wiring_of(app).settings.agent_modules == ("shop.agents", "mail.agents")
    assert all(app.tasks[name] is task for name, task in tasks.items())
    assert app.conf.beat_schedule[ENTRY] == entry
    assert [queue.name for queue in app.amqp.queues.values() if queue.name.startswith("shop.")] == [
        "shop.agents",
        "shop.supervision",
        "shop.control",
    ]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"namespace": "mail"}, "namespace='mail' is not valid: the app has agents with namespace='shop' already"),
        ({"redis_url": "redis://u:secret@elsewhere/3"}, "redis_url='redis://u:"),
        ({"namespace": "sh op"}, "namespace"),
        ({"redis_url": "http://elsewhere"}, "redis_url"),
        ({"agent_modules": "shop.agents"}, r"agent_modules='shop.agents' is not valid: write a list"),
        ({"agent_modules": [1]}, "agent_modules"),
    ],
)
def test_what_cannot_work_is_named(other: Mapping[str, Any], words: str) -> None:
    """The setting, its value and the cure; a password is not shown, and nothing is changed."""
    app = make_app()
    add_agents(app)
    with pytest.raises(InvalidSettingError, match=re.escape(words) if "=" in words else words) as caught:
        add_agents(app, **other)
    assert "secret" not in str(caught.value)
    assert wiring_of(app).settings.namespace == "shop"


@pytest.mark.parametrize("other", [None, "shop", json, Celery], ids=["None", "name", "module", "class"])
def test_what_is_no_app_is_told_so(other: Any) -> None:
    """The module with the app in it above all: a manager of it would look for agents in the default place."""
    with pytest.raises(InvalidSettingError, match=r"app=.* is not valid: pass the Celery app itself"):
        install(other, namespace="shop", redis_url="redis://127.0.0.1:1/0")
    if other is not None:
        with pytest.raises(InvalidSettingError, match="pass the Celery app itself"):
            Manager.connect(app=other)


def test_the_modules_of_agents_come_from_the_call_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module `workers.agents` of the app's own is never imported unasked."""
    app = make_app()
    add_agents(app)
    assert wiring_of(app).settings.agent_modules == ()
    monkeypatch.setenv("ARES_AGENT_MODULES", "one, two")
    other = make_app()
    add_agents(other)
    assert wiring_of(other).settings.agent_modules == ("one", "two")


def test_a_manager_of_the_app_finds_its_agents() -> None:
    """Namespace and Redis of the call; what is given to the manager wins."""
    app = make_app()
    add_agents(app)
    manager = Manager(app=app)
    ports: Any = manager._ports
    assert (ports._settings.namespace, ports._settings.redis_url) == ("shop", REDIS)
    ports = Manager(app=app, namespace="other")._ports
    assert (ports._settings.namespace, ports._settings.redis_url) == ("other", REDIS)
    anything: Any = app
    assert not anything.configured


# -- eager ------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:task_always_eager has no effect on send_task")
def test_an_eager_app_is_refused_when_a_task_of_ours_is_sent_or_run() -> None:
    """Not by install(), and with the setting's name; their own tests run their own tasks as ever."""
    app = make_app({"task_always_eager": True})
    add_agents(app)
    assert app.tasks["shop.sum"].delay(2, 3).get() == 5
    task: Any = app.tasks["ares.start_agent"]
    ports: Any = Manager(app=app)._ports
    for send in (
        lambda: task.delay(agent={"id": "a", "type": "t"}),
        lambda: task.s(agent={"id": "a", "type": "t"}).apply_async(),
        lambda: app.send_task("ares.start_agent", kwargs={"agent": {"id": "a", "type": "t"}}),
        lambda: app.send_task("ares.start_agent", kwargs={"agent": {"id": "a"}}, queue="shop.control"),
        lambda: task(agent={"id": "a", "type": "t"}),
        lambda: task.apply(kwargs={"agent": {"id": "a", "type": "t"}}).get(),
        lambda: ports.committer,
    ):
        with pytest.raises(OperationNotSupportedError, match="task_always_eager is set"):
            send()


# -- workers ----------------------------------------------------------------------------------------------------------


class Worker:
    """As much of Celery's worker as the hooks look at."""

    hostname = "w@here"
    prefetch_multiplier = 4

    def __init__(self, app: Celery) -> None:
        self.app = app
        self._conninfo = app.connection_for_read()


def begin_worker(app: Celery, *queues: str) -> Worker:
    """What Celery does when a worker of the app is made."""
    app.amqp.queues.select(list(queues))
    worker = Worker(app)
    signals.worker_init.send(sender=worker)
    return worker


@pytest.fixture
def redis_app() -> Celery:
    """An app whose broker is a Redis; nothing connects to it."""
    app = make_app({**THEIRS, "broker_url": "redis://:secret@127.0.0.1:1/3"})
    add_agents(app)
    return app


def test_a_worker_of_their_queues_alone_stays_as_it_is(redis_app: Celery) -> None:
    """Transport, prefetch and hooks."""
    worker = begin_worker(redis_app, "mail")
    assert worker.prefetch_multiplier == 4
    assert worker._conninfo.transport_cls == "redis"
    assert redis_app.connection_for_read().transport_cls == "redis"
    assert redis_app.conf.worker_disable_prefetch is False
    assert wiring_of(redis_app).services is None


def test_a_queue_of_theirs_that_is_named_like_ours_raises_no_alarm(
    redis_app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    """It is theirs; who meant ours finds a hint."""
    redis_app.conf.task_create_missing_queues = True
    redis_app.amqp.queues.add(Queue("crm.agents"))
    with caplog.at_level("INFO", logger="ares_celery"):
        begin_worker(redis_app, "crm.agents")
    assert [record.levelname for record in caplog.records if record.name.startswith("ares_celery")] == ["INFO"]
    assert "if crm.agents should be queues of agents: namespace 'shop' has shop.agents" in caplog.text


@pytest.mark.usefixtures("unhooked")
def test_a_worker_of_our_queues_gets_what_it_needs(redis_app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    """No prefetch and our transport; the URL that it shows is theirs."""
    worker = begin_worker(redis_app, "shop.agents", "mail")
    assert worker.prefetch_multiplier == 1
    assert worker._conninfo.transport_cls == "ares-redis"
    connection = redis_app.connection_for_write()
    assert connection.transport_cls == "ares-redis"
    assert connection.as_uri() == "redis://:**@127.0.0.1:1/3"
    assert (connection.transport_options or {})["socket_timeout"] == 10.0
    assert redis_app.conf.worker_disable_prefetch is True
    assert redis_app.conf.broker_channel_error_retry is False
    assert redis_app.conf.broker_url == "redis://:secret@127.0.0.1:1/3"
    assert wiring_of(redis_app).services is not None
    assert "this worker reads mail beside the queues of agents" in caplog.text


@pytest.fixture
def unhooked() -> Any:
    """Celery's signals belong to the process: no hook outlives a test."""
    yield
    for signal in (
        signals.after_setup_logger,
        signals.after_setup_task_logger,
        signals.worker_process_init,
        signals.worker_process_shutdown,
        signals.worker_ready,
        signals.worker_shutting_down,
        signals.worker_shutdown,
    ):
        signal.disconnect(dispatch_uid="ares-worker")


def test_a_worker_that_takes_no_json_does_not_start() -> None:
    """It would throw away each message; the text names setting and cure."""
    app = make_app({"accept_content": ["pickle"]})
    add_agents(app)
    with pytest.raises(SystemExit, match=r"accept_content=\['pickle'\] has no 'json'.*add 'json' to it"):
        prepare_guest_worker(Worker(app), "shop")


def test_a_worker_whose_app_has_tasks_of_our_names_does_not_start() -> None:
    """Celery keeps the first one of a name."""
    app = make_app()

    @app.task(name="ares.process", shared=False, lazy=False)
    def process() -> None: ...

    _ = process
    with warnings.catch_warnings():
        # Newer versions of Celery warn of it.
        warnings.simplefilter("ignore")
        add_agents(app)
        app.finalize()
    with pytest.raises(SystemExit, match=r"tasks of its own named ares\.process: rename them"):
        prepare_guest_worker(Worker(app), "shop")


def test_a_transport_that_the_app_names_itself_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    """And the worker says what that costs."""
    app = make_app({"broker_url": "redis://127.0.0.1:1/3", "broker_transport": "redis"})
    add_agents(app)
    app.amqp.queues.select(["shop.control"])
    prepare_guest_worker(Worker(app), "shop")
    assert app.connection_for_read().transport_cls == "redis"
    assert "broker_transport='redis' is kept" in caplog.text


def test_brokers_that_are_no_redis_are_left_alone() -> None:
    """The connection is theirs in every part."""
    app = make_app({"broker_url": "amqp://u:p@rabbit:1//"})
    add_agents(app)
    before = app.connection_for_read().info()
    use_our_transport(app)
    assert app.connection_for_read().info() == before
    worker = Worker(app)
    prepare_guest_worker(worker, "shop")
    assert app.conf.worker_disable_prefetch is False
    assert app.conf.broker_channel_error_retry is True
    assert app.conf.worker_enable_prefetch_count_reduction is False
    assert worker.prefetch_multiplier == 1


@pytest.mark.parametrize(
    ("url", "ours", "extra"),
    [
        ("redis://a:1/0", "ares-redis://a:1/0", {}),
        ("redis://a:1/0;redis://b:1/0", "ares-redis://a:1/0;ares-redis://b:1/0", {}),
        (["redis://a:1/0", "redis://b:1/0"], "ares-redis://a:1/0;ares-redis://b:1/0", {}),
        ("redis+socket:///run/redis.sock", "ares-redis+socket:///run/redis.sock", {}),
        ("sentinel://a:1;sentinel://b", "ares-sentinel://a:1", {"other_sentinels": [("b", 26379)]}),
    ],
)
def test_our_transport_takes_every_form_of_a_redis_broker(url: object, ours: str, extra: Mapping[str, Any]) -> None:
    """With waits that are bounded, unless the app says otherwise."""
    found, options = aliased(url, {"transport_options": {"socket_timeout": 3}})
    assert found == ours
    transport: Any = options["transport_options"]
    assert transport["socket_timeout"] == 3
    assert transport["socket_connect_timeout"] == 5.0
    assert {name: transport[name] for name in extra} == extra


def test_tls_is_what_kombu_makes_of_it() -> None:
    """Our alias of the scheme would be plain text without."""
    assert aliased("rediss://a/0", {})[1]["ssl"] == {"ssl_cert_reqs": 0}
    asked = {"ssl": {"ssl_cert_reqs": 2}}
    assert aliased("rediss://a/0", asked)[1]["ssl"] == asked["ssl"]
    for url in ("amqp://a//", "redis://a;amqp://b", None, "ares-redis://a", 7):
        assert aliased(url, {"x": 1}) == (url, {"x": 1})


# -- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [None, "rpc://", "cache+memory://", "redis://127.0.0.1:1/4"])
def test_results_go_where_the_app_has_them(backend: str | None) -> None:
    """One connection for all agents of a process, and a time of their own for commands, only where that is Redis."""
    app = make_app({"result_backend": backend, "result_expires": 86400, "redis_socket_connect_timeout": 1})
    add_agents(app)
    own: Any = app.backend
    tasks: Mapping[str, Any] = app.tasks
    agents: Any = tasks["ares.run_agent"].backend
    commands: Any = tasks["ares.stats"].backend
    assert type(agents) is type(commands) is type(own)
    with ThreadPoolExecutor(1) as thread:
        elsewhere = thread.submit(lambda: tasks["ares.run_agent"].backend).result()
    if backend is not None and backend.startswith("redis"):
        assert elsewhere is agents
        assert (agents.expires, commands.expires, own.expires) == (86400, 3600, 86400)
    else:
        assert agents is commands is own
        assert elsewhere is not own
