"""Redis is killed for five seconds under a worker that holds an unacknowledged message."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from celery import Celery

from tests.integration.outage_app.factory import VISIBILITY_TIMEOUT, Transport, make_app
from tests.redis_server import RedisServer
from tests.wait import assert_stays, wait_until

REPOSITORY = Path(__file__).parents[2]

#: Seconds without Redis.
OUTAGE = 5.0
#: Seconds after Redis is back within which a worker must consume and answer again.
RECOVERY = 15.0
#: Seconds a worker may take to start.
START = 30.0

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]


@dataclass
class Fleet:
    """One Redis, one worker process, and the app that talks to them."""

    server: RedisServer
    worker: subprocess.Popen[bytes]
    app: Celery
    folder: Path

    @property
    def journal(self) -> Path:
        """Where the tasks write what they do."""
        return self.folder / "journal"

    @property
    def fifo(self) -> Path:
        """What `hold` waits on."""
        return self.folder / "release"

    def words(self) -> list[str]:
        """Return what the tasks have written so far."""
        return self.journal.read_text().split() if self.journal.exists() else []

    def log(self) -> str:
        """Return the worker's log."""
        return (self.folder / "worker.log").read_text(errors="replace")

    def send(self, task: str, argument: str) -> None:
        """Publish one of the app's tasks."""
        self.app.send_task(f"outage.{task}", args=[str(self.journal), argument])

    def answers_ping(self) -> bool:
        """True when the worker's remote control replies within a second."""
        return bool(self.app.control.ping(timeout=1, limit=1))

    def release_hold(self) -> None:
        """Let the running `hold` end; waits until it reads the FIFO."""
        self.fifo.write_bytes(b"go")

    def hold_unacked(self) -> None:
        """Start a task that does not end by itself and see its message unacknowledged in Redis."""
        self.send("hold", str(self.fifo))
        wait_until(lambda: "hold-begins" in self.words(), "the task to begin", timeout=START)
        client = self.server.client()
        wait_until(lambda: client.hlen("unacked") == 1, "its message to be unacknowledged")
        client.close()

    def outage(self, during: Callable[[], None] = lambda: None) -> None:
        """Kill Redis, do something while it is away, and start it again with its data."""
        self.server.kill()
        during()
        assert_stays(lambda: not self.server.is_running, "the outage", seconds=OUTAGE)
        self.server.start()


@pytest.fixture
def make_fleet(
    make_redis_server: Callable[..., RedisServer], tmp_path: Path
) -> Iterator[Callable[[str, Transport], Fleet]]:
    """Start a Redis with AOF and a worker of the given pool and transport; both end with the test."""
    with ExitStack() as cleanup:

        def make(pool: str, transport: Transport) -> Fleet:
            server = make_redis_server(appendonly=True)
            app = make_app(server.url, transport)
            cleanup.callback(app.close)
            fleet = Fleet(server, start_worker(server, pool, transport, tmp_path), app, tmp_path)
            cleanup.callback(end, fleet.worker)
            os.mkfifo(fleet.fifo)
            fleet.send("note", "ready")
            wait_until(lambda: "ready" in fleet.words(), "the worker to start", timeout=START)
            return fleet

        yield make


def start_worker(server: RedisServer, pool: str, transport: Transport, folder: Path) -> subprocess.Popen[bytes]:
    """Start a real `celery worker` in a process group of its own."""
    command = [sys.executable, "-m", "celery", "-A", "tests.integration.outage_app.worker", "worker"]
    options = ["--pool", pool, "--concurrency", "3", "--loglevel", "INFO", "--without-gossip", "--without-mingle"]
    environment = {
        **os.environ,
        "OUTAGE_REDIS_URL": server.url,
        "OUTAGE_TRANSPORT": transport,
        "PYTHONPATH": str(REPOSITORY),
    }
    with (folder / "worker.log").open("wb") as log:
        return subprocess.Popen(
            [*command, *options],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def end(worker: subprocess.Popen[bytes]) -> None:
    """Kill the worker; Linux takes its pool children along with it."""
    if worker.poll() is None:
        worker.send_signal(signal.SIGKILL)
    worker.wait()


def assert_recovers(fleet: Fleet) -> None:
    """The worker runs a new task and answers a ping within `RECOVERY` seconds of now."""
    fleet.send("note", "after-outage")
    wait_until(lambda: "after-outage" in fleet.words(), "a new task to run", timeout=RECOVERY)
    wait_until(fleet.answers_ping, "an answer to ping", timeout=RECOVERY)
    assert fleet.worker.poll() is None


def test_stock_transport_leaves_the_worker_dead(make_fleet: Callable[[str, Transport], Fleet]) -> None:
    """The disease: with Kombu's own classes no new task runs and no ping is answered once Redis is back."""
    fleet = make_fleet("threads", "stock")
    fleet.hold_unacked()
    fleet.outage()
    fleet.send("note", "after-outage")
    assert_stays(
        lambda: "after-outage" not in fleet.words() and not fleet.answers_ping(),
        "the worker's death",
        seconds=RECOVERY,
    )


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_our_transport_consumes_again_while_the_old_task_runs_on(
    pool: str, make_fleet: Callable[[str, Transport], Fleet]
) -> None:
    """The message cannot be put back into its queue, which costs a warning; the worker takes tasks and answers."""
    fleet = make_fleet(pool, "ours")
    fleet.hold_unacked()
    fleet.outage()
    assert_recovers(fleet)
    assert "hold-ends" not in fleet.words()
    assert "could not be put back into their queues" in fleet.log()


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_our_transport_survives_a_task_that_ends_during_the_outage(
    pool: str, make_fleet: Callable[[str, Transport], Fleet]
) -> None:
    """Its acknowledgement has no connection to go to; nothing is lost: the message is delivered again."""
    fleet = make_fleet(pool, "ours")
    fleet.hold_unacked()
    fleet.outage(during=fleet.release_hold)
    assert_recovers(fleet)
    assert "hold-ends" in fleet.words()
    again = RECOVERY + VISIBILITY_TIMEOUT
    wait_until(lambda: fleet.words().count("hold-begins") == 2, "the task to run again", timeout=again)
    assert "Unrecoverable error" not in fleet.log()
