"""What a bus keeps of each plug-in and hook."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from ares_celery.plugins.caller import PluginCaller
from ares_celery.plugins.contract import Description, RuntimePlugin, WorkflowHook

__all__ = ["Hook", "Member", "is_factory", "label_of"]


@dataclass(slots=True)
class Member:
    """One plug-in on the bus."""

    plugin: RuntimePlugin
    about: Description
    caller: PluginCaller
    is_started: bool = False
    has_failed: bool = False

    @property
    def name(self) -> str:
        """The plug-in's name, as it was when it was registered."""
        return self.about.name


@dataclass(frozen=True, slots=True)
class Hook:
    """One hook, and the plug-in it belongs to; None for one of its own."""

    name: str
    hook: WorkflowHook
    caller: PluginCaller
    owner: Member | None


def is_factory(source: object) -> bool:
    """A class, or a function that makes a plug-in, and not a plug-in itself."""
    return inspect.isclass(source) or (callable(source) and not hasattr(source, "start"))


def label_of(source: object) -> str:
    """What to call something in errors before it has said its name.

    Example:
        >>> label_of(lambda: None)
        '-lambda-'
    """
    text = getattr(source, "__qualname__", None) or type(source).__name__
    return "".join(mark if mark.isascii() and (mark.isalnum() or mark in "._:-") else "-" for mark in text)[:200]
