"""The same app after its owner has added agents: one line."""

from __future__ import annotations

from ares_celery import install
from tests.integration.guests.shop import app

__all__ = ["app"]

install(app, agent_modules=["tests.fleet_agents"])
