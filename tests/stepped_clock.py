"""A wall clock of a server's own, which a test may step: the server's TIME, its TTLs, its log; nothing else's."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
#: As small as it gets: one of them is on every machine that builds anything; `tcc` is a megabyte.
COMPILERS = ("cc", "gcc", "clang", "tcc")


class NoCompilerError(RuntimeError):
    """This machine has no C compiler, so there is no clock to step."""


class SteppedClock:
    """A clock for processes that are started with its environment.

    Example:
        clock = SteppedClock(tmp_path)
        server = RedisServer(environment=clock.environment)
        clock.step(timedelta(minutes=-10))
    """

    def __init__(self, folder: Path) -> None:
        """Makes the library that stands between a process and the machine's clock.

        Raises:
            NoCompilerError: Nothing here can compile it.
        """
        compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
        if compiler is None:
            message = "no C compiler found: install one (apt-get install tcc) to step a server's clock"
            raise NoCompilerError(message)
        self._library = folder / "stepped_clock.so"
        self._file = folder / "clock"
        self._offset = 0
        self._write()
        command = [compiler, "-shared", "-fPIC", "-nostdlib", "-o", str(self._library), str(SOURCE)]
        subprocess.run(command, check=True, timeout=60)

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process has to be started with."""
        return {"LD_PRELOAD": str(self._library), "ARES_TEST_CLOCK_FILE": str(self._file)}

    def step(self, by: timedelta) -> None:
        """Steps the clock of the running processes, this very moment."""
        self._offset += by // timedelta(microseconds=1)
        self._write()

    def _write(self) -> None:
        if not self._file.exists():
            self._file.write_bytes(bytes(8))
        # In place: the processes have this very file in memory.
        with self._file.open("r+b", buffering=0) as file:
            file.write(struct.pack("q", self._offset))
