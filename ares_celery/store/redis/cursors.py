"""Where a subscriber stands, as a text that it can keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from ares_celery.clock import instant_from
from ares_celery.errors import InvalidCursorError
from ares_celery.ids import Instant
from ares_celery.model.event import BEGINNING, EventFilter
from ares_celery.store.redis.feed_calls import FIRST_ID, FeedId, parse_feed_id, show_feed_id
from ares_celery.store.redis.json_values import decode_json, encode_json

__all__ = ["CursorState", "read_cursor"]

T = TypeVar("T")
_SCHEMA = 1


@dataclass(slots=True)
class CursorState:
    """Which events a subscriber has got.

    The feed tells what is new; the versions say what of a stream came, for when the feed has forgotten.

    Attributes:
        baseline: Of a stream that is not among ``versions``, the events of this time or earlier do not count.
        positions: For each shard the last pointer that was passed.
        versions: For each stream met so far the last version that was passed.
        ahead: For each shard the pointer up to which ``versions`` may be ahead of the position.
    """

    baseline: Instant
    positions: dict[int, FeedId] = field(default_factory=dict[int, FeedId])
    versions: dict[str, int] = field(default_factory=dict[str, int])
    ahead: dict[int, FeedId] = field(default_factory=dict[int, FeedId])

    def position(self, shard: int) -> FeedId:
        """The last pointer of this shard that was passed."""
        return self.positions.get(shard, FIRST_ID)

    def show(self, namespace: str) -> str:
        """The cursor's text."""
        ahead = {shard: feed_id for shard, feed_id in self.ahead.items() if feed_id > self.position(shard)}
        content = {
            "schema": _SCHEMA,
            "namespace": namespace,
            "baseline": self.baseline,
            "positions": _shown(self.positions),
            "ahead": _shown(ahead),
            "versions": self.versions,
        }
        data, _ = encode_json(content, what="the cursor", agent_id="-")
        return data.decode()


def _shown(ids: Mapping[int, FeedId]) -> dict[str, str]:
    return {str(shard): show_feed_id(feed_id) for shard, feed_id in ids.items()}


def read_cursor(text: str, namespace: str, wanted: EventFilter) -> CursorState:
    """Reads the text of a cursor.

    Raises:
        InvalidCursorError: It is none, or one of another namespace.
    """
    if text == BEGINNING:
        return CursorState(Instant(instant_from(wanted.since) - 1 if wanted.since else 0))
    try:
        content = decode_json(text.encode())
    except (ValueError, AttributeError, RecursionError):
        raise InvalidCursorError(problem=f"{str(text)[:50]!r} is none") from None
    if not isinstance(content, dict):
        raise InvalidCursorError(problem=f"{text[:50]!r} is none")
    values = cast("dict[str, Any]", content)
    if values.get("schema") != _SCHEMA:
        raise InvalidCursorError(problem=f"it has schema {values.get('schema')!r}, this version knows {_SCHEMA}")
    if values.get("namespace") != namespace:
        raise InvalidCursorError(problem=f"it is of namespace {values.get('namespace')!r}, not of {namespace!r}")
    try:
        return CursorState(
            baseline=Instant(int(values["baseline"])),
            positions=_mapped(values["positions"], int, parse_feed_id),
            versions=_mapped(values["versions"], str, int),
            ahead=_mapped(values["ahead"], int, parse_feed_id),
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise InvalidCursorError(problem=f"it is damaged ({error})") from error


K = TypeVar("K")


def _mapped(values: Any, key: Callable[[str], K], value: Callable[[Any], T]) -> dict[K, T]:  # noqa: ANN401 - JSON
    return {key(name): value(item) for name, item in values.items()}
