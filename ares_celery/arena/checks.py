"""What no field shows alone: names that stand for each other, cycles, calls that cannot be."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from pydantic import ValidationError

from ares_celery.arena.calls import check_call
from ares_celery.arena.graph import cycles
from ares_celery.arena.problems import Place, Problems
from ares_celery.arena.seed_types import check_seed_action
from ares_celery.arena.tolerance import check_tolerance
from ares_celery.arena.values import as_list, as_mapping, entries

__all__ = ["add_shape_errors", "check_seed_file", "check_toolkit_file", "name_of_step"]

#: Fields of Chaos Toolkit that others read, and we do not.
_FOREIGN = {"controls", "secrets", "ref", "dry"}


def add_shape_errors(error: ValidationError, data: object, problems: Problems, at: Place = ()) -> None:
    """Adds each field that is wrong, with its place in the file."""
    for one in error.errors(include_url=False):
        place = (*at, *_place(one["loc"], data))
        match one["type"]:
            case "missing":
                problems.add(place, "is missing")
            case "extra_forbidden" if place[-1] in _FOREIGN:
                problems.add(place, "is not supported here; `chaos run` takes it")
            case "extra_forbidden":
                problems.add(place, "there is no such field")
            case "too_short":
                problems.add(place, "is empty; give one at least")
            case "string_too_short":
                problems.add(place, "is empty")
            case _:
                problems.add(place, str(one["msg"]).removeprefix("Value error, "))


def _place(location: Sequence[str | int], data: object) -> Place:
    """The place without what only the validator knows: which of several shapes it tried."""
    found: list[str | int] = []
    for number, part in enumerate(location):
        is_last = number == len(location) - 1
        if isinstance(part, str) and isinstance(data, Mapping):
            fields = as_mapping(cast("object", data))
            if part not in fields and not is_last:
                continue
            data = fields.get(part)
        elif isinstance(part, int) and isinstance(data, list):
            # Not a copy: there may be as many of these as there are faults.
            known = cast("list[object]", data)
            data = known[part] if part < len(known) else None
        else:
            continue
        found.append(part)
    return tuple(found)


# -- the seed's form ---------------------------------------------------------------------------------------------------


def name_of_step(number: int, step: Mapping[str, Any]) -> str:
    """What others call a step: the id of its action, else its label, else its type and number."""
    action = as_mapping(step.get("action"))
    return str(action.get("id") or step.get("label") or f"{action.get('type', 'action')}-{number + 1}")


def check_seed_file(data: Mapping[str, Any], problems: Problems, allowed: Collection[str]) -> None:
    """Adds what is wrong between the fields of a scenario of the seed."""
    places: dict[str, Place] = {}
    edges: dict[str, list[str]] = {}
    waits: dict[str, tuple[Place, object]] = {}
    for number, step in entries(data.get("actions")):
        place: Place = ("actions", number)
        action = as_mapping(step.get("action"))
        kind = check_seed_action(action, (*place, "action"), problems) if "action" in step else None
        if kind is not None and all(isinstance(action.get(name, ""), str) for name in ("target_id", "source_id")):
            metadata = as_mapping(action.get("metadata"))
            known = {name: value for name, value in metadata.items() if name in kind.metadata}
            given = kind.arguments(action.get("target_id", ""), action.get("source_id", ""), known)
            _check_arguments(kind.func, given, (*place, "action"), metadata, problems, allowed)
        name = name_of_step(number, step)
        _name(name, (*place, "action", "id"), places, problems)
        waits[name] = ((*place, "depends_on"), step.get("depends_on"))
        edges[name] = _names(step.get("depends_on"))
        _check_expectation(step, place, problems)
    _check_waits(waits, edges, places, problems)


def _check_arguments(  # noqa: PLR0917 - one place of use
    func: str,
    given: Mapping[str, Any],
    place: Place,
    metadata: Mapping[str, Any],
    problems: Problems,
    allowed: Any,  # noqa: ANN401 - a collection
) -> None:
    """The same checks as those of a python provider, told by the names of the seed's form."""
    found = Problems(problems.name)
    check_call("ares_celery.arena.actions", func, given, allowed=allowed, place=(), problems=found)
    for one in found.listed():
        field = str(one["place"]).removeprefix("arguments.")
        if field in metadata:
            problems.add((*place, "metadata", field), one["problem"])
        elif given.get(field):
            where = "metadata.duration" if field in {"delay", "timeout"} else "target_id"
            problems.add((*place, *where.split(".")), one["problem"])


