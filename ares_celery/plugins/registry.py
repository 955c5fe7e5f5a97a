"""Which plug-ins the workers of a deployment run: those their modules register, and those of installed packages."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, TypeVar, cast

from ares_celery.errors import InvalidPluginError
from ares_celery.plugins.bus import PluginBus
from ares_celery.plugins.contract import RuntimePlugin
from ares_celery.plugins.members import is_factory, label_of

__all__ = ["ENTRY_POINTS", "PLUGINS", "Offer", "PluginRegistry", "installed_plugins", "offers_of", "register_plugin"]

P = TypeVar("P")
log: Final = logging.getLogger(__name__)

#: Packages name their plug-ins in this group of entry points.
ENTRY_POINTS: Final = "ares_celery.plugins"


@dataclass(frozen=True, slots=True)
class Offer:
    """A plug-in that workers shall run.

    Attributes:
        label: What to call it until it has said its name.
        source: Its class, a function that makes it, or the plug-in itself.
    """

    label: str
    source: RuntimePlugin | Callable[[], RuntimePlugin]

    @property
    def is_shared(self) -> bool:
        """It is an object: a process forked later would get a copy of whatever state it is in."""
        return not is_factory(self.source)


def offers_of(sources: object) -> tuple[Offer, ...]:
    """The plug-ins that somebody passes as a list. Raises InvalidPluginError for what can be none."""
    if isinstance(sources, str) or not isinstance(sources, Iterable):
        raise InvalidPluginError(plugin=sources, problem="plugins is a list of plug-ins, classes or functions")
    return tuple(_offer(source) for source in cast("tuple[object, ...]", sources))


def _offer(source: object) -> Offer:
    if source is None or isinstance(source, (str, int, float)):
        raise InvalidPluginError(plugin=source, problem="pass a plug-in, its class or a function that makes one")
    return Offer(label_of(source), cast("RuntimePlugin", source))


class PluginRegistry:
    """What modules have registered in this process; running buses of the process take it at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offers: list[Offer] = []
        self._buses: list[PluginBus] = []

    def add(self, source: object) -> None:
        """Offers a plug-in to every bus of this process, now and later.

        Raises:
            InvalidPluginError, DuplicatePluginError, PluginError: A bus that runs already refused it.
        """
        offer = _offer(source)
        with self._lock:
            # A module that is imported again replaces what it registered before.
            self._offers = [one for one in self._offers if not _same_origin(one.source, source)]
            self._offers.append(offer)
            buses = list(self._buses)
        for bus in buses:
            bus.register(offer.source, label=offer.label)

    def serve(self, bus: PluginBus) -> tuple[Offer, ...]:
        """What was offered so far; what comes later is registered on the bus at once."""
        with self._lock:
            self._buses.append(bus)
            return tuple(self._offers)

    def leave(self, bus: PluginBus | None) -> None:
        """The bus takes no more; None = none of them, in a forked child."""
        if bus is None:
            self._lock = threading.Lock()
            self._buses = []
            return
        with self._lock:
            self._buses = [one for one in self._buses if one is not bus]

    def clear(self) -> None:
        """Forgets everything; for tests."""
        with self._lock:
            self._offers, self._buses = [], []


def _same_origin(one: object, other: object) -> bool:
    return one is other or (is_factory(one) and is_factory(other) and _origin(one) == _origin(other) != ("", ""))


def _origin(source: Any) -> tuple[str, str]:  # noqa: ANN401 - a class or any callable
    name = str(getattr(source, "__qualname__", ""))
    # Two lambdas or local functions of one module have one name and are not the same.
    return ("", "") if "<" in name else (str(getattr(source, "__module__", "")), name)


#: The process's own registry, which :func:`register_plugin` fills.
PLUGINS: Final = PluginRegistry()


def register_plugin(plugin: P) -> P:
    """Has every worker that imports the calling module run a plug-in; also as a decorator of its class.

    Each process makes its own from a class or a function. An object is for pools without forks: prefork children refuse
    it, as they would share its state. In a worker that runs already the plug-in starts at once.

    Args:
        plugin: A class, a function that makes a plug-in, or a plug-in.

    Returns:
        What was passed.

    Raises:
        InvalidPluginError: It is None; or a running worker found that it is no plug-in.

    Example:
        >>> @register_plugin
        ... class Bell:
        ...     name, capabilities = "doc-bell", ()
        ...     def start(self, ctx, bus): ...
        ...     def stop(self): ...
    """
    PLUGINS.add(plugin)
    return plugin


def installed_plugins() -> tuple[Offer, ...]:
    """The plug-ins that installed packages name as entry points of the group ``ares_celery.plugins``.

    Nothing is imported here: a package that cannot be imported fails when its plug-in is made, and costs nobody else.
    """
    return tuple(Offer(label_of(_Named(point.name)), _loader(point)) for point in entry_points(group=ENTRY_POINTS))


class _Named:
    """Something with a name, for :func:`label_of`."""

    def __init__(self, name: str) -> None:
        self.__qualname__ = name


def _loader(point: EntryPoint) -> Callable[[], RuntimePlugin]:
    def load() -> RuntimePlugin:
        found: Any = point.load()
        if not is_factory(found):
            problem = "an entry point names a class or a function that makes a plug-in, not the plug-in itself"
            raise InvalidPluginError(plugin=point.name, problem=problem)
        return cast("RuntimePlugin", found())

    return load
