"""Serves fakeredis over TCP, for machines without a Redis: ``python -m ares_celery.cli.fake_redis PORT``."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

__all__ = ["serve"]


def serve(port: int) -> None:
    """Serves until the process ends; keeps nothing."""
    fakeredis: Any = import_module("fakeredis")
    fakeredis.TcpFakeServer(("127.0.0.1", port), server_type="redis").serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
