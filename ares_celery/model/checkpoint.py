"""The checkpoint of an execution: how far it has come, in an envelope that names its schema.

The schema has grown: version 1 began with ``user_profile``, ``payload``, ``used_experience_id`` and
``step_checkpoint``; 2 added ``strategy_id``, 3 ``session_id``, 4 the token counts, 5 ``tenant_id``. Version 0 is
whatever was stored before there were versions. What is older is read; what is newer is refused and left as it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from ares_celery.errors import CheckpointSchemaVersionError, UnserialisableError

__all__ = ["SCHEMA_VERSION", "CheckpointEnvelope", "decode_checkpoint", "encode_checkpoint", "read_checkpoint"]

#: The newest schema, which every envelope is written in.
SCHEMA_VERSION: Final = 5
#: The largest number that every reader of the JSON takes for a whole one of 64 bits.
_MOST_TOKENS: Final = 2**63 - 1
#: Characters of ``last_error``: a failure must be storable, however long its message is.
_LONGEST_ERROR: Final = 4_000

_json_object: Final = TypeAdapter(dict[str, JsonValue])
_json_value: Final[TypeAdapter[JsonValue]] = TypeAdapter(JsonValue)

Count = Annotated[int, Field(ge=0, le=_MOST_TOKENS)]


class CheckpointEnvelope(BaseModel):
    """What is known of an execution between two of its steps. A value: every change gives a new one.

    Attributes:
        schema_version: The schema that it was read in; a new envelope has the newest.
        user_profile: Of whom the work is for.
        payload: What the execution was asked to do.
        used_experience_id: The experience that guides it.
        step_checkpoint: What the steps have left behind, for the one that goes on.
        strategy_id: The strategy that it was begun with; stamped once.
        session_id: The conversation that it belongs to.
        input_tokens: Tokens sent to models so far, by all steps together.
        output_tokens: Tokens received from models so far.
        tenant_id: Whose budget pays.
        last_error: Why it failed for good; empty otherwise.

    Example:
        >>> begun = CheckpointEnvelope(payload={"file": "a.txt"}, strategy_id="greedy")
        >>> begun.schema_version, begun.with_tokens({"input_tokens": 10}).input_tokens
        (5, 10)
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Annotated[int, Field(ge=0, le=SCHEMA_VERSION)] = SCHEMA_VERSION
    user_profile: dict[str, JsonValue] = {}
    payload: dict[str, JsonValue] = {}
    used_experience_id: str = ""
    step_checkpoint: JsonValue = None
    strategy_id: str = ""
    session_id: str = ""
    input_tokens: Count = 0
    output_tokens: Count = 0
    tenant_id: str = ""
    last_error: str = ""

    if TYPE_CHECKING:
        # What may be passed, which is more than what the fields then hold.
        def __init__(  # noqa: PLR0913 - one parameter a field
            self,
            *,
            schema_version: int = ...,
            user_profile: Mapping[str, Any] = ...,
            payload: Mapping[str, Any] = ...,
            used_experience_id: str = ...,
            step_checkpoint: object = ...,
            strategy_id: str = ...,
            session_id: str = ...,
            input_tokens: int = ...,
            output_tokens: int = ...,
            tenant_id: str = ...,
            last_error: str = ...,
        ) -> None: ...

    def with_tokens(self, report: Mapping[str, object] | None) -> CheckpointEnvelope:
        """The envelope after a step that reported ``input_tokens`` and ``output_tokens``.

        What is absent, no number or below zero adds nothing.
        """
        told = report or {}
        return self.model_copy(
            update={
                name: min(getattr(self, name) + _count(told.get(name)), _MOST_TOKENS)
                for name in ("input_tokens", "output_tokens")
            }
        )

    def with_step(self, step_checkpoint: object) -> CheckpointEnvelope:
        """The envelope after a step that left this behind; None leaves what was there."""
        if step_checkpoint is None:
            return self
        return self.model_copy(update={"step_checkpoint": _as_json(step_checkpoint)})

    def with_strategy(self, strategy_id: str) -> CheckpointEnvelope:
        """The envelope of an execution that follows this strategy; one that follows another already keeps it."""
        return self if self.strategy_id else self.model_copy(update={"strategy_id": strategy_id})

    def with_failure(self, cause: str) -> CheckpointEnvelope:
        """The envelope of an execution that failed for good; without a cause nothing changes."""
        if not cause:
            return self
        cut = cause if len(cause) <= _LONGEST_ERROR else cause[: _LONGEST_ERROR - 1] + "…"
        # A message may hold half of a surrogate pair, which JSON cannot carry.
        return self.model_copy(update={"last_error": cut.encode("utf-8", "backslashreplace").decode()})

    def executor_payload(self) -> dict[str, Any]:
        """A copy of the payload for whoever does the work, ``step_checkpoint`` in it as ``checkpoint`` if there is one.

        Example:
            >>> CheckpointEnvelope(payload={"n": 1}, step_checkpoint={"done": 2}).executor_payload()
            {'n': 1, 'checkpoint': {'done': 2}}
        """
        payload: dict[str, Any] = deepcopy(self.payload)
        if self.step_checkpoint is not None:
            payload["checkpoint"] = deepcopy(self.step_checkpoint)
        return payload


