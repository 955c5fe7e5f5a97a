"""Runs an embedded Redis for one parent, and ends and removes it when that parent is gone, however it went.

``python -m ares_celery.cli.redis_guardian FOLDER COMMAND…``, with a pipe as stdin that only the parent holds open: its
end tells of the parent's, after a SIGKILL too.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from ares_celery.cli.parent_death import bound_to_parent
from ares_celery.clock import Clock, SystemClock

__all__ = ["guard"]

#: Seconds between two looks at the server.
_LOOK: Final = 0.2
#: Seconds an orderly end may take.
_STOP_TIMEOUT: Final = 3.0
#: A server that lived shorter than this, in seconds, would not live longer the next time.
_LIVED: Final = 2.0


def guard(folder: str, command: Sequence[str], *, clock: Clock | None = None) -> int:
    """Runs the server until stdin ends; one that crashes after a while is started again with its data.

    Returns:
        The exit code: that of a server that did not come up (its folder is left for the parent to read), else 0.
    """
    watch = clock or SystemClock()
    server, since = _start(command), watch.monotonic()
    try:
        while not _parent_gone(_LOOK):
            code = server.poll()
            if code is None:
                continue
            if watch.monotonic() - since < _LIVED:
                return code or 1
            server, since = _start(command), watch.monotonic()
    except SystemExit:
        _end(server)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    _end(server)
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(bound_to_parent(command), stdin=subprocess.DEVNULL)  # noqa: S603 - our own arguments


def _parent_gone(seconds: float) -> bool:
    """True when the pipe has ended; waits at most so long."""
    readable, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(readable) and not os.read(sys.stdin.fileno(), 1)


def _end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(_STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _exit(*_: object) -> None:
    """Unwinds, so that what runs is ended."""
    sys.exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _exit)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(guard(sys.argv[1], sys.argv[2:]))
