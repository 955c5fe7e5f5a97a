"""Before a deployment: which stored states would the new code not load?"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ares_celery import AgentSpec
from ares_celery.agents.registry import Registry
from ares_celery.ids import AgentId, Version
from ares_celery.model.snapshot import state_origin
from ares_celery.runtime.elsewhere import SnapshotsElsewhere
from ares_celery.runtime.state_check import StateCheck, check_states
from ares_celery.store.base import Store
from tests.hosting import Runtime
from tests.integration.checked_agents import Counter, Forgetful, Hidden, name_the_total
from tests.integration.command_line import ares, environment
from tests.redis_server import RedisServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


class OldRelease:
    """Hosts agents until they have a state."""

    def __init__(self, agent_id: str, **config: object) -> None: ...

    def process(self, ctx: Any, message: Any) -> object:
        return None


@pytest.fixture
def runtime(redis_server: RedisServer, namespace: str) -> Iterator[Runtime]:
    """A namespace with agents of some types."""
    with Runtime(redis_server.url, namespace) as made:
        made.manager.start()
        for name in ("checked-counter", "checked-forgetful", "checked-hidden", "gone"):
            made.register(name, OldRelease)
        yield made


def has_state(runtime: Runtime, agent_id: str, agent_type: str, *states: tuple[dict[str, Any], int]) -> None:
    """An agent at rest with these states, each with its schema, oldest first."""
    runtime.manager.start_agent(AgentSpec(id=agent_id, type=agent_type), wait="running")
    record = runtime.store.read(AgentId(agent_id)).record
    assert record is not None
    for number, (state, schema) in enumerate(states, 1):
        origin = state_origin(agent_type=agent_type, factory="old", config={})
        runtime.store.save_snapshot(
            record.id, record.fence, state, version=Version(number), schema=schema, origin=origin
        )
    runtime.manager.stop_agent(agent_id)


def new_release() -> Registry:
    """The code at hand."""
    registry = Registry()
    registry.register("checked-counter", Counter, schema=2)
    registry.upcasters.add("checked-counter", 1, name_the_total)
    registry.register("checked-forgetful", Forgetful, schema=3)
    registry.register("checked-hidden", Hidden)
    return registry


def check(store: Store, registry: Registry, **options: Any) -> dict[tuple[str, int | None], StateCheck]:
    """By agent and version."""
    found = check_states(store, registry, store.list_ids(), **options)
    return {(result.agent_id, result.version): result for result in found}


def revisions_of(runtime: Runtime) -> list[int]:
    """What any change of an agent's record would change."""
    reads = [runtime.store.read(agent_id) for agent_id in runtime.store.list_ids()]
    return [read.record.revision for read in reads if read.record is not None]


def fill(runtime: Runtime) -> None:
    """Every way in which a state may not load, and some that load."""
    has_state(runtime, "good", "checked-counter", ({"n": 3}, 1), ({"total": 4}, 2), ({"total": 5}, 0))
    has_state(runtime, "odd", "checked-counter", ({"m": 3}, 1), ({"total": "many"}, 2), ({"total": 1}, 3))
    has_state(runtime, "unlinked", "checked-forgetful", ({}, 1), ({"x": 1}, 3))
    has_state(runtime, "hidden", "checked-hidden", ({"x": 1}, 1))
    has_state(runtime, "gone", "gone", ({"x": 1}, 1))
    has_state(runtime, "stateless", "checked-hidden")


def test_every_stored_state_is_tried_and_the_reason_is_named(runtime: Runtime) -> None:
    """Missing link, newer schema, what restore_state raises, a type that is gone, damage; nothing is changed."""
    fill(runtime)
    raw: Any = runtime.store._bound.client._driver
    raw.execute_command("LPUSH", runtime.store._bound.keys.snapshots("good"), b"9|rubbish")
    revisions = revisions_of(runtime)

    found = check(runtime.store, new_release())

    assert {key for key, result in found.items() if result.loads} == {("good", 1), ("good", 2), ("good", 3)}
    problems = {
        ("good", None): "damaged: ",
        ("odd", 1): "StateUpcastError: .*KeyError: 'n'",
        ("odd", 2): "ValueError: invalid literal",
        ("odd", 3): "NewerStateError: .*schema 3.*knows 2",
        ("unlinked", 1): "StateUpcastError: .*from_version=1",
        ("unlinked", 2): "SystemExit: no state is right",
        ("hidden", 1): "no restore_state",
        ("gone", 1): "UnknownAgentTypeError",
    }
    assert set(found) - {("good", 1), ("good", 2), ("good", 3)} == set(problems)
    assert {key for key, result in found.items() if not result.tried} == {("gone", 1)}
    for key, problem in problems.items():
        assert re.search(problem, found[key].problem), found[key]
    assert (found["odd", 3].schema, found["odd", 3].known, found["gone", 1].known) == (3, 2, None)
    assert set(check(runtime.store, new_release(), agent_type="checked-hidden")) == {("hidden", 1)}
    assert revisions_of(runtime) == revisions


