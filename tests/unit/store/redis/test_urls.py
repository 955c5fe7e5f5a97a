from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ares_celery.errors import InvalidSettingError
from ares_celery.store.redis.urls import Address, StoreUrl, TlsOptions, Topology, parse_store_url, redact

#: A password as it is and as a URL has it; `Zq9` occurs nowhere else in the URLs below.
PLAIN = "Zq9$Zq9"
ENCODED = "Zq9%24Zq9"


def parse_or_error(url: str) -> StoreUrl | InvalidSettingError:
    """The outcome as a value, whichever it is."""
    try:
        return parse_store_url(url)
    except InvalidSettingError as error:
        return error


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://127.0.0.1:6379/0", StoreUrl(Topology.SINGLE, (Address("127.0.0.1", 6379),))),
        ("redis://db", StoreUrl(Topology.SINGLE, (Address("db", 6379),))),
        ("redis://[::1]:7000/3", StoreUrl(Topology.SINGLE, (Address("::1", 7000),), db=3)),
        (
            f"redis://ann:{ENCODED}@db:1/2",
            StoreUrl(Topology.SINGLE, (Address("db", 1),), db=2, username="ann", password=PLAIN),
        ),
        (f"redis://:{ENCODED}@db", StoreUrl(Topology.SINGLE, (Address("db", 6379),), password=PLAIN)),
        ("rediss://db/1", StoreUrl(Topology.SINGLE, (Address("db", 6379),), db=1, tls=TlsOptions())),
        ("unix:///run/redis.sock", StoreUrl(Topology.SOCKET, path="/run/redis.sock")),
        (
            f"unix://ann:{ENCODED}@/run/my%20redis.sock?db=4",
            StoreUrl(Topology.SOCKET, path="/run/my redis.sock", db=4, username="ann", password=PLAIN),
        ),
        (
            f"sentinel://ann:{ENCODED}@h1:26379,h2:26380/mymaster/5",
            StoreUrl(
                Topology.SENTINEL,
                (Address("h1", 26379), Address("h2", 26380)),
                master="mymaster",
                db=5,
                username="ann",
                password=PLAIN,
            ),
        ),
        (
            f"sentinel://h1/m?sentinel_username=watch&sentinel_password={ENCODED}",
            StoreUrl(
                Topology.SENTINEL,
                (Address("h1", 26379),),
                master="m",
                sentinel_username="watch",
                sentinel_password=PLAIN,
            ),
        ),
        ("cluster://h1:7000,h2:7001", StoreUrl(Topology.CLUSTER, (Address("h1", 7000), Address("h2", 7001)))),
        (
            "cluster://h1:7000/0?ssl_cert_reqs=none",
            StoreUrl(Topology.CLUSTER, (Address("h1", 7000),), tls=TlsOptions(cert_reqs="none")),
        ),
    ],
)
def test_each_form_is_taken_apart(url: str, expected: StoreUrl) -> None:
    """Every form of the contract gives its servers, database, names and decoded password."""
    assert parse_store_url(url) == expected


def test_tls_is_strict_unless_the_url_loosens_it() -> None:
    """A rediss URL without options verifies certificate and host name; each option loosens or adds one thing."""
    strict = parse_store_url("rediss://db").tls
    assert strict is not None
    assert strict.redis_options() == {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
    loose = parse_store_url(
        "rediss://db?ssl_cert_reqs=CERT_OPTIONAL&ssl_check_hostname=false"
        "&ssl_ca_certs=/tls/ca.pem&ssl_certfile=/tls/c.pem&ssl_keyfile=/tls/k.pem"
    ).tls
    assert loose is not None
    assert loose.redis_options() == {
        "ssl_cert_reqs": "optional",
        "ssl_check_hostname": False,
        "ssl_ca_certs": "/tls/ca.pem",
        "ssl_certfile": "/tls/c.pem",
        "ssl_keyfile": "/tls/k.pem",
    }


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "it is empty"),
        (" redis://db", "blanks"),
        ("redis://d\nb", "blanks"),
        ("localhost:6379", "no '://'"),
        ("reddis://db", "scheme 'reddis' is unknown"),
        ("amqp://db", "scheme 'amqp' is unknown"),
        ("redis://", "not host or host:port"),
        ("redis://db:port", "not host or host:port"),
        ("redis://db:0", "impossible port"),
        ("redis://db:70000", "impossible port"),
        ("redis://db/one", "database is not a whole number"),
        ("redis://db/-1", "database is not a whole number"),
        ("redis://h1,h2/0", "several servers"),
        ("redis://db?ssl_cert_reqs=none", "unknown option; known for redis: none"),
        ("redis://db?socket_timeout=3", "unknown option"),
        ("rediss://db?timeout=3", "ssl_cert_reqs"),
        ("rediss://db?ssl_cert_reqs=maybe", "ssl_cert_reqs is unknown"),
        ("rediss://db?ssl_check_hostname=perhaps", "ssl_check_hostname is unknown"),
        ("redis://[::1", "brackets are malformed"),
        ("unix://run/redis.sock", "not an absolute path"),
        ("unix://", "not an absolute path"),
        ("unix:///run/redis.sock?db=x", "database is not a whole number"),
        ("sentinel://h1:26379", "does not name the master"),
        ("sentinel://h1:26379,,h2/m/0", "not host or host:port"),
        ("sentinel://h1/mymaster/zero", "database is not a whole number"),
        ("cluster://h1:7000/1", "database 0 only"),
    ],
)
def test_a_bad_url_is_refused_with_the_setting_and_the_problem(url: str, problem: str) -> None:
    """The error is a ValueError that names the setting it came from and what is wrong."""
    with pytest.raises(InvalidSettingError) as caught:
        parse_store_url(url, setting="ARES_BROKER_URL")
    assert isinstance(caught.value, ValueError)
    assert "ARES_BROKER_URL" in str(caught.value)
    assert problem in str(caught.value)


