"""Tells where the ready configuration of Flower is: ``--conf=$(python -m ares_celery.web.flower_extension)``."""

from __future__ import annotations

from pathlib import Path

if __name__ == "__main__":
    print(Path(__file__).with_name("flowerconfig.py"))  # noqa: T201 - that is what it is for
