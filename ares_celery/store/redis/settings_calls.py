"""Calls about the settings of a namespace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ares_celery.model.audit import AuditNote
from ares_celery.store.redis.agent_calls import OUTCOME_TTL
from ares_celery.store.redis.audit_calls import audit_words
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.replies import unknown_reply

__all__ = ["StoredSettings", "read_generation", "read_settings", "write_settings"]


@dataclass(frozen=True, slots=True)
class StoredSettings:
    """The settings as they are stored.

    Attributes:
        generation: Of their last change; "0" for those that the namespace was made with.
        data: JSON; None when the namespace is gone.
        repeated: The operation asked about has happened.
    """

    generation: str
    data: bytes | None
    repeated: bool = False


def read_generation(keys: Keys) -> Call[str]:
    """Reads of which change the settings are."""
    return Call(
        lambda reply: reply.decode() if reply is not None else "0", args=("HGET", keys.meta, "config_generation")
    )


def read_settings(keys: Keys, *, op: str = "") -> Call[StoredSettings]:
    """Reads the settings with their generation, atomically."""
    return Call(
        lambda reply: StoredSettings(reply[0].decode(), reply[1], repeated=reply[2] is not None),
        script="read_config",
        keys=(keys.meta, keys.config, keys.settings_op(op)),
        args=(),
    )


def write_settings(keys: Keys, *, generation: str, data: bytes, op: str, note: AuditNote) -> Call[bool]:
    """Replaces the settings; False when they are of another generation by now."""
    return Call(
        _parse_write,
        script="set_config",
        keys=(keys.meta, keys.config, keys.settings_op(op), keys.settings_audit),
        args=(generation, data, int(OUTCOME_TTL.total_seconds()), *audit_words(note)),
    )


def _parse_write(reply: Sequence[Any]) -> bool:
    match reply:
        case [b"done" | b"repeated", _]:
            return True
        case [b"conflict"]:
            return False
        case _:
            raise unknown_reply("set_config", reply)
