"""A wait that was in vain says what the agent waits for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ares_celery.errors import WaitTimeoutError
from ares_celery.ids import Instant
from ares_celery.manager import CoreManager
from ares_celery.model.agent import AgentRecord, AgentSpec, AgentState, Desired

SLOT = "no worker has taken it: does one run that reads its queue"
RUNTIME = "the runtime does not run yet: does an agents worker run?"


@pytest.mark.parametrize(
    ("state", "next_attempt", "waiting_on", "hints"),
    [
        (AgentState.STARTING, Instant(0), "slot", [SLOT]),
        (AgentState.STARTING, Instant(1), "backoff", []),
        (AgentState.REGISTERED, Instant(0), None, [RUNTIME]),
    ],
)
def test_an_agent_that_nobody_took_is_told_to_lack_a_worker(
    state: AgentState, next_attempt: Instant, waiting_on: str | None, hints: list[str]
) -> None:
    """One that waits for its next attempt does not lack any."""
    spec = AgentSpec(id="a", type="counter")
    record = AgentRecord(spec, Desired.RUNNING, state, next_attempt_at=next_attempt)

    def read(_: str) -> object:
        return SimpleNamespace(record=record)

    ports: Any = SimpleNamespace(store=SimpleNamespace(read=read))

    with pytest.raises(WaitTimeoutError, match="did not become running") as raised:
        CoreManager(ports).wait_for("a", "running", timeout=0)

    assert (raised.value.state, raised.value.waiting_on) == (state.value, waiting_on)
    assert [hint for hint in (SLOT, RUNTIME) if hint in str(raised.value)] == hints
