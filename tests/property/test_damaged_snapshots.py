"""Any damage to stored snapshots: noticed, passed over, kept, said; and the state is what the events say."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ares_celery.config import RuntimeConfig
from ares_celery.errors import EventIntegrityError
from ares_celery.ids import Version
from ares_celery.model.command import Release
from ares_celery.model.event import Event
from ares_celery.model.snapshot import state_origin
from ares_celery.runtime.recovery import Recovery, StateCode, recover_agent_state
from ares_celery.store.base import DamagedSnapshot
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.store import RedisStore
from tests.contract.store.acting import AGENT, act, append, record_of, run, run_namespace, take
from tests.contract.store.backends import Backend, fake_backend

ORIGIN = state_origin(agent_type="counter", factory="shop.Counter", config={"step": 1})
EVENTS, KEPT = 6, 3


class Sum:
    """Adds up its events."""

    def __init__(self) -> None:
        self.total, self.applied, self.restored = 0, list[int](), False

    def apply(self, event: Event) -> None:
        self.applied.append(event.version)
        self.total += event.payload["n"]

    def snapshot(self) -> Mapping[str, Any]:
        return {"total": self.total}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.total, self.restored = state["total"], True


class Unfolded:
    """Has the same state, and folds nothing."""

    def __init__(self) -> None:
        self.restored: dict[str, Any] | None = None

    def snapshot(self) -> Mapping[str, Any]:
        return {}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.restored = state


def lived(backend: Backend) -> RedisStore:
    """An agent that emitted six events, and took a snapshot after each of the last three; claimable again."""
    store = run_namespace(backend.open(RuntimeConfig(snapshots_kept=KEPT)))
    fence = run(store)
    for number in range(1, EVENTS + 1):
        append(store, fence, number, expected=number)
        if number > EVENTS - KEPT:
            state, version = {"total": sum(range(number + 1))}, Version(number + 1)
            store.save_snapshot(AGENT, fence, state, version=version, schema=1, origin=ORIGIN)
    act(store, Release(fence=fence, reason="drain"))
    return store


def damage(blob: bytes, position: int, mask: int) -> bytes:
    """One byte changed, or with mask 0 all from there on cut off."""
    place = position % len(blob)
    return blob[:place] if mask == 0 else blob[:place] + bytes([blob[place] ^ mask]) + blob[place + 1 :]


@pytest.mark.pain("P21")
@example([(0, 0), (0, 0)])  # two of the same bytes are two
@given(damages=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=KEPT))
def test_whatever_byte_is_flipped_or_cut_off_the_state_is_the_fold_and_the_bad_bytes_are_kept(
    damages: list[tuple[int, int]],
) -> None:
    """The newest ones are damaged, one to all: the next older good one with a longer replay, at last all events.

    Each bad one is set aside byte for byte, said by a finding, and not overwritten by what is saved afterwards.
    """
    backend = fake_backend(f"t{uuid.uuid4().hex[:12]}")
    store = lived(backend)
    client: Any = backend.client()
    key = Keys(store.namespace, store.config.shards).snapshots(AGENT)
    bad: list[bytes] = []
    for number, (position, mask) in enumerate(damages):
        bad.append(damage(client.lindex(key, number), position, mask))
        client.execute_command("LSET", key, number, bad[-1])

    claimed = take(store, record_of(store).epoch)
    recovery, agent = Recovery(store, claimed, StateCode("counter", origin=ORIGIN)), Sum()
    done = recover_agent_state(recovery, agent) if len(damages) < KEPT else recovered_from_all(recovery, agent)

    assert agent.total == sum(range(EVENTS + 1))
    assert done.damaged == len(damages)
    assert agent.restored == (len(damages) < KEPT)
    assert [finding.kind for finding in recovery.found] == ["snapshot.damaged"] * len(damages)
    for number in range(20, 20 + 2 * KEPT):
        store.save_snapshot(
            AGENT, claimed.record.fence, {"total": 21}, version=Version(number), schema=1, origin=ORIGIN
        )
    assert [one.raw for one in store.damaged_snapshots(AGENT)] == bad
    assert not any(isinstance(one, DamagedSnapshot) for one in store.stored_snapshots(AGENT))
    backend.close()


def recovered_from_all(recovery: Recovery, agent: Sum) -> Any:
    """With no good snapshot left: who folds nothing is refused and all stays in its place, who folds begins anew."""
    unfolded = Unfolded()
    with pytest.raises(EventIntegrityError, match="all 3 snapshots are damaged"):
        recover_agent_state(recovery, unfolded)
    assert unfolded.restored is None
    recovery.found.clear()
    return recover_agent_state(recovery, agent)
