"""Another service: a process that has Celery and cannot import this package."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["run_without_package"]

#: Run first; whoever imports the package afterwards fails, as where it was never installed.
_BLOCK = """
import sys

class _NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "ares_celery":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

assert "ares_celery" not in sys.modules
sys.meta_path.insert(0, _NotInstalled())
"""


def run_without_package(
    script: str,
    folder: Path,
    *,
    env: Mapping[str, str] | None = None,
    given: str = "",
    code: int = 0,
    timeout: float = 25,
) -> str:
    """Runs code in a process of its own that knows nothing of this package; returns what it printed.

    Args:
        script: The other service's code.
        folder: An empty one, where it runs.
        env: More of its environment.
        given: Its standard input.
        code: The exit code that is expected.
        timeout: Seconds.
    """
    known = {name: value for name, value in os.environ.items() if not name.startswith(("ARES_", "PYTHON"))}
    path = folder / "service.py"
    path.write_text(_BLOCK + script)
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=folder,
        env={**known, **(env or {})},
        input=given,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout
