"""Our queues, routes and transport in an app that somebody else owns: beside its settings, not in them.

What Celery builds from `task_queues` and `task_routes` is built as ever, whenever that is; ours is added to the result.
So the settings stay as they are, nothing is read early, and a worker without `-Q` reads what it has always read.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast
from urllib.parse import urlsplit

from celery import Celery
from kombu import Connection, Queue

from ares_celery.celery_app.control_tasks import CONTROLS
from ares_celery.celery_app.launcher import refuse_eager
from ares_celery.celery_app.names import (
    HEALTH_CHECK,
    NOTIFY_AGENT_DEAD,
    RESURRECT_AGENT,
    RUN_AGENT,
    TASK_PREFIX,
    queue_kind,
)
from ares_celery.celery_app.routing import make_queue, make_queues, route_task
from ares_celery.celery_app.settings import BROKER_OPTIONS
from ares_celery.celery_app.urls import ALIAS_PREFIX

__all__ = ["OUR_TASKS", "add_queues_and_routes", "aliased", "set_here", "use_our_transport"]

#: Every task that we add to an app; others that begin with the same letters are the app's own.
OUR_TASKS: Final = frozenset(
    {RUN_AGENT, RESURRECT_AGENT, HEALTH_CHECK, NOTIFY_AGENT_DEAD, *(TASK_PREFIX + c.method for c in CONTROLS)}
)

#: Schemes of Redis brokers for which we have a transport.
_SCHEMES: Final = frozenset({"redis", "rediss", "sentinel", "redis+socket"})


def add_queues_and_routes(app: Celery, namespace: str) -> None:
    """Makes the app know our queues and where our tasks go; changes and reads none of its settings."""
    amqp: Any = app.amqp
    was_used = cast("dict[str, Any]", vars(amqp))
    was_routed = amqp._rtable is not None  # noqa: SLF001 - Celery's prepared routes
    _join(amqp, _GuestAMQP, namespace)
    if was_routed:
        amqp.flush_routes()
    if "queues" in was_used:
        _join(amqp.queues, _GuestQueues, namespace)
        amqp.queues.take_in()
    if "router" in was_used:
        amqp.router.routes = amqp.routes


def use_our_transport(app: Celery) -> None:
    """Makes this process's further connections of the app survive outages; only brokers that are Redis are concerned.

    The app's settings stay as they are, and so does a transport that it names itself (`broker_transport`).
    """
    amqp: Any = app.amqp

    def connect(url: object = None, *args: object, **options: object) -> Any:  # noqa: ANN401 - Kombu's Connection
        if not options.get("transport"):
            url, options = aliased(url, options)
        make: Any = Connection
        return make(url, *args, **options)

    amqp.Connection = connect


def set_here(app: Celery, name: str, value: object) -> None:
    """Sets one setting of the app in this process, whatever its settings are named like.

    Celery 5.6 does not see what is set without the prefix of the app's settings if their source has it with one.
    """
    conf: Any = app.conf
    conf[name] = value
    if conf[name] is not value:
        conf[conf._to_keys(name)[0]] = value  # noqa: SLF001 - Celery's own way to the name with the prefix


def aliased(url: object, options: Mapping[str, object]) -> tuple[object, dict[str, object]]:
    """The URL, or list of URLs, and the options of a connection, with our transport where we have one.

    Example:
        >>> aliased("redis://a:1/0;redis://b:1/0", {})[0]
        'ares-redis://a:1/0;ares-redis://b:1/0'
        >>> aliased("amqp://rabbit//", {})
        ('amqp://rabbit//', {})
    """
    urls = _parts(url)
    schemes = {one.partition("://")[0].lower() for one in urls}
    if not urls or not schemes <= _SCHEMES:
        return url, dict(options)
    options = dict(options)
    asked: Any = options.get("transport_options") or {}
    found: dict[str, object] = {**BROKER_OPTIONS, **asked}
    if "rediss" in schemes and not options.get("ssl"):
        # What Kombu does for its own scheme, and warns of; options in the URL win.
        options["ssl"] = {"ssl_cert_reqs": ssl.CERT_NONE}
    if schemes == {"sentinel"}:
        # Our transport takes the other sentinels as an option, as a list of URLs is one to fail over between.
        urls, others = urls[:1], urls[1:]
        nodes = [(parts.hostname, parts.port or 26379) for parts in map(urlsplit, others)]
        found = {"other_sentinels": nodes, **found}
    options["transport_options"] = found
    return ";".join(ALIAS_PREFIX + one for one in urls), options


def _parts(url: object) -> list[str]:
    if isinstance(url, str):
        return url.split(";")
    if isinstance(url, (list, tuple)):
        return [part for one in cast("Sequence[object]", url) for part in _parts(one)]
    return []


class _GuestQueues:
    """The app's queues and ours, which take nothing from its settings: every app must declare them alike."""

    ares_namespace = ""

    _consume_from: Mapping[str, Queue] | None

    def take_in(self) -> None:
        """Adds ours to what can be read and sent to; what a worker without ``-Q`` reads stays the same."""
        self._added: set[str] = set()
        queues: Any = self
        for queue in make_queues(self.ares_namespace):
            if queue.name not in queues:
                self._add_as_it_is(queue)

    @property
    def consume_from(self) -> Mapping[str, Queue]:
        """What a worker reads: what ``-Q`` names, else the app's own; Celery 5.6 would take all."""
        stock: Any = super()
        found: Mapping[str, Queue] = stock.consume_from
        if self._consume_from is not None or self._added.isdisjoint(found):
            return found
        return {name: queue for name, queue in found.items() if name not in self._added}

    def deselect(self, exclude: str | Iterable[str]) -> None:
        """Leaves out queues (``-X``), of the app's own if no others are chosen."""
        names = [exclude] if isinstance(exclude, str) else list(exclude or ())
        if names and self._consume_from is None:
            names += sorted(self._added)
        stock: Any = super()
        stock.deselect(names)

    def __missing__(self, name: str) -> Queue:
        """Any queue of our namespace is ours; whether others are made on the fly is for the app to say."""
        if queue_kind(self.ares_namespace, name) is None:
            stock: Any = super()
            return cast("Queue", stock.__missing__(name))
        return self._add_as_it_is(make_queue(name))

    def _add_as_it_is(self, queue: Queue) -> Queue:
        cast("Any", dict).__setitem__(self, queue.name, queue)
        self._added.add(queue.name)
        return queue


