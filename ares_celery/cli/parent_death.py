"""Runs a command that ends with its parent: ``python -m ares_celery.cli.parent_death PARENT_PID COMMAND…``.

Python's ``preexec_fn`` may deadlock in a program with threads, so the new process asks for the signal itself, then
becomes the command. On systems other than Linux the command simply runs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

__all__ = ["bound_to_parent"]

_PR_SET_PDEATHSIG: Final = 1


def bound_to_parent(command: Sequence[str]) -> list[str]:
    """The command, wrapped so that the kernel kills it when the calling *thread* ends, in whatever way.

    Linux ties the signal to the thread that starts the process: start it from one that lives as long as it should.

    Example:
        >>> bound_to_parent(["redis-server"])[1:3]
        ['-m', 'ares_celery.cli.parent_death']
    """
    return [sys.executable, "-m", "ares_celery.cli.parent_death", str(os.getpid()), *command]


def main(arguments: Sequence[str]) -> None:
    """Asks for SIGKILL at the parent's death, then becomes the command."""
    parent, command = int(arguments[0]), list(arguments[1:])
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
        if os.getppid() != parent:
            # It died before the kernel knew whom to tell.
            sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606 - an argument list of our own


if __name__ == "__main__":
    main(sys.argv[1:])