@pytest.mark.parametrize("mark", ["#", "/", "?", "@", ":", "[", "]", ";"])
@pytest.mark.parametrize(
    "form", ["redis://ann:{}@db:6379/0", "sentinel://:{}@h1:26379/m/0", "unix://ann:{}@/run/r.sock"]
)
def test_an_unencoded_mark_in_a_password_never_shows_it(form: str, mark: str) -> None:
    """A password pasted without percent-encoding either works or is refused without a piece of it in the error."""
    outcome = parse_or_error(form.format(f"Zq9{mark}Zq9"))
    if isinstance(outcome, StoreUrl):
        assert outcome.password == f"Zq9{mark}Zq9"
        return
    assert "Zq9" not in str(outcome)
    assert "Zq9" not in repr(outcome)
    assert outcome.__context__ is None


def test_a_parsed_url_shows_no_password() -> None:
    """Neither repr nor str of the value holds a password, the sentinels' included."""
    url = parse_store_url(f"sentinel://ann:{ENCODED}@h1/m/0?sentinel_password={ENCODED}")
    assert url.password == url.sentinel_password == PLAIN
    assert "Zq9" not in repr(url)
    assert "Zq9" not in str(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("redis://ann:s3cret@db:6379/0", "redis://ann:***@db:6379/0"),
        ("redis://:s3cret@db:6379/0", "redis://:***@db:6379/0"),
        ("redis://s3cret@db:6379/0", "redis://***@db:6379/0"),
        ("redis://:s3c/r?e#t@db:6379/0", "redis://:***@db:6379/0"),
        ("redis://:a@b@db:6379/0", "redis://:***@db:6379/0"),
        ("redis://:one@h1/0;redis://:two@h2/0", "redis://:***@h1/0;redis://:***@h2/0"),
        ("redis://:se;cret@h1/0", "redis://:***@h1/0"),
        ("sentinel://h1,h2/m/0?sentinel_password=s3cret", "sentinel://h1,h2/m/0?sentinel_password=***"),
        ("rediss://h?ssl_ca_certs=/ca.pem&ssl_password=x", "rediss://h?ssl_ca_certs=/ca.pem&ssl_password=***"),
        ("amqp://guest:guest@rabbit//", "amqp://guest:***@rabbit//"),
        ("ann:s3cret@db", "ann:***@db"),
        ("localhost", "localhost"),
    ],
)
def test_redact_hides_the_password_and_keeps_the_rest(url: str, shown: str) -> None:
    """What a person needs to recognise the server stays: scheme, user, host, database."""
    assert redact(url) == shown


@given(
    pasted=st.text(st.characters(codec="utf-8", exclude_characters=";"), max_size=20),
    user=st.sampled_from(["", "ann"]),
)
@example(pasted="://", user="ann")
@example(pasted="a@b", user="")
def test_redact_hides_any_password_even_one_that_breaks_the_url(pasted: str, user: str) -> None:
    """Whatever is pasted between user and host is gone, encoded or not."""
    assert redact(f"redis://{user}:Zq9{pasted}Zq9@db:6379/0") == f"redis://{user}:***@db:6379/0"
