"""What a plug-in raised, as text: the exception itself is the plug-in's code and stays on the plug-in's thread."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Final

from ares_celery.errors import PluginError

__all__ = ["Raised"]

_LONGEST_TEXT: Final = 2_000
#: The end of a traceback says where it happened.
_LONGEST_TRACEBACK: Final = 8_000


@dataclass(frozen=True, slots=True)
class Raised:
    """Type, text and traceback of an exception."""

    type: str
    text: str
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Raised:
        """Takes all that is needed from an exception, whatever its own methods do.

        Example:
            >>> Raised.of(ValueError("boom")).text
            'boom'
        """
        kind = type(error).__name__
        try:
            text = str(error)[:_LONGEST_TEXT]
            shown = "".join(traceback.format_exception(error))[-_LONGEST_TRACEBACK:]
        except BaseException as unspeakable:  # noqa: BLE001 - even this is a plug-in's code
            return cls(kind, f"(its text cannot be had: {type(unspeakable).__name__})")
        return cls(kind, text, shown)

    def error(self, plugin: str, call: str) -> PluginError:
        """The error that names the plug-in."""
        return PluginError(plugin=plugin, call=call, type=self.type, error=self.text, traceback=self.traceback)
