"""The suite's own tools: what waits, what counts marks, what finds leaked keys, and the server itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fakeredis
import pytest

from tests.key_leaks import keys_of_agent, leaked_keys
from tests.wait import assert_stays, wait_until, wait_until_async
from tools.marked import KINDS

ROOT = Path(__file__).parents[2]

SUITE = """
import pytest

@pytest.mark.spec(1)
def test_shown(): pass

@pytest.mark.spec(2)
def test_half_shown(): pass

@pytest.mark.spec(2, 3)
def test_failing(): assert False

@pytest.mark.spec(4)
def test_skipped(): pytest.skip("no server")

@pytest.mark.spec(5)
@pytest.mark.parametrize("n", [1, 2])
def test_each_of_its_cases(n): pass

def test_unmarked(): assert False
"""


def growing() -> Iterator[int]:
    """Count up from nothing."""
    yield from range(100)


def test_waiting_returns_the_first_true_value() -> None:
    """The value that ended the waiting is the result."""
    numbers = growing()
    assert wait_until(lambda: next(numbers), interval=0) == 1


def test_waiting_in_vain_says_what_for_and_what_was_seen() -> None:
    """The failure names the awaited thing and the last value."""
    with pytest.raises(AssertionError, match=r"waited 0\.02 s for a stop; last seen: 0"):
        wait_until(lambda: 0, "a stop", timeout=0.02, interval=0.001)


async def test_waiting_on_a_loop_takes_plain_and_awaitable_conditions() -> None:
    """Both kinds of condition end it."""
    numbers = growing()

    async def next_number() -> int:
        return next(numbers)

    assert await wait_until_async(next_number, interval=0) == 1
    assert await wait_until_async(lambda: next(numbers), interval=0) == 2


def test_what_must_stay_true_fails_when_it_changes() -> None:
    """A change within the time is a failure, none is not."""
    assert_stays(lambda: True, seconds=0.02)
    answers = iter([True, True, False])
    with pytest.raises(AssertionError, match="then was False"):
        assert_stays(lambda: next(answers), seconds=10, interval=0)


def test_a_statement_counts_only_when_all_its_tests_ran_and_passed(tmp_path: Path) -> None:
    """A failed or skipped test takes its statements out of the count; the count is the last line."""
    for folder in ("one", "two"):  # with a conftest beside that of a test, pytest puts plug-ins into sets
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "conftest.py").touch()
    (tmp_path / "one" / "test_marked_suite.py").write_text(SUITE)
    (tmp_path / "two" / "test_other.py").write_text("def test_unmarked(): pass")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = spec\n")
    command = [
        sys.executable,
        "-m",
        "tools.marked",
        "spec",
        "--rootdir",
        str(tmp_path),
        "-c",
        str(tmp_path / "pytest.ini"),
    ]

    done = subprocess.run([*command, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False)

    rows = [line.split() for line in done.stdout.splitlines() if "::" in line and line.split()[0].isdecimal()]
    assert [(number, passed, test.rpartition("::")[2]) for number, passed, test in rows] == [
        ("1", "yes", "test_shown"),
        ("2", "NO", "test_failing"),
        ("2", "yes", "test_half_shown"),
        ("3", "NO", "test_failing"),
        ("4", "NO", "test_skipped"),
        ("5", "yes", "test_each_of_its_cases"),
    ]
    assert "without a test: 6, 7, 8," in done.stdout
    assert done.stdout.splitlines()[-1] == "spec: 2/150"
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("kind", "argument"), [("spec", 0), ("spec", 151), ("spec", "one"), ("pain", 1), ("pain", "P0"), ("pain", "P49")]
)
def test_a_mark_that_names_no_statement_is_refused(kind: str, argument: object) -> None:
    """A wrong number would count for nothing, or for too much."""
    with pytest.raises(ValueError, match="expected"):
        KINDS[kind].number_of(argument)


def test_marks_name_their_statement() -> None:
    """spec(1) and pain("P1") are the first of their lists."""
    assert (KINDS["spec"].number_of(150), KINDS["pain"].number_of("P48")) == (150, 48)


def test_a_key_without_ttl_and_owner_is_a_leak() -> None:
    """Owned kinds and keys with a TTL pass, other namespaces are not looked at."""
    client = fakeredis.FakeRedis()
    client.set("{t1:3}:agent:a", "owned")
    client.set("{t1}:meta", "owned")
    client.set("{t1:3}:reply:m1", "ends", ex=60)
    client.set("{t1:3}:reply:m2", "stays")
    client.set("{t1}:scratch", "stays")
    client.set("{t12:3}:reply:m3", "somebody else's")

    assert leaked_keys(client, "t1") == ["{t1:3}:reply:m2", "{t1}:scratch"]
    assert leaked_keys(client, "t1", also_owned=["scratch"]) == ["{t1:3}:reply:m2"]


def test_keys_of_an_agent_are_found_by_its_encoded_id() -> None:
    """`a:b` is not `a`, and its colon is encoded in keys."""
    client = fakeredis.FakeRedis()
    for key in ("{t1:3}:agent:a", "{t1:3}:checkpoint:a:run", "{t1:4}:agent:a%3Ab", "{t2:3}:agent:a"):
        client.set(key, "x")

    assert keys_of_agent(client, "t1", "a") == ["{t1:3}:agent:a", "{t1:3}:checkpoint:a:run"]
    assert keys_of_agent(client, "t1", "a:b") == ["{t1:4}:agent:a%3Ab"]
