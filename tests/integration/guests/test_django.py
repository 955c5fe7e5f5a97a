"""A Django project with schedules and results in its database: it starts an agent, asks it, and loses a worker."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from tests.fleet import AGENTS, CONTROL, ROOT, SUPERVISION, Fleet, Process
from tests.redis_server import RedisServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

PROJECT = Path(__file__).parent / "django_project"
#: Seconds of CELERY_TASK_TIME_LIMIT in the project's settings.
TIME_LIMIT = 2


class DjangoFleet(Fleet):
    """The project, with a database of the test's own; its broker is the Redis that agents live in."""

    @property
    @override
    def env(self) -> dict[str, str]:
        """What the project's settings ask for; modules of agents are named by install() alone."""
        own = {
            "PYTHONPATH": os.pathsep.join((str(PROJECT), str(ROOT))),
            "SHOP_BROKER": self.redis.url,
            "SHOP_DATABASE": str(self.folder / "shop.sqlite3"),
        }
        env = {**super().env, **own}
        del env["ARES_AGENT_MODULES"]
        return env

    def celery(self, name: str, *words: str) -> Process:
        """Starts a command of Celery as the project's own."""
        command = [sys.executable, "-m", "celery", "-A", "shop", *words, "-l", "INFO"]
        process = Process(name, command, self.env, self.folder / f"{name}.log")
        self.processes.append(process)
        return process

    def manage(self, *words: str) -> str:
        """Runs `manage.py` to its end; returns what it printed."""
        command = [sys.executable, str(PROJECT / "manage.py"), *words]
        done = subprocess.run(command, cwd=PROJECT, env=self.env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def rows(self, query: str, *values: object) -> list[Any]:
        """What the project's database says."""
        with closing(sqlite3.connect(self.folder / "shop.sqlite3", timeout=20)) as database:
            return database.execute(query, values).fetchall()


@pytest.fixture
def project(redis_server: RedisServer, namespace: str, tmp_path: Path) -> Iterator[DjangoFleet]:
    """The project, its database made."""
    with DjangoFleet(redis_server, namespace, tmp_path) as made:
        made.manage("migrate", "-v0")
        yield made


def test_agents_live_in_a_django_project(project: DjangoFleet) -> None:
    """From a management command and a page; schedules and results in its database; a worker is lost."""
    workers = [project.start_worker(name, (AGENTS, SUPERVISION, CONTROL), app="shop") for name in ("one", "two")]
    theirs = project.celery("theirs", "worker", "-P", "solo", "-n", "theirs@host")
    project.celery("beat", "beat", "--pidfile=")
    assert project.manage("start_order", "order-1") == "order-1\n"
    project.ready(*workers, theirs)

    # It outlives the project's time limit, and holds no connection while it works.
    project.until_ticks("order-1", int(TIME_LIMIT / 0.1) + 5, timeout=40)
    found = project.until("order-1", "running")
    assert (found.incarnation, found.restarts) == (1, 0)
    page, counted = project.manage("get", "/orders/order-1/").splitlines()
    asked = json.loads(page)
    assert asked["results"] >= 1
    assert (asked["connected_at_start"], asked["incarnation"]) == (False, 1)
    # Their own task, on their own worker.
    assert int(counted) >= 1
    assert "Task ares." not in theirs.log()

    # The entry is in their database beside their own, with the namespace's interval, and it ticks.
    project.wait(lambda: "Task ares.health_check" in workers[0].log() + workers[1].log(), "beat's alarm clock")
    entries = "SELECT p.name, p.queue, i.every, i.period FROM django_celery_beat_periodictask p JOIN "
    entries += "django_celery_beat_intervalschedule i ON i.id = p.interval_id ORDER BY p.name"
    assert project.rows(entries) == [
        ("ares.health_check", f"{project.namespace}.supervision", 1, "seconds"),
        ("nightly", None, 86400, "seconds"),
    ]

    # A worker is lost; the agent comes back in the other one, with its state.
    lost = next(worker for worker in workers if found.worker == f"{worker.name}@host")
    lost.kill()
    again = project.until("order-1", "running", incarnation=2)
    assert again.worker not in (None, found.worker)
    project.check_streams("order-1")
    assert json.loads(project.manage("get", "/orders/order-1/").splitlines()[0])["incarnation"] == 2
    project.manager.stop_agent("order-1", wait=True)

    # Rows of results: of the agent's lives, of their task, and none of the alarm clock.
    project.wait(
        lambda: project.rows(
            "SELECT 1 FROM django_celery_results_taskresult WHERE status = 'SUCCESS' AND task_name LIKE 'ares.r%'"
        ),
        "the result of the last life",
    )
    rows = project.rows("SELECT task_name, status, worker FROM django_celery_results_taskresult ORDER BY id")
    assert [row for row in rows if row[0] == "ares.health_check"] == []
    lives = [row for row in rows if row[0] in ("ares.run_agent", "ares.resurrect_agent")]
    assert sorted((status, worker) for _, status, worker in lives) == sorted(
        [("STARTED", found.worker), ("SUCCESS", again.worker)]
    )
    assert [row[1] for row in rows if row[0] == "orders.tasks.count"] == ["SUCCESS", "SUCCESS"]
