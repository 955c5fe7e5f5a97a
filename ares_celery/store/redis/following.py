"""How events are followed: a generator that says what to ask and is told the answers, without any I/O.

The feeds tell what is new. A subscriber that comes too late for them reads the streams themselves, from the last
versions that it knows: they are the truth, so nothing is left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from ares_celery.errors import AresError, EventGapError
from ares_celery.ids import Instant
from ares_celery.model.agent import AgentState
from ares_celery.model.event import Event, EventFilter
from ares_celery.store.redis import event_calls, feed_calls, index_calls
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.cursors import CursorState
from ares_celery.store.redis.feed_calls import FIRST_ID, Entry, FeedEnds, FeedId, Pointer
from ares_celery.store.redis.keys import Keys

__all__ = ["Ask", "Following", "Found", "Step", "Wait", "behind_all", "shards_of"]

T = TypeVar("T")
_log: Final = logging.getLogger(__name__)

#: Pointers of a shard taken at once, and events read at once: what a subscriber holds in memory.
PAGE: Final = 100
#: Pointers read at once when only their versions matter.
SURVEY_PAGE: Final = 1_000
#: Streams asked about in one round trip.
STREAMS: Final = 100
#: Position in a feed that is known to have held nothing; FIRST_ID says that nobody has looked yet.
NOTHING_YET: Final[FeedId] = (0, 1)


@dataclass(frozen=True, slots=True)
class Ask:
    """Send these calls in one round trip and bring the answers."""

    calls: Sequence[Call[Any]]


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait on the server with this call, made for so many milliseconds, until it has something to say."""

    call: Callable[..., Call[dict[int, list[Pointer]]]]


@dataclass(frozen=True, slots=True)
class Found:
    """What the subscriber gets next: an event, or an error after which it may go on."""

    item: Event | AresError


Step = Ask | Wait | Found
Steps = Generator[Step, list[Any], T]


@dataclass(frozen=True, slots=True)
class _Part:
    """Versions of a stream that have to be read from it, inclusive."""

    stream_id: str
    first: int
    last: int


def shards_of(keys: Keys, wanted: EventFilter) -> list[int]:
    """The shards in which something wanted may happen."""
    if wanted.streams is None:
        return list(range(keys.shards))
    return sorted({keys.shard_of(stream_id) for stream_id in wanted.streams})


def behind_all(shards: Sequence[int], ends: Sequence[FeedEnds]) -> CursorState:
    """The cursor behind everything that the feeds of these shards held when they were asked."""
    positions = {shard: end.newest or NOTHING_YET for shard, end in zip(shards, ends, strict=True)}
    return CursorState(min(end.now for end in ends), positions)


