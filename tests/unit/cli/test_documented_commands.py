"""Every `ares` command that a page tells to type is one that the command line takes; nothing is carried out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib.metadata import metadata
from pathlib import Path

import click
import pytest

from tests.unit.cli.calling import run

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "compose" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: What stands in front of `ares` in a console, and what ends it.
_BEFORE = re.compile(r"^\$ (?:[A-Z_]+=\S+ )*(?:docker compose exec \w+ )?(?:celery -A \S+ )?ares ")
_AFTER = {"|", ">", ">>", "&", "&&", ";", "||", "2>&1"}


def documented() -> Iterator[tuple[str, str]]:
    """Each line of a console that calls `ares`, with its page."""
    for page in PAGES:
        for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                if _BEFORE.match(line):
                    yield page.relative_to(ROOT).as_posix(), line


COMMANDS = sorted(set(documented()))


def words_of(line: str) -> list[str]:
    """The arguments as a shell hands them over; a pattern stands for two files."""
    found: list[str] = []
    for word in shlex.split(_BEFORE.sub("", line), comments=True):
        if word in _AFTER:
            break
        found += [word.replace("*", each) for each in ("1", "2")] if "*" in word else [word]
    return found


def test_pages_tell_of_many_commands() -> None:
    """The test below looks at something."""
    assert len(COMMANDS) > 40
    assert ("docs/howto/break-things-on-purpose.md", "$ ares chaos heal teller-1 --fault slow") in COMMANDS


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=[f"{page}:{line}" for page, line in COMMANDS])
def test_a_command_of_a_page_is_taken(page: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands, options and the forms of values are known."""
    carried_out: list[click.Context] = []

    def note(_: click.Command, ctx: click.Context) -> None:
        carried_out.append(ctx)

    monkeypatch.setattr(click.Command, "invoke", note)
    done = run(*words_of(line))
    assert done.exit_code == 0, done.stderr
    assert len(carried_out) >= 2


def test_extras_that_pages_name_are_there() -> None:
    """`pip install 'ares-celery[…]'` says nothing of one that it does not know."""
    named = {
        extra
        for page in PAGES
        for extras in re.findall(r"(?:ares[-_]celery(?:-\*\.whl\))?|/path/to/checkout)\[([\w,]+)\]", page.read_text())
        for extra in extras.split(",")
    }
    assert {"arena", "flower", "llm", "testing"} <= named
    assert named <= set(metadata("ares-celery").get_all("Provides-Extra", []))


def test_every_extra_is_told_of_where_one_installs() -> None:
    """Whoever does not know that there is one finds only later that it is missing."""
    page = (ROOT / "docs" / "howto" / "run-your-own-agent.md").read_text()
    table = set(re.findall(r"(?m)^\| `(\w+)` \|", page.partition("## Install")[2].partition("\n## ")[0]))
    assert table == set(metadata("ares-celery").get_all("Provides-Extra", []))
    assert {"arena", "embedded", "flower", "llm", "testing"} <= set(
        re.findall(r"`(\w+)`", (ROOT / "README.md").read_text())
    )


def test_what_begins_in_an_empty_environment_installs_from_what_is_there() -> None:
    """The package is on no index: its name alone finds nothing there, as in a CI."""
    page = (ROOT / "docs" / "howto" / "run-chaos-in-ci.md").read_text()
    installs = [one for one in re.findall(r"pip install (.*)", page) if "testing" in one]
    assert len(installs) == 2
    assert not [one for one in installs if re.match(r"['\"]?ares-celery", one)]
