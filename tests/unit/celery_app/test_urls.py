from __future__ import annotations

from ssl import CERT_REQUIRED
from typing import Any

import pytest
from celery import Celery
from kombu import Connection
from redis import SSLConnection, UnixDomainSocketConnection

from ares_celery.celery_app.transport import RedisTransport, SentinelTransport, register_transports
from ares_celery.celery_app.urls import CeleryUrls, redact, translate_urls
from ares_celery.errors import InvalidSettingError

#: A dead sentinel must not hold up the next one.
ONE_QUICK_TRY = {"socket_timeout": 1.0, "socket_connect_timeout": 1.0, "retry": None}
TLS = {"ssl_cert_reqs": "required", "ssl_check_hostname": True}


def make_app(urls: CeleryUrls) -> Celery:
    """A Celery app that is nobody's current app, configured by the translation alone."""
    register_transports()
    app = Celery("urls", set_as_current=False)
    app.conf.update(urls.settings())
    return app


def connection_parameters(url: str) -> dict[str, Any]:
    """What Celery's result backend, made of this store URL, would connect with."""
    backend: Any = make_app(translate_urls(url)).backend
    return dict(backend.connparams)


@pytest.mark.parametrize(
    ("url", "broker", "result"),
    [
        ("redis://127.0.0.1:6379/0", "ares-redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("redis://ann:p%40ss@db/3", "ares-redis://ann:p%40ss@db:6379/3", "redis://ann:p%40ss@db:6379/3"),
        ("redis://[::1]:7000/0", "ares-redis://[::1]:7000/0", "redis://[::1]:7000/0"),
        ("rediss://:p@db/1", "ares-rediss://:p@db:6379/1", "rediss://:p@db:6379/1"),
        (
            "unix:///run/redis.sock?db=2",
            "ares-redis+socket:///run/redis.sock?virtual_host=2",
            "redis+socket:///run/redis.sock?virtual_host=2",
        ),
        (
            "sentinel://ann:p@h1:1,h2:2/mymaster/4",
            "ares-sentinel://ann:p@h1:1/4",
            "sentinel://ann:p@h1:1/4;sentinel://h2:2/4",
        ),
    ],
)
def test_the_store_serves_as_broker_and_result_backend(url: str, broker: str, result: str) -> None:
    """With no other setting both are the store, in the words of Kombu and of Celery."""
    urls = translate_urls(url)
    assert (urls.broker.url, urls.result.url) == (broker, result)


def test_plain_urls_ask_for_no_tls_and_no_options() -> None:
    """A plain URL yields plain settings, so that a deployment's own options are all there is."""
    assert translate_urls("redis://db").settings() == {
        "broker_url": "ares-redis://db:6379/0",
        "broker_transport_options": {},
        "broker_use_ssl": None,
        "result_backend": "redis://db:6379/0",
        "result_backend_transport_options": {},
        "redis_backend_use_ssl": None,
    }


def test_tls_is_explicit_for_broker_and_results() -> None:
    """An alias gets no TLS default of Kombu's: the options always stand in the settings."""
    settings = translate_urls("rediss://db?ssl_ca_certs=/tls/ca.pem").settings()
    expected = {**TLS, "ssl_ca_certs": "/tls/ca.pem"}
    assert settings["broker_use_ssl"] == settings["redis_backend_use_ssl"] == expected


def test_sentinel_options_name_master_other_sentinels_and_their_credentials() -> None:
    """Kombu and Celery learn the master and how to log in to the sentinels; TLS covers these too."""
    urls = translate_urls("sentinel://h1,h2,h3:5/m/0?sentinel_username=w&sentinel_password=p&ssl_cert_reqs=required")
    sentinel_kwargs = {**ONE_QUICK_TRY, "username": "w", "password": "p", "ssl": True, **TLS}
    assert urls.result.transport_options == {"master_name": "m", "sentinel_kwargs": sentinel_kwargs}
    assert urls.broker.transport_options == {
        "master_name": "m",
        "sentinel_kwargs": sentinel_kwargs,
        "other_sentinels": [("h2", 26379), ("h3", 5)],
    }
    assert urls.broker.use_ssl == urls.result.use_ssl == TLS


@pytest.mark.parametrize("broker", ["amqp://user:pw@rabbit//", "memory://", "amqp://one//;amqp://two//"])
def test_a_foreign_broker_passes_through_untouched(broker: str) -> None:
    """What is not ours to translate reaches Kombu as it was written; results stay in the store."""
    urls = translate_urls("redis://db", broker_url=broker)
    assert urls.broker.url == broker
    assert urls.broker.use_ssl is None
    assert urls.result.url == "redis://db:6379/0"


def test_a_single_sentinel_needs_no_further_options() -> None:
    """One sentinel stands in the URL; there are no others to name."""
    urls = translate_urls("sentinel://h1/m/0")
    assert urls.broker.transport_options == {"master_name": "m", "sentinel_kwargs": ONE_QUICK_TRY}


def test_a_foreign_result_backend_passes_through_untouched() -> None:
    """So does a result backend of Celery's."""
    urls = translate_urls("redis://db", result_url="db+postgresql://user:pw@host/db")
    assert urls.result.url == "db+postgresql://user:pw@host/db"
    assert urls.broker.url == "ares-redis://db:6379/0"


def test_each_url_of_a_failover_list_is_translated() -> None:
    """A `;` list keeps its order, and every member leads to our transport."""
    urls = translate_urls("redis://db", broker_url="rediss://:a;b@h1/0;rediss://:c@h2:7/1")
    assert urls.broker.url == "ares-rediss://:a%3Bb@h1:6379/0;ares-rediss://:c@h2:7/1"
    assert urls.broker.use_ssl == TLS


@pytest.mark.parametrize(
    "broker", ["redis://h1;rediss://h2", "redis://h1;sentinel://h2/m/0", "redis://h1;unix:///run/redis.sock"]
)
def test_a_mixed_failover_list_is_refused(broker: str) -> None:
    """TLS and Sentinel options hold for a whole connection, so one list has one kind of URL."""
    with pytest.raises(InvalidSettingError, match=r"ARES_BROKER_URL.*write one kind only"):
        translate_urls("redis://db", broker_url=broker)


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({}, "ARES_BROKER_URL"),
        ({"broker_url": "redis://db", "result_url": ""}, "ARES_RESULT_URL"),
        ({"broker_url": None, "result_url": "redis://db"}, "ARES_BROKER_URL"),
    ],
)
def test_a_cluster_store_demands_the_other_two(given: dict[str, str], missing: str) -> None:
    """Kombu and Celery cannot use a cluster: the error names the missing setting, the reason and the cure."""
    with pytest.raises(ValueError, match=missing) as caught:
        translate_urls("cluster://:s3cret@h1:7000,h2:7000", **given)
    assert "required" in str(caught.value)
    assert "outside the cluster" in str(caught.value)
    assert "cluster://:***@h1:7000,h2:7000" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_cluster_store_works_with_other_servers_for_celery() -> None:
    """Given both, the store's own URL plays no part in Celery's settings."""
    urls = translate_urls("cluster://h1:7000", broker_url="amqp://rabbit//", result_url="redis://db/1")
    assert (urls.broker.url, urls.result.url) == ("amqp://rabbit//", "redis://db:6379/1")


