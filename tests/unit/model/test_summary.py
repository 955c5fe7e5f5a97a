"""What a summary says of events, and that it stays small."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ares_celery.clock import to_datetime
from ares_celery.ids import Version
from ares_celery.model.event import Event
from ares_celery.model.summary import Outcome, Summary, SummaryBuilder


def summary_of(*happened: tuple[str, Mapping[str, object]]) -> Summary:
    """The summary of events of these types and payloads."""
    builder = SummaryBuilder("s")
    for number, (kind, payload) in enumerate(happened, 1):
        builder.add(Event(str(number), "s", Version(number), kind, payload, to_datetime(number)))
    return builder.build("id")


@pytest.mark.spec(106)
def test_ten_errors_are_kept_and_three_shown() -> None:
    """Of fifteen; the counts tell of all."""
    summary = summary_of(*(("x.failed", {"error": f"e{number}"}) for number in range(15)))
    assert summary.errors == tuple(f"x.failed: e{number}" for number in range(10))
    assert summary.counts == {"x.failed": 15}
    assert "e2; and 7 more" in summary.text
    assert "e3" not in summary.text


@pytest.mark.spec(106)
@pytest.mark.parametrize(
    ("types", "outcome"),
    [
        (["counter.ticked"], Outcome.ACTIVE),
        (["agent.completed"], Outcome.COMPLETED),
        (["task.completed", "agent.started"], Outcome.COMPLETED),
        (["agent.exhausted"], Outcome.FAILED),
        (["task.failed", "task.completed"], Outcome.PARTIAL),
    ],
)
def test_the_outcome_is_that_of_what_ended(types: list[str], outcome: Outcome) -> None:
    """Completed, failed, both, or neither."""
    assert summary_of(*((kind, {}) for kind in types)).outcome is outcome


def test_a_death_is_an_error_and_a_stop_is_none() -> None:
    """Both are agent.stopped; the one brings the agent back."""
    summary = summary_of(
        ("agent.stopped", {"reason": "process lost", "auto_restore": True}),
        ("agent.stopped", {"reason": "explicit_stop"}),
        ("own", {"error": "it said so"}),
    )
    assert summary.errors == ("agent.stopped: process lost", "own: it said so")


def test_a_summary_is_small_whatever_was_said() -> None:
    """A thousand types, tools and tasks, and long texts."""
    happened: list[tuple[str, Mapping[str, object]]] = []
    for number in range(1_000):
        happened += [
            (f"type-{number}", {"error": "e" * 10_000, "request": "r" * 10_000, "user_id": "u" * 10_000}),
            ("tool.called", {"tool": f"tool-{number}"}),
            ("task.created", {"task_id": f"t{number}"}),
        ]
    summary = summary_of(*happened)
    assert summary.event_count == sum(summary.counts.values()) == 3_000
    assert len(summary.counts) == len(summary.tools_called) == 101
    assert sum(summary.tools_called.values()) == 1_000
    assert len(summary.tasks_created) == 100
    assert (len(summary.request), len(summary.errors[0]), len(summary.user_id)) == (200, 500, 200)
    assert len(summary.text) < 10_000


def test_payloads_of_any_shape_are_summarised() -> None:
    """Names that hold something else than texts are passed over."""
    summary = summary_of(("tool.called", {"tool": 7, "error": None, "request": ["x"], "task_id": 5}))
    assert (summary.tools_called, summary.errors, summary.request, summary.task_id) == ({"?": 1}, (), "", "")


def test_nothing_has_no_summary() -> None:
    """The builder says so."""
    with pytest.raises(ValueError, match="at least one event"):
        SummaryBuilder("s").build("id")
