"""Count what the suite shows: `python -m tools.marked spec` or `python -m tools.marked pain`.

A numbered statement counts when at least one test carries its mark and every test that does ran and passed. A skipped
test shows nothing, so it takes its statement out of the count.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import pytest


@dataclass(frozen=True)
class Kind:
    """A numbered list that tests refer to by mark.

    Attributes:
        mark: Name of the pytest mark.
        title: The word of the closing line.
        total: How many entries the list has, numbered from 1.
        prefix: What stands before the number in the mark, "P" in `pain("P1")`.
    """

    mark: str
    title: str
    total: int
    prefix: str = ""

    def number_of(self, argument: object) -> int:
        """Return the number that a mark's argument names.

        Raises:
            ValueError: It names none of the list.
        """
        text = str(argument)
        digits = text.removeprefix(self.prefix)
        if text.startswith(self.prefix) and digits.isdecimal() and 1 <= int(digits) <= self.total:
            return int(digits)
        message = f"{self.mark}({argument!r}): expected {self.prefix}1 to {self.prefix}{self.total}"
        raise ValueError(message)


KINDS: Final = {
    "spec": Kind(mark="spec", title="spec", total=150),
    "pain": Kind(mark="pain", title="pains", total=48, prefix="P"),
}


def numbers_of(item: pytest.Item, kind: Kind) -> set[int]:
    """Return the statements a test is marked with; `spec(1, 2)` names two.

    Raises:
        ValueError: A mark without argument, or one that names no statement.
    """
    numbers: set[int] = set()
    for mark in item.iter_markers(kind.mark):
        if not mark.args:
            message = f"{kind.mark}: which one? expected {kind.prefix}1 to {kind.prefix}{kind.total}"
            raise ValueError(message)
        numbers.update(kind.number_of(argument) for argument in mark.args)
    return numbers


def check_marks(items: Iterable[pytest.Item]) -> None:
    """Refuse a collection in which a mark names no statement.

    Raises:
        pytest.UsageError: Names the test and the mark.
    """
    for item in items:
        for kind in KINDS.values():
            try:
                numbers_of(item, kind)
            except ValueError as error:
                message = f"{item.nodeid}: {error}"
                raise pytest.UsageError(message) from error


@dataclass(eq=False)  # pytest keeps plug-ins in sets
class Tally:
    """A pytest plug-in that notes, for each statement, how many tests there are and how many passed."""

    kind: Kind
    numbers: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    bad: set[str] = field(default_factory=set[str])
    called: set[str] = field(default_factory=set[str])

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note which test shows which statements."""
        self.numbers = {item.nodeid: numbers_of(item, self.kind) for item in session.items}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how each phase of a test ended; an expected failure is reported as skipped."""
        if not report.passed:
            self.bad.add(report.nodeid)
        elif report.when == "call":
            self.called.add(report.nodeid)

    def rows(self) -> list[tuple[int, str, bool]]:
        """Return (statement, test, passed), by statement; the cases of one test function are one row."""
        passed: defaultdict[tuple[int, str], bool] = defaultdict(lambda: True)
        for nodeid, numbers in self.numbers.items():
            for number in numbers:
                passed[number, nodeid.partition("[")[0]] &= nodeid in self.called and nodeid not in self.bad
        return sorted((number, test, is_shown) for (number, test), is_shown in passed.items())

    def shown(self) -> set[int]:
        """Return the statements all of whose tests passed."""
        rows = self.rows()
        return {number for number, _, _ in rows} - {number for number, _, passed in rows if not passed}


def report(tally: Tally) -> None:
    """Print the table, what has no test, and, last of all, the count."""
    kind, rows = tally.kind, tally.rows()
    print(f"\n{kind.mark:>6}  passed  test")
    for number, test, passed in rows:
        print(f"{f'{kind.prefix}{number}':>6}  {'yes' if passed else 'NO':<6}  {test}")
    untested = sorted(set(range(1, kind.total + 1)) - {number for number, _, _ in rows})
    if untested:
        print(f"without a test: {', '.join(f'{kind.prefix}{number}' for number in untested)}")
    print(f"{kind.title}: {len(tally.shown())}/{kind.total}", flush=True)


def main(arguments: list[str]) -> int:
    """Run the marked tests and count; further arguments go to pytest. Returns the exit code."""
    if not arguments or arguments[0] not in KINDS:
        print(f"usage: python -m tools.marked {{{'|'.join(KINDS)}}} [pytest options]", file=sys.stderr)
        return pytest.ExitCode.USAGE_ERROR
    tally = Tally(KINDS[arguments[0]])
    code = pytest.main(["-m", tally.kind.mark, "-q", *arguments[1:]], plugins=[tally])
    report(tally)
    nothing_marked = code == pytest.ExitCode.NO_TESTS_COLLECTED
    return 0 if nothing_marked else int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
