"""A wait that was in vain says what the agent waits for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ares_celery.errors import WaitTimeoutError
from ares_celery.ids import Instant
from ares_celery.manager import CoreManager
from ares_celery.model.agent import AgentRecord, AgentSpec, AgentState, Desired


@pytest.mark.parametrize(
    ("next_attempt", "waiting_on", "has_hint"), [(Instant(0), "slot", True), (Instant(1), "backoff", False)]
)
def test_an_agent_that_nobody_took_is_told_to_lack_a_worker(
    next_attempt: Instant, waiting_on: str, *, has_hint: bool
) -> None:
    """One that waits for its next attempt does not lack any."""
    spec = AgentSpec(id="a", type="counter")
    record = AgentRecord(spec, Desired.RUNNING, AgentState.STARTING, next_attempt_at=next_attempt)

    def read(_: str) -> object:
        return SimpleNamespace(record=record)

    ports: Any = SimpleNamespace(store=SimpleNamespace(read=read))

    with pytest.raises(WaitTimeoutError, match="did not become running") as raised:
        CoreManager(ports).wait_for("a", "running", timeout=0)

    assert (raised.value.state, raised.value.waiting_on) == ("starting", waiting_on)
    assert ("no worker has taken it: does one run that reads its queue" in str(raised.value)) == has_hint
