"""Calls about what agents spend."""

from __future__ import annotations

from collections.abc import Sequence

from ares_celery.ids import AgentId, Instant
from ares_celery.model.budget import Limits, Spending, Spent
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.replies import fenced, unknown_reply

__all__ = ["charge", "share_spending"]


def charge(keys: Keys, *, agent_id: AgentId, fence: str, spent: Spent, op: str) -> Call[Spending]:
    """Adds to what an agent has spent; with an empty ``op`` it is only read."""
    return Call(
        lambda reply: _parse_charge(agent_id, fence, reply),
        script="charge",
        keys=(keys.agent(agent_id),),
        args=(fence, op, spent.tokens, spent.usd, spent.steps),
    )


def _parse_charge(agent_id: AgentId, fence: str, reply: Sequence[bytes | None]) -> Spending:
    match reply:
        case [b"done" | b"repeated", *standing]:
            return _standing(standing)
        case [b"fenced"]:
            raise fenced(agent_id, fence)
        case _:
            raise unknown_reply("charge", reply)


def share_spending(
    keys: Keys, *, root: AgentId, agent_id: AgentId, created_at: Instant, total: Spent
) -> Call[Spending | None]:
    """Tells the agent at the top of a tree what a member has spent in all; None when there is none any more."""
    return Call(
        _parse_share,
        script="share_spending",
        keys=(keys.agent(root), keys.budget(root)),
        args=(f"{agent_id}|{created_at}", total.tokens, total.usd, total.steps),
    )


def _parse_share(reply: Sequence[bytes | None]) -> Spending | None:
    match reply:
        case [b"done", *standing]:
            return _standing(standing)
        case [b"gone"]:
            return None
        case _:
            raise unknown_reply("share_spending", reply)


def _standing(reply: Sequence[bytes | None]) -> Spending:
    numbers = [None if number is None else int(number) for number in reply]
    own, below, limits = numbers[:3], numbers[3:6], numbers[6:]
    return Spending(Spent(*(number or 0 for number in own)), Spent(*(number or 0 for number in below)), Limits(*limits))
