"""Copying one agent's history to another, in pages; both may be in different shards, so on different servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ares_celery.errors import EventIntegrityError
from ares_celery.ids import AgentId, Version
from ares_celery.model.fork import ForkMark
from ares_celery.model.snapshot import Snapshot
from ares_celery.store.forks import ForkCopy
from ares_celery.store.redis import fork_calls
from ares_celery.store.redis.bound import Part
from ares_celery.store.redis.fork_calls import Entry, ForkPage
from ares_celery.store.redis.stored_events import decode_entry
from ares_celery.store.redis.stored_snapshots import decode_snapshot

__all__ = ["RedisForkStore"]

#: Events of one page: what one script writes while nobody else is served.
PAGE: Final = 500
#: Bytes after which a page is cut: events may have a megabyte each.
PAGE_BYTES: Final = 1 << 20


class RedisForkStore(Part):
    """Implements :class:`~ares_celery.store.forks.ForkStore`."""

    def first_version(self, agent_id: AgentId) -> Version:
        """Version of the oldest event that is kept; 0 when none is."""
        return self._run(fork_calls.read_first_version(self._bound.keys, agent_id=agent_id))

    def copy_snapshot(self, copy: ForkCopy, mark: ForkMark, snapshot: Snapshot) -> None:
        """Gives the fork its first snapshot, unless it has one, or the source does not have this one any more."""
        blobs = self._run(fork_calls.read_stored_snapshots(self._bound.keys, agent_id=copy.source))
        blob = next((blob for blob in blobs if decode_snapshot(blob) == snapshot), None)
        if blob is not None:
            page = ForkPage(mark, mark.copied, snapshot=(blob, snapshot))
            self._run(fork_calls.fork_page(self._bound.keys, copy=copy, page=page))

    def copy_events(self, copy: ForkCopy, mark: ForkMark) -> ForkMark:
        """Copies the next events; returns how far the copying is now."""
        keys, position = self._bound.keys, mark.copied
        entries = self._run(
            fork_calls.read_history(keys, agent_id=copy.source, first=position + 1, last=mark.at, limit=PAGE)
        )
        # Asked afterwards: what was trimmed before the page was read is known, whatever is trimmed since.
        first = self.first_version(copy.source)
        page, whole = list(_cut(entries)), len(entries) < PAGE
        whole = whole and len(page) == len(entries)
        copied = Version(mark.at if whole else page[-1].version)
        _demand_whole(copy, position, page, copied)
        forgotten = first or Version(copied + 1)
        return self._run(
            fork_calls.fork_page(keys, copy=copy, page=ForkPage(mark, copied, min(forgotten, _kept(copy)), page))
        )


def _kept(copy: ForkCopy) -> Version:
    """The first event that the fork's state needs."""
    return Version(copy.needed_after + 1)


def _cut(entries: Sequence[Entry]) -> Iterator[Entry]:
    """The first of them, as many as one page may hold."""
    size = 0
    for entry in entries:
        if size > PAGE_BYTES:
            return
        size += sum(map(len, entry.words))
        yield entry


def _demand_whole(copy: ForkCopy, position: int, page: Sequence[Entry], last: int) -> None:
    """Raises EventIntegrityError where something is missing or damaged that the fork's state is made of."""
    settled = max(copy.needed_after, copy.accepted)
    for entry in page:
        _demand_next(copy, position, entry.version - 1, settled)
        position = entry.version
        if entry.problem:
            raise EventIntegrityError(agent_id=copy.source, version=entry.version, problem=entry.problem)
        if entry.version > settled:
            decode_entry(copy.source, entry.raw)
    _demand_next(copy, position, last, settled)


def _demand_next(copy: ForkCopy, position: int, last: int, settled: int) -> None:
    if last > max(position, settled):
        raise EventIntegrityError(
            agent_id=copy.source, version=max(position, settled) + 1, problem="events are missing"
        )
