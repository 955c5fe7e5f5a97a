"""Routes that tell what was done and what came of it: from the audit stream and the events, not from memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from ares_celery.arena.verdict.journal import ActivityReport, Outcome, Phase, RunStatus, ScenarioReport
from ares_celery.arena.verdict.judge import judge
from ares_celery.errors import AgentNotFoundError, InvalidSettingError
from ares_celery.ids import check_agent_id
from ares_celery.model.arguments import check_timeout
from ares_celery.web.flower_extension.base import Asked

if TYPE_CHECKING:
    from ares_celery.arena.verdict.verdict import Verdict
    from ares_celery.manager import CoreManager
    from ares_celery.model.audit import AuditEntry

__all__ = ["HISTORY_FIELDS", "JUDGED_FIELDS", "history", "metrics", "score", "stats"]

HISTORY_FIELDS: Final = ("agent_id", "since", "limit")
JUDGED_FIELDS: Final = ("agent_id", "since")
#: What the audit stream calls that which disturbs an agent, and what belongs to it.
_DISTURBING: Final = frozenset(
    {
        "corrupt_memory",
        "disconnect_mcp",
        "inject_llm_failure",
        "kill",
        "partition_network",
        "pause",
        "slow_agent",
        "tool_timeout",
    }
)
_SHOWN: Final = _DISTURBING | {"resume", "heal", "chaos.enable", "chaos.disable", "survival.start", "survival.stop"}
#: Entries that are looked through.
_LOOKED_AT: Final = 10_000
_SINCE: Final = "1h"
_LONGEST: Final = timedelta(days=7)


async def stats(asked: Asked) -> Any:  # noqa: ANN401 - JSON
    """How many agents and faults there are, until when faults are allowed, and what runs."""
    desk = asked.desk
    snapshot = await desk.manager.introspect()
    faults = await desk.manager.list_faults()
    hold = await desk.manager.arena()
    return {
        "namespace": desk.manager.namespace,
        "time": snapshot.time,
        "agents": {"total": snapshot.agents.get("total", 0), "by_state": snapshot.agents.get("by_state", {})},
        "faults": {"total": len(faults), "by_kind": Counter(one.kind.value for one in faults)},
        "chaos": {
            "enabled": (await desk.manager.config).chaos or snapshot.chaos.get("allowed_until") is not None,
            "allowed_until": snapshot.chaos.get("allowed_until"),
        },
        "survival": None if hold is None else hold.to_json(),
        "streams": desk.streams,
        "problems": snapshot.problems,
    }


async def history(asked: Asked) -> Any:  # noqa: ANN401 - JSON
    """Who disturbed what, when and why, oldest first, from anywhere; and the runs of this Flower, newest first."""
    limit = _limit(asked.query.get("limit", "100"))
    entries = await asked.desk.manager.audit(_agent(asked), since=asked.query.get("since"), limit=_LOOKED_AT)
    shown = [entry for entry in entries if entry.operation in _SHOWN][-limit:]
    return {
        "history": [entry.model_dump(mode="json") for entry in shown],
        "runs": [run.to_json() for run in asked.desk.runs.all()],
    }


async def score(asked: Asked) -> Any:  # noqa: ANN401 - JSON
    """The score of a time, an hour unless ``since`` says otherwise; and what the Go runtime would have said."""
    told = (await _judged(asked)).to_json()
    return {name: told[name] for name in ("score", "grade", "go_score", "go_grade", "actions", "deaths", "recovered")}


async def metrics(asked: Asked) -> Any:  # noqa: ANN401 - JSON
    """Availability, recovery times, consistency and invariants of that time, from the events of the agents."""
    return (await _judged(asked)).to_json()


# -- inside ------------------------------------------------------------------------------------------------------------


def _agent(asked: Asked) -> str | None:
    named = asked.query.get("agent_id")
    return None if named is None else check_agent_id(named)


def _limit(text: str) -> int:
    if text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= _LOOKED_AT:
        return int(text[:9])
    problem = f"it is a whole number from 1 to {_LOOKED_AT}"
    raise InvalidSettingError(field="limit", value=text[:100], problem=problem)


async def _judged(asked: Asked) -> Verdict:
    """The verdict on the time since; one at a time, as whole streams are read for it."""
    span = check_timeout(_number_or_text(asked.query.get("since", _SINCE)), "since")
    if not timedelta(0) < span <= _LONGEST:
        raise InvalidSettingError(field="since", value=asked.query["since"], problem="it is above 0, up to 7d")
    agent_id, manager = _agent(asked), asked.desk.blocking
    if agent_id is not None and await asked.desk.manager.get_agent_info(agent_id) is None:
        raise AgentNotFoundError(agent_id=agent_id)
    agents = () if agent_id is None else (agent_id,)
    loop = asyncio.get_running_loop()
    async with asked.desk.judging:
        return await asked.desk.in_thread(loop, lambda: _judge(manager, span, agents))


def _number_or_text(text: str) -> float | str:
    """Seconds may come as a bare number, as they may in a body."""
    try:
        return float(text)
    except ValueError:
        return text


def _judge(manager: CoreManager, span: timedelta, agents: Sequence[str]) -> Verdict:
    ended = manager.introspect().time
    entries = manager.audit(since=ended - span, limit=_LOOKED_AT)
    disturbed = tuple(_activity(one) for one in entries if one.operation in _DISTURBING)
    report = ScenarioReport(
        title="",
        status=RunStatus.COMPLETED,
        activities=tuple(one for one in disturbed if not agents or one.target in agents),
        namespace=manager.namespace,
        started=ended - span,
        ended=ended,
    )
    return judge(manager, report, agents)


def _activity(entry: AuditEntry) -> ActivityReport:
    return ActivityReport(
        name=f"{entry.operation} {entry.agent_id}",
        phase=Phase.METHOD,
        kind="action",
        outcome=Outcome.SUCCEEDED,
        target=entry.agent_id or "",
        fault=entry.operation,
        started=entry.time,
    )
