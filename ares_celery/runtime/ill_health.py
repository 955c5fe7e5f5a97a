"""Telling the store that an agent of this process is not well, or hangs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ares_celery.background import start_detached
from ares_celery.errors import AresError
from ares_celery.model.command import Die
from ares_celery.model.restart import DeathCause
from ares_celery.runtime.commits import Committer
from ares_celery.runtime.incarnation import Incarnation

__all__ = ["report_ill"]

log = logging.getLogger(__name__)


def report_ill(
    committer: Committer, incarnation: Incarnation, problem: str, cause: DeathCause, facts: Mapping[str, Any]
) -> None:
    """Asks the incarnation to give up first, as its process lives. Returns at once; ``facts`` are for the log."""
    log.warning("agent %s: %s", incarnation.agent_id, problem, extra=dict(facts))
    command = Die(epoch=incarnation.record.epoch, reason=problem, cause=cause)

    def report() -> None:
        try:
            committer.apply(incarnation.agent_id, command)
        except AresError:
            log.exception("agent %s: its ill health could not be reported", incarnation.agent_id)

    start_detached("report-ill", report)
