"""Streams that are read, in a process that forks."""

from __future__ import annotations

import subprocess
import sys

_FORK = """
import os
from ares_celery.runtime.chunk_stream import OpenStreams

streams = OpenStreams()
with streams._lock:  # as another thread of the parent may, at the moment of the fork
    child = os.fork()
    if child == 0:
        os._exit(0 if streams._lock.acquire(timeout=5) else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_waits_for_no_lock_that_its_parent_held() -> None:
    """The lock's holder is not in the child, so nobody would ever give it back."""
    ended = subprocess.run([sys.executable, "-c", _FORK], capture_output=True, text=True, timeout=25, check=True)
    assert ended.stdout.strip() == "0"
