"""An agent's record as the fields of a Redis hash, and back. A field that holds nothing is absent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec
from pydantic import ValidationError

from ares_celery.errors import UnreadableRecordError
from ares_celery.ids import AgentId
from ares_celery.model.agent import AgentRecord, AgentSpec, AgentState, Desired, Held, Owner, Request
from ares_celery.model.birth import Birth
from ares_celery.model.budget import Limits, readable_budget
from ares_celery.model.waits import Waiting
from ares_celery.store.redis.json_values import decode_json

__all__ = ["OWN_FIELDS", "Changes", "changes", "decode_record", "fields_of", "flat_fields", "read_record", "safe_text"]

#: Fields that the scripts alone write: no plan changes them.
OWN_FIELDS: Final = frozenset(
    {
        "revision",
        "version",
        "created_at",
        "changed_at",
        "last_progress",
        "executions",
        "intents",
        "spent_steps",
        "step",
        "step_since",
        "decisions",
        "children",
        "state_of",
        "state_schema",
        "state_saved",
        "refused",
        "spent_tokens",
        "spent_usd",
        "shared_tokens",
        "shared_usd",
        "shared_steps",
        "faults",
        "degraded",
        "limited",
    }
)

#: What limits an agent, in a form that scripts can read; follows from the spec.
_LIMITS: Final = {"budget_tokens": "tokens", "budget_usd": "usd", "budget_steps": "steps"}

#: A reason or an error text beyond this many characters is cut: a verdict must not fail because a message is huge.
LONGEST_TEXT: Final = 4_000

_INTS: Final = (
    "epoch",
    "revision",
    "version",
    "incarnation",
    "signal",
    "restarts",
    "charged",
    "manual_restarts",
    "failures",
    "attempt",
    "claimable_after",
    "next_attempt_at",
    "nudges",
    "retries",
    "created_at",
    "changed_at",
    "claimed_at",
    "running_since",
    "begun_at",
    "died_at",
    "last_progress",
    "state_schema",
    "accepted_version",
    "executions",
    "intents",
    "spent_steps",
    "step_since",
    "decisions",
    "woken_until",
    "woken_sleeps",
    "woken_at",
    "spent_tokens",
    "spent_usd",
    "shared_tokens",
    "shared_usd",
    "shared_steps",
    "children",
    "starts",
    "stops",
    "faults",
)
_TEXTS: Final = (
    "fence",
    "request_reason",
    "reason",
    "actor",
    "cause",
    "start_reason",
    "task_id",
    "result",
    "last_error",
    "state_of",
    "state_saved",
    "refused",
    "step",
    "root",
    "forked_from",
    "forking",
    "degraded",
    "limited",
    "rejected",
)
#: Texts that may come from an exception, and be anything.
_FOREIGN: Final = frozenset({"request_reason", "reason", "actor", "last_error"})


def safe_text(text: str, longest: int = LONGEST_TEXT) -> str:
    """The text in a form that can be stored: no half surrogates, not longer than ``longest``."""
    cut = text if len(text) <= longest else text[: longest - 1] + "…"
    return cut.encode("utf-8", "backslashreplace").decode()


def fields_of(record: AgentRecord) -> dict[str, str]:
    """The record as hash fields, without those that hold nothing."""
    fields = {
        "spec": record.spec.model_dump_json(exclude_defaults=True),
        "desired": record.desired.value,
        "state": record.state.value,
        "request": record.request.value,
        "held": record.held.value,
        "waiting": record.waiting.encode() if record.waiting else "",
        "failover": "1" if record.failover else "",
        "begin_anew": "1" if record.begin_anew else "",
        "charged_at": ",".join(map(str, record.charged_at)),
        "lost_together": ",".join(map(str, record.lost_together)),
        "deaths": ",".join(f"{cause}:{count}" for cause, count in record.deaths.items()),
        "birth": _birth_text(record.birth) if record.birth else "",
        "owner_identity": record.owner.identity if record.owner else "",
        "owner_worker": record.owner.worker if record.owner else "",
        "owner_task_id": record.owner.task_id if record.owner else "",
    }
    for name in _INTS:
        fields[name] = str(getattr(record, name) or "")
    for name in _TEXTS:
        text: str = getattr(record, name)
        fields[name] = safe_text(text) if name in _FOREIGN else text
    return {name: value for name, value in fields.items() if value} | _limits_of(record)


def _limits_of(record: AgentRecord) -> dict[str, str]:
    limits = Limits.of(record.spec.budget)
    found = {field: getattr(limits, name) for field, name in _LIMITS.items()}
    return {field: str(limit) for field, limit in found.items() if limit is not None}


@dataclass(frozen=True, slots=True)
class Changes:
    """What a commit writes into a record.

    Attributes:
        put: Fields to set.
        clear: Fields that hold nothing any more.
        signal: What the signal grows by; it is added, as messages raise it too.
    """

    put: Mapping[str, str]
    clear: tuple[str, ...]
    signal: int


def changes(before: AgentRecord | None, after: AgentRecord | None) -> Changes:
    """What turns one record into the other, without the fields that the scripts own."""
    old = fields_of(before) if before else {}
    new = fields_of(after) if after else {}
    added = {"signal"} | OWN_FIELDS
    put = {name: value for name, value in new.items() if old.get(name) != value and name not in added}
    if put and after:
        # Older versions knew no limits: a record of theirs has a budget without them.
        put.update(_limits_of(after))
    return Changes(
        put=put,
        clear=tuple(name for name in old if name not in new and name not in added),
        signal=(after.signal if after else 0) - (before.signal if before else 0),
    )


def flat_fields(reply: Sequence[bytes]) -> dict[str, str]:
    """The flat field list of a script's HGETALL as a dict."""
    texts = [item.decode() for item in reply]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def read_record(agent_id: AgentId, reply: Sequence[bytes] | bytes) -> AgentRecord | None:
    """The record in a script's answer, or None when the agent does not exist.

    Args:
        agent_id: Whose it is.
        reply: A flat field list, or what Redis said of a key that holds no hash.

    Raises:
        UnreadableRecordError: What is stored is no record that this version knows.
    """
    if isinstance(reply, bytes):
        raise UnreadableRecordError(agent_id=agent_id, problem=reply.decode(errors="replace"))
    try:
        record = decode_record(flat_fields(reply))
    except ValidationError as error:
        # Without the values, which may be secrets.
        found = (f"spec.{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_input=False))
        raise UnreadableRecordError(agent_id=agent_id, problem="; ".join(found)) from None
    except KeyError as error:
        raise UnreadableRecordError(agent_id=agent_id, problem=f"field {error} is absent") from None
    except ValueError as error:
        raise UnreadableRecordError(agent_id=agent_id, problem=str(error)) from None
    if record is not None and record.id != agent_id:
        raise UnreadableRecordError(agent_id=agent_id, problem=f"its spec is that of agent {record.id!r}")
    return record


def decode_record(fields: Mapping[str, str]) -> AgentRecord | None:
    """The record of a hash; None when the agent does not exist. Fields of a newer version are left out.

    A commit writes only what it changes, so those of a newer version stay in Redis.
    """
    if not fields:
        return None
    identity = fields.get("owner_identity")
    owner = Owner(identity, fields.get("owner_worker", ""), fields.get("owner_task_id", "")) if identity else None
    values: dict[str, Any] = {name: fields.get(name, "") for name in _TEXTS}
    values.update({name: int(fields.get(name, "0")) for name in _INTS})
    return AgentRecord(
        spec=_decode_spec(fields["spec"]),
        desired=Desired(fields["desired"]),
        state=AgentState(fields["state"]),
        owner=owner,
        request=Request(fields.get("request", "")),
        held=Held(fields.get("held", "")),
        waiting=Waiting.decode(fields.get("waiting", "")),
        failover="failover" in fields,
        begin_anew="begin_anew" in fields,
        birth=_birth(fields["birth"]) if "birth" in fields else None,
        charged_at=_moments(fields.get("charged_at", "")),
        lost_together=_moments(fields.get("lost_together", "")),
        deaths=_counts(fields.get("deaths", "")),
        **values,
    )


def _birth_text(birth: Birth) -> str:
    return f"{birth.number}|{birth.stops}|{birth.starts}|{int(birth.reports)}|{birth.key}"


def _birth(text: str) -> Birth:
    number, stops, starts, reports, key = text.split("|", 4)
    return Birth(key, int(number), int(stops), int(starts), reports == "1")


def _moments(text: str) -> tuple[int, ...]:
    return tuple(int(moment) for moment in text.split(",") if moment)


def _counts(text: str) -> dict[str, int]:
    pairs = (pair.partition(":") for pair in text.split(",") if pair)
    return {name: int(count) for name, _, count in pairs}


def _decode_spec(text: str) -> AgentSpec:
    """The spec as far as this version knows it; a newer one may have stored more fields."""
    try:
        return AgentSpec.model_validate_json(text)
    except ValidationError:
        try:
            values = decode_json(text.encode())
        except ValueError as error:
            raise ValueError(f"its spec is no JSON: {error}") from None
        if not isinstance(values, dict):
            raise
        stored = cast("dict[str, Any]", values)
        known = {name: value for name, value in stored.items() if name in AgentSpec.model_fields}
        # Older versions took any, and held nobody to it.
        known["budget"] = readable_budget(stored.get("budget"))
        return AgentSpec.model_validate_json(msgspec.json.encode(known))