def encode_checkpoint(envelope: CheckpointEnvelope) -> dict[str, Any]:
    """The envelope as a JSON object in the newest schema; what is empty is left out.

    Example:
        >>> encode_checkpoint(CheckpointEnvelope(session_id="s1"))
        {'schema_version': 5, 'session_id': 's1'}
    """
    filled = envelope.model_dump(exclude_defaults=True, exclude={"schema_version"})
    return {"schema_version": SCHEMA_VERSION, **filled}


def decode_checkpoint(value: object) -> CheckpointEnvelope:
    """The envelope in a stored value, of whatever age.

    Args:
        value: None gives the empty envelope of version 0; an envelope is taken as it is; a mapping with
            ``schema_version`` is read field by field, a field of the wrong type as if it were absent, a version that is
            no number as 0; any other value is what was stored before there were versions, and becomes
            ``step_checkpoint``.

    Raises:
        CheckpointSchemaVersionError: It was written by a newer version; read it with one, nothing is changed.
        UnserialisableError: The value is no JSON, so it was never stored.

    Example:
        >>> decode_checkpoint({"schema_version": 2, "strategy_id": "greedy", "payload": "wrong"}).strategy_id
        'greedy'
        >>> decode_checkpoint({"rows": 7})
        CheckpointEnvelope(schema_version=0, ... step_checkpoint={'rows': 7}, ...
    """
    if value is None:
        return CheckpointEnvelope(schema_version=0)
    if isinstance(value, CheckpointEnvelope):
        _demand_known(value.schema_version)
        return value
    if isinstance(value, Mapping) and "schema_version" in value:
        return _decode_fields(cast("Mapping[object, object]", value))
    raw: object = cast("Any", value)
    return CheckpointEnvelope(schema_version=0, step_checkpoint=_as_json(raw))


def read_checkpoint(data: bytes) -> CheckpointEnvelope:
    """The envelope in the bytes of a JSON value.

    Raises:
        CheckpointSchemaVersionError: See :func:`decode_checkpoint`.
        ValueError: The bytes are no JSON.
    """
    return decode_checkpoint(json.loads(data))


def _decode_fields(value: Mapping[object, object]) -> CheckpointEnvelope:
    version = _version(value["schema_version"])
    _demand_known(version)
    fields = {name: reader(value[name]) for name, reader in _READERS.items() if name in value}
    known = {name: field for name, field in fields.items() if field is not None}
    return CheckpointEnvelope(**known, schema_version=version)


def _demand_known(version: int) -> None:
    if version > SCHEMA_VERSION:
        raise CheckpointSchemaVersionError(found=version, known=SCHEMA_VERSION)


def _number(value: object) -> int | None:
    """A whole number, also when some writer has made it one with a point; None for everything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if math.isfinite(value) else None
    return value if isinstance(value, int) else None


def _version(value: object) -> int:
    return max(_number(value) or 0, 0)


def _count(value: object) -> int:
    return min(max(_number(value) or 0, 0), _MOST_TOKENS)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _object(value: object) -> dict[str, JsonValue] | None:
    try:
        return _json_object.validate_python(value, strict=True)
    except ValidationError:
        return None


def _any(value: object) -> JsonValue:
    try:
        return _json_value.validate_python(value)
    except ValidationError:
        return None


def _as_json(value: object) -> JsonValue:
    """The value, copied, if JSON can hold it."""
    try:
        plain = dict(cast("Mapping[object, object]", value)) if isinstance(value, Mapping) else value
        return deepcopy(_json_value.validate_python(plain))
    except ValidationError as error:
        problem = str(error.errors(include_url=False, include_input=False)[0]["msg"])
        raise UnserialisableError(
            what="a checkpoint",
            problem=problem,
            message=f"a checkpoint is not plain JSON: {problem}; use dict, list, str, int, float, bool and None",
        ) from None


#: How each field of a stored mapping is read; None = as if it were absent.
_READERS: Final[Mapping[str, Callable[[object], Any]]] = {
    "user_profile": _object,
    "payload": _object,
    "used_experience_id": _text,
    "step_checkpoint": _any,
    "strategy_id": _text,
    "session_id": _text,
    "input_tokens": _count,
    "output_tokens": _count,
    "tenant_id": _text,
    "last_error": _text,
}
