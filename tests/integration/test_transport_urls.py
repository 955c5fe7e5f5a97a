"""Each form of our URLs against a real server: a message through the broker, a result through the backend."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from celery import Celery

from ares_celery.celery_app.transport import RedisTransport, register_transports
from ares_celery.celery_app.urls import translate_urls
from tests.redis_server import RedisServer, find_redis_binary, free_port
from tests.wait import wait_until

#: Celery's Redis backend calls SETEX, which redis-py 8 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")

#: A password that has to be percent-encoded, as it is and as a URL has it.
PLAIN, ENCODED = "p@s:s/w#rd", "p%40s%3As%2Fw%23rd"
#: The logical database of all URLs below, not the default one.
DB = 2


@pytest.fixture
def start_server(redis_server: RedisServer) -> Iterator[Callable[[dict[str, str]], RedisServer]]:
    """Start a server with further options and the user `ann`; it ends with the test. Skips where there is no server."""
    with ExitStack() as cleanup:

        def start(options: dict[str, str]) -> RedisServer:
            server = cleanup.enter_context(RedisServer(options=options))
            client = server.client()
            client.acl_setuser(
                "ann", enabled=True, passwords=[f"+{PLAIN}"], keys=["*"], channels=["*"], categories=["+@all"]
            )
            client.close()
            return server

        yield start


def assert_works(url: str, server: RedisServer) -> None:
    """A message and a result go through the URL's server, into the URL's database, as the user `ann`."""
    register_transports()
    app = Celery("urls", set_as_current=False)
    app.conf.update(translate_urls(url).settings())
    queue = "urls-queue"
    with app.connection_for_write() as connection:
        connection.ensure_connection(max_retries=1, timeout=5)
        with connection.SimpleQueue(queue) as simple:
            simple.put({"hello": "world"})
            assert lengths_by_db(server, queue) == {0: 0, DB: 1}
            assert simple.get(timeout=5).payload == {"hello": "world"}
    app.backend.store_result("task-1", {"answer": 42}, "SUCCESS")
    assert app.AsyncResult("task-1").get(timeout=5) == {"answer": 42}
    assert users_of(server) >= {"ann"}
    app.close()


def lengths_by_db(server: RedisServer, queue: str) -> dict[int, int]:
    """Return the queue's length in the default database and in the one of the URLs."""
    lengths: dict[int, int] = {}
    for db in (0, DB):
        with redis.Redis(port=server.port, db=db) as client:
            lengths[db] = int(str(client.llen(queue)))
    return lengths


def users_of(server: RedisServer) -> set[str]:
    """Return who is logged in."""
    with redis.Redis(port=server.port, decode_responses=True) as client:
        return {str(entry["user"]) for entry in client.client_list()}


def test_a_redis_url_with_user_password_and_database_works(
    start_server: Callable[[dict[str, str]], RedisServer],
) -> None:
    """The plain form, with a password that needs encoding."""
    server = start_server({})
    assert_works(f"redis://ann:{ENCODED}@127.0.0.1:{server.port}/{DB}", server)


def test_a_unix_socket_url_works(start_server: Callable[[dict[str, str]], RedisServer], tmp_path: Path) -> None:
    """The socket form, whose folder has a blank in its name."""
    folder = tmp_path / "a b"
    folder.mkdir()
    server = start_server({"unixsocket": str(folder / "r.sock")})
    assert_works(f"unix://ann:{ENCODED}@{str(folder).replace(' ', '%20')}/r.sock?db={DB}", server)


def test_a_tls_url_verifies_the_server(start_server: Callable[[dict[str, str]], RedisServer], tmp_path: Path) -> None:
    """The TLS form works with the right authority; without it the server is refused, never spoken to in the clear."""
    certificate = make_certificate(tmp_path)
    port = free_port()
    server = start_server(
        {
            "tls-port": str(port),
            "tls-cert-file": str(tmp_path / "cert.pem"),
            "tls-key-file": str(tmp_path / "key.pem"),
            "tls-ca-cert-file": str(certificate),
            "tls-auth-clients": "no",
        }
    )
    url = f"rediss://ann:{ENCODED}@127.0.0.1:{port}/{DB}"
    assert_works(f"{url}?ssl_ca_certs={certificate}", server)
    with pytest.raises(Exception, match="certificate verify failed"):
        assert_works(url, server)


def make_certificate(folder: Path) -> Path:
    """Make a self-signed certificate for 127.0.0.1 and its key; return the certificate's file."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl on PATH to make a certificate with")
    certificate = folder / "cert.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(folder / "key.pem"), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True, timeout=20)
    return certificate


def test_a_sentinel_url_works_while_its_first_sentinel_is_down(
    start_server: Callable[[dict[str, str]], RedisServer], tmp_path: Path
) -> None:
    """The master is found through the second sentinel of the list, by broker and results alike."""
    server = start_server({})
    sentinel_port, dead_port = free_port(), free_port()
    sentinel = start_sentinel(sentinel_port, server.port, tmp_path)
    try:
        hosts = f"127.0.0.1:{dead_port},127.0.0.1:{sentinel_port}"
        assert_works(f"sentinel://ann:{ENCODED}@{hosts}/mymaster/{DB}", server)
    finally:
        sentinel.kill()
        sentinel.wait()


def start_sentinel(port: int, master_port: int, folder: Path) -> subprocess.Popen[bytes]:
    """Start a sentinel that watches the server as `mymaster`, and wait until it knows it."""
    config = folder / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {folder}\nsentinel monitor mymaster 127.0.0.1 {master_port} 1\n"
    )
    process = subprocess.Popen(
        [str(find_redis_binary()), str(config), "--sentinel"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def knows_master() -> bool:
        try:
            with redis.Redis(port=port, socket_timeout=1) as client:
                return bool(client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"))
        except redis.RedisError:
            return False

    wait_until(knows_master, "the sentinel")
    return process


def test_a_failover_list_keeps_our_transport_when_its_first_server_is_down(
    start_server: Callable[[dict[str, str]], RedisServer],
) -> None:
    """The connection switches to the second URL and is still made by our class."""
    server = start_server({})
    register_transports()
    urls = translate_urls(
        "redis://127.0.0.1",
        broker_url=f"redis://127.0.0.1:{free_port()}/0;redis://ann:{ENCODED}@127.0.0.1:{server.port}/{DB}",
    )
    app = Celery("urls", set_as_current=False)
    app.conf.update(urls.settings())
    with app.connection_for_read() as connection:
        connection.ensure_connection(max_retries=3, interval_start=0, timeout=5)
        assert connection.port == server.port
        assert isinstance(connection.transport, RedisTransport)
    app.close()
