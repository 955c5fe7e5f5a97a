"""The page of the transition table is made from the table."""

from __future__ import annotations

from ares_celery.model.agent import AgentState
from ares_celery.model.command import Operation
from tools.lifecycle_docs import CHAPTERS, PAGE, render


def test_the_page_is_up_to_date() -> None:
    """A changed table without its page fails here: run `python -m tools.lifecycle_docs`."""
    assert PAGE.read_text() == render()


def test_the_page_shows_every_operation_and_every_state() -> None:
    """Nothing of the table is left out."""
    assert sorted(operation for _, chapter in CHAPTERS for operation in chapter) == sorted(Operation)
    for name in (*Operation, *AgentState):
        assert name.value in render()
