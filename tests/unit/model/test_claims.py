"""Claims, messages and deadlines: a message carries no truth, the record does."""

from __future__ import annotations

import pytest

from ares_celery.errors import FencedError
from ares_celery.ids import Epoch, Instant
from ares_celery.model.agent import AgentSpec, AgentState, RuntimeState
from ares_celery.model.command import AttemptFailed, Claim, Deadline, MarkRunning, Pause, Release, Start, Stop
from ares_celery.model.plan import nudge_for
from tests.unit.model.life import ID, Life

#: Tokens that claimers bring.
ABC, LATE = "abc", "late"


def refusal(life: Life, epoch: Epoch, token: str = LATE) -> str:
    """Why a claim is refused."""
    with pytest.raises(FencedError) as caught:
        life.do(Claim(epoch=epoch, token=token))
    return str(caught.value.reason)


def test_a_claim_takes_the_fence_and_raises_no_epoch() -> None:
    """The fence is epoch|token; lease and hang deadlines replace the nudge."""
    life = Life().start()
    epoch = life.record.epoch
    assert life.claim("p1", token=ABC) == f"{epoch}|abc"
    assert (life.record.epoch, life.record.incarnation, life.state) == (epoch, 1, AgentState.STARTING)
    assert (life.deadline(Deadline.LEASE), life.deadline(Deadline.HANG)) == (8, 60)
    assert life.deadline(Deadline.NUDGE) is None


def test_a_repeated_claim_of_the_same_claimer_is_the_same_claim() -> None:
    """Its reply was lost; the token tells, also when something was asked of the incarnation in between."""
    life = Life().start()
    epoch = life.record.epoch
    life.claim(token=ABC)
    again = Claim(epoch=epoch, token=ABC)
    assert life.do(again).ignored
    life.do(Stop())
    assert life.do(again).ignored
    assert life.record.incarnation == 1


def test_a_claim_is_refused_with_its_reason() -> None:
    """Epoch, owned, not desired or early: the words that the no-op's log shows."""
    life = Life().start()
    epoch = life.record.epoch
    assert refusal(life, Epoch(epoch - 1)) == "epoch"
    life.claim()
    assert refusal(life, epoch) == "owned"
    life.do(MarkRunning(fence=life.record.fence))
    assert refusal(life, epoch) == "owned"
    assert refusal(life, Epoch(epoch - 1)) == "epoch"
    life.do(Pause())
    life.release()
    assert refusal(life, epoch) == "epoch"
    assert refusal(life, life.record.epoch) == "not desired"


def test_nothing_is_claimed_in_a_stopped_runtime() -> None:
    """Also before the reconcile has come around to this agent."""
    life = Life().start()
    life.store.runtime = RuntimeState.STOPPED
    assert refusal(life, life.record.epoch) == "not desired"


def test_nothing_is_claimed_before_the_old_incarnation_is_proven_over() -> None:
    """A forced stop fences; its process may still be inside a call until its lease ends."""
    life = Life().start().run()
    life.do(Stop(force=True))
    life.do(Start())
    assert refusal(life, life.record.epoch) == "early"
    life.let_pass(Deadline.ATTEMPT)
    life.run("p2")
    assert life.state is AgentState.RUNNING


def test_a_message_that_nobody_claims_is_sent_again_later_each_time() -> None:
    """2, 5, 10, 20, 40, 60, 60 s; waiting for a free slot is no death."""
    life = Life().start()
    waits: list[float | None] = []
    for _ in range(8):
        waits.append(life.deadline(Deadline.NUDGE))
        assert life.let_pass(Deadline.NUDGE).nudge
    assert waits == [2, 5, 10, 20, 40, 60, 60, 60]
    assert (life.record.charged, life.record.restarts, life.record.failures) == (0, 0, 0)
    assert len(life.store.messages) == 9


def test_a_message_that_still_waits_in_its_queue_is_not_sent_again_and_looked_at_later() -> None:
    """A full queue is no reason to fill it; the spacing is the same, so that a free slot finds a lost one soon."""
    life = Life().start()
    for wait in (2, 5, 10):
        assert life.deadline(Deadline.NUDGE) == wait
        assert not life.let_pass(Deadline.NUDGE, crowded=True).nudge
    assert len(life.store.messages) == 1


def test_a_message_names_the_incarnation_that_it_starts() -> None:
    """Epoch, number and queue; resurrect_agent after a death, run_agent else; a repeat has a fresh task id."""
    life = Life()
    life.do(Start(spec=AgentSpec(id=ID, type="t", queue="slow")))
    (first,) = life.store.messages
    assert (first.agent_id, first.epoch, first.incarnation, first.queue) == (ID, life.record.epoch, 1, "slow")
    assert not first.resurrect
    life.run()
    life.crash()
    assert life.store.messages[-1].resurrect
    life.claim()
    life.fail_attempt()
    assert nudge_for(life.record).task_id == ""


def test_a_retry_of_celery_keeps_its_task_id_and_count_until_it_is_sent_again() -> None:
    """The deadline is the truth; the message is rebuilt from the record."""
    life = Life().start().run()
    life.crash()
    life.claim()
    life.store.do(ID, _failed(life))
    assert (nudge_for(life.record).task_id, nudge_for(life.record).retries) == ("celery-1", 3)
    assert nudge_for(life.record, fresh=True).task_id == ""


def _failed(life: Life) -> AttemptFailed:
    return AttemptFailed("no", fence=life.record.fence, task_id="celery-1", retries=3)


def test_every_end_of_an_incarnation_raises_the_epoch_even_when_the_clock_stepped_back() -> None:
    """Epochs only rise: max(old + 1, now)."""
    life = Life().start().run()
    epoch = life.record.epoch
    life.store.now = Instant(life.store.now - 3_600_000_000)
    life.release()
    assert life.record.epoch == epoch + 1


@pytest.mark.parametrize("fence", ["", "1|other", "{epoch}|other", "1|token-1"])
def test_only_the_exact_fence_speaks_for_an_incarnation(fence: str) -> None:
    """Another token or another epoch is refused, and so is none."""
    life = Life().start().run()
    shown = fence.format(epoch=life.record.epoch)
    with pytest.raises(FencedError):
        life.do(Release(fence=shown))
    assert not life.store.accepts(ID, shown)


def test_saying_twice_that_it_runs_is_said_once() -> None:
    """A repeat writes no second agent.started and does not move the time since when it runs."""
    life = Life().start().run()
    since = life.record.running_since
    life.wait(5)
    assert life.do(MarkRunning(fence=life.record.fence)).ignored
    assert life.told() == ["agent.started(start)"]
    assert life.record.running_since == since


def test_an_incarnation_that_was_asked_to_end_while_it_recovered_does_not_begin() -> None:
    """The request wins: it should release instead."""
    life = Life().start()
    fence = life.claim()
    life.do(Stop())
    assert life.do(MarkRunning(fence=fence)).ignored
    assert life.state is AgentState.STOPPING
