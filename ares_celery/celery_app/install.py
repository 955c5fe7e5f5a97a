"""Agents in a Celery app that somebody else owns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

from celery import Celery
from celery.local import Proxy

from ares_celery.celery_app.beat import ENTRY, beat_entry, follow_namespace
from ares_celery.celery_app.factory import add_tasks
from ares_celery.celery_app.guest_amqp import add_queues_and_routes, set_here
from ares_celery.celery_app.guest_worker import prepare_guest_worker
from ares_celery.celery_app.transport import register_transports
from ares_celery.celery_app.wiring import Wiring, find_wiring
from ares_celery.config import ProcessSettings, RuntimeConfig
from ares_celery.errors import InvalidSettingError
from ares_celery.plugins.registry import offers_of
from ares_celery.store.redis.urls import parse_store_url, redact

__all__ = ["install"]


def install(
    app: Celery,
    *,
    agent_modules: Sequence[str] = (),
    namespace: str | None = None,
    redis_url: str | None = None,
    plugins: Sequence[object] = (),
) -> None:
    """Adds our tasks, routes, queues and beat entry to an app that somebody else owns; changes none of its settings.

    Call it where the app is made, before or after it is configured; nothing is opened, read or started. What our tasks
    need, they carry themselves; what a worker needs, only those get that read our queues, by ``-Q``. Called again with
    the same namespace and Redis it adds what is new in ``agent_modules`` and ``plugins``.

    Args:
        app: The app; its broker and its result backend stay its own.
        agent_modules: Modules with agents, imported by workers that read our queues; default ARES_AGENT_MODULES. Those
            that the app imports anyway, such as a ``tasks.py``, need not be named.
        namespace: Default ARES_NAMESPACE, else ``ares``.
        redis_url: Where agents have their state; default ARES_REDIS_URL.
        plugins: What workers that read our queues shall run: classes of plug-ins, functions that make one, or plug-ins.

    Raises:
        InvalidSettingError: A setting or the app is wrong, or the app has agents of another namespace or in another
            Redis already.

    Example:
        >>> from celery import Celery
        >>> app = Celery("shop", broker="amqp://rabbit//", set_as_current=False)
        >>> install(app, agent_modules=["shop.agents"], namespace="shop", redis_url="redis://redis:6379/2")
        >>> app.amqp.queues["shop.agents"].name, app.conf.task_time_limit
        ('shop.agents', None)
    """
    if isinstance(app, Proxy):
        current: Any = app
        app = current._get_current_object()  # noqa: SLF001 - Celery's own way to the app behind `current_app`
    settings = ProcessSettings.from_env(
        namespace=namespace, redis_url=redis_url, agent_modules=_named(agent_modules) or None
    )
    if settings.agent_modules is None:
        # The default `workers.agents` is for apps of our own.
        settings = settings.model_copy(update={"agent_modules": ()})
    parse_store_url(settings.redis_url, setting="redis_url" if redis_url else "ARES_REDIS_URL")
    installed = find_wiring(app)
    if installed is not None:
        _add_to(installed, settings, plugins)
        return
    interval = RuntimeConfig.from_env().health_check_interval
    register_transports()
    add_tasks(app, settings, None, plugins, prepare_worker=prepare_guest_worker)
    add_queues_and_routes(app, settings.namespace)
    _add_beat_entry(app, settings.namespace, interval)
    follow_namespace(app, settings.namespace)


def _named(modules: object) -> tuple[str, ...]:
    """The modules' names. Raises InvalidSettingError for a single text, whose letters would be taken for names."""
    if isinstance(modules, (list, tuple, set, frozenset)):
        names = list(cast("Iterable[object]", modules))
        if all(isinstance(name, str) and name for name in names):
            return tuple(map(str, names))
    problem = "write a list of modules' names, such as ['shop.agents']"
    raise InvalidSettingError(field="agent_modules", value=f"{modules}"[:200], problem=problem)


def _add_to(installed: Wiring, settings: ProcessSettings, plugins: Sequence[object]) -> None:
    """A second call: the same place, perhaps with more in it."""
    had = installed.settings
    for field, old, new in (
        ("namespace", had.namespace, settings.namespace),
        ("redis_url", redact(had.redis_url), redact(settings.redis_url)),
    ):
        if old != new:
            problem = f"the app has agents with {field}={old!r} already, and an app has one {field}: make a second app"
            raise InvalidSettingError(field=field, value=new, problem=problem)
    modules = dict.fromkeys((*(had.agent_modules or ()), *(settings.agent_modules or ())))
    if had.agent_modules is not None or modules:
        installed.settings = had.model_copy(update={"agent_modules": tuple(modules)})
    known = {offer.label for offer in installed.offered_plugins}
    installed.offered_plugins += tuple(offer for offer in offers_of(plugins) if offer.label not in known)


def _add_beat_entry(app: Celery, namespace: str, interval: timedelta) -> None:
    """Adds the entry beside the app's own, now or whenever the app reads its settings."""

    def add(**_: object) -> None:
        theirs: Mapping[str, Any] = app.conf.beat_schedule or {}
        schedule = {**theirs, ENTRY: beat_entry(namespace, interval)}
        set_here(app, "beat_schedule", schedule)

    anything: Any = app
    # Again whenever the settings are read anew, as by a second `config_from_object`.
    anything.on_after_configure.connect(add, weak=False)
    if anything.configured:
        add()
