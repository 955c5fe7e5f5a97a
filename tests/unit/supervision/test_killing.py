"""SIGKILL of the process that hosts an agent, and of a whole worker: never of another, never without their names."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import fakeredis
import pytest

from ares_celery.config import RuntimeConfig
from ares_celery.errors import ChaosDisabledError, OperationNotSupportedError, WorkerNotFoundError
from ares_celery.ids import AgentId
from ares_celery.model.agent import Owner, RuntimeState
from ares_celery.runtime.process_identity import ProcessIdentity
from ares_celery.store.redis.store import RedisStore
from ares_celery.supervision.killing import kill_hosting_process, kill_worker_process
from tests.contract.store.acting import run
from tests.wait import wait_until

WORKER = "one@host"
WHY = ("a test", "eve")


@pytest.fixture
def store(namespace: str) -> Iterator[RedisStore]:
    """A namespace that runs."""
    made = RedisStore.from_client(fakeredis.FakeRedis(server=fakeredis.FakeServer()), namespace, RuntimeConfig())
    made.set_runtime(RuntimeState.RUNNING, only_from=(RuntimeState.NEW,), reason="test", actor="test")
    yield made
    made.close()


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A main process with a child."""
    with subprocess.Popen(["/bin/sh", "-c", "sleep 60 & wait"]) as made:
        yield made
        made.kill()


def child_of(process: subprocess.Popen[bytes]) -> int:
    """Its child, once it is there."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_until(lambda: children.read_text().split(), "the child")
    return int(children.read_text().split()[0])


def identity_of(pid: int) -> str:
    """As workers report it."""
    found = ProcessIdentity.of_pid(pid)
    assert found is not None
    return found.encode()


def host(store: RedisStore, agent_id: str, identity: str, worker: str = WORKER) -> None:
    """The agent runs there."""
    run(store, AgentId(agent_id), owner=Owner(identity, worker, "task-1"))


def noted(store: RedisStore) -> list[tuple[str, str | None, str, str]]:
    """What the audit says of kills."""
    return [
        (one.operation, one.agent_id, one.reason, one.actor)
        for one in store.audit()
        if one.operation.startswith("kill")
    ]


def test_the_process_of_an_agent_is_killed_and_nothing_else(
    store: RedisStore, process: subprocess.Popen[bytes]
) -> None:
    """Refused while another agent lives in it, by name; with force both die."""
    child = child_of(process)
    host(store, "a", identity_of(child))
    host(store, "b", identity_of(child))
    with pytest.raises(OperationNotSupportedError, match="its process also hosts b; pass force=True") as refused:
        kill_hosting_process(store, AgentId("a"), allowed=True, force=False, why=WHY)
    assert refused.value.fields["co_tenants"] == ["b"]
    assert (noted(store), Path(f"/proc/{child}").exists()) == ([], True)
    killed = kill_hosting_process(store, AgentId("a"), allowed=True, force=True, why=WHY)
    assert killed == {"agent_id": "a", "pid": child, "worker": WORKER, "co_tenants": ["b"]}
    assert process.wait(10) == 0, "its parent lives on, and ends as its child has"
    assert noted(store) == [("kill", "a", "a test", "eve")]
    with pytest.raises(OperationNotSupportedError, match=f"its process {child} has ended"):
        kill_hosting_process(store, AgentId("a"), allowed=True, force=True, why=WHY)


def test_a_worker_is_killed_by_its_main_process(store: RedisStore, process: subprocess.Popen[bytes]) -> None:
    """Whatever its children report; refused while it hosts agents, by name."""
    child = child_of(process)
    for pid in (child, process.pid):
        store.report_hosts(identity_of(pid), WORKER)
    host(store, "a", identity_of(child))
    host(store, "b", identity_of(process.pid))
    with pytest.raises(ChaosDisabledError, match="kill_worker"):
        kill_worker_process(store, WORKER, allowed=False, force=True, why=WHY)
    with pytest.raises(OperationNotSupportedError, match="it hosts a, b; pass force=True") as refused:
        kill_worker_process(store, WORKER, allowed=True, force=False, why=WHY)
    assert (refused.value.fields["agents"], refused.value.fields["worker"]) == (["a", "b"], WORKER)
    assert (noted(store), process.poll()) == ([], None)
    killed = kill_worker_process(store, WORKER, allowed=True, force=True, why=WHY)
    assert killed == {"worker": WORKER, "pid": process.pid, "agents": ["a", "b"]}
    assert process.wait(10) == -signal.SIGKILL
    assert sorted(noted(store), key=str) == [
        ("kill", "a", "a test", "eve"),
        ("kill", "b", "a test", "eve"),
        ("kill_worker", None, "one@host: a test", "eve"),
    ]


def test_an_idle_worker_is_killed_without_force(store: RedisStore, process: subprocess.Popen[bytes]) -> None:
    """One that was started again under the name of a dead one is the one that lives."""
    with subprocess.Popen(["/bin/true"]) as dead:
        store.report_hosts(identity_of(dead.pid), WORKER)
        dead.wait()
    store.report_hosts(identity_of(process.pid), WORKER)
    assert kill_worker_process(store, WORKER, allowed=True, force=False, why=("", "eve"))["pid"] == process.pid
    assert noted(store) == [("kill_worker", None, WORKER, "eve")]
    process.wait(10)
    with pytest.raises(OperationNotSupportedError, match="its process has ended"):
        kill_worker_process(store, WORKER, allowed=True, force=False, why=WHY)


def test_two_workers_of_one_name_are_left_alone(store: RedisStore, process: subprocess.Popen[bytes]) -> None:
    """Nobody knows which is meant."""
    with subprocess.Popen(["/bin/sleep", "60"]) as other:
        for pid in (process.pid, other.pid):
            store.report_hosts(identity_of(pid), WORKER)
        with pytest.raises(OperationNotSupportedError, match="all have its name: give each a name of its own"):
            kill_worker_process(store, WORKER, allowed=True, force=True, why=WHY)
        assert (process.poll(), other.poll()) == (None, None)
        other.kill()


def test_an_unknown_worker_is_an_error_that_names_the_known_ones(store: RedisStore) -> None:
    """As they have reported."""
    store.report_hosts("far:boot:4026531836:4711:98765", "two@far")
    with pytest.raises(WorkerNotFoundError) as unknown:
        kill_worker_process(store, WORKER, allowed=True, force=True, why=WHY)
    assert (unknown.value.fields["worker"], unknown.value.fields["known"]) == (WORKER, ["two@far"])
    assert "no worker 'one@host' serves this namespace; those that do are ['two@far']" in str(unknown.value)


def test_what_runs_on_another_machine_is_not_killed_from_here(store: RedisStore) -> None:
    """Its pid is another process here. The error says where it is; with force or without; nothing is noted."""
    elsewhere = "far:boot:4026531836:4711:98765"
    store.report_hosts(elsewhere, "two@far")
    host(store, "a", elsewhere, "two@far")
    host(store, "b", elsewhere, "two@far")
    told = "process 4711 runs on host far, where nobody can kill it from here: do it there"
    for force in (False, True):
        with pytest.raises(OperationNotSupportedError, match=told) as of_agent:
            kill_hosting_process(store, AgentId("a"), allowed=True, force=force, why=WHY)
        assert of_agent.value.fields["host"] == "far"
        with pytest.raises(OperationNotSupportedError, match=told):
            kill_worker_process(store, "two@far", allowed=True, force=force, why=WHY)
    assert noted(store) == []
