"""Messages while processes die: an agent's host in the middle of an answer, its caller, and Redis."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ares_celery import AgentSpec, DeadReason
from tests.fleet import Fleet

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

CALLER = """
from ares_celery import Manager
with Manager.from_env() as manager:
    for chunk in manager.process_stream("left", {"count": 1000000, "pause": 0.05}, message_id="left"):
        if chunk.seq == 3:
            print("reads", flush=True)
"""


def in_background(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """A call on a thread of its own, and what it gave."""
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(work()), daemon=True)
    thread.start()
    return thread, got


def test_answers_survive_the_deaths_of_their_host_and_of_redis_and_end_with_their_caller(
    make_fleet: Callable[..., Fleet],
) -> None:
    """Each chunk comes once and in order; a message in hand is handled again; nobody streams for the dead."""
    fleet = make_fleet(appendonly=True)
    first = fleet.worker("first")
    for agent_id in ("asked", "streams", "left"):
        fleet.manager.start_agent(AgentSpec(id=agent_id, type="streamer"), wait="running")
    fleet.worker("second")

    # A caller that dies.
    caller = subprocess.Popen([sys.executable, "-c", CALLER], env=fleet.env, stdout=subprocess.PIPE)
    assert caller.stdout is not None
    assert caller.stdout.readline() == b"reads\n"
    caller.kill()
    caller.wait(10)
    caller.stdout.close()

    # A host that dies in the middle of an answer and of a stream; then Redis dies, too.
    asking, answer = in_background(lambda: fleet.manager.process("asked", "hello", timeout=60))
    fleet.wait(lambda: fleet.events("asked", "handled"), "the message to be in hand")
    with fleet.manager.process_stream("streams", {"count": 60, "pause": 0.05}, timeout=40) as stream:
        chunks = [next(stream) for _ in range(10)]
        first.kill()
        chunks += [next(stream) for _ in range(20)]
        fleet.redis.kill()
        fleet.redis.start()
        chunks += list(stream)
    assert [chunk.seq for chunk in chunks] == list(range(1, 63))
    assert [chunk.data for chunk in chunks[1:]] == [*range(60), {"count": 60}]
    assert [chunk.final for chunk in chunks] == [False] * 61 + [True]

    asking.join(60)
    assert (answer[0]["echo"], answer[0]["incarnation"]) == ("hello", fleet.info("asked").incarnation)
    assert len(fleet.events("asked", "handled")) == 2

    fleet.wait(lambda: fleet.manager.dead_letters("left"), "the dead caller's stream to end", timeout=30)
    (letter,) = fleet.manager.dead_letters()
    assert (letter.message_id, letter.reason) == ("left", DeadReason.CALLER_LEFT)
