"""Opens a namespace at the place that the process's settings name."""

from __future__ import annotations

from collections.abc import Callable

from ares_celery.clock import Clock
from ares_celery.config import ProcessSettings, RuntimeConfig
from ares_celery.store.redis.connections import MOST_CONNECTIONS, MOST_WAITING, Connector
from ares_celery.store.redis.driver_errors import DriverErrors
from ares_celery.store.redis.hurry import Hurry, InHurry
from ares_celery.store.redis.store import Drivers, RedisStore

__all__ = ["open_hurried_store", "open_store"]


def open_store(
    settings: ProcessSettings,
    config: RuntimeConfig | None = None,
    *,
    clock: Clock | None = None,
    guard: Callable[[], None] | None = None,
) -> RedisStore:
    """Opens the namespace that the settings name; made when it does not exist.

    Args:
        settings: Where it is.
        config: Wanted settings of the namespace; None = ``ARES_<FIELD>`` of the environment. They win only when the
            namespace is made; later a difference is one logged warning.
        clock: For waits; the machine's own by default.
        guard: Called before every blocking call, which it may refuse by raising.

    Raises:
        InvalidSettingError: The URL has none of our forms.
        StoreUnavailableError: The server does not answer, within seconds; the error shows no password.
        UnsupportedServerError: It is older than Redis 6.2 or Valkey 7.2.
        NamespaceMismatchError: The namespace was made with another schema, or with other shards than asked for.

    Example:
        >>> store = open_store(ProcessSettings(redis_url="redis://127.0.0.1:6379/0"))  # doctest: +SKIP
        >>> store.count_by_state()  # doctest: +SKIP
        {<AgentState.RUNNING: 'running'>: 3}
    """
    connector = Connector.to(settings.redis_url)
    drivers = Drivers(
        main=connector.driver(),
        waiting=connector.driver(connections=MOST_WAITING),
        listener=lambda: connector.driver(connections=1),
        asynchronous=connector.async_driver,
    )
    errors = DriverErrors(connector.shown, connector.secrets)
    return RedisStore.connect(drivers, settings.namespace, config, errors=errors, clock=clock, guard=guard)


def open_hurried_store(
    settings: ProcessSettings, config: RuntimeConfig | None = None, *, hurry: Hurry, patience: float
) -> RedisStore:
    """Opens the same for callers who may not wait: each call within what ``hurry`` leaves, and ``patience`` at most.

    Args:
        settings: Where it is.
        config: As for :func:`open_store`.
        hurry: Once the time of a thread is over, its calls raise StoreUnavailableError.
        patience: Seconds until a server that does not answer counts as unreachable.

    Raises:
        What :func:`open_store` raises.
    """
    connector = Connector.to(settings.redis_url, patience=patience)

    def driver(connections: int) -> InHurry:
        return InHurry(connector.driver(connections=connections), hurry, connector.shown)

    drivers = Drivers(
        main=driver(MOST_CONNECTIONS),
        waiting=driver(MOST_WAITING),
        listener=lambda: driver(1),
        asynchronous=connector.async_driver,
    )
    errors = DriverErrors(connector.shown, connector.secrets)
    return RedisStore.connect(drivers, settings.namespace, config, errors=errors)
