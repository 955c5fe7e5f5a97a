"""The pytest plug-in as users have it: real pytest processes, on the page that tells how."""

from __future__ import annotations

import re
import signal
import socket
from pathlib import Path

import pytest

from tests.wait import wait_until

pytest_plugins = ["pytester"]

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "test-your-agent.md"
STRICT = ["-p", "no:cacheprovider", "--strict-markers", "-W", "error"]


def write_page(pytester: pytest.Pytester) -> None:
    """Makes the files that the page shows, each named in its first line."""
    blocks = re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [name for name, _ in blocks] == ["shop_agents", "test_orders", "test_deployer", "test_shop"]
    pytester.makepyfile(**dict(blocks))
    pytester.makeini("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n")


def answers(port: int) -> bool:
    """Somebody listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def has_ended(pid: int) -> bool:
    """The process is gone, or a zombie of somebody else's."""
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.integration
@pytest.mark.timeout(120)
def test_the_tests_of_the_page_pass(pytester: pytest.Pytester) -> None:
    """As printed: a unit test without a server, and one with real workers."""
    write_page(pytester)
    result = pytester.runpytest_subprocess(*STRICT, "-v")
    result.assert_outcomes(passed=10)


@pytest.mark.integration
@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_nothing_is_left_of_a_session_that_was(pytester: pytest.Pytester, number: signal.Signals) -> None:
    """Worker, Redis and its guardian end with pytest, whatever ends that; what a test says of its runtime is true."""
    write_page(pytester)
    pytester.makepyfile(
        test_shop=f"""
        import os, pathlib, subprocess, pytest

        @pytest.mark.ares(agent_modules="shop_agents", slots=2, lease_ttl="2s")
        def test_something(ares_runtime):
            assert ares_runtime.manager.config.lease_ttl.total_seconds() == 2
            assert ares_runtime.env["ARES_NAMESPACE"] == ares_runtime.namespace
            assert "shop_agents" == ares_runtime.env["ARES_AGENT_MODULES"]
            me = pathlib.Path("/proc/self/task") / str(os.getpid()) / "children"
            pathlib.Path("pids").write_text(me.read_text())
            pathlib.Path("port").write_text(ares_runtime.redis_url.rpartition(":")[2].partition("/")[0])
            assert str(ares_runtime.worker_pid()) in me.read_text().split()
            os.kill(os.getpid(), {int(number)})
        """
    )
    result = pytester.runpytest_subprocess(*STRICT, "test_shop.py")
    assert result.ret != 0
    pids = [int(pid) for pid in (pytester.path / "pids").read_text().split()]
    assert len(pids) == 2
    wait_until(lambda: all(has_ended(pid) for pid in pids), f"{pids} to end")
    port = int((pytester.path / "port").read_text())
    wait_until(lambda: not answers(port), "the Redis server to end")


def test_a_suite_that_does_not_use_the_kit_pays_nothing(pytester: pytest.Pytester) -> None:
    """The plug-in imports itself, the two packages above it and their errors; the mark and the option are known."""
    pytester.makepyfile(
        test_other="""
        import sys, threading, pytest

        @pytest.mark.ares(workers=2)
        def test_nothing():
            ours = sorted(name for name in sys.modules if name.partition(".")[0] == "ares_celery")
            ours = [name for name in ours if not name.startswith("ares_celery.errors")]
            assert ours == ["ares_celery", "ares_celery.testing", "ares_celery.testing.pytest_plugin"]
            assert not {"redis", "celery", "kombu", "pydantic", "fakeredis"} & set(sys.modules)
            assert threading.active_count() == 1
        """
    )
    pytester.makeini("[pytest]\nares_agent_modules = a b\n")
    others = [
        word
        for name in ("asyncio", "hypothesispytest", "randomly", "timeout", "xdist")
        for word in ("-p", f"no:{name}")
    ]
    pytester.runpytest_subprocess(*STRICT, *others).assert_outcomes(passed=1)


def test_a_mark_with_an_unknown_word_is_refused(pytester: pytest.Pytester) -> None:
    """With the setting's name; no server is started for it."""
    pytester.makepyfile(
        test_other="""
        import pytest

        @pytest.mark.ares(lease="2s")
        def test_nothing(ares_runtime): ...
        """
    )
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    result = pytester.runpytest_subprocess(*STRICT)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*InvalidSettingError*lease*"])
