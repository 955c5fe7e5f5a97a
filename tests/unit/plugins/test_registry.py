"""Which plug-ins a worker runs: of modules, of installed packages, of the app."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from ares_celery.celery_app.plugins import WorkerPlugins
from ares_celery.errors import InvalidPluginError, PluginError
from ares_celery.plugins.contract import PluginContext
from ares_celery.plugins.registry import PLUGINS, PluginRegistry, installed_plugins, offers_of, register_plugin
from tests.unit.plugins.sample import Fake, Memory, make_bus
from tests.wait import wait_until


class Made(Fake):
    """A plug-in that is made by its class."""

    def __init__(self) -> None:
        super().__init__("made")


@pytest.fixture(autouse=True)
def empty_registry() -> Iterator[None]:
    """The process's registry belongs to the test."""
    PLUGINS.clear()
    yield
    PLUGINS.clear()


def test_what_is_registered_is_offered_in_order_and_once() -> None:
    """A module that is imported again replaces its class."""
    registry = PluginRegistry()
    one = Fake("one")
    for source in (one, Made, one, Made, lambda: Fake("a"), lambda: Fake("b")):
        registry.add(source)
    offers = registry.serve(make_bus())
    assert [offer.source for offer in offers[:2]] == [one, Made]
    assert len(offers) == 4
    assert [offer.is_shared for offer in offers] == [True, False, False, False]
    nobody: Any = None
    with pytest.raises(InvalidPluginError):
        registry.add(nobody)
    with pytest.raises(InvalidPluginError):
        offers_of([None])


def test_what_is_registered_later_starts_at_once_on_running_buses() -> None:
    """And its failure is told to whoever registered it; a bus that has left gets nothing."""
    bus = make_bus()
    PLUGINS.serve(bus)
    bus.start()
    assert register_plugin(Made) is Made
    assert bus.running == ["made"]

    def boom(*_: object) -> None:
        raise ValueError("boom")

    with pytest.raises(PluginError, match="boom"):
        register_plugin(Fake("bad", start=boom))
    PLUGINS.leave(bus)
    register_plugin(Fake("late"))
    assert bus.running == ["made"]
    bus.stop()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package with three entry points: a good one, one that cannot be imported, one that is an object."""
    (tmp_path / "installed_sample.py").write_text(
        "from tests.unit.plugins.sample import Fake\n\ndef good():\n    return Fake('good')\n\nbare = Fake('bare')\n"
    )
    meta = tmp_path / "installed_sample-1.0.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: installed-sample\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text(
        "[ares_celery.plugins]\ngood = installed_sample:good\n"
        "broken = installed_missing:x\nbare = installed_sample:bare\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "installed_sample", raising=False)
    return tmp_path


def test_entry_points_are_found_and_not_imported(installed: Path) -> None:
    """Importing is part of making the plug-in, where it is contained."""
    assert installed.exists()
    assert sorted(offer.label for offer in installed_plugins()) == ["bare", "broken", "good"]
    assert "installed_sample" not in sys.modules


class Opened:
    """As much of a store as plug-ins need."""

    namespace = "test"

    def __init__(self) -> None:
        self.events = self.memory = Memory()

    def count(self, by: Any, *, op: str) -> None:
        self.memory.count(by, op=op)


def open_plugins(plugins: WorkerPlugins, *running: str) -> Memory:
    """Opens a process's bus and waits until these run; returns what was written."""
    opened = Opened()
    bus = plugins.open(cast("Any", opened))
    wait_until(lambda: bus.running == list(running) and bus.wait_started(timedelta(0)), f"{running}, not {bus.running}")
    return opened.memory


def noting(contexts: list[PluginContext]) -> Callable[..., None]:
    """A start that keeps its context."""

    def start(ctx: PluginContext, bus: object) -> None:
        contexts.append(ctx)

    return start


def test_a_worker_runs_those_of_the_app_of_modules_and_of_packages(installed: Path) -> None:
    """In this order; what cannot be used is named and counted and costs nobody else."""
    told: list[str] = []
    seen: list[PluginContext] = []
    assert installed.exists()
    register_plugin(Made)
    register_plugin(Fake("made", told))
    plugins = WorkerPlugins(offers_of([Fake("app", told, start=noting(seen))]), "w@host", hosts_agents=True)
    memory = open_plugins(plugins, "app", "made", "good")
    assert told == ["start app"], "the second of one name is refused"
    assert (seen[0].namespace, seen[0].worker) == ("test", "w@host")
    assert (seen[0].hosts_agents, seen[0].supervises) == (True, True)
    assert "installed_missing" in memory.until("broken", "plugin.failed")[0]["error"]
    assert "not the plug-in itself" in memory.until("bare", "plugin.failed")[0]["error"]
    wait_until(lambda: memory.counted == {"plugin_failures": 3}, f"three failures, not {memory.counted}")
    plugins.close()
    assert told == ["start app", "stop app"]
    memory.until("good", "plugin.started", "plugin.stopped")
    assert plugins.bus is None


def test_a_forked_child_makes_its_own_and_refuses_objects() -> None:
    """An object was started by the parent, perhaps; its class makes a fresh one."""
    shared = Fake("shared")
    plugins = WorkerPlugins(offers_of([shared, Made]), "w@host", hosts_agents=True)
    plugins.let_children_host()
    contexts: list[PluginContext] = []
    register_plugin(lambda: Fake("seer", start=noting(contexts)))
    open_plugins(plugins, "shared", "made", "seer")
    assert (contexts[0].hosts_agents, contexts[0].supervises) == (False, True)
    plugins.forget()
    assert plugins.bus is None
    memory = open_plugins(plugins, "made", "seer")
    assert shared.told == ["start shared"]
    assert (contexts[1].hosts_agents, contexts[1].supervises) == (True, False)
    assert "give its class or a function" in memory.until("Fake", "plugin.failed")[0]["error"]
    plugins.close()


def test_without_plugins_no_thread_is_started() -> None:
    """A worker that has none pays nothing."""
    plugins = WorkerPlugins((), "w@host", hosts_agents=True)
    memory = open_plugins(plugins)
    assert plugins.bus is not None
    assert not plugins.bus.wants_events
    plugins.close()
    assert (memory.streams, memory.counted) == ({}, {})
