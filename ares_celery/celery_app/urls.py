"""The one translator from our URL forms to what Kombu and Celery understand. Pure: opens nothing, registers nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from typing_extensions import override

from ares_celery.errors import InvalidSettingError
from ares_celery.store.redis.urls import (
    NEXT_URL_IN_LIST,
    Address,
    StoreUrl,
    Topology,
    parse_store_url,
    redact,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ALIAS_PREFIX", "BrokerSettings", "CeleryUrls", "ResultSettings", "redact", "translate_urls"]

#: Put before a plain scheme, gives the scheme of our transport for it (see celery_app/transport.py).
ALIAS_PREFIX: Final = "ares-"

#: Seconds a sentinel may take to connect or answer. Short, since the next one in the list can answer instead; the
#: default of redis-py is to wait without bound and to ask a dead one several times more.
SENTINEL_TIMEOUT: Final = 1.0

#: Schemes that are ours to translate; any other belongs to Kombu or Celery and passes through untouched.
_OUR_SCHEMES: Final = frozenset({"redis", "rediss", "unix", "sentinel", "cluster"})


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """How to reach the broker, in Celery's settings. Its repr holds no password.

    Attributes:
        url: `broker_url`; for our own forms it begins with `ares-`, an alias that `register_transports()` makes known.
        transport_options: What the URL asks of `broker_transport_options`; to be merged with the deployment's.
        use_ssl: `broker_use_ssl`; None for plain text. Always explicit: an alias gets no default of Kombu's.
    """

    url: str = field(repr=False)
    transport_options: Mapping[str, object] = field(default_factory=dict[str, object], repr=False)
    use_ssl: Mapping[str, object] | None = None

    @override
    def __str__(self) -> str:
        """Render the URL without its password."""
        return redact(self.url)


@dataclass(frozen=True, slots=True)
class ResultSettings:
    """How to reach the result backend, in Celery's settings. Its repr holds no password.

    Attributes:
        url: `result_backend`.
        transport_options: What the URL asks of `result_backend_transport_options`; to be merged with the deployment's.
        use_ssl: `redis_backend_use_ssl`; None for plain text.
    """

    url: str = field(repr=False)
    transport_options: Mapping[str, object] = field(default_factory=dict[str, object], repr=False)
    use_ssl: Mapping[str, object] | None = None

    @override
    def __str__(self) -> str:
        """Render the URL without its password."""
        return redact(self.url)


@dataclass(frozen=True, slots=True)
class CeleryUrls:
    """All that Celery must know of our URLs."""

    broker: BrokerSettings
    result: ResultSettings

    def settings(self) -> dict[str, object]:
        """Return the lower-case Celery settings, new at each call. They hold passwords: not for logs."""
        return {
            "broker_url": self.broker.url,
            "broker_transport_options": dict(self.broker.transport_options),
            "broker_use_ssl": dict(self.broker.use_ssl) if self.broker.use_ssl else None,
            "result_backend": self.result.url,
            "result_backend_transport_options": dict(self.result.transport_options),
            "redis_backend_use_ssl": dict(self.result.use_ssl) if self.result.use_ssl else None,
        }


def translate_urls(redis_url: str, *, broker_url: str | None = None, result_url: str | None = None) -> CeleryUrls:
    """Translate the store's URL, and the broker's and the results' where they differ, into Celery's settings.

    Args:
        redis_url: `ARES_REDIS_URL`, in any of our forms.
        broker_url: `ARES_BROKER_URL`; None or empty means the store. One of our forms but cluster://, a `;` list of
            redis:// or rediss:// URLs to fail over between, or any URL of Kombu's such as amqp://, which passes
            through untouched.
        result_url: `ARES_RESULT_URL`; None or empty means the store. One of our forms but cluster://, or any URL of
            Celery's.

    Returns:
        The frozen settings.

    Raises:
        InvalidSettingError: A URL is malformed, or the store is a cluster and one of the other two is missing.

    Example:
        >>> urls = translate_urls("redis://:s3cret@db:6379/0", broker_url="amqp://rabbit//")
        >>> urls.broker.url, str(urls.result)
        ('amqp://rabbit//', 'redis://:***@db:6379/0')
    """
    store = parse_store_url(redis_url)
    if store.topology is Topology.CLUSTER:
        _demand("ARES_BROKER_URL", broker_url, redis_url)
        _demand("ARES_RESULT_URL", result_url, redis_url)
    return CeleryUrls(
        broker=_translate_broker("ARES_BROKER_URL", broker_url) if broker_url else _broker_of(store),
        result=_translate_result("ARES_RESULT_URL", result_url) if result_url else _result_of(store),
    )


def _demand(setting: str, url: str | None, redis_url: str) -> None:
    if not url:
        problem = (
            f"it is required, since Celery cannot use the Redis Cluster of ARES_REDIS_URL={redact(redis_url)!r}; "
            "set it to a redis://, rediss:// or sentinel:// URL of a server outside the cluster"
        )
        raise InvalidSettingError(field=setting, value="", problem=problem)


def _translate_broker(setting: str, url: str) -> BrokerSettings:
    if _scheme(setting, url) not in _OUR_SCHEMES:
        return BrokerSettings(url=url)
    first, *others = [_parse_for_celery(setting, part) for part in NEXT_URL_IN_LIST.split(url)]
    settings = _broker_of(first)
    if not others:
        return settings
    if any(store.topology is not Topology.SINGLE or store.tls != first.tls for store in (first, *others)):
        problem = "a list may hold redis:// URLs, or rediss:// URLs with equal ssl_ options; write one kind only"
        raise InvalidSettingError(field=setting, value=redact(url), problem=problem)
    return BrokerSettings(
        url=";".join([settings.url, *(_broker_of(store).url for store in others)]),
        use_ssl=settings.use_ssl,
    )


def _translate_result(setting: str, url: str) -> ResultSettings:
    if _scheme(setting, url) not in _OUR_SCHEMES:
        return ResultSettings(url=url)
    return _result_of(_parse_for_celery(setting, url))


def _scheme(setting: str, url: str) -> str:
    scheme, separator, _ = url.partition("://")
    if not separator or not scheme:
        problem = "it has no '://'; write a URL such as redis://host:6379/0 or amqp://user:password@host//"
        raise InvalidSettingError(field=setting, value=redact(url), problem=problem)
    return scheme.lower()


def _parse_for_celery(setting: str, url: str) -> StoreUrl:
    store = parse_store_url(url, setting=setting)
    if store.topology is Topology.CLUSTER:
        problem = "Celery cannot use a Redis Cluster; write a redis://, rediss:// or sentinel:// URL"
        raise InvalidSettingError(field=setting, value=redact(url), problem=problem)
    return store


def _broker_of(store: StoreUrl) -> BrokerSettings:
    use_ssl = store.tls.redis_options() if store.tls else None
    match store.topology:
        case Topology.SOCKET:
            return BrokerSettings(url=f"{ALIAS_PREFIX}redis+{_socket_url(store)}")
        case Topology.SENTINEL:
            first, *others = store.nodes
            options = _sentinel_options(store)
            if others:
                options["other_sentinels"] = [(node.host, node.port) for node in others]
            return BrokerSettings(_server_url(f"{ALIAS_PREFIX}sentinel", store, first), options, use_ssl)
        case _:
            scheme = f"{ALIAS_PREFIX}{_plain_scheme(store)}"
            return BrokerSettings(_server_url(scheme, store, store.nodes[0]), use_ssl=use_ssl)


def _result_of(store: StoreUrl) -> ResultSettings:
    use_ssl = store.tls.redis_options() if store.tls else None
    match store.topology:
        case Topology.SOCKET:
            return ResultSettings(url=f"redis+{_socket_url(store)}")
        case Topology.SENTINEL:
            # Celery takes user, password and database from the first URL; the fewer copies of a secret the better.
            first, *others = store.nodes
            urls = [_server_url("sentinel", store, first), *(f"sentinel://{node}/{store.db}" for node in others)]
            return ResultSettings(";".join(urls), _sentinel_options(store), use_ssl)
        case _:
            return ResultSettings(_server_url(_plain_scheme(store), store, store.nodes[0]), use_ssl=use_ssl)


def _plain_scheme(store: StoreUrl) -> str:
    return "rediss" if store.tls else "redis"


def _server_url(scheme: str, store: StoreUrl, node: Address) -> str:
    return f"{scheme}://{_userinfo(store)}{node}/{store.db}"


def _socket_url(store: StoreUrl) -> str:
    return f"socket://{_userinfo(store)}{quote(store.path)}?virtual_host={store.db}"


def _userinfo(store: StoreUrl) -> str:
    if store.username is None and store.password is None:
        return ""
    password = "" if store.password is None else f":{quote(store.password, safe='')}"
    return f"{quote(store.username or '', safe='')}{password}@"


def _sentinel_options(store: StoreUrl) -> dict[str, object]:
    """Return what both Kombu and Celery want to know of the sentinels themselves."""
    sentinel_kwargs: dict[str, object] = {
        "socket_timeout": SENTINEL_TIMEOUT,
        "socket_connect_timeout": SENTINEL_TIMEOUT,
        "retry": None,
    }
    if store.sentinel_username is not None:
        sentinel_kwargs["username"] = store.sentinel_username
    if store.sentinel_password is not None:
        sentinel_kwargs["password"] = store.sentinel_password
    if store.tls is not None:
        sentinel_kwargs |= {"ssl": True, **store.tls.redis_options()}
    return {"master_name": store.master, "sentinel_kwargs": sentinel_kwargs}
