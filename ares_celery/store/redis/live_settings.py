"""The settings of an open namespace as this process knows them: at most a second behind what is stored."""

from __future__ import annotations

import logging
from typing import Final

from ares_celery.clock import Clock
from ares_celery.config import RuntimeConfig
from ares_celery.errors import InvalidSettingError
from ares_celery.store.redis.json_values import decode_json

__all__ = ["FRESH_SECONDS", "LiveSettings", "parse_settings"]

log: Final = logging.getLogger(__name__)

#: How long a process goes on without asking whether the settings have changed; the question rides on another call.
FRESH_SECONDS: Final = 1.0


class LiveSettings:
    """Holds what every part of an open namespace reads. Reading never waits; the store keeps it fresh.

    Safe to share between threads: the newest answer simply replaces the one before.
    """

    def __init__(self, config: RuntimeConfig, generation: str, clock: Clock) -> None:
        self.config = config
        self.generation = generation
        self._clock = clock
        self._asked_at = clock.monotonic()

    def is_due(self) -> bool:
        """It is time to ask again; whoever is told so asks."""
        now = self._clock.monotonic()
        if now - self._asked_at < FRESH_SECONDS:
            return False
        self._asked_at = now
        return True

    def take(self, namespace: str, generation: str, data: bytes) -> None:
        """Takes over what is stored; settings that this version cannot use are said once, and the old ones stay."""
        if generation == self.generation:
            return
        self.generation = generation
        try:
            config = parse_settings(data, self.config.shards)
        except (InvalidSettingError, ValueError) as error:
            log.error(  # noqa: TRY400 - the sentence says it all
                "the settings of namespace %s were changed to what this version cannot use (%s); it keeps those it has",
                namespace,
                error,
            )
            return
        before, self.config = self.config, config
        changed = [
            f"{name} {_shown(before, name)} -> {_shown(config, name)}"
            for name in RuntimeConfig.model_fields
            if getattr(before, name) != getattr(config, name)
        ]
        if changed:
            log.info("the settings of namespace %s changed: %s", namespace, ", ".join(changed))


def _shown(config: RuntimeConfig, name: str) -> object:
    return config.model_dump(mode="json", include={name})[name]


def parse_settings(data: bytes, shards: int) -> RuntimeConfig:
    """Reads stored settings as far as this version knows them; a newer one may have stored more.

    Raises:
        InvalidSettingError, ValueError: They are none.
    """
    values = decode_json(data)
    known = {name: value for name, value in values.items() if name in RuntimeConfig.model_fields}
    return RuntimeConfig.parse(known | {"shards": shards})
