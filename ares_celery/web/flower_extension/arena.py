"""Routes of survival runs and scenarios."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from ares_celery.arena.loading import load_scenario, parse_scenario, ready_scenarios
from ares_celery.arena.runner import ScenarioRun
from ares_celery.arena.scenario import Activity, PythonProvider, Scenario
from ares_celery.arena.seed_types import ACTIONS_MODULE
from ares_celery.arena.survival import SurvivalRun
from ares_celery.errors import InvalidScenarioError, InvalidSettingError, NotFoundError, ScenarioNotFoundError
from ares_celery.model.arguments import as_shown
from ares_celery.web.flower_extension.base import Asked
from ares_celery.web.flower_extension.runs import Run

__all__ = [
    "RUN_FIELDS",
    "SURVIVAL_FIELDS",
    "VALIDATE_FIELDS",
    "list_scenarios",
    "run_scenario",
    "show_run",
    "show_survival",
    "start_survival",
    "stop_survival",
    "validate_scenario",
]

SURVIVAL_FIELDS: Final = ("seed", "duration", "interval", "agents", "faults", "force", "settle", "steady", "reason")
VALIDATE_FIELDS: Final = ("scenario", "variables")
#: The environment of this machine holds its secrets, and a report would show what a scenario reads of it.
_NOTHING: Final[Mapping[str, str]] = {}
PROBES_MODULE: Final = "ares_celery.arena.probes"
RUN_FIELDS: Final = (*VALIDATE_FIELDS, "wait")
#: Actions that reach nothing but the agents of the namespace. Others connect to an address, or read files and end
#: processes of this machine.
_ACTIONS: Final = frozenset(
    {
        "corrupt_memory",
        "disconnect_mcp",
        "heal",
        "inject_llm_failure",
        "kill_agent",
        "kill_leader",
        "kill_orchestrator",
        "kill_worker",
        "partition_network",
        "pause_agent",
        "remove_edge",
        "remove_node",
        "restart_agent",
        "resume_agent",
        "slow_agent",
        "tool_timeout",
    }
)


# -- survival ----------------------------------------------------------------------------------------------------------


async def start_survival(asked: Asked) -> Any:  # noqa: ANN401 - JSON
    """Begins a survival run, and says what it is; whoever asks does not wait for its end.

    Raises:
        ChaosDisabledError. ArenaBusyError: One is under way in the namespace. AgentNotFoundError. InvalidSettingError.
    """
    said = {name: value for name, value in asked.body.items() if value is not None}
    for name in {"agents", "faults"} & said.keys():
        said[name] = _texts(name, said[name])
    if not isinstance(said.get("force", False), bool):
        raise InvalidSettingError(field="force", value=as_shown(said["force"]), problem="it is true or false")
    await asked.desk.demand_chaos("a survival run")
    going = SurvivalRun(asked.desk.blocking, actor=asked.actor, **said)
    await _in_thread(asked, going.demand_agents)
    # Taken before the answer: of two who ask at once, one is told that the other has it.
    await _in_thread(asked, going.hold)
    run = asked.desk.runs.start(
        "survival", going, title=f"survival, seed {going.seed}", actor=asked.actor, agents=said.get("agents", ())
    )
    return {**run.to_json(), "seed": going.seed}


async def stop_survival(asked: Asked) -> Any:  # noqa: ANN401 - JSON
    """Asks the run that is under way in the namespace to end, wherever it runs."""
    hold = await asked.desk.manager.stop_arena(reason=asked.body.get("reason", ""), actor=asked.actor)
    return {"survival": None if hold is None else hold.to_json()}


async def show_survival(asked: Asked) -> Any:  # noqa: ANN401 - JSON
    """The run that is under way in the namespace, wherever it runs, and those of this Flower."""
    hold = await asked.desk.manager.arena()
    runs = [run.to_json() for run in asked.desk.runs.all() if run.kind == "survival"]
    return {"survival": None if hold is None else hold.to_json(), "runs": runs}


def _texts(field: str, value: object) -> tuple[str, ...]:
    items: list[object] = list(cast("list[object]", value)) if isinstance(value, list) else [value]
    if isinstance(value, list) and all(isinstance(one, str) for one in items):
        return tuple(cast("list[str]", items))
    raise InvalidSettingError(field=field, value=as_shown(items), problem='it is a list of names, such as ["a", "b"]')


# -- scenarios ---------------------------------------------------------------------------------------------------------


async def list_scenarios(asked: Asked) -> Any:  # noqa: ANN401 - JSON
    """The scenarios that come with the package."""

    def listed() -> list[dict[str, Any]]:
        found = ((name, load_scenario(name, demand_variables=False)) for name in ready_scenarios())
        return [{"name": name, "title": one.title, "description": one.description} for name, one in found]

    return {"scenarios": await _in_thread(asked, listed)}


async def validate_scenario(asked: Asked) -> Any:  # noqa: ANN401 - JSON
    """Whether a scenario could be run here, with everything that is wrong with it."""
    try:
        await _in_thread(asked, lambda: _scenario_of(asked))
    except InvalidScenarioError as error:
        return {"valid": False, "problems": error.problems}
    return {"valid": True, "problems": []}


async def run_scenario(asked: Asked) -> Any:  # noqa: ANN401 - JSON
    """Runs a scenario and tells what came of it; with ``wait: false`` only under which id to ask for that.

    Whoever waits and goes away ends the run: what it did is set right, as after Ctrl-C.
    """
    wait: object = asked.body.get("wait", True)
    if not isinstance(wait, bool):
        raise InvalidSettingError(field="wait", value=as_shown(wait), problem="it is true or false")
    scenario = await _in_thread(asked, lambda: _scenario_of(asked))
    await asked.desk.demand_chaos("a scenario")
    going = ScenarioRun(asked.desk.blocking, scenario, actor=asked.actor)
    run = asked.desk.runs.start("scenario", going, title=scenario.title, actor=asked.actor, agents=scenario.agents)
    if wait:
        asked.gone.append(lambda: going.stop("whoever waited for it has gone"))
        await asyncio.wait([asyncio.wrap_future(run.done)])
    return run.to_json(whole=True)


async def show_run(asked: Asked) -> Any:  # noqa: ANN401 - JSON
    """A run that this Flower was asked for, with its report when it is over."""
    run: Run | None = asked.desk.runs.find(asked.path[0])
    if run is None:
        raise NotFoundError(message=f"run {asked.path[0]!r:.100} is not known to this Flower; it keeps the newest 20")
    return run.to_json(whole=True)


def _scenario_of(asked: Asked) -> Scenario:
    """The scenario that a body has, or names; a path is never looked at.

    Raises:
        InvalidScenarioError. ScenarioNotFoundError. InvalidSettingError.
    """
    given, variables = asked.body.get("scenario"), asked.body.get("variables", {})
    if not isinstance(variables, dict):
        raise InvalidSettingError(field="variables", value=as_shown(variables), problem="it maps names to values")
    values = cast("dict[str, Any]", variables)
    if isinstance(given, dict):
        shown = cast("dict[str, Any]", given)
        scenario = parse_scenario(shown, variables=values, environ=_NOTHING)
    elif isinstance(given, str) and "\n" in given:
        scenario = parse_scenario(given, variables=values, environ=_NOTHING)
    elif isinstance(given, str):
        if given not in ready_scenarios():
            raise ScenarioNotFoundError(name=given)
        scenario = load_scenario(given, variables=values)
    else:
        problem = "give a scenario as an object or as the text of a file, or the name of a ready one"
        raise InvalidSettingError(field="scenario", value=as_shown(given), problem=problem)
    _demand_ours(scenario)
    return scenario


def _demand_ours(scenario: Scenario) -> None:
    """Refuses what would run programs on this machine, or call addresses from it, for whoever has a login."""
    problems = [
        {"place": place, "problem": "over HTTP a scenario reaches agents only: no programs, addresses or files"}
        for place, activity in _activities(scenario)
        if not _reaches_agents_only(activity)
    ]
    if problems:
        raise InvalidScenarioError.of(scenario.title, problems)


def _reaches_agents_only(activity: Activity) -> bool:
    provider = activity.provider
    if not isinstance(provider, PythonProvider):
        return False
    return provider.module == PROBES_MODULE or (provider.module == ACTIONS_MODULE and provider.func in _ACTIONS)


def _activities(scenario: Scenario) -> Iterator[tuple[str, Activity]]:
    held = scenario.hypothesis.probes if scenario.hypothesis else ()
    parts = (("steady-state-hypothesis.probes", held), ("method", scenario.method), ("rollbacks", scenario.rollbacks))
    for name, activities in parts:
        for number, activity in enumerate(activities):
            yield f"{name}[{number}].provider", activity


async def _in_thread(asked: Asked, call: Any) -> Any:  # noqa: ANN401 - whatever it gives
    return await asked.desk.in_thread(asyncio.get_running_loop(), call)
