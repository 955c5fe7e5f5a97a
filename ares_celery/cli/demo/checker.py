"""Judges the demo by what is in Redis afterwards, and by nothing else. Pure: events in, findings out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from ares_celery.cli.demo.agents import FILE_COUNTED
from ares_celery.cli.demo.counting import Counts
from ares_celery.clock import micros, to_datetime
from ares_celery.model.event import Event, EventType, is_runtime_event

__all__ = ["Findings", "Kill", "Stream", "Victim", "check", "fold"]

#: Events that show an agent's code running, or done, in a later incarnation.
_RAN_AGAIN: Final = frozenset({EventType.FAILOVER_COMPLETED, EventType.AGENT_STARTED, EventType.AGENT_COMPLETED})


@dataclass(frozen=True, slots=True)
class Stream:
    """What Redis has of one agent.

    Attributes:
        events: The whole stream, as read.
        last_version: What the agent's counter says; events up to it must be there.
        files: The files that the agent had to count.
    """

    events: Sequence[Event]
    last_version: int
    files: Sequence[str]


@dataclass(frozen=True, slots=True)
class Victim:
    """An incarnation whose process was about to be killed."""

    agent_id: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Kill:
    """One SIGKILL.

    Attributes:
        what: process, worker or beat.
        name: Which one, for people.
        pid: Of the process.
        at: Microseconds of Redis TIME, taken just before.
        victims: What the process hosted.
    """

    what: str
    name: str
    pid: int
    at: int
    victims: tuple[Victim, ...]


def _numbers() -> list[float]:
    return []


def _sentences() -> list[str]:
    return []


@dataclass(slots=True)
class Findings:
    """What the streams say.

    Attributes:
        duplicates: Files counted more than once, or versions stored more than once.
        lost_events: Files never counted, or versions missing.
        epoch_falls: Events of an older incarnation after those of a newer one.
        completed: Agents that finished.
        killed: Incarnations that a SIGKILL of the demo ended.
        recovered: Those of them whose agent ran again or had already completed.
        other_deaths: Deaths that the demo did not cause.
        detect_ms: From each kill until the death was on record.
        recover_ms: From each kill until the agent's own code ran again.
        problems: A sentence for everything that is not as it should be.
    """

    duplicates: int = 0
    lost_events: int = 0
    epoch_falls: int = 0
    completed: int = 0
    killed: int = 0
    recovered: int = 0
    other_deaths: int = 0
    detect_ms: list[float] = field(default_factory=_numbers)
    recover_ms: list[float] = field(default_factory=_numbers)
    problems: list[str] = field(default_factory=_sentences)


def check(streams: Mapping[str, Stream], kills: Sequence[Kill]) -> Findings:
    """Reads every stream: versions without gap, epochs that never fall, each file exactly once, each death overcome.

    Args:
        streams: By agent.
        kills: What the demo killed, in order.
    """
    findings = Findings()
    for agent_id, stream in streams.items():
        _check_versions_and_files(agent_id, stream, findings)
        _check_epochs(agent_id, stream, findings)
        if any(event.type == EventType.AGENT_COMPLETED for event in stream.events):
            findings.completed += 1
        else:
            findings.problems.append(f"{agent_id} did not complete")
    _check_kills(streams, kills, findings)
    return findings


def fold(streams: Mapping[str, Stream]) -> Counts:
    """The counts that all events together say."""
    total = Counts()
    for stream in streams.values():
        for event in _counted(stream):
            total.add(event.payload)
    return total


def _counted(stream: Stream) -> Iterator[Event]:
    return (event for event in stream.events if event.type == FILE_COUNTED and not is_runtime_event(event))


def _check_versions_and_files(agent_id: str, stream: Stream, findings: Findings) -> None:
    """One event that is twice there, or missing, shows in its version, in its file or in both: it counts once."""
    versions = Counter(int(event.version) for event in stream.events)
    files = Counter(str(event.payload["file"]) for event in _counted(stream))
    twice = max(_surplus(versions), _surplus(files))
    missing_versions = [version for version in range(1, stream.last_version + 1) if version not in versions]
    missing_files = [name for name in stream.files if name not in files]
    strangers = sorted(set(files) - set(stream.files))
    if twice:
        findings.problems.append(f"{agent_id}: {twice} events are there twice")
    if missing_versions or missing_files:
        findings.problems.append(
            f"{agent_id}: missing versions {missing_versions[:5]}, missing files {missing_files[:5]}"
        )
    if strangers:
        findings.problems.append(f"{agent_id}: counted files of others: {strangers[:5]}")
    findings.duplicates += twice + len(strangers)
    findings.lost_events += max(len(missing_versions), len(missing_files))


def _surplus(counter: Counter[int] | Counter[str]) -> int:
    return sum(count - 1 for count in counter.values())


def _check_epochs(agent_id: str, stream: Stream, findings: Findings) -> None:
    """Events of the runtime have no epoch; those of incarnations may never come from an older one again."""
    newest = 0
    for event in stream.events:
        if event.epoch and event.epoch < newest:
            findings.epoch_falls += 1
            findings.problems.append(
                f"{agent_id}: version {event.version} is of an older incarnation than those before"
            )
        newest = max(newest, event.epoch)


def _check_kills(streams: Mapping[str, Stream], kills: Sequence[Kill], findings: Findings) -> None:
    ended: dict[Victim, Kill] = {}
    for kill in kills:
        for victim in kill.victims:
            ended.setdefault(victim, kill)
    for victim, kill in ended.items():
        _check_victim(victim, kill, streams[victim.agent_id], findings)
    for agent_id, stream in streams.items():
        for event in stream.events:
            if event.type == EventType.FAILOVER_TRIGGERED:
                victim = Victim(agent_id, int(event.payload.get("incarnation", 0)))
                if victim not in ended:
                    findings.other_deaths += 1


def _check_victim(victim: Victim, kill: Kill, stream: Stream, findings: Findings) -> None:
    if any(_is(event, EventType.AGENT_COMPLETED, victim.incarnation) for event in stream.events):
        # It was done before the signal came: nothing was killed.
        return
    findings.killed += 1
    triggered = next(
        (event for event in stream.events if _is(event, EventType.FAILOVER_TRIGGERED, victim.incarnation)), None
    )
    again = next(
        (
            event
            for event in stream.events
            if event.type in _RAN_AGAIN and int(event.payload.get("incarnation", 0)) > victim.incarnation
        ),
        None,
    )
    if again is None:
        findings.problems.append(
            f"{victim.agent_id}: incarnation {victim.incarnation} was killed and the agent never ran again"
        )
        return
    findings.recovered += 1
    findings.recover_ms.append(_ms_since(kill.at, again.time))
    if triggered is not None:
        findings.detect_ms.append(_ms_since(kill.at, triggered.time))


def _is(event: Event, kind: EventType, incarnation: int) -> bool:
    return event.type == kind and event.payload.get("incarnation") == incarnation


def _ms_since(instant: int, moment: datetime) -> float:
    return round(micros(moment - to_datetime(instant)) / 1000, 1)
