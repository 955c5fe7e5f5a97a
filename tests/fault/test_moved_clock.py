"""The wall clock of one worker is hours off: agents see it, and the runtime, which asks Redis, does not care."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from ares_celery import AgentSpec
from ares_celery.arena.actions import clock_offset
from ares_celery.arena.ring import Ring, entered
from ares_celery.clock import SystemClock, to_datetime
from ares_celery.errors import OperationNotSupportedError
from tests.fleet import Fleet

pytestmark = [pytest.mark.integration, pytest.mark.fault, pytest.mark.timeout(120)]
#: Seconds by which a shared machine may be late.
LATE = 3.0


def now() -> datetime:
    """The right time, which Redis has, too."""
    return to_datetime(SystemClock().wall())


def off(fleet: Fleet) -> float:
    """Seconds that an agent's clock is off."""
    seen = fleet.manager.process("w", "what time is it", timeout=10)
    return float(seen["wall"]) - now().timestamp()


@pytest.mark.parametrize(("pool", "offset"), [("prefork", "2h"), ("threads", "-2h")])
def test_a_worker_whose_clock_is_off_neither_kills_nor_is_late_and_its_death_is_recovered(
    make_fleet: Callable[..., Fleet], tmp_path: Path, pool: str, offset: str
) -> None:
    """It hosts, sweeps, and takes new agents; timers fire at their moment, events have the right time.

    Then the clock is right again by itself. Off once more, its process is killed, and the agent goes on where it was,
    in the child that takes the place of the dead, whose clock is off as well, or in another worker.
    """
    fleet, file, seconds = make_fleet(), str(tmp_path / "clock"), 7200 * (-1 if "-" in offset else 1)
    more = {"ARES_AGENT_MODULES": "tests.clock_agents", "ARES_CLOCK_FILE": file}
    moved = fleet.worker("moved", pool=pool, slots=4, env=more)
    fleet.manager.start_agent(AgentSpec(id="w", type="watch"))
    fleet.until_ticks("w", 0, timeout=40)
    assert abs(off(fleet)) < LATE

    with entered(Ring(fleet.manager)):
        begun = now()
        told = clock_offset(file, offset, duration="4s")
        assert told == {"file": file, "offset": float(seconds), "duration": 4.0}
        fleet.wait(lambda: abs(off(fleet) - seconds) < LATE, "the agent's clock to be off")
        until = now() + timedelta(seconds=1.5)
        fleet.manager.start_agent(AgentSpec(id="a", type="alarm", config={"until": until.isoformat()}))
        fleet.until("a", "completed")
        (woke,) = fleet.events("a", "woke")
        assert timedelta(0) <= woke.time - until < timedelta(seconds=LATE)
        assert woke.payload["wall"] - woke.time.timestamp() == pytest.approx(seconds, abs=LATE)
        fleet.wait(lambda: abs(off(fleet)) < LATE, "the clock to be right again")
        assert now() - begun > timedelta(seconds=4)

    events = fleet.events("w") + fleet.events("a")
    assert all(begun - timedelta(minutes=1) < event.time <= now() for event in events)
    assert fleet.events("w", "failover.triggered") == fleet.events("a", "failover.triggered") == []
    assert (fleet.info("w").incarnation, fleet.info("a").incarnation) == (1, 1)

    with entered(Ring(fleet.manager)):
        clock_offset(file, offset, duration="1h")
        fleet.wait(lambda: abs(off(fleet) - seconds) < LATE, "the agent's clock to be off")
        if pool == "prefork":
            os.kill(cast("int", fleet.manager.process("w", "who", timeout=10)["pid"]), signal.SIGKILL)
            fleet.until("w", "running", incarnation=2)
            assert off(fleet) == pytest.approx(seconds, abs=LATE)
            fleet.until_ticks("w", fleet.ticks("w"))
        lives = fleet.info("w").incarnation
        fleet.worker("standby", env={"ARES_AGENT_MODULES": "tests.clock_agents"})
        os.killpg(moved.pid, signal.SIGKILL)
        moved.popen.wait(10)
        fleet.until("w", "running", incarnation=lives + 1)
        assert abs(off(fleet)) < LATE
        fleet.until_ticks("w", fleet.ticks("w"))
        fleet.check_streams("w")
        with pytest.raises(OperationNotSupportedError, match="no worker has it open"):
            clock_offset(file, offset)