class Following:
    """Follows the events that a filter lets through; the state of its cursor is always that of the last event given.

    Attributes:
        state: Which events the subscriber has got.
        missed: Wanted events that had left the feed and were read from their streams.
        lost: Events that had been trimmed.
        lagging: More waits than is taken at once.
    """

    def __init__(self, keys: Keys, wanted: EventFilter, state: CursorState) -> None:
        self.state = state
        self.missed = 0
        self.lost = 0
        self.lagging = False
        self._keys = keys
        self._wanted = wanted
        self._shards = shards_of(keys, wanted)
        #: Shards whose feed was looked at since the start: a short page of pointers then proves that none is missing.
        self._sure: set[int] = set()
        #: For each shard the oldest pointer that was there when it was last caught up with.
        self._floors: dict[int, FeedId] = {}

    def steps(self) -> Steps[None]:
        """What to do next, without end. A step that failed may be done again: all of them only read."""
        for shard in self._shards:
            if self.state.position(shard) == FIRST_ID:
                yield from self._begin(shard)
        while True:
            after = {shard: self.state.position(shard) for shard in self._shards}
            (found,) = yield Wait(partial(feed_calls.await_feeds, self._keys, after=after, limit=PAGE))
            self.lagging = any(len(pointers) >= PAGE for pointers in found.values())
            for shard, pointers in found.items():
                if (yield from self._is_behind(shard, len(pointers))):
                    # Its pointers are read again afterwards, as the position is where it was.
                    yield from self._catch_up(shard)
                    continue
                damaged = next((number for number, one in enumerate(pointers) if not one.stream_id), len(pointers))
                yield from self._deliver(shard, pointers[:damaged])
                for pointer in pointers[damaged : damaged + 1]:
                    # Nobody knows what it led to: the streams tell. What follows it is read again afterwards.
                    _log.error("a pointer in the feed of shard %d is damaged; its streams are read instead", shard)
                    yield from self._catch_up(shard, behind=pointer.id)
                    self.state.positions[shard] = pointer.id

    # -- from the feed ------------------------------------------------------------------------------------------------

    def _is_behind(self, shard: int, count: int) -> Steps[bool]:
        """Pointers behind the position may have left the feed before they were read.

        A feed keeps many times a page, so whoever gets less than a page has lost nothing since the last look.
        """
        if shard in self._sure and count < PAGE:
            return False
        ends: FeedEnds = (yield Ask([feed_calls.read_feed(self._keys, shard=shard)]))[0]
        self._sure.add(shard)
        passed = max(self.state.position(shard), self._floors.get(shard, FIRST_ID))
        return ends.oldest is not None and ends.oldest > passed

    def _deliver(self, shard: int, pointers: Sequence[Pointer]) -> Steps[None]:
        """Gives the events of a page of pointers, in their order."""
        chosen = self._choose(shard, pointers)
        entries = yield from self._fetch(chosen.values())
        told: dict[str, int] = {}
        for pointer in pointers:
            self._pass(shard, pointer)
            if pointer.id not in chosen:
                continue
            entry = entries.get((pointer.stream_id, pointer.version))
            if entry is not None:
                yield from self._give(entry)
            elif pointer.version > told.get(pointer.stream_id, 0):
                absent = (p.version for p in chosen.values() if p.stream_id == pointer.stream_id)
                last = max(version for version in absent if (pointer.stream_id, version) not in entries)
                told[pointer.stream_id] = last
                yield from self._gap(pointer.stream_id, pointer.version, last)

    def _choose(self, shard: int, pointers: Sequence[Pointer]) -> dict[FeedId, Pointer]:
        """The pointers whose events have to be read: wanted, not given before, not of a stream deleted since."""
        deleted = {pointer.stream_id: pointer.id for pointer in pointers if pointer.version == 0}
        passed: dict[str, int] = {}
        chosen: dict[FeedId, Pointer] = {}
        for pointer in pointers:
            if not self._follows(pointer.stream_id):
                continue
            before = passed.get(pointer.stream_id, self.state.versions.get(pointer.stream_id, 0))
            if not self._is_news(shard, pointer, before):
                continue
            passed[pointer.stream_id] = pointer.version
            is_there = pointer.version > 0 and pointer.id > deleted.get(pointer.stream_id, FIRST_ID)
            if is_there and (self._wanted.types is None or pointer.type in self._wanted.types):
                chosen[pointer.id] = pointer
        return chosen

    def _pass(self, shard: int, pointer: Pointer) -> None:
        self.state.positions[shard] = pointer.id
        if not self._follows(pointer.stream_id):
            return
        if pointer.version == 0:
            self.state.versions.pop(pointer.stream_id, None)
        elif self._is_news(shard, pointer, self.state.versions.get(pointer.stream_id, 0)):
            self.state.versions[pointer.stream_id] = pointer.version

    def _is_news(self, shard: int, pointer: Pointer, before: int) -> bool:
        """Behind what was caught up with every pointer is: a smaller version means a stream that began anew."""
        is_ahead = pointer.id <= self.state.ahead.get(shard, FIRST_ID)
        return pointer.version == 0 or pointer.version > before or not is_ahead

    def _fetch(self, pointers: Iterator[Pointer] | Any) -> Steps[dict[tuple[str, int], Entry]]:  # noqa: ANN401
        """Reads the events of pointers, in one round trip; those that are gone are absent."""
        versions: dict[str, list[int]] = {}
        for pointer in pointers:
            versions.setdefault(pointer.stream_id, []).append(pointer.version)
        ranges = [(stream_id, *ends) for stream_id, found in versions.items() for ends in _ranges(sorted(set(found)))]
        if not ranges:
            return {}
        answers = yield Ask([self._read(stream_id, first, last) for stream_id, first, last in ranges])
        return {
            (stream_id, entry.version): entry
            for (stream_id, _, _), entries in zip(ranges, answers, strict=True)
            for entry in entries
        }

    # -- from the streams ---------------------------------------------------------------------------------------------

    def _begin(self, shard: int) -> Steps[None]:
        """Gives what the streams of a shard hold, from a cursor that has never been in its feed."""
        self.lagging = True
        before: FeedEnds = (yield Ask([feed_calls.read_feed(self._keys, shard=shard)]))[0]
        yield from self._give_missing(shard, {}, is_promised=False)
        self.state.positions[shard] = before.newest or NOTHING_YET
        self._sure.add(shard)

    def _catch_up(self, shard: int, behind: FeedId | None = None) -> Steps[None]:
        """Gives what the feed does not know any more; what it knows, perhaps only behind a pointer, follows there."""
        self.lagging = True
        oldest, in_feed = yield from self._survey(shard, behind or self.state.position(shard))
        yield from self._give_missing(shard, in_feed, is_promised=True)
        if oldest is not None:
            self._floors[shard] = oldest

    def _give_missing(self, shard: int, in_feed: dict[str, int], *, is_promised: bool) -> Steps[None]:
        missing = yield from self._missing(shard, in_feed)
        ends: FeedEnds = (yield Ask([feed_calls.read_feed(self._keys, shard=shard)]))[0]
        if ends.newest is not None:
            # Up to here the streams may have been read further than the feed was.
            self.state.ahead[shard] = ends.newest
        for part in missing:
            yield from self._recover(part, is_promised=is_promised)

    def _survey(self, shard: int, after: FeedId) -> Steps[tuple[FeedId | None, dict[str, int]]]:
        """The oldest pointer of the feed, and for each stream the smallest version that the feed leads to.

        For a stream that was deleted that is 0: what it had before is gone.
        """
        oldest: FeedId | None = None
        smallest: dict[str, int] = {}
        while True:
            call = feed_calls.read_pointers(self._keys, shard=shard, after=after, limit=SURVEY_PAGE)
            pointers: list[Pointer] = (yield Ask([call]))[0]
            for pointer in pointers:
                oldest = oldest or pointer.id
                if self._follows(pointer.stream_id):
                    version = min(pointer.version, smallest.get(pointer.stream_id, pointer.version))
                    smallest[pointer.stream_id] = version
            if len(pointers) < SURVEY_PAGE:
                return oldest, smallest
            after = pointers[-1].id

    def _missing(self, shard: int, in_feed: dict[str, int]) -> Steps[list[_Part]]:
        """What has to be read from the streams of a shard: from what was given to what the feed leads to."""
        parts: list[_Part] = []
        for stream_ids in _chunks((yield from self._streams(shard)), STREAMS):
            versions = yield from self._versions(stream_ids)
            firsts = yield from self._firsts(shard, stream_ids, versions)
            for stream_id, version, first in zip(stream_ids, versions, firsts, strict=True):
                last = in_feed[stream_id] - 1 if stream_id in in_feed else version
                if first <= last:
                    parts.append(_Part(stream_id, first, last))
        return parts

    def _firsts(self, shard: int, stream_ids: Sequence[str], versions: Sequence[int]) -> Steps[list[int]]:
        """For each stream the first version that was not given yet."""
        firsts = [self.state.versions.get(stream_id, 0) + 1 for stream_id in stream_ids]
        since: dict[int, Instant] = {}
        for number, (stream_id, version) in enumerate(zip(stream_ids, versions, strict=True)):
            if stream_id not in self.state.versions:
                since[number] = self.state.baseline
            elif version < self.state.versions[stream_id]:
                # It began anew: all that it holds came after the last pointer that was read.
                del self.state.versions[stream_id]
                since[number] = Instant(self.state.position(shard)[0] * 1_000 + 999)
        asked = [number for number, moment in since.items() if moment > 0]
        newest = yield from self._ask([feed_calls.read_newest(self._keys, stream_id=stream_ids[n]) for n in asked])
        for number, entry in zip(asked, newest, strict=True):
            firsts[number] = versions[number] + 1
            if entry is not None and entry.time > since[number]:
                firsts[number] = yield from self._first_after(stream_ids[number], versions[number], since[number])
        return firsts

    def _first_after(self, stream_id: str, version: int, moment: Instant) -> Steps[int]:
        """The first version that was stored after a moment; the newest was."""
        low, high = 1, version
        while low < high:
            middle = (low + high) // 2
            entries: list[Entry] = (yield Ask([self._read(stream_id, middle, version, limit=1)]))[0]
            if entries and entries[0].time <= moment:
                low = middle + 1
            else:
                high = middle
        return low

    def _recover(self, part: _Part, *, is_promised: bool) -> Steps[None]:
        """Gives a part of a stream, page by page.

        Args:
            part: What to read.
            is_promised: The cursor counts on these events: they count as missed, and what was trimmed of them is told.
        """
        due = part.first
        while due <= part.last:
            entries: list[Entry] = (yield Ask([self._read(part.stream_id, due, part.last)]))[0]
            for entry in entries:
                if entry.version > due and is_promised:
                    yield from self._gap(part.stream_id, due, entry.version - 1)
                due = entry.version + 1
                self.state.versions[part.stream_id] = entry.version
                self.missed += is_promised and self._is_wanted(entry)
                yield from self._give(entry)
            if len(entries) < PAGE and due <= part.last:
                if is_promised:
                    yield from self._gap(part.stream_id, due, part.last)
                self.state.versions[part.stream_id] = part.last
                return

    # -- shared by both -----------------------------------------------------------------------------------------------

    def _follows(self, stream_id: str) -> bool:
        return self._wanted.streams is None or stream_id in self._wanted.streams

    def _is_wanted(self, entry: Entry) -> bool:
        event = entry.event
        if not isinstance(event, Event):
            return True  # nobody knows what it was
        is_late = self._wanted.since is None or event.time >= self._wanted.since
        return is_late and (self._wanted.types is None or event.type in self._wanted.types)

    def _give(self, entry: Entry) -> Steps[None]:
        if self._is_wanted(entry):
            yield Found(entry.event)

    def _gap(self, stream_id: str, first: int, last: int) -> Steps[None]:
        """Tells that events are gone, unless their whole stream is."""
        (version,) = yield from self._versions([stream_id])
        self.state.versions[stream_id] = last
        if version >= last:
            count = last - first + 1
            self.lost += count
            yield Found(EventGapError(stream_id=stream_id, first=first, last=last, count=count))

    def _streams(self, shard: int) -> Steps[list[str]]:
        """The streams of a shard that are followed."""
        keys = self._keys
        if self._wanted.streams is not None:
            return sorted(stream_id for stream_id in self._wanted.streams if keys.shard_of(stream_id) == shard)
        calls = [event_calls.list_streams(keys, shard=shard)]
        calls += [index_calls.list_state(keys, shard=shard, state=state) for state in AgentState]
        return sorted({stream_id for some in (yield Ask(calls)) for stream_id in some})

    def _versions(self, stream_ids: Sequence[str]) -> Steps[list[int]]:
        """The newest version of each stream; 0 for one that is not there."""
        calls = [event_calls.read_version(self._keys, stream_id=stream_id) for stream_id in stream_ids]
        answers = yield Ask([call for pair in calls for call in pair])
        return [max(pair) for pair in zip(answers[::2], answers[1::2], strict=True)]

    def _read(self, stream_id: str, first: int, last: int, *, limit: int = PAGE) -> Call[list[Entry]]:
        return feed_calls.read_entries(self._keys, stream_id=stream_id, first=first, last=last, limit=limit)

    def _ask(self, calls: Sequence[Call[T]]) -> Steps[list[T]]:
        return (yield Ask(calls)) if calls else []


def _chunks(items: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _ranges(versions: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Runs of versions without a hole."""
    start = 0
    for number, version in enumerate(versions):
        if number + 1 == len(versions) or versions[number + 1] != version + 1:
            yield versions[start], version
            start = number + 1
