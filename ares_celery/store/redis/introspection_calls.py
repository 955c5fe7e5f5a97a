"""Calls about a namespace as a whole: registered DAGs, and what happened last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ares_celery.errors import DagRefusedError
from ares_celery.ids import Instant
from ares_celery.model.audit import AuditNote
from ares_celery.store.redis.audit_calls import audit_words
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.json_values import decode_json
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.replies import as_texts, instant, unknown_reply

__all__ = ["MOST_DAGS", "list_dags", "number_snapshot", "put_dag", "read_dag"]

#: DAGs of one namespace: they are topology, written by hand or by a few tools, and all live in one hash.
MOST_DAGS: Final = 1_000


def put_dag(keys: Keys, *, key: str, data: bytes, note: AuditNote) -> Call[None]:
    """Stores a DAG in place of the one that was there."""
    return Call(
        lambda reply: _parse_put(key, reply),
        script="put_dag",
        keys=(keys.dags, keys.settings_audit),
        args=(key, data, MOST_DAGS, *audit_words(note)),
    )


def _parse_put(key: str, reply: Sequence[bytes]) -> None:
    match reply:
        case [b"done" | b"same"]:
            return
        case [b"full"]:
            raise DagRefusedError(key=key, problem=f"the namespace holds {MOST_DAGS} already; reuse a key")
        case _:
            raise unknown_reply("put_dag", reply)


def read_dag(keys: Keys, *, key: str) -> Call[Any]:
    """Reads a DAG; None when there is none."""
    return Call(lambda reply: None if reply is None else decode_json(reply), args=("HGET", keys.dags, key))


def list_dags(keys: Keys) -> Call[list[str]]:
    """Reads the keys that have a DAG."""
    return Call(as_texts, args=("HKEYS", keys.dags))


def number_snapshot(keys: Keys) -> Call[tuple[int, Instant]]:
    """Gives a snapshot of the runtime its number and its time."""
    return Call(lambda reply: (int(reply[0]), instant(reply[1])), script="number_snapshot", keys=(keys.views,), args=())
