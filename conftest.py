"""Documents and docstrings are run as tests."""

from __future__ import annotations

from doctest import ELLIPSIS

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser
from sybil.parsers.rest import DocTestParser

_documents = Sybil(parsers=[SkipParser(), PythonCodeBlockParser()], patterns=["*.md"])
_docstrings = Sybil(parsers=[DocTestParser(optionflags=ELLIPSIS)], pattern="*.py", path="ares_celery")

pytest_collect_file = (_documents + _docstrings).pytest()
