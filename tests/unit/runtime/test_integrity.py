"""Is a history whole? And are two of them the same?"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from ares_celery import Event, Violation, find_violations, integrity_digest
from ares_celery.ids import Version


def event(version: int) -> Event:
    """One stored event."""
    return Event(f"e{version}", "a", Version(version), "t", {}, datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.spec(89)
def test_gaps_and_a_cut_off_end_are_recognised_and_version_0_is_exempt() -> None:
    """Versions 1, 2, 4; a last version below that of the stream; version 0 stands for none."""
    assert find_violations([event(n) for n in (1, 2, 4)]) == [Violation("gap", 3, 3)]
    assert find_violations([event(n) for n in (1, 2, 3)], stream_version=5) == [Violation("truncated", 4, 5)]
    assert find_violations([event(n) for n in (2, 6, 7)], 7) == [Violation("gap", 3, 5)]
    assert find_violations([event(n) for n in (1, 0, 2, 0)], stream_version=2) == []
    assert find_violations([event(n) for n in (4, 5, 6)], stream_version=6) == []
    assert find_violations([], stream_version=0) == []


@pytest.mark.spec(91)
def test_the_digest_is_the_same_in_every_process_and_changes_with_type_id_and_version() -> None:
    """Sixteen hex digits, the first half of a quarter of SHA-256; payload and time do not count."""
    history = [event(n) for n in range(1, 50)]
    digest = integrity_digest(history)
    program = (
        "from datetime import datetime, UTC\n"
        "from ares_celery import Event, integrity_digest\n"
        "at = datetime(2027, 1, 1, tzinfo=UTC)\n"
        "print(integrity_digest(Event(f'e{n}', 'other', n, 't', {'x': n}, at) for n in range(1, 50)))"
    )
    elsewhere = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert elsewhere.stdout.strip() == digest
    assert len(digest) == 16
    assert int(digest, 16) >= 0
    for changed in (
        replace(history[7], type="u"),
        replace(history[7], id="x"),
        replace(history[7], version=Version(99)),
    ):
        assert integrity_digest([*history[:7], changed, *history[8:]]) != digest
    assert integrity_digest(history[:-1]) != digest
