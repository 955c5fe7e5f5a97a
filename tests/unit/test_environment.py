"""Tests never touch what the person who runs them has set up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_settings_of_the_person_who_runs_the_suite_are_gone() -> None:
    """ARES_REDIS_URL and its like reach neither the tests nor the processes they start."""
    assert [name for name in os.environ if name.startswith(("ARES_", "CELERY_"))] == []


def test_importing_the_conftest_removes_them() -> None:
    """It is the conftest that does it, whatever was set."""
    code = "import os, tests.conftest; print([name for name in os.environ if name.startswith('ARES_')])"
    environment = {**os.environ, "ARES_REDIS_URL": "redis://somewhere", "ARES_NAMESPACE": "theirs"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
