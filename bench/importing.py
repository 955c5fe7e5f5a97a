"""What does `import ares_celery` cost a process that never calls us, and what the first use?

    python -m bench.importing

Fresh interpreters, isolated, in turns; the time is taken inside, around the import alone.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Final

from bench.figures import Spread, spread

STATEMENTS: Final[Mapping[str, str]] = {
    "import ares_celery": "import ares_celery",
    "an error": "from ares_celery import AgentNotFoundError",
    "writing an agent": "from ares_celery import agent, AgentContext, Event",
    "connect()": "import ares_celery; ares_celery.connect()",
    "AsyncManager.connect()": "import ares_celery; ares_celery.AsyncManager.connect()",
}


def milliseconds(statement: str) -> float:
    """One run in an interpreter of its own."""
    code = f"import time; t = time.perf_counter(); {statement}; print((time.perf_counter() - t) * 1e3)"
    ran = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    return float(ran.stdout)


def import_cost(rounds: int = 10) -> dict[str, Spread]:
    """The spread of each statement, in milliseconds; the first round fills the disk's cache and does not count."""
    found: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    for number in range(rounds + 1):
        for name, statement in STATEMENTS.items():
            took = milliseconds(statement)
            if number:
                found[name].append(took)
    return {name: spread(times) for name, times in found.items()}


if __name__ == "__main__":
    for name, times in import_cost().items():
        print(f"{name} (ms): {times}")
