"""The pytest plug-in of the testing kit. Loaded by every pytest run on the machine, so it imports nothing of ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ares_celery.testing.arena import Arena
    from ares_celery.testing.runtime import AresRuntime, Runtimes

_MODULES = "ares_agent_modules"
_REPORTS = "--ares-reports"
_MARK = (
    "ares(agent_modules=(), workers=1, pool='threads', slots=16, app=…, **settings): "
    "what the fixture ares_runtime is to be made of; settings are fields of RuntimeConfig"
)
_runtimes: pytest.StashKey[Runtimes] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The modules with agents can be named once for the whole suite; reports of the arena are kept if somebody asks."""
    parser.addini(_MODULES, "modules that the workers of ares_runtime import to learn agent types", type="args")
    parser.getgroup("ares").addoption(
        _REPORTS,
        metavar="DIR",
        help="write the reports of the fixture arena there, as JSON and as pages with a timeline",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Makes the mark known to --strict-markers."""
    config.addinivalue_line("markers", _MARK)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Says what the tests ran on, if it was no real Redis."""
    runtimes = config.stash.get(_runtimes, None)
    if runtimes is not None and runtimes.warning:
        terminalreporter.write_line(f"ares_runtime: {runtimes.warning}", yellow=True)


@pytest.fixture(scope="session")
def _ares_runtimes(pytestconfig: pytest.Config) -> Iterator[Runtimes]:
    from ares_celery.testing.runtime import Runtimes

    made = pytestconfig.stash[_runtimes] = Runtimes()
    yield made
    made.close()


@pytest.fixture
def ares_runtime(request: pytest.FixtureRequest, _ares_runtimes: Runtimes) -> Iterator[AresRuntime]:
    """A runtime with a private Redis and real workers, without agents; tests that want the same share one."""
    from ares_celery.testing.runtime import options_from

    marks = [mark.kwargs for mark in request.node.iter_markers("ares")]
    runtime = _ares_runtimes.lend(options_from(request.config.getini(_MODULES), marks[::-1]))
    yield runtime
    # Shown for a test that failed.
    print(runtime.logs())  # noqa: T201
    _ares_runtimes.take_back(runtime)


@pytest.fixture
def arena(request: pytest.FixtureRequest, ares_runtime: AresRuntime) -> Iterator[Arena]:
    """Runs scenarios of faults and survival runs against the agents of ``ares_runtime``."""
    from ares_celery.testing.arena import Arena

    made = Arena(ares_runtime)
    yield made
    folder: str | None = request.config.getoption(_REPORTS)
    if folder is not None:
        made.write_reports(folder, request.node.nodeid)
