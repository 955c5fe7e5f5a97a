"""The roots of the tree of errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

from typing_extensions import override

from ares_celery.errors.plain import plain_fields

__all__ = ["AresError", "NotFoundError"]


class AresError(Exception):
    """The root of every error of the product.

    Attributes:
        code: Stable snake_case name of the kind; safe to branch on in other languages.
        fields: All data of the error, as plain JSON, whatever it was made from; the same dict is ``args[0]``.
    """

    code: ClassVar[str] = "ares_error"
    template: ClassVar[str] = "the operation failed"

    def __init__(self, data: Mapping[str, Any] | None = None, /, **fields: object) -> None:
        """Builds the error from named fields, or from the dict that came over the wire."""
        content: dict[str, Any] = {"code": self.code, **plain_fields({**(data or {}), **fields})}
        if "message" not in content:
            content["message"] = self.template.format_map(_Known(content))
        super().__init__(content)

    @property
    def fields(self) -> dict[str, Any]:
        """All data of the error: code, message and what the class adds."""
        return cast("dict[str, Any]", self.args[0])

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the fields of an error are JSON values
        """Reads a field as an attribute: ``error.agent_id``."""
        if name.startswith("__") or not self.args:
            raise AttributeError(name)
        try:
            return self.args[0][name]
        except (KeyError, TypeError):
            raise AttributeError(name) from None

    @override
    def __str__(self) -> str:
        """The sentence for people."""
        return str(self.fields["message"])

    @override
    def __repr__(self) -> str:
        """Kind, agent and field without any value: logs and events of Celery show it, and a value may be a secret."""
        shown = {name: self.fields[name] for name in ("agent_id", "field") if self.fields.get(name)}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r:.200}' for name, value in shown.items())})"


class _Known(dict[str, Any]):
    """Formats a template although a field is absent: the error must not hide behind a KeyError."""

    def __missing__(self, key: str) -> str:
        return "?"


class NotFoundError(AresError, LookupError):
    """Something that was named does not exist."""

    code = "not_found"
