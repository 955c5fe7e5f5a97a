"""Backoff, failures in a row, and the window of charged deaths."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ares_celery.config import RuntimeConfig, default_config
from ares_celery.ids import Instant
from ares_celery.model.agent import AgentRecord, AgentSpec
from ares_celery.model.group import Group, Report, Strategy, take_report
from ares_celery.model.restart import backoff_delay, charged_deaths, failures_before, kept_charges
from tests.property.lifecycle_store import BEGINNING, default_policy
from tests.unit.model.life import ID, Life

POLICY = default_policy()
RECORD = AgentRecord(AgentSpec(id="a", type="t"), failures=3)
SECONDS = st.floats(0.001, 100_000).map(lambda seconds: timedelta(seconds=seconds))


def test_the_delay_doubles_from_one_second_to_thirty() -> None:
    """Failures in a row 0 to 9: the first comes back at once."""
    delays = [backoff_delay(POLICY, failures).total_seconds() for failures in range(10)]
    assert delays == [0, 0, 1, 2, 4, 8, 16, 30, 30, 30]


@pytest.mark.spec(5)
def test_the_schedule_is_that_of_the_settings() -> None:
    """Defaults 5 tries, 1 s, doubled, 30 s, no jitter; whatever is set instead is followed, a spec's own first."""
    config = default_config()
    assert (config.restore_attempts, config.restore_jitter) == (5, 0)
    assert (config.restore_backoff, config.restore_backoff_max) == (timedelta(seconds=1), timedelta(seconds=30))
    own = RuntimeConfig(restore_attempts=7, restore_backoff="2s", restore_backoff_max="10s", restore_jitter=0.5)
    policy = own.policy_for(None)
    assert policy.restore_attempts == 7
    plain = [backoff_delay(replace(policy, jitter=0), failures).total_seconds() for failures in range(1, 7)]
    assert plain == [0, 2, 4, 8, 10, 10]
    assert 5 <= backoff_delay(policy, 6, seed="a").total_seconds() <= 10
    spec = AgentSpec(id="a", type="t", restore_attempts=2, backoff="1s", backoff_max="3s", jitter=0)
    delays = [backoff_delay(own.policy_for(spec), failures).total_seconds() for failures in range(1, 6)]
    assert (own.policy_for(spec).restore_attempts, delays) == (2, [0, 1, 2, 3, 3])


def test_base_and_cap_are_the_policys_own() -> None:
    """Half a second, at most three."""
    policy = replace(POLICY, backoff=timedelta(seconds=0.5), backoff_max=timedelta(seconds=3))
    assert [backoff_delay(policy, failures).total_seconds() for failures in range(2, 7)] == [0.5, 1, 2, 3, 3]


def test_many_failures_of_a_long_backoff_do_not_overflow() -> None:
    """A thousand failures in a row of a backoff of days wait for the cap, no longer."""
    policy = replace(POLICY, backoff=timedelta(days=30), backoff_max=timedelta(days=60))
    assert backoff_delay(policy, 1000) == timedelta(days=60)


@given(st.integers(0, 1000), SECONDS, SECONDS, st.floats(0, 1), st.text(max_size=9))
def test_jitter_only_takes_away_and_never_more_than_its_fraction(
    failures: int, base: timedelta, cap: timedelta, jitter: float, seed: str
) -> None:
    """(1 - jitter) × delay ≤ jittered ≤ delay; the same seed gives the same delay."""
    plain = backoff_delay(replace(POLICY, backoff=base, backoff_max=cap, jitter=0.0), failures)
    policy = replace(POLICY, backoff=base, backoff_max=cap, jitter=jitter)
    jittered = backoff_delay(policy, failures, seed=seed)
    rounding = timedelta(microseconds=1)
    assert plain * (1 - jitter) - rounding <= jittered <= plain
    assert jittered == backoff_delay(policy, failures, seed=seed)


def test_jitter_spreads_agents_that_died_together() -> None:
    """Other seeds, other delays."""
    policy = replace(POLICY, jitter=0.5)
    assert len({backoff_delay(policy, 7, seed=f"a{number}|1") for number in range(50)}) > 40


def test_failures_count_until_it_ran_for_a_stable_while() -> None:
    """stable_after is inclusive; an incarnation that never ran forgets nothing."""
    ran = replace(RECORD, running_since=Instant(BEGINNING))
    assert failures_before(ran, POLICY, BEGINNING + 9_999_999) == 3
    assert failures_before(ran, POLICY, BEGINNING + 10_000_000) == 0
    assert failures_before(RECORD, POLICY, BEGINNING) == 3


def test_only_deaths_within_the_period_count() -> None:
    """Without a period no instants are kept: the counter is enough."""
    record = replace(RECORD, charged_at=(BEGINNING, BEGINNING + 5_000_000))
    policy = replace(POLICY, restart_period=timedelta(seconds=10))
    assert charged_deaths(record, policy, BEGINNING + 9_000_000) == (BEGINNING, BEGINNING + 5_000_000)
    assert charged_deaths(record, policy, BEGINNING + 10_000_000) == (BEGINNING + 5_000_000,)
    assert charged_deaths(record, POLICY, BEGINNING) == ()


def test_charged_deaths_without_a_cap_are_kept_in_a_bounded_number() -> None:
    """With a cap as many as it asks for: the newest."""
    instants = tuple(range(5_000))
    assert kept_charges(instants, 0) == instants[-1_000:]
    assert kept_charges(instants, 3_000) == instants[-3_000:]
    assert kept_charges(instants[:7], 3) == instants[:7]


def test_an_agent_and_a_group_without_a_cap_do_not_grow_with_each_death() -> None:
    """However long the period is: a record is read at every decision."""
    life = Life(max_restarts=0, restart_period=timedelta(days=365)).start().run()
    full = tuple(life.store.now - 1_000 + number for number in range(1_000))
    life.store.records[ID] = replace(life.record, charged_at=full)
    life.crash()
    assert len(life.record.charged_at) == 1_000
    assert life.record.charged_at[:-1] == full[1:]

    group = Group("g", Strategy.ONE_FOR_ONE, 0, timedelta(days=365), counted=tuple(range(1_000)))
    reported = take_report(group, Report("a", 1, died=7, charged=True), 2_000)
    assert reported.after.counted == (*range(1, 1_000), 2_000)
