"""Errors about plug-ins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ares_celery.errors.base import AresError, NotFoundError

__all__ = [
    "DuplicatePluginError",
    "InvalidPluginError",
    "PluginError",
    "PluginNotFoundError",
    "PluginTimeoutError",
]


class InvalidPluginError(AresError, TypeError):
    """An object breaks the plug-in contract; it was not registered."""

    code = "invalid_plugin"
    template = "plug-in {plugin!r} cannot be registered: {problem}"


class DuplicatePluginError(AresError, ValueError):
    """A plug-in of this name is registered already; the first one stays."""

    code = "duplicate_plugin"
    template = "a plug-in named {plugin!r} is registered already; give one of them another name or unregister it first"


class PluginNotFoundError(NotFoundError):
    """No plug-in of this name is registered on the bus."""

    code = "plugin_not_found"
    template = "no plug-in is named {plugin!r}; registered: {known}"


class PluginError(AresError):
    """A call of a plug-in raised or returned rubbish, or several calls did.

    ``failures`` lists each with plugin, call, type and error; of a single one these are fields of their own as well.
    """

    code = "plugin_error"
    template = "plug-in {plugin!r} failed in {call}: {type}: {error}"

    @property
    def failures(self) -> list[dict[str, Any]]:
        """One entry for each failed call, in order: plugin, call, type, error."""
        joined = self.fields.get("failures")
        if joined is not None:
            return cast("list[dict[str, Any]]", joined)
        return [{name: self.fields.get(name) for name in ("plugin", "call", "type", "error")}]

    @classmethod
    def join(cls, errors: Sequence[PluginError]) -> PluginError | None:
        """One error that names every failed call; None of none, the only one itself.

        Example:
            >>> first = PluginError(plugin="audit", call="start", type="OSError", error="disk full")
            >>> second = PluginTimeoutError(plugin="mail", call="start", limit=30)
            >>> joined = PluginError.join([first, second])
            >>> [failure["plugin"] for failure in joined.failures]
            ['audit', 'mail']
        """
        if len(errors) <= 1:
            return errors[0] if errors else None
        message = f"{len(errors)} calls of plug-ins failed: " + "; ".join(str(error) for error in errors)
        return PluginError(failures=[failure for error in errors for failure in error.failures], message=message)


class PluginTimeoutError(PluginError, TimeoutError):
    """A call of a plug-in did not return in time and was left to itself."""

    code = "plugin_timeout"
    template = "plug-in {plugin!r} did not return from {call} within {limit} s; it is not called again until it does"

    def __init__(self, data: Mapping[str, Any] | None = None, /, **fields: object) -> None:
        """Names type and error, for those who read ``failures``."""
        super().__init__({"type": "TimeoutError", "error": "it did not return in time", **(data or {}), **fields})