def test_a_hang_and_an_unreadable_record_hold_up_no_other(runtime: Runtime, request: pytest.FixtureRequest) -> None:
    """Each is one line among the others."""
    over = threading.Event()
    request.addfinalizer(over.set)

    class Hangs(Counter):
        def __init__(self, agent_id: str) -> None:
            super().__init__(agent_id)
            if agent_id == "b":
                over.wait(20)

    registry = Registry()
    registry.register("checked-counter", Hangs)
    for agent_id in ("a", "b", "c"):
        has_state(runtime, agent_id, "checked-counter", ({"total": 1}, 1))
    raw: Any = runtime.store._bound.client._driver
    raw.execute_command("HSET", runtime.store._bound.keys.agent("c"), "spec", "{")
    found = check(runtime.store, registry, limit=0.3)
    assert found["a", 1].loads
    assert "did not return within 0.3 s" in found["b", 1].problem
    assert "cannot be read" in found["c", None].problem


def test_states_in_a_store_of_the_users_own_are_tried_too(runtime: Runtime) -> None:
    """Also the news that it does not answer."""

    class Bucket:
        def save(self, agent_id: str, state: Any) -> None: ...

        def load(self, agent_id: str) -> Any:
            if agent_id == "b":
                raise OSError("no bucket")
            return {"total": 7}

        def delete(self, agent_id: str) -> None: ...

    for agent_id in ("a", "b"):
        has_state(runtime, agent_id, "checked-counter")
    elsewhere = SnapshotsElsewhere(Bucket(), runtime.store.events)
    results = list(check_states(runtime.store, new_release(), runtime.store.list_ids(), elsewhere=elsewhere))
    assert [(one.agent_id, one.loads) for one in results] == [("a", True), ("b", False)]
    assert all(one.place.endswith(".Bucket") for one in results)
    assert "no bucket" in results[1].problem


def test_the_command_lists_what_would_not_load_and_fails(
    runtime: Runtime, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Exit code 1 with a table or JSON; 0 when all would load; the modules are those of a worker."""
    fill(runtime)
    env = environment(
        tmp_path,
        ARES_REDIS_URL=redis_server.url,
        ARES_NAMESPACE=runtime.store.namespace,
        ARES_AGENT_MODULES="tests.integration.checked_agents",
    )
    failed = ares("agents", "check", "-o", "json", env=env, folder=tmp_path)
    assert failed.returncode == 1, failed.stderr
    told = json.loads(failed.stdout)
    assert (told["checked"], told["unknown"]) == (9, {"gone": 1})
    assert {(one["agent_id"], one["version"]) for one in told["failed"]} == {
        ("odd", 1),
        ("odd", 2),
        ("odd", 3),
        ("unlinked", 1),
        ("unlinked", 2),
        ("hidden", 1),
    }
    for asked in (("--all",), ("--type", "gone"), ("gone",)):
        gone = ares("agents", "check", *asked, "-o", "json", env=env, folder=tmp_path)
        assert gone.returncode == 1
        assert ("gone", 1) in {(one["agent_id"], one["version"]) for one in json.loads(gone.stdout)["failed"]}
    nothing = ares("agents", "check", env={**env, "ARES_AGENT_MODULES": "json"}, folder=tmp_path)
    assert nothing.returncode == 1, "no news of any state is not good news"
    assert "0 stored states tried" in nothing.stderr
    assert (
        "does not know their type: checked-counter (6), checked-forgetful (2), checked-hidden (1), gone (1)"
        in nothing.stderr
    )
    good = ares("agents", "check", "good", env=env, folder=tmp_path)
    assert (good.returncode, good.stdout) == (0, "")
    assert "3 stored states tried, 0 would not load" in good.stderr
    table = ares("agents", "check", "--type", "checked-hidden", env=env, folder=tmp_path)
    assert table.returncode == 1
    assert "no restore_state" in table.stdout
