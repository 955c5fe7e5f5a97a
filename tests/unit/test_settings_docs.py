"""The page of the settings is made from the code."""

from __future__ import annotations

from tools.settings_docs import PAGE, render, settings_without_words


def test_the_page_is_up_to_date() -> None:
    """A changed setting without its page fails here: run `python -m tools.settings_docs`."""
    assert PAGE.read_text() == render()


def test_every_setting_of_a_process_is_explained() -> None:
    """Nothing is left out."""
    assert settings_without_words() == set()
