"""Documents and docstrings are run as tests."""

from __future__ import annotations

from doctest import ELLIPSIS

import pytest
from sybil import Sybil
from sybil.integration.pytest import SybilItem
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser
from sybil.parsers.rest import DocTestParser

_documents = Sybil(parsers=[SkipParser(), PythonCodeBlockParser()], patterns=["*.md"])
_docstrings = Sybil(parsers=[DocTestParser(optionflags=ELLIPSIS)], pattern="*.py", path="ares_celery")

pytest_collect_file = (_documents + _docstrings).pytest()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Examples of one document build on each other: they stay in its order, wherever chance has put them."""
    places = [place for place, item in enumerate(items) if isinstance(item, SybilItem)]
    ordered = sorted((items[place] for place in places), key=lambda item: (str(item.path), item.location[1] or 0))
    for place, item in zip(places, ordered, strict=True):
        items[place] = item