@pytest.mark.parametrize("setting", ["broker_url", "result_url"])
@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("cluster://:s3cret@h1:7000", "cannot use a Redis Cluster"),
        ("redis://:s3cret@h1:port", "not host or host:port"),
        ("ann:s3cret@host", "no '://'"),
    ],
)
def test_a_bad_broker_or_result_url_names_its_setting(setting: str, url: str, problem: str) -> None:
    """The error points to the setting that is wrong, not to the store's, and shows no password."""
    urls = {setting: url}
    with pytest.raises(InvalidSettingError, match=f"ARES_{setting.upper()}") as caught:
        translate_urls("redis://db", **urls)
    assert problem in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_no_repr_or_str_shows_a_password() -> None:
    """Settings may be logged by accident: their reprs hold no secret, their strings a redacted URL."""
    urls = translate_urls("sentinel://ann:s3cret@h1,h2/m/0?sentinel_password=s3cret", broker_url="redis://:s3cret@db/0")
    assert "s3cret" not in repr(urls)
    assert "s3cret" not in f"{urls.broker} {urls.result}"
    assert str(urls.broker) == "ares-redis://:***@db:6379/0"
    assert redact("redis://:s3cret@db/0") == "redis://:***@db/0"


@pytest.mark.parametrize(
    ("url", "transport", "shown"),
    [
        ("redis://:s3cret@db/3", RedisTransport, "redis://:**@db:6379/3"),
        ("rediss://:s3cret@db/3", RedisTransport, "rediss://:**@db:6379/3"),
        ("unix:///run/redis.sock", RedisTransport, "ares-redis+socket:///run/redis.sock"),
        ("sentinel://:s3cret@h1,h2/m/3", SentinelTransport, "sentinel://:**@h1:26379/3"),
    ],
)
def test_kombu_makes_our_transport_of_every_form(url: str, transport: type[object], shown: str) -> None:
    """The class is ours in every connection an app hands out and in its clones; logs show the plain scheme."""
    app = make_app(translate_urls(url))
    for connection in (app.connection_for_read(), app.connection_for_write(), app.connection_for_read().clone()):
        assert isinstance(connection.transport, transport)
        assert connection.transport.driver_type == "redis"
        assert connection.as_uri() == shown


def test_our_transport_and_tls_survive_a_failover() -> None:
    """Switching to the next URL of a list keeps class and TLS options; the stock scheme stays stock."""
    app = make_app(translate_urls("redis://db", broker_url="rediss://h1/0;rediss://h2/1"))
    connection = app.connection_for_read()
    connection.maybe_switch_next()
    assert (connection.hostname, connection.virtual_host) == ("h2", "1")
    assert isinstance(connection.transport, RedisTransport)
    assert connection.ssl == TLS
    assert not isinstance(Connection("redis://h1").transport, RedisTransport)


def test_celery_understands_the_result_urls() -> None:
    """Celery's own backends end up with the server, database, password and TLS that the URL says."""
    plain = connection_parameters("redis://ann:p%40ss@db:7/3")
    assert (plain["host"], plain["port"], plain["db"]) == ("db", 7, 3)
    assert (plain["username"], plain["password"]) == ("ann", "p@ss")

    secure = connection_parameters("rediss://db/1")
    assert issubclass(secure["connection_class"], SSLConnection)
    assert (secure["ssl_cert_reqs"], secure["ssl_check_hostname"]) == (CERT_REQUIRED, True)

    socket = connection_parameters("unix:///run/redis.sock?db=2")
    assert socket["connection_class"] is UnixDomainSocketConnection
    assert (socket["path"], socket["db"]) == ("/run/redis.sock", 2)

    sentinel = connection_parameters("sentinel://:p@h1:1,h2:2/m/4")
    assert [(host["host"], host["port"]) for host in sentinel["hosts"]] == [("h1", 1), ("h2", 2)]
    assert (sentinel["db"], sentinel["password"]) == (4, "p")
