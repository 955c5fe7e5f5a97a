"""The house rules that no linter knows."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.parsed import parse_source

ROOT = Path(__file__).parents[2]

#: Sizes "about 400 lines a file, 60 a function", with the slack that "about" means.
MOST_LINES_OF_A_FILE = 450
MOST_LINES_OF_A_FUNCTION = 70

#: The files that may ask the machine for the time or sleep.
CLOCK_KEEPERS = {"ares_celery/clock.py", "tests/wait.py"}
WALL_CLOCKS = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
SLEEPS = {"time.sleep", "asyncio.sleep"}
#: Ends a line of a test agent that blocks or naps because that is its part: the reason follows.
ON_PURPOSE = re.compile(r"# on purpose: \S")

#: Written in halves, so that this file names none of them itself.
REGISTRIES = [name.replace("~", "") for name in ("py~pi.org", "python~hosted.", "npm~js.", "deb.~debian")]
MACHINE_PATH = re.compile(r"(?<![\w.}])/(?:tmp|work|root|Users)/\w")


@cache
def project_files() -> tuple[Path, ...]:
    """Every file that is tracked or would be, in a checkout; every file of the known folders elsewhere."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode == 0:
        found = [ROOT / name for name in listing.stdout.splitlines()]
    else:
        found = [path for path in ROOT.rglob("*") if not any(part.startswith(".venv") for part in path.parts)]
    return tuple(path for path in found if path.is_file())


def name_of(path: Path) -> str:
    """The path from the root, as the messages show it."""
    return path.relative_to(ROOT).as_posix()


def text_files() -> Iterator[tuple[str, str]]:
    """Yield name and text of every file that is text."""
    for path in project_files():
        try:
            yield name_of(path), path.read_text()
        except UnicodeDecodeError:
            continue


def python_files(*folders: str) -> Iterator[tuple[str, str]]:
    """Yield name and text of the Python files below the folders."""
    for name, text in text_files():
        if name.endswith(".py") and (not folders or name.startswith(folders)):
            yield name, text


def calls_of(text: str) -> Iterator[tuple[ast.Call, str]]:
    """Yield each call with the last two words of what is called: `datetime.now` for `datetime.datetime.now()`."""
    for node in ast.walk(parse_source(text)):
        if isinstance(node, ast.Call):
            yield node, ".".join(ast.unparse(node.func).split(".")[-2:])


def is_bare_yield(call: ast.Call, name: str) -> bool:
    """`asyncio.sleep(0)` waits for nothing: it lets the loop turn once."""
    return name == "asyncio.sleep" and [ast.unparse(argument) for argument in call.args] == ["0"]


def places_of_calls(folders: tuple[str, ...], is_forbidden: Callable[[ast.Call, str], bool]) -> list[str]:
    """Where forbidden calls stand, those marked as on purpose left out."""
    places: list[str] = []
    for name, text in python_files(*folders):
        if name in CLOCK_KEEPERS:
            continue
        lines = text.splitlines()
        for call, called in calls_of(text):
            if is_forbidden(call, called) and not ON_PURPOSE.search(lines[call.lineno - 1]):
                places.append(f"{name}:{call.lineno}: {called}")
    return places


def test_no_test_sleeps() -> None:
    """Tests wait for a condition with tests/wait.py; a test agent that must block says so on the line."""
    assert places_of_calls(("tests/",), lambda call, name: name in SLEEPS and not is_bare_yield(call, name)) == []


def test_nothing_reads_the_wall_clock_outside_the_clock() -> None:
    """Time is an argument: in the package, in the workers and in the tests alike."""
    assert places_of_calls(("ares_celery/", "workers/", "tests/"), lambda _, name: name in WALL_CLOCKS) == []


def test_a_forbidden_call_would_be_found() -> None:
    """The two tests above look at calls as they are really written."""
    source = "import datetime, time\nnow = datetime.datetime.now(tz=None)\ntime.sleep(1)\n"
    assert [name for _, name in calls_of(source)] == ["datetime.now", "time.sleep"]


def test_no_file_names_a_package_registry() -> None:
    """Which registry serves the packages is the business of the machine that installs."""
    found = [name for name, text in text_files() for host in REGISTRIES if host in text]
    assert found == []


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    """What works on one machine only does not belong here."""
    found = [
        f"{name}:{number}"
        for name, text in text_files()
        for number, line in enumerate(text.splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]
    assert found == []


def test_nothing_inside_the_package_imports_its_root() -> None:
    """The root is for users; inside, whoever imports it ties a knot."""
    found: list[str] = []
    for name, text in python_files("ares_celery/"):
        for node in ast.walk(parse_source(text)):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            if "ares_celery" in names:
                found.append(f"{name}:{node.lineno}" if isinstance(node, ast.stmt) else name)
    assert found == []


def test_files_and_functions_stay_small() -> None:
    """About 400 lines a file, 60 a function: what is larger has a second job."""
    large: list[str] = []
    for name, text in python_files("ares_celery/", "workers/", "tools/"):
        lines = text.count("\n")
        # The list of public names is as long as they are.
        if lines > MOST_LINES_OF_A_FILE and name != "ares_celery/__init__.py":
            large.append(f"{name}: {lines} lines")
        for node in ast.walk(parse_source(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MOST_LINES_OF_A_FUNCTION:
                    large.append(f"{name}:{node.lineno}: {node.name} has {length} lines")
    assert large == []


@pytest.mark.parametrize("file", ["constraints.txt", "constraints-lowest.txt"])
def test_constraints_are_names_and_versions_only(file: str) -> None:
    """No address, no path, no hash: they hold with any registry."""
    lines = [line for line in (ROOT / file).read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.]+", line)] == []


def test_the_lowest_constraints_are_the_lower_bounds_of_the_project() -> None:
    """What CI tests as lowest is what pyproject.toml promises."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = [*project["dependencies"], *project["optional-dependencies"]["flower"]]
    pinned = dict(
        line.lower().replace("_", "-").split("==")
        for line in (ROOT / "constraints-lowest.txt").read_text().splitlines()
        if "==" in line
    )
    differing: list[str] = []
    for requirement in promised:
        match = re.match(r"([A-Za-z0-9-]+)(?:\[\w+\])?>=([0-9.]+)", requirement)
        assert match is not None, f"{requirement} has no lower bound"
        name, bound = match.groups()
        tested = pinned.get(name, "absent")
        if tested not in {bound, f"{bound}.0"}:
            differing.append(f"{requirement}: tested with {tested}")
    assert differing == []


def test_changelog_fragments_are_named_by_their_kind() -> None:
    """A fragment of an unknown kind would be left out of the release notes in silence."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
    kinds = "|".join(kind["directory"] for kind in project["type"])
    names = [path.name for path in (ROOT / "changelog.d").iterdir() if path.name != "README.md"]
    assert [name for name in names if not re.fullmatch(rf"(?:\d+|\+[\w-]+)\.(?:{kinds})(?:\.\d+)?\.md", name)] == []
