"""Puts our routes into a Flower that has not started yet; no file of Flower's is touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

__all__ = ["LOOPBACK", "load", "load_beside"]

#: Where Flower listens unless somebody says otherwise: faults are nothing for a whole network.
LOOPBACK: Final = "127.0.0.1"


def load() -> None:
    """Adds our routes to Flower, and lets it listen on this machine only unless ``address`` is set.

    Called from a ``flowerconfig.py``, or before Flower is made; again: no effect.

    Example:
        >>> from flower.urls import handlers
        >>> load()
        >>> loaded = len(handlers)
        >>> load()
        >>> len(handlers) == loaded > 40
        True
    """
    # flower.options defines the options; whatever set one until now, the environment or a command line, wins.
    from flower.options import options  # noqa: PLC0415 # pyright: ignore[reportMissingTypeStubs] - Flower is an extra
    from flower.urls import handlers  # noqa: PLC0415 # pyright: ignore[reportMissingTypeStubs] - likewise

    from ares_celery.web.flower_extension.routes import is_ours, routes  # noqa: PLC0415 - they subclass Flower's

    known: list[Any] = handlers
    if not any(is_ours(one) for one in known):
        # Flower's last one is its "not found", which takes everything.
        known[-1:-1] = routes()
    if not options.address:
        options.address = LOOPBACK


def load_beside(own: str) -> None:
    """Adds our routes, and reads another configuration file of Flower's if there is one: it wins."""
    from tornado.options import options  # noqa: PLC0415 - Flower is an extra

    load()
    path = Path(own).resolve()
    if path.is_file():
        options.parse_config_file(str(path), final=False)
