"""The agents of the README and of `ares demo`, for this deployment: name this module in ARES_AGENT_MODULES."""

from __future__ import annotations

from ares_celery.cli.demo.agents import Tokenizer
from ares_celery.cli.demo.samples import Counter

__all__ = ["Counter", "Tokenizer"]
