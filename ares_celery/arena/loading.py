"""From a file to a scenario, or to the list of everything that is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from pydantic import BaseModel, ValidationError

from ares_celery.arena.checks import (
    add_shape_errors,
    check_seed_file,
    check_toolkit_file,
    name_of_step,
)
from ares_celery.arena.problems import Place, Problems
from ares_celery.arena.scenario import (
    NOTHING,
    Activity,
    HttpProvider,
    Hypothesis,
    Pauses,
    Policy,
    ProcessProvider,
    Provider,
    PythonProvider,
    Scenario,
)
from ares_celery.arena.seed_types import ACTIONS_MODULE, SEED_TYPES
from ares_celery.arena.shapes import (
    ActivityShape,
    AresExtension,
    ExtrasShape,
    HttpShape,
    PolicyShape,
    PythonShape,
    SeedFile,
    SeedStep,
    ToolkitFile,
)
from ares_celery.arena.source import LARGEST, TOO_MUCH, is_bounded, read_source
from ares_celery.arena.values import as_mapping, entries
from ares_celery.arena.variables import Filling, Room, check_given, defaults, resolve, without_value
from ares_celery.errors import ScenarioNotFoundError

__all__ = ["load_scenario", "parse_scenario", "ready_scenarios"]

S = TypeVar("S", bound=BaseModel)
_READY: Final = files("ares_celery.arena") / "scenarios"
_NO_MODULES: Final = ()
_NO_VARIABLES: Final[Mapping[str, Any]] = {}


def ready_scenarios() -> tuple[str, ...]:
    """The names of the scenarios that come with the package.

    Example:
        >>> "kill-agent" in ready_scenarios()
        True
    """
    return tuple(sorted(file.name[:-5] for file in _READY.iterdir() if file.name.endswith(".yaml")))


def load_scenario(
    source: str | Path,
    *,
    variables: Mapping[str, Any] = _NO_VARIABLES,
    allow_modules: Collection[str] = _NO_MODULES,
    demand_variables: bool = True,
) -> Scenario:
    """Reads a scenario: a file, or one that comes with the package, by its name.

    Args:
        source: Path of a YAML or JSON file of at most 10 MiB, in Chaos Toolkit's form or the seed's, or a name of
            :func:`ready_scenarios`.
        variables: Values for ``${name}``; they win over the file's configuration. A name that it has not is refused.
        allow_modules: More modules that python providers may call.
        demand_variables: A variable without a value is a fault; else what depends on it is not checked.

    Raises:
        ScenarioNotFoundError: There is neither.
        InvalidScenarioError: Field ``problems`` lists everything that is wrong, each with its ``place``.
        OperationNotSupportedError: It is YAML, and no reader of YAML is installed.
    """
    path = Path(source)
    if path.is_file():
        with path.open("rb") as file:
            # One byte more shows that there is more.
            text, name = file.read(LARGEST + 1), str(path)
        if len(text) > LARGEST:
            problems = Problems(name)
            problems.add((), f"it has {path.stat().st_size} bytes, the limit is {LARGEST} (10 MiB)")
            problems.demand_none()
    elif str(source) in ready_scenarios():
        text, name = (_READY / f"{source}.yaml").read_bytes(), str(source)
    else:
        raise ScenarioNotFoundError(name=str(source))
    return parse_scenario(
        text, name=name, variables=variables, allow_modules=allow_modules, demand_variables=demand_variables
    )


def parse_scenario(
    text: str | bytes | Mapping[str, Any],
    *,
    name: str = "scenario",
    variables: Mapping[str, Any] = _NO_VARIABLES,
    allow_modules: Collection[str] = _NO_MODULES,
    demand_variables: bool = True,
    environ: Mapping[str, str] | None = None,
) -> Scenario:
    """Reads a scenario that is at hand: text of YAML or JSON, or its values; see :func:`load_scenario`.

    Args:
        text: What it says.
        name: For the error.
        variables: As there.
        allow_modules: As there.
        demand_variables: As there.
        environ: What its configuration may read, empty where whoever wrote it is not of this machine; None: the
            environment of this process.

    Example:
        >>> step = {"action": {"type": "kill_agent", "target_id": "counter-1"}, "expect_success": True}
        >>> parse_scenario({"name": "one kill", "actions": [step]}).method[0].provider.func
        'kill_agent'
    """
    problems = Problems(name)
    data: object = text
    if isinstance(text, (str, bytes)):
        source = read_source(text, problems)
        data, problems.lines = source.data, source.lines
    known = as_mapping(data)
    if not isinstance(data, Mapping):
        if not problems:
            problems.add((), "it is empty" if data is None else "it is no mapping of fields to values")
        problems.demand_none()
    if not (is_bounded(known) and is_bounded(variables)):
        problems.add((), TOO_MUCH)
        problems.demand_none()
    # Tolerances may be null, and what the operator gives may be anything: only the activities are filled in.
    values = resolve(
        known.get("configuration"), variables, problems, environ=os.environ if environ is None else environ
    )
    missing: dict[str, Place] = {}
    room = Room(LARGEST)
    filling = Filling(values, lambda place, one: missing.setdefault(one, place), room)
    whole: dict[str, Any] = {
        field: value if field == "configuration" else filling.of(value, (field,)) for field, value in known.items()
    }
    if room.is_full:
        problems.add(("configuration",), "filled in wherever they are used, its values are more than 10 MiB")
        problems.demand_none()
    if demand_variables:
        for variable, place in missing.items():
            problems.add(place, without_value(variable, known.get("configuration"), values))
    check_given(variables, known.get("configuration"), filling.used, problems)
    made = (_toolkit if _is_toolkit(whole) else _seed)(whole, problems, allow_modules)
    problems.demand_none()
    return cast("Scenario", made)


def _is_toolkit(data: Mapping[str, Any]) -> bool:
    return any(field in data for field in ("title", "method", "steady-state-hypothesis"))


def _shape(kind: type[S], data: object, problems: Problems, place: Place = ()) -> S | None:
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        add_shape_errors(error, data, problems, place)
        return None


def _policy(shape: PolicyShape) -> Policy:
    return Policy(**{field: getattr(shape, field) for field in PolicyShape.model_fields})


# -- the seed's form ---------------------------------------------------------------------------------------------------


def _seed(data: Mapping[str, Any], problems: Problems, allowed: Collection[str]) -> Scenario | None:
    shape = _shape(SeedFile, data, problems)
    check_seed_file(data, problems, allowed)
    if shape is None or problems:
        return None
    raw = dict(entries(data["actions"]))
    method = [_step(step, name_of_step(number, raw[number])) for number, step in enumerate(shape.actions)]
    return Scenario(
        title=shape.name,
        description=shape.description,
        tags=tuple(shape.tags),
        method=tuple(method),
        policy=_policy(shape.config),
        form="seed",
    )


def _step(step: SeedStep, name: str) -> Activity:
    action = step.action
    kind = SEED_TYPES[action.type]
    arguments = kind.arguments(action.target_id, action.source_id, action.metadata)
    activity = Activity(
        kind="action",
        name=name,
        provider=PythonProvider(ACTIONS_MODULE, kind.func, arguments),
        target=str(arguments.get("agent_id", "")),
        fault=action.type,
    )
    return _with_extras(activity, step)


def _with_extras(activity: Activity, extras: ExtrasShape) -> Activity:
    return replace(
        activity,
        delay=extras.delay,
        depends_on=tuple(extras.depends_on),
        expect_success=extras.expect_success,
        expect_failure=extras.expect_failure,
        label=extras.label,
    )


# -- Chaos Toolkit's experiments ---------------------------------------------------------------------------------------


def _toolkit(data: Mapping[str, Any], problems: Problems, allowed: Collection[str]) -> Scenario | None:
    shape = _shape(ToolkitFile, data, problems)
    check_toolkit_file(data, problems, allowed)
    ours: list[AresExtension | None] = [
        _shape(AresExtension, one, problems, ("extensions", number))
        for number, one in entries(data.get("extensions"))
        if one.get("name") == "ares"
    ]
    if len(ours) > 1:
        problems.add(("extensions",), "has name ares twice")
    extension = ours[0] if ours and ours[0] is not None else AresExtension(name="ares")
    if shape is None or problems:
        return None
    method = [_activity(one) for one in shape.method]
    more, held = extension.activities, shape.hypothesis
    return Scenario(
        title=shape.title,
        description=shape.description,
        tags=tuple(shape.tags),
        hypothesis=None if held is None else Hypothesis(held.title, tuple(_activity(one) for one in held.probes)),
        method=tuple(_with_extras(one, more[one.name]) if one.name in more else one for one in method),
        rollbacks=tuple(_activity(one) for one in shape.rollbacks),
        policy=_policy(extension.config),
        agents=tuple(extension.agents),
        variables=defaults(shape.configuration),
    )


def _activity(shape: ActivityShape) -> Activity:
    provider = _provider(shape)
    python = provider if isinstance(provider, PythonProvider) else None
    return Activity(
        kind=shape.type,
        name=shape.name,
        provider=provider,
        tolerance=shape.tolerance if "tolerance" in shape.model_fields_set else NOTHING,
        pauses=Pauses(shape.pauses.before, shape.pauses.after),
        background=shape.background,
        target=str(python.arguments.get("agent_id") or "") if python else "",
        fault=python.func if python and python.module == ACTIONS_MODULE else "",
    )


def _provider(shape: ActivityShape) -> Provider:
    given = shape.provider
    if isinstance(given, PythonShape):
        return PythonProvider(given.module, given.func, given.arguments)
    if isinstance(given, HttpShape):
        return HttpProvider(given.url, given.method, given.headers, given.arguments, given.timeout, given.verify_tls)
    return ProcessProvider(given.path, given.arguments, given.timeout)
