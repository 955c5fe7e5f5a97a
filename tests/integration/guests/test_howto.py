"""The how-to for owners of an app works as it is printed: its files, its commands, its answers."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet import ROOT, Process
from tests.redis_server import RedisServer
from tests.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

PAGE = ROOT / "docs" / "howto" / "add-it-to-your-app.md"
PROJECT = Path(__file__).parent / "django_project"


def blocks(language: str, text: str) -> list[str]:
    """The code blocks of a text, in order."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def section(title: str) -> str:
    """A part of the page."""
    return PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def files(text: str) -> dict[str, str]:
    """The files that blocks of a text are parts of, by the comment that each begins with."""
    found: dict[str, str] = {}
    for block in blocks("python", text):
        name, _, code = block.partition("\n")
        found[name.removeprefix("# ")] = found.get(name.removeprefix("# "), "") + code + "\n"
    return found


class Shop:
    """The page's app in a folder of its own."""

    def __init__(self, folder: Path, redis: RedisServer) -> None:
        self.folder = folder
        broker = redis.url.removesuffix("/0") + "/7"
        own = {"SHOP_BROKER": broker, "ARES_REDIS_URL": broker, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(folder)}
        self.env = {**os.environ, **own}
        self.processes: list[Process] = []
        for name, code in files(PAGE.read_text().partition("\n## Django\n")[0]).items():
            (folder / name).write_text(code)

    def start(self, command: str) -> Process:
        """Runs a printed command until the test ends."""
        words = [sys.executable, "-m", *shlex.split(command)]
        if "beat" in words:
            words += ["--pidfile=", "-s", str(self.folder / "schedule")]
        name = f"process-{len(self.processes)}"
        self.processes.append(Process(name, words, self.env, self.folder / f"{name}.log"))
        return self.processes[-1]

    def run(self, *words: str) -> str:
        """Runs Python to its end; returns what it printed."""
        command = [sys.executable, *words]
        done = subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr + "".join(process.log() for process in self.processes)
        return done.stdout


@pytest.fixture
def shop(tmp_path: Path, redis_server: RedisServer) -> Iterator[Shop]:
    """The files of the page; what runs ends with the test."""
    made = Shop(tmp_path, redis_server)
    yield made
    for process in made.processes:
        process.end()


def test_the_commands_and_the_script_do_what_the_page_says(shop: Shop) -> None:
    """Workers and beat as printed; the answers; and once more after the agents' worker was killed."""
    printed_lines = [line.removeprefix("$ ") for line in blocks("console", section("Run it"))[0].splitlines()]
    assert printed_lines[0].startswith("export ARES_REDIS_URL=")  # here it is in the processes' environment
    commands = printed_lines[1:]
    theirs, agents, beat = (shop.start(command) for command in commands)
    printed = blocks("text", section("Use it"))[0]
    assert shop.run("ask.py") == printed
    assert "basket-1" in shop.run("-m", "celery", "-A", "shop", "ares", "agents", "ls")
    wait_until(theirs.is_settled, "their worker")
    assert beat.alive
    agents.kill()
    shop.start(commands[1])
    assert shop.run("ask.py").splitlines()[-1] == "['pears', 'plums', 'pears', 'plums']"


def test_the_tests_of_the_page_pass(shop: Shop) -> None:
    """A task that is run eagerly, and an agent in a harness."""
    told = shop.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "test_shop.py")
    assert "2 passed" in told


def test_the_django_code_of_the_page_is_that_of_a_project_that_runs() -> None:
    """Each block stands in the project that the suite starts, word for word."""
    printed = files(section("Django"))
    assert len(printed) == 2
    for name, code in printed.items():
        own = (PROJECT / name).read_text()
        # What only our own rules ask for.
        for line in ("from __future__ import annotations\n\n", "from typing import Any\n\n"):
            own = own.replace(line, "")
        assert code.strip() in own
