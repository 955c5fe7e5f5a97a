"""From what callers hand in (a spec, a dict, an instance) to an AgentSpec."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from pydantic import ValidationError

from ares_celery.agents.registry import Registry
from ares_celery.errors import (
    InvalidAgentIdError,
    InvalidConfigError,
    NilAgentError,
    NilFactoryError,
    UnknownAgentTypeError,
)
from ares_celery.ids import check_agent_id
from ares_celery.model.agent import AgentSpec, refused_spec

__all__ = ["LARGEST_SPEC", "check_type", "out_of_reach", "parse_spec", "spec_of", "takes_id"]

#: Bytes of a spec as JSON: it is read with each decision about its agent.
LARGEST_SPEC: Final = 1 << 20


def parse_spec(values: Mapping[str, Any]) -> AgentSpec:
    """Reads a spec from JSON values.

    Raises:
        InvalidAgentIdError: The id is missing or not acceptable.
        InvalidConfigError: Another field is wrong; the text names it.
    """
    check_agent_id(values.get("id"))
    try:
        return _storable(AgentSpec.model_validate(dict(values)))
    except ValidationError as error:
        raise refused_spec(error, values) from error


def _storable(spec: AgentSpec) -> AgentSpec:
    """The spec, when it is read back as it is written: one that is not would change in silence, or never be read again.

    Raises:
        InvalidConfigError: JSON cannot hold some part of it, or it is too large; the text names the field.
    """
    try:
        written = spec.model_dump_json(exclude_defaults=True)
        if len(written.encode()) > LARGEST_SPEC:
            raise _too_large(spec)
        read = AgentSpec.model_validate_json(written)
        changed = [name for name in AgentSpec.model_fields if getattr(read, name) != getattr(spec, name)]
    except InvalidConfigError:
        raise
    except ValidationError as error:
        changed = [str(error.errors()[0]["loc"][0])]
    except ValueError:
        changed = [name for name in AgentSpec.model_fields if not _is_json(spec, name)]
    if not changed:
        return spec
    problem = f"{', '.join(changed)}: JSON cannot hold it (not a number, infinity, half of a surrogate pair)"
    raise InvalidConfigError(agent_id=spec.id, type=ascii(spec.type)[1:-1], problem=problem)


def _too_large(spec: AgentSpec) -> InvalidConfigError:
    sizes = {name: len(spec.model_dump_json(include={name}).encode()) for name in AgentSpec.model_fields}
    largest = max(sizes, key=lambda name: sizes[name])
    problem = (
        f"{largest}: {sizes[largest]} bytes of JSON, and a whole spec may have {LARGEST_SPEC}; "
        "keep it elsewhere and give its name"
    )
    return InvalidConfigError(agent_id=spec.id, type=spec.type, problem=problem)


def _is_json(spec: AgentSpec, field: str) -> bool:
    try:
        spec.model_dump_json(include={field})
    except ValueError:
        return False
    return True


def spec_of(agent: object, factory: Callable[..., Any] | None, registry: Registry, *, known: bool = False) -> AgentSpec:
    """The spec of whatever a caller means.

    Args:
        agent: A spec, a mapping of its fields, or (the seed's form) an instance with ``agent_id`` or ``id``.
        factory: For an instance: put into the registry under its type.
        registry: Where the instance's class may be registered.
        known: An instance of a registered class needs no factory.

    Raises:
        NilAgentError: None was given. NilFactoryError: An instance without a factory.
        InvalidAgentIdError, InvalidConfigError: A field is wrong.
    """
    if agent is None:
        raise NilAgentError
    if isinstance(agent, AgentSpec):
        return _storable(agent)
    if isinstance(agent, Mapping):
        return parse_spec(cast("Mapping[str, Any]", agent))
    given: Any = agent
    named = getattr(given, "agent_id", None) or getattr(given, "id", None)
    if named is None:
        class_name = type(given).__qualname__
        problem = f"a {class_name} without agent_id is no agent: pass an AgentSpec, or the id of a known agent"
        raise InvalidAgentIdError(agent_id="", message=problem)
    agent_id = check_agent_id(named)
    kind = registry.name_of(cast("object", type(given)))
    if factory is not None:
        kind = kind or f"{type(given).__module__}.{type(given).__qualname__}"
        registry.replace(kind, takes_id(factory))
    elif kind is None or not known:
        raise NilFactoryError(agent_id=agent_id)
    return parse_spec({"id": agent_id, "type": kind, "config": dict(getattr(given, "config", None) or {})})


def check_type(
    spec: AgentSpec, registry: Registry, known_types: Callable[[], Mapping[str, Any]], *, values: bool = True
) -> None:
    """Refuses a type that neither this process nor any worker knows, and a config that cannot fit.

    Args:
        spec: Names the type.
        registry: The types of this process.
        known_types: Gives those that workers have reported; asked for when this process does not know the type.
        values: The config's values are held against the constructor's annotations, too.

    Raises:
        UnknownAgentTypeError, InvalidConfigError.
    """
    own = registry.find(spec.type)
    if own is not None:
        own.check_config(spec, values=values)
        return
    known = known_types()
    if not known:
        return
    if spec.type not in known:
        raise UnknownAgentTypeError(type=spec.type, known=sorted(known))
    Registry.check_described(known[spec.type], spec, values=values)


def takes_id(factory: Callable[..., Any]) -> Callable[..., Any]:
    """The seed's factories take nothing; ours get the id and the config."""
    if inspect.signature(factory).parameters:
        return factory

    @functools.wraps(factory)
    def make(agent_id: str, **config: object) -> Any:  # noqa: ANN401, ARG001 - any agent; it takes nothing
        return factory()

    del make.__wrapped__  # its signature is the point
    return make


def out_of_reach(kind: str, known: Mapping[str, object]) -> UnknownAgentTypeError:
    """The error for a factory of this process that is to serve agents of others."""
    return UnknownAgentTypeError(
        type=kind,
        known=sorted(known),
        message=(
            f"no worker can have the factory of {kind!r}, which is of this process alone: register it with @agent in a "
            "module that workers import (ARES_AGENT_MODULES), or host its agents here with Manager.local()"
        ),
    )
