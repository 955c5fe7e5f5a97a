"""Which app a command works with, and what it opens of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from celery import Celery

    from ares_celery.celery_app.wiring import Wiring
    from ares_celery.config import ProcessSettings, RuntimeConfig
    from ares_celery.manager import CoreManager
    from ares_celery.store.base import Store

__all__ = ["BUILTIN_APP", "Session", "app_name", "pass_session"]

#: What a working folder with a deployment of its own has.
_DEPLOYMENT: Final = "workers.app"
BUILTIN_APP: Final = "ares_celery.cli.builtin_app"


def app_name(given: str | None, environ: Mapping[str, str] | None = None, folder: Path | None = None) -> str:
    """The app to use: the given one, ARES_APP, ``workers.app`` of the working folder, else the built-in one.

    Example:
        >>> app_name("shop.celery"), app_name(None, {"ARES_APP": "shop"}), app_name(None, {}, Path("/nowhere"))
        ('shop.celery', 'shop', 'ares_celery.cli.builtin_app')
    """
    source = os.environ if environ is None else environ
    if given or source.get("ARES_APP"):
        return given or source["ARES_APP"]
    here = Path.cwd() if folder is None else folder
    # Looked at, not imported: a foreign package of that name may lie elsewhere on the path.
    if (here / "workers" / "app.py").is_file():
        return _DEPLOYMENT
    return BUILTIN_APP


@dataclass
class Session:
    """What one command works with; opened on first use.

    Attributes:
        name: The app as it was named on the command line; None = to be found.
        given: Celery's own app object, when called as ``celery -A APP ares``.
    """

    name: str | None = None
    given: Celery | None = field(default=None, repr=False)
    _wiring: Wiring | None = field(default=None, repr=False)

    @cached_property
    def app(self) -> Celery:
        """The app. Raises a usage error when it cannot be imported."""
        return self.given if self.given is not None else _find_app(app_name(self.name))

    @property
    def app_name(self) -> str:
        """How ``celery -A`` of another process finds the app. Raises a usage error when it cannot."""
        if self.given is None:
            return app_name(self.name)
        for module_name, module in list(sys.modules.items()):
            if module_name != "__main__" and not module_name.startswith("celery."):
                for attribute, value in list(getattr(module, "__dict__", {}).items()):
                    if value is self.given:
                        return f"{module_name}:{attribute}"
        raise click.UsageError("the app is in no module by name; call `ares -A APP` with one that is")

    @property
    def wiring(self) -> Wiring:
        """What belongs to the app: settings, store, committer."""
        from ares_celery.celery_app.wiring import wiring_of

        if self._wiring is None:
            self._wiring = wiring_of(self.app)
        return self._wiring

    @property
    def settings(self) -> ProcessSettings:
        """Where the app's namespace is."""
        return self.wiring.settings

    @property
    def store(self) -> Store:
        """The app's namespace."""
        return self.wiring.store

    @property
    def config(self) -> RuntimeConfig:
        """The namespace's settings."""
        return self.store.config

    @cached_property
    def manager(self) -> CoreManager:
        """The façade."""
        from ares_celery.manager import CoreManager

        return CoreManager(self.wiring)

    def close(self) -> None:
        """Closes what was opened."""
        if self._wiring is not None:
            self._wiring.close()


pass_session = click.make_pass_decorator(Session)


def _find_app(name: str) -> Celery:
    from celery.app.utils import find_app

    # As `celery -A` does: what lies in the working folder can be named.
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return find_app(name)
    except (ImportError, AttributeError) as error:
        raise click.UsageError(
            f"app {name!r} cannot be imported: {type(error).__name__}: {error}; name one with -A or ARES_APP"
        ) from error
