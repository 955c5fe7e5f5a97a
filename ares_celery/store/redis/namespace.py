"""Opening a namespace: made once, by whoever comes first; afterwards the same for everyone."""

from __future__ import annotations

import logging
from typing import Final

from ares_celery.config import RuntimeConfig
from ares_celery.errors import NamespaceMismatchError
from ares_celery.ids import Instant
from ares_celery.store.redis.client import RedisClient
from ares_celery.store.redis.confirming import check_can_confirm
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.live_settings import parse_settings
from ares_celery.store.redis.namespace_calls import open_namespace as open_call

__all__ = ["SCHEMA", "open_namespace", "reopen_namespace"]

_log: Final = logging.getLogger(__name__)

#: Number of the layout of keys and records; raised when an older version could not read them.
SCHEMA: Final = 1


def open_namespace(
    client: RedisClient, namespace: str, config: RuntimeConfig | None
) -> tuple[Keys, RuntimeConfig, str]:
    """Opens a namespace; made atomically when it does not exist.

    Args:
        client: Speaks to the server.
        namespace: Its name.
        config: Wanted settings; None = those of the environment. They win only when the namespace is made; later a
            difference is one warning.

    Returns:
        Its keys, its stored settings and their generation.

    Raises:
        NamespaceMismatchError: It has another schema, or other shards than were asked for.
        InvalidSettingError: The server cannot keep what is wanted.
    """
    own = RuntimeConfig.from_env() if config is None else config
    check_can_confirm(client, own)
    opened = client.run(open_call(Keys(namespace, own.shards), schema=SCHEMA, config=own.model_dump_json()))
    _demand_schema(namespace, opened.meta["schema"])
    shards = int(opened.meta["shards"])
    if "shards" in own.model_fields_set and own.shards != shards:
        raise NamespaceMismatchError(
            namespace=namespace,
            field="shards",
            found=shards,
            wanted=own.shards,
            cure="leave shards out, or use another namespace: shards are fixed when one is made",
        )
    stored = parse_settings(opened.config, shards)
    if not opened.made:
        _warn_of_differences(namespace, own, stored)
    return Keys(namespace, shards), stored, opened.meta.get("config_generation", "0")


def reopen_namespace(client: RedisClient, keys: Keys, config: RuntimeConfig) -> Instant:
    """Makes an open namespace again if the server has lost it; returns when it was made.

    Raises:
        NamespaceMismatchError: Somebody else has made it again with another layout.
    """
    meta = client.run(open_call(keys, schema=SCHEMA, config=config.model_dump_json())).meta
    _demand_schema(keys.namespace, meta["schema"])
    if int(meta["shards"]) != keys.shards:
        raise NamespaceMismatchError(
            namespace=keys.namespace,
            field="shards",
            found=int(meta["shards"]),
            wanted=keys.shards,
            cure="it was lost and made again: restart this process",
        )
    return Instant(int(meta["created_at"]))


def _demand_schema(namespace: str, found: str) -> None:
    if found != str(SCHEMA):
        cure = "upgrade this process" if int(found) > SCHEMA else "migrate the namespace, or use another one"
        raise NamespaceMismatchError(namespace=namespace, field="schema", found=int(found), wanted=SCHEMA, cure=cure)


def _warn_of_differences(namespace: str, own: RuntimeConfig, stored: RuntimeConfig) -> None:
    differing = sorted(name for name in own.model_fields_set if getattr(own, name) != getattr(stored, name))
    if differing:
        _log.warning(
            "namespace %s has other settings than this process: %s; those of the namespace hold "
            "(`ares config diff` shows them side by side)",
            namespace,
            ", ".join(differing),
        )
