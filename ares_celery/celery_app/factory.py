"""Makes the Celery app that workers, beat and the Manager use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from celery import Celery

from ares_celery.celery_app.agent_tasks import add_agent_tasks
from ares_celery.celery_app.beat import ENTRY, beat_entry, follow_namespace
from ares_celery.celery_app.control_tasks import add_control_tasks
from ares_celery.celery_app.names import CONTROL_QUEUE, queue_name
from ares_celery.celery_app.routing import make_queues, route_task
from ares_celery.celery_app.settings import BROKER_OPTIONS, RESULT_OPTIONS, SETTINGS
from ares_celery.celery_app.signals import PrepareWorker, connect_worker
from ares_celery.celery_app.supervision_tasks import add_supervision_tasks
from ares_celery.celery_app.transport import register_transports
from ares_celery.celery_app.urls import ALIAS_PREFIX, translate_urls
from ares_celery.celery_app.wiring import Wiring
from ares_celery.celery_app.worker_end import drain_at_end
from ares_celery.config import ProcessSettings, RuntimeConfig

__all__ = ["add_tasks", "create_app"]


def create_app(
    settings: ProcessSettings | None = None,
    config: RuntimeConfig | None = None,
    *,
    set_as_current: bool = True,
    name: str = "ares",
    celery_settings: Mapping[str, Any] | None = None,
    plugins: Sequence[object] = (),
) -> Celery:
    """Makes an app with our tasks, queues, beat entry and transport; opens nothing.

    Args:
        settings: Where the namespace is; None = from the environment.
        config: Settings for a namespace that does not exist yet; an existing one keeps its own.
        set_as_current: Whether it becomes Celery's current app; a Manager's never does.
        name: Shown by Celery.
        celery_settings: The deployment's own Celery settings; they win.
        plugins: What the app's workers shall run: classes of plug-ins, functions that make one, or plug-ins.

    Raises:
        InvalidSettingError: A URL or another setting cannot work; the text names it.

    Example:
        >>> app = create_app(ProcessSettings(namespace="shop"), set_as_current=False)
        >>> "ares.start_agent" in app.tasks, [queue.name for queue in app.conf.task_queues]
        (True, ['shop.agents', 'shop.supervision', 'shop.control'])
    """
    settings = settings or ProcessSettings.from_env()
    namespace = settings.namespace
    register_transports()
    urls = translate_urls(settings.redis_url, broker_url=settings.broker_url, result_url=settings.result_url).settings()
    app = Celery(name, set_as_current=set_as_current)
    app.conf.update(SETTINGS)
    app.conf.update(urls)
    app.conf.update(
        broker_transport_options=_merge(BROKER_OPTIONS, urls["broker_transport_options"]),
        # RabbitMQ closes the channel of a full worker that holds messages for long; for our Redis transports there is
        # nothing that is better tried again.
        broker_channel_error_retry=not str(urls["broker_url"]).startswith(ALIAS_PREFIX),
        result_backend_transport_options=_merge(RESULT_OPTIONS, urls["result_backend_transport_options"]),
        task_queues=make_queues(namespace),
        # What comes without a queue is a command.
        task_default_queue=queue_name(namespace, CONTROL_QUEUE),
        task_routes=(_router(namespace),),
        beat_schedule={ENTRY: beat_entry(namespace, (config or RuntimeConfig.from_env()).health_check_interval)},
    )
    app.conf.update(celery_settings or {})
    add_tasks(app, settings, config, plugins)
    follow_namespace(app, namespace)
    return app


def add_tasks(
    app: Celery,
    settings: ProcessSettings,
    config: RuntimeConfig | None = None,
    plugins: Sequence[object] = (),
    *,
    prepare_worker: PrepareWorker | None = None,
) -> Wiring:
    """Adds our tasks and what a worker of the app needs to it; changes none of its settings.

    Args:
        app: Gets the tasks.
        settings: Where the namespace is.
        config: Settings for a namespace that does not exist yet.
        plugins: What the app's workers shall run.
        prepare_worker: Called for each worker of the app that reads our queues, before its parts are made.
    """
    wiring = Wiring(app, settings, config, plugins)
    add_agent_tasks(app, settings.namespace)
    add_supervision_tasks(app, settings.namespace)
    add_control_tasks(app, settings.namespace)
    connect_worker(app, wiring, prepare_worker)
    drain_at_end(app)
    return wiring


def _merge(ours: Mapping[str, Any], of_url: object) -> dict[str, Any]:
    return {**ours, **cast("Mapping[str, Any]", of_url or {})}


def _router(namespace: str) -> Any:  # noqa: ANN401 - Celery's own form of a router
    def route(name: str, *_: object, **__: object) -> dict[str, str] | None:
        queue = route_task(namespace, name)
        return None if queue is None else {"queue": queue}

    return route
