"""Runs the command line as people do, in processes of its own, and finds what it left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from tests.wait import wait_until

ROOT = Path(__file__).parents[2]
ARES = (sys.executable, "-m", "ares_celery.cli.main")


def environment(folder: Path, **more: str) -> dict[str, str]:
    """The suite's environment, with temporary files in a folder of the test's own."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder), **more}


def ares(*arguments: str, env: Mapping[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(
        [*ARES, *arguments], cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=120
    )


def processes_with(text: str) -> list[str]:
    """Processes whose command line or environment has the text, as pid and command; ourselves left out."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            command, variables = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if text.encode() in command + variables:
            found.append(f"{entry.name}: {command.replace(bytes(1), b' ').decode(errors='replace')}")
    return found


class Command:
    """A command that runs until it is told to end, with what it printed so far."""

    def __init__(self, *arguments: str, env: Mapping[str, str], folder: Path) -> None:
        # Files, not pipes, so that no thread has to read; closed with the block.
        self._out = tempfile.TemporaryFile()  # noqa: SIM115
        self._talk = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [*ARES, *arguments], cwd=folder, env=dict(env), stdout=self._out, stderr=self._talk
        )

    @property
    def out(self) -> list[str]:
        """Whole lines on stdout so far."""
        return _lines(self._out)

    @property
    def talk(self) -> list[str]:
        """Whole lines on stderr so far."""
        return _lines(self._talk)

    def wait_for(self, text: str, *, timeout: float = 60) -> None:
        """Wait until a line of its talk has the text; a failure shows all of it."""
        wait_until(lambda: text in "\n".join(self.talk) or self.process.poll() is not None, text, timeout=timeout)
        assert text in "\n".join(self.talk), "\n".join(self.talk)

    def end(self, number: int = signal.SIGINT, *, timeout: float = 20) -> int:
        """Send the signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._out.close()
        self._talk.close()


def _lines(file: IO[bytes]) -> list[str]:
    text = os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode()
    return text[: text.rfind("\n") + 1].splitlines()
