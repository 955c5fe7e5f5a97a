"""Changing the settings of a namespace in Redis."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ares_celery.config import RuntimeConfig
from ares_celery.errors import InvalidSettingError, NamespaceMismatchError
from ares_celery.model.audit import AuditNote
from ares_celery.store.redis.bound import Part
from ares_celery.store.redis.confirming import check_can_confirm
from ares_celery.store.redis.json_values import decode_json
from ares_celery.store.redis.live_settings import parse_settings
from ares_celery.store.redis.settings_calls import StoredSettings, read_settings, write_settings

__all__ = ["RedisSettings"]

#: Somebody else changed them each time: that many in a row mean a bug, not bad luck.
_MOST_CONFLICTS: Final = 100


class RedisSettings(Part):
    """Implements :class:`~ares_celery.store.administration.SettingsStore`."""

    @property
    def config(self) -> RuntimeConfig:
        """The namespace's settings, at most a second behind what is stored while the store is used."""
        return self._bound.config

    def refresh_config(self) -> RuntimeConfig:
        """Reads the settings now."""
        self._take(self._bound.client.run(read_settings(self._bound.keys)))
        return self._bound.config

    def set_config(
        self, changes: Mapping[str, Any], *, reason: str = "", actor: str = "", op: str = ""
    ) -> RuntimeConfig:
        """Changes some settings, all of them or none."""
        wanted, op = dict(changes), op or uuid.uuid4().hex
        client, keys = self._bound.client, self._bound.keys
        for _ in range(_MOST_CONFLICTS):
            stored = client.run(read_settings(keys, op=op))
            if stored.data is None:
                raise NamespaceMismatchError(
                    namespace=keys.namespace, field="config", found=None, wanted="its settings", cure="open it again"
                )
            data, note = self._merged(stored.data, wanted)
            if stored.repeated or note is None:
                self._take(stored)
                return self._bound.config
            check_can_confirm(client, parse_settings(data, keys.shards))
            note = note.model_copy(update={"reason": reason, "actor": actor, "op": op})
            if client.run(write_settings(keys, generation=stored.generation, data=data, op=op, note=note)):
                return self.refresh_config()
        raise InvalidSettingError(field="settings", value=None, problem="others change them all the time; try again")

    def _merged(self, data: bytes, changes: Mapping[str, Any]) -> tuple[bytes, AuditNote | None]:
        """The settings with the changes, checked as a whole, and what is noted of them; None when they are the same."""
        _check_names(changes)
        shards = self._bound.keys.shards
        before = parse_settings(data, shards)
        after = RuntimeConfig.parse({**before.model_dump(mode="json"), **changes})
        changed = tuple(name for name in changes if getattr(before, name) != getattr(after, name))
        if not changed:
            return data, None
        # Settings of a newer version stay as they are.
        whole = {**decode_json(data), **after.model_dump(mode="json")}
        return msgspec.json.encode(whole), AuditNote(operation="config.set", changed=changed)

    def _take(self, stored: StoredSettings) -> None:
        if stored.data is not None:
            self._bound.settings.take(self._bound.keys.namespace, stored.generation, stored.data)


def _check_names(changes: Mapping[str, Any]) -> None:
    known = RuntimeConfig.model_fields
    if not changes:
        raise InvalidSettingError(field="settings", value=None, problem="name at least one")
    for name, value in changes.items():
        if name not in known:
            raise InvalidSettingError(
                field=str(name), value=str(value), problem=f"no such setting; there are {', '.join(sorted(known))}"
            )
        if name == "shards":
            raise InvalidSettingError(
                field=name,
                value=str(value),
                problem="is fixed when the namespace is made; make another namespace with ARES_SHARDS",
            )
