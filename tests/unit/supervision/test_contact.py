"""Leases are judged after unbroken contact only."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ares_celery.ids import Instant
from ares_celery.supervision.contact import ContactWindow

TTL = timedelta(seconds=8)


def feed(window: ContactWindow, server: float, own: float, *, sent: float | None = None) -> float:
    """A contact; both clocks in seconds, and the step that it shows."""
    return window.sample(Instant(round(server * 1_000_000)), own, sent=sent) / 1_000_000


def keep(window: ContactWindow, begin: float, seconds: float, *, offset: float = 0.0) -> None:
    """Contact once a second."""
    for second in range(int(seconds) + 1):
        feed(window, begin + second + offset, begin + second)


def test_nothing_is_judged_before_a_whole_lease_of_contact() -> None:
    """Owners must have had the time to renew."""
    window = ContactWindow(TTL)
    assert not window.may_judge
    keep(window, 0, 7)
    assert not window.may_judge
    feed(window, 8, 8)
    assert window.may_judge


def test_a_gap_begins_anew() -> None:
    """A frozen sweeper, or one without a connection, knows nothing of the time between."""
    window = ContactWindow(TTL)
    keep(window, 0, 20)
    feed(window, 23, 23)
    assert not window.may_judge
    keep(window, 24, 7)
    assert window.may_judge


def test_a_failed_call_begins_anew() -> None:
    """An outage of the store is no death."""
    window = ContactWindow(TTL)
    keep(window, 0, 20)
    window.reset()
    keep(window, 21, 7)
    assert not window.may_judge


@pytest.mark.parametrize("step", [-30.0, -1.5, 1.5, 3600.0])
def test_a_step_of_the_servers_clock_begins_anew(step: float) -> None:
    """Leases that a stepped clock ends have not run out."""
    window = ContactWindow(TTL)
    keep(window, 0, 20)
    feed(window, 21 + step, 21)
    assert not window.may_judge


@pytest.mark.parametrize("step", [-600.0, -1.5, 1.5, 600.0])
def test_a_step_is_told_with_its_size_and_direction(step: float) -> None:
    """By the contact that shows it, and once by whoever asks for it later."""
    window = ContactWindow(TTL)
    keep(window, 0, 5)
    assert window.take_step() == 0
    assert feed(window, 6 + step, 6) == pytest.approx(step)
    assert feed(window, 7 + step, 7) == 0
    assert window.has_stepped
    assert (window.take_step(), window.take_step()) == (round(step * 1_000_000), 0)


@pytest.mark.parametrize("drift", [-0.9, 0.9])
def test_what_a_busy_machine_makes_of_two_contacts_is_no_step(drift: float) -> None:
    """A second either way."""
    window = ContactWindow(TTL)
    feed(window, 0, 0)
    assert feed(window, 1 + drift, 1) == 0


def test_a_slow_answer_is_no_step() -> None:
    """The server said its time somewhere between question and answer: no contact shows a step."""
    window = ContactWindow(TTL)
    feed(window, 0, 0)
    assert feed(window, 1, 6, sent=1) == 0
    assert feed(window, 7, 7, sent=7) == 0
    assert feed(window, 13, 13, sent=8) == 0


def test_a_step_during_an_outage_is_seen_after_it() -> None:
    """A server that came back with another clock has stepped as well."""
    window = ContactWindow(TTL)
    keep(window, 0, 5)
    window.reset()
    assert feed(window, 35 - 600, 35) == pytest.approx(-600)


def test_clocks_that_are_slewed_part_during_a_long_outage_without_a_step() -> None:
    """Half a thousandth, over an hour."""
    window = ContactWindow(TTL)
    feed(window, 0, 0)
    assert feed(window, 3600 * 1.0005, 3600) == 0


def test_small_steps_that_add_up_begin_anew() -> None:
    """A clock that runs 1.3 times too fast is as wrong as one that jumps."""
    window = ContactWindow(TTL)
    for second in range(30):
        feed(window, second * 1.3, second)
        assert not window.may_judge


def test_a_drift_of_days_is_no_step() -> None:
    """A clock that is slewed by 0.05 % parts by more than a second in an hour, and is right all the while."""
    window = ContactWindow(TTL)
    for second in range(3 * 3600):
        feed(window, second * 1.0005, second)
    assert window.may_judge


@pytest.mark.parametrize("ttl", [0.6, 1.0, 2.0, 8.0, 60.0])
def test_who_looks_as_often_as_told_keeps_the_window(ttl: float) -> None:
    """Also with a lease of less than a second, and answers that take a fifth of the pause."""
    window = ContactWindow(timedelta(seconds=ttl))
    now = 0.0
    while now <= ttl * 2 + 2:
        feed(window, now, now)
        now += window.look_interval.total_seconds() * 1.2
    assert window.may_judge


@given(pauses=st.lists(st.floats(min_value=0.01, max_value=1.9), min_size=1, max_size=200))
def test_the_window_is_as_long_as_it_says(pauses: list[float]) -> None:
    """It never judges before lease_ttl of contact, and always after."""
    window, now = ContactWindow(TTL), 0.0
    feed(window, now, now)
    for pause in pauses:
        now += pause
        feed(window, now, now)
        assert window.may_judge == (now >= TTL.total_seconds())


def test_a_window_follows_the_length_of_leases() -> None:
    """A longer lease needs longer contact, of which what there was counts; a shorter one is judged at once."""
    window, told = ContactWindow(timedelta(seconds=2)), list[bool]()
    for length, seconds in ((2, range(3)), (4, range(3, 3)), (4, range(3, 5)), (20, range(5, 5)), (1, range(5, 5))):
        window.resize(timedelta(seconds=length))
        for second in seconds:
            window.sample(Instant(second * 1_000_000), 50.0 + second)
        told.append(window.may_judge)
    assert told == [True, False, True, False, True]