class _GuestAMQP:
    """What the app makes of its settings, and ours."""

    ares_namespace = ""
    app: Celery

    def Queues(self, *args: object, **options: object) -> Any:  # noqa: ANN401, N802 - Celery's name and class
        """The app's queues, with ours."""
        stock: Any = super()
        queues = stock.Queues(*args, **options)
        _join(queues, _GuestQueues, self.ares_namespace)
        queues.take_in()
        return queues

    def flush_routes(self) -> None:
        """The app's routes, after ours: a route for everything does not take our tasks along."""
        stock: Any = super()
        stock.flush_routes()
        prepared: Any = vars(self)["_rtable"]
        self._rtable = [self._route, *prepared]

    def _route(self, name: str, *_: object, **__: object) -> dict[str, Queue] | None:
        if name not in OUR_TASKS:
            return None
        # Celery sends by name whatever this setting says; a task that is called checks by itself.
        refuse_eager(self.app, name)
        queue = route_task(self.ares_namespace, name)
        return None if queue is None else {"queue": make_queue(queue)}


def _join(made: Any, mixin: type[Any], namespace: str) -> None:  # noqa: ANN401 - an object of Celery's, or the app's own kind
    """Gives one object of Celery our behaviour, too; no other app's has it."""
    kind: Any = cast("Any", type)(made)
    made.__class__ = type(kind.__name__, (mixin, kind), {"ares_namespace": namespace, "__module__": kind.__module__})
