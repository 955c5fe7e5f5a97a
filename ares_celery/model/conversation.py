"""What was said in a session of an agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

__all__ = ["ConversationMessage"]


@dataclass(frozen=True, slots=True)
class ConversationMessage:
    """One message of a session.

    Attributes:
        role: Who said it: ``user``, ``assistant``, ``tool``, ``system`` or any other word.
        content: A text, or JSON values.
        time: When; None = when it was stored.
        turn_id: The turn that it belongs to.
        tool_call_id: The call that it answers.
        tool_calls: The calls that it asks for, as JSON objects.

    Example:
        >>> ConversationMessage("user", "hello").as_state()["content"]
        'hello'
    """

    role: str
    content: Any
    time: datetime | None = None
    turn_id: str = ""
    tool_call_id: str = ""
    tool_calls: tuple[Mapping[str, Any], ...] = ()

    def as_state(self) -> dict[str, Any]:
        """The message as JSON values: what ``restore_state`` gets in ``conversation_history``."""
        return {
            "role": self.role,
            "content": self.content,
            "time": self.time.isoformat() if self.time else None,
            "turn_id": self.turn_id,
            "tool_call_id": self.tool_call_id,
            "tool_calls": [dict(call) for call in self.tool_calls],
        }