# -- Chaos Toolkit's experiments ---------------------------------------------------------------------------------------


def check_toolkit_file(data: Mapping[str, Any], problems: Problems, allowed: Collection[str]) -> None:
    """Adds what is wrong between the fields of an experiment."""
    hypothesis = as_mapping(data.get("steady-state-hypothesis"))
    places: dict[str, Place] = {}
    for number, probe in entries(hypothesis.get("probes")):
        place: Place = ("steady-state-hypothesis", "probes", number)
        _check_provider(probe, place, problems, allowed)
        if probe.get("type") == "action":
            problems.add((*place, "type"), "is action; a hypothesis looks and changes nothing: probe")
        if "tolerance" not in probe:
            problems.add((*place, "tolerance"), "is missing; say what the probe has to give")
    for number, activity in entries(data.get("method")):
        _check_provider(activity, ("method", number), problems, allowed)
        _name(str(activity.get("name", "")), ("method", number, "name"), places, problems)
    for number, activity in entries(data.get("rollbacks")):
        _check_provider(activity, ("rollbacks", number), problems, allowed)
    for number, extension in entries(data.get("extensions")):
        if extension.get("name") == "ares":
            _check_extension(extension, ("extensions", number), places, problems)


def _check_provider(activity: Mapping[str, Any], place: Place, problems: Problems, allowed: Collection[str]) -> None:
    if "tolerance" in activity:
        check_tolerance(activity["tolerance"], (*place, "tolerance"), problems)
    provider = as_mapping(activity.get("provider"))
    module, func = provider.get("module"), provider.get("func")
    if provider.get("type") == "python" and isinstance(module, str) and isinstance(func, str) and module and func:
        arguments = provider.get("arguments")
        check_call(module, func, arguments, allowed=allowed, place=(*place, "provider"), problems=problems)
    if provider.get("type") == "process" and isinstance(provider.get("arguments"), str):
        problems.add((*place, "provider", "arguments"), "is one text, which only a shell could take apart; give a list")


def _check_extension(
    extension: Mapping[str, Any], place: Place, places: Mapping[str, Place], problems: Problems
) -> None:
    edges: dict[str, list[str]] = {name: [] for name in places}
    waits: dict[str, tuple[Place, object]] = {}
    for name, extras in as_mapping(extension.get("activities")).items():
        where: Place = (*place, "activities", name)
        if name not in places:
            problems.add(where, "the method has no activity of this name")
        told = as_mapping(extras)
        waits[name] = ((*where, "depends_on"), told.get("depends_on"))
        edges[name] = _names(told.get("depends_on"))
        _check_expectation(told, where, problems)
    _check_waits(waits, edges, places, problems)


# -- both --------------------------------------------------------------------------------------------------------------


def _name(name: str, place: Place, places: dict[str, Place], problems: Problems) -> None:
    if name and name in places:
        problems.add(place, f"{name!r} is the name of another one already")
    if name:
        places.setdefault(name, place)


def _names(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [one for one in as_list(value) if isinstance(one, str)]


def _check_expectation(step: Mapping[str, Any], place: Place, problems: Problems) -> None:
    if step.get("expect_success") is True and step.get("expect_failure"):
        problems.add((*place, "expect_failure"), "it is to succeed as well; expect one of the two")


def _check_waits(
    waits: Mapping[str, tuple[Place, object]],
    edges: Mapping[str, Sequence[str]],
    places: Mapping[str, Place],
    problems: Problems,
) -> None:
    for name, (place, _) in waits.items():
        for other in edges[name]:
            if other not in places:
                problems.add(place, f"there is no activity {other!r}; there are {', '.join(places)}")
    for cycle in cycles({name: [one for one in to if one in places] for name, to in edges.items()}):
        place, _ = waits[cycle[0]]
        problems.add(place, f"it waits for itself: {' → '.join(cycle)}")
