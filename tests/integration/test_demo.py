"""`ares demo` as people run it: its answer, its exit code, and what is left of it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.command_line import Command, ares, environment, processes_with
from tests.redis_server import RedisServer
from tests.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


def test_the_demo_loses_processes_a_worker_and_beat_and_nothing_else(
    make_redis_server: Callable[..., RedisServer], tmp_path: Path
) -> None:
    """Exit code 0, one object on the last line of stdout, and not a key, file or process left.

    It works in the Redis that it is given, in a namespace of its own; what ARES_REDIS_URL names is not touched.
    """
    server = make_redis_server()
    foreign = {"ARES_REDIS_URL": "redis://127.0.0.1:1/0", "ARES_NAMESPACE": "somebody-else", "ARES_LEASE_TTL": "1h"}

    done = ares(
        *("demo", "--agents", "6", "-o", "json", "--redis-url", server.url),
        env=environment(tmp_path, **foreign),
        folder=tmp_path,
    )

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["agents"], report["duplicates"], report["lost_events"]) == (6, 0, 0)
    assert report["state_preserved"] is True
    assert report["kills"] == {"process": 5, "worker": 1, "beat": 1}
    assert report["killed"] == report["recovered"] > 5
    assert 0 < report["detect_ms_p50"] <= report["recover_ms_p50"] <= report["recover_ms_max"]
    assert report["common_identifiers"][0][0] == "self"
    assert report["seconds"] < 60
    assert "SIGKILL: the whole worker" in done.stderr
    assert server.client().keys("*") == []
    assert processes_with(server.url) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_demo_that_is_broken_off_leaves_nothing_behind(number: signal.Signals, tmp_path: Path) -> None:
    """Neither processes nor folders, whether it can clean up itself or not; its own Redis ends too."""
    with Command("demo", "--agents", "4", env=environment(tmp_path), folder=tmp_path) as demo:
        demo.wait_for("the fleet is up")

        code = demo.end(number)

    assert code == (-9 if number is signal.SIGKILL else 130)
    wait_until(lambda: not processes_with(str(tmp_path)), "the end of all processes", timeout=15)
    wait_until(lambda: not list(tmp_path.iterdir()), "the end of all folders")
