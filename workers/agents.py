"""The agent types of this deployment: importing them registers them.

A module that defines agents with ``@agent`` is named here, or in ``ARES_AGENT_MODULES``.
"""

from __future__ import annotations

from workers import demo

__all__ = ["demo"]
