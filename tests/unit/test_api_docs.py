"""The page of the public names is made from their docstrings."""

from __future__ import annotations

import ares_celery
from ares_celery import testing
from tools.api_docs import PAGE, groups, render, undescribed


def test_the_page_is_up_to_date() -> None:
    """A changed name or docstring without its page fails here: run `python -m tools.api_docs`."""
    assert PAGE.read_text() == render()


def test_every_public_name_is_on_the_page_once() -> None:
    """The groups of the page are those of ``__all__``."""
    assert [name for _, names in groups() for name in names] == [*ares_celery.__all__, *testing.__all__]


def test_every_public_name_says_what_it_does() -> None:
    """Nothing public is without a docstring."""
    assert undescribed() == []
