"""Scenarios as files: both forms, everything that is wrong with one named at once."""

from __future__ import annotations

import json
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import pytest

from ares_celery.arena.loading import load_scenario, parse_scenario, ready_scenarios
from ares_celery.arena.scenario import NOTHING, HttpProvider, ProcessProvider, PythonProvider
from ares_celery.arena.seed_types import SEED_TYPES
from ares_celery.arena.source import LARGEST
from ares_celery.arena.variables import Typed
from ares_celery.errors import InvalidScenarioError, ScenarioNotFoundError

OURS = "ares_celery.arena.actions"


def step(kind: str = "kill_agent", target: str = "a", **more: Any) -> dict[str, Any]:
    """A step of the seed's form; ``metadata``, ``id`` and ``source_id`` belong to its action."""
    inner = {name: more.pop(name) for name in ("metadata", "id", "source_id") if name in more}
    return {"action": {"type": kind, "target_id": target, **inner}, **more}


def seed(*steps: dict[str, Any], **config: Any) -> dict[str, Any]:
    """A scenario of the seed."""
    return {"name": "n", "config": config, "actions": list(steps) or [step()]}


def activity(func: str = "kill_agent", name: str = "kill", **arguments: Any) -> dict[str, Any]:
    """An action of an experiment."""
    provider = {"type": "python", "module": OURS, "func": func, "arguments": arguments or {"agent_id": "a"}}
    return {"type": "action", "name": name, "provider": provider}


def experiment(*method: dict[str, Any], **more: Any) -> dict[str, Any]:
    """An experiment of Chaos Toolkit."""
    return {"title": "t", "description": "d", "method": list(method) or [activity()], **more}


def problems_of(text: Any, **options: Any) -> dict[str, list[str]]:
    """What is wrong with a scenario, by place."""
    with pytest.raises(InvalidScenarioError) as raised:
        parse_scenario(text, **options)
    found: dict[str, list[str]] = {}
    for one in raised.value.problems:
        found.setdefault(one["place"], []).append(one["problem"])
        assert one["problem"] in str(raised.value)
        assert one["place"] in str(raised.value)
    return found


# -- what is wrong ----------------------------------------------------------------------------------------------------


@pytest.mark.spec(141)
def test_a_scenario_without_name_and_actions_lacks_both() -> None:
    """Both are said at once, in either form."""
    assert problems_of({}) == {"name": ["is missing"], "actions": ["is missing"]}
    assert problems_of({"name": "", "actions": []}) == {
        "name": ["is empty"],
        "actions": ["is empty; give one at least"],
    }
    assert problems_of({"title": "", "method": []}) == {
        "title": ["is empty"],
        "method": ["is empty; give one at least"],
    }


@pytest.mark.spec(141)
def test_validation_names_every_fault_of_a_file() -> None:
    """Unknown type, missing targets, negative numbers of every kind: all in one error, each with its place."""
    found = problems_of(
        seed(
            step("explode"),
            step("kill_agent", ""),
            step("remove_edge", ""),
            step("slow_agent", metadata={"delay": "-3s", "count": -1}, id="slow"),
            step("pause_agent", delay=-2, label="two"),
            step(""),
            step("kill_agent", id="same", metadata={"how": "hard"}),
            step("kill_agent", id="same", expect_success=True, expect_failure=True),
            step("llm_failure", id="llm", metadata={"error_type": "sulks", "probability": 2}),
            step("kill_agent", "no such id", id="odd"),
            timeout=-1,
            max_concurrent=-2,
            warmup="-1s",
            cooldown="soon",
            parallel_actions="maybe",
            speed=3,
        )
    )
    assert sorted(found) == [
        "actions[0].action.type",
        "actions[1].action.target_id",
        "actions[2].action.source_id",
        "actions[2].action.target_id",
        "actions[3].action.metadata.count",
        "actions[3].action.metadata.delay",
        "actions[4].delay",
        "actions[5].action.type",
        "actions[6].action.metadata.how",
        "actions[7].action.id",
        "actions[7].expect_failure",
        "actions[8].action.metadata.error_type",
        "actions[8].action.metadata.probability",
        "actions[9].action.target_id",
        "config.cooldown",
        "config.max_concurrent",
        "config.parallel_actions",
        "config.speed",
        "config.timeout",
        "config.warmup",
    ]
    assert "'explode' is no action; it is one of kill_leader, kill_agent" in found["actions[0].action.type"][0]
    assert found["actions[2].action.source_id"] == ["remove_edge needs it, and it is missing"]
    assert found["config.timeout"] == ["-1 is negative; a duration is zero or more"]


@pytest.mark.spec(141)
@pytest.mark.parametrize("size", [LARGEST + 1, LARGEST + 1000])
def test_more_than_10_mib_is_refused(size: int, tmp_path: Path) -> None:
    """As text and as a file, which is not read to its end; the limit itself is fine."""
    document = json.dumps(seed())
    whole = document + " " * (LARGEST - len(document))
    assert parse_scenario(whole).title == "n"
    assert problems_of(whole.ljust(size)) == {"file": [f"it has {size} bytes, the limit is {LARGEST} (10 MiB)"]}
    path = tmp_path / "large.json"
    path.write_text(whole.ljust(size))
    with pytest.raises(InvalidScenarioError, match="the limit is"):
        load_scenario(path)


def test_an_experiment_is_checked_as_strictly() -> None:
    """Fields, functions, arguments, tolerances: each with its place."""
    probe = {
        "type": "probe",
        "name": "p",
        "provider": {"type": "python", "module": "ares_celery.arena.probes", "func": "none_parked"},
    }
    found = problems_of(
        experiment(
            {**activity(), "provider": {"type": "python", "module": "os", "func": "system", "arguments": {}}},
            activity("kill_nobody", "k2"),
            activity("kill_agent", "k3", agent="a"),
            {"type": "action", "name": "k4", "provider": {"type": "magic"}},
            {"type": "probe", "name": "k5", "provider": {"type": "http", "url": "file:///etc/passwd"}},
            {**activity(), "name": "k6", "pauses": {"before": -1}, "controls": []},
            {"type": "action", "name": "k7", "provider": {"type": "process", "path": "ls", "arguments": "-l | sh"}},
            activity("slow_agent", "k8", agent_id="a", delay="1 week"),
            {**activity(), "name": "k8"},
            **{
                "steady-state-hypothesis": {
                    "title": "h",
                    "probes": [probe, {**probe, "tolerance": {"type": "jsonpath"}}],
                },
                "extensions": [{"name": "ares", "config": {"max_concurrent": True}, "activities": {"k9": {}}}],
                "rollbacks": [activity("heal", "r", agent_id="a", much=1)],
                "secrets": {},
                "runtime": {"rollbacks": {"strategy": "never", "x": 1}},
            },
        )
    )
    assert sorted(found) == [
        "extensions[0].activities.k9",
        "extensions[0].config.max_concurrent",
        "method[0].provider.module",
        "method[1].provider.func",
        "method[2].provider.arguments.agent",
        "method[2].provider.arguments.agent_id",
        "method[3].provider",
        "method[4].provider.url",
        "method[5].controls",
        "method[5].pauses.before",
        "method[6].provider.arguments",
        "method[7].provider.arguments.delay",
        "method[8].name",
        "rollbacks[0].provider.arguments.much",
        "runtime.rollbacks.x",
        "secrets",
        "steady-state-hypothesis.probes[0].tolerance",
        "steady-state-hypothesis.probes[1].tolerance.type",
    ]
    assert "allow more with --allow-module" in found["method[0].provider.module"][0]


@pytest.mark.spec(142)
def test_a_cycle_is_an_error() -> None:
    """Of any length, in either form; so is waiting for nobody."""
    found = problems_of(
        seed(
            step(id="one", depends_on=["two"]),
            step(id="two", depends_on="three"),
            step(id="three", depends_on=["one"]),
            step(id="four", depends_on=["four", "five"]),
        )
    )
    assert found == {
        "actions[0].depends_on": ["it waits for itself: one → two → three → one"],
        "actions[3].depends_on": [
            "there is no activity 'five'; there are one, two, three, four",
            "it waits for itself: four → four",
        ],
    }
    extension = {"name": "ares", "activities": {"a": {"depends_on": ["b"]}, "b": {"depends_on": ["a"]}}}
    found = problems_of(experiment(activity(name="a"), activity(name="b"), extensions=[extension]))
    assert found == {"extensions[0].activities.a.depends_on": ["it waits for itself: a → b → a"]}


def test_a_long_chain_is_no_cycle() -> None:
    """However long: the check does not recurse."""
    chain = [step(id=f"s{number}", depends_on=[f"s{number - 1}"] if number else []) for number in range(3000)]
    assert len(parse_scenario(seed(*chain)).method) == 3000


def test_yaml_that_is_broken_doubled_or_a_bomb_is_refused() -> None:
    """With the line where it is known."""
    assert "it is no YAML" in problems_of("name: [")["file"][0]
    assert "it is no JSON" in problems_of("{,")["file"][0]
    assert problems_of("") == {"file": ["it is empty"]}
    assert problems_of("- a") == {"file": ["it is no mapping of fields to values"]}
    assert "this key stands twice in one mapping" in problems_of("name: a\nname: b\nactions: []")["name"]
    assert "key 'name' stands twice" in problems_of('{"name": "a", "name": "b"}')["file"][0]
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
        for before, name in zip("abcdefg", "bcdefgh", strict=True)
    )
    assert "it stands for more than" in problems_of(bomb)["file"][0]
    with pytest.raises(InvalidScenarioError) as raised:
        parse_scenario("name: n\nactions:\n  - action:\n      type: nothing\n")
    assert raised.value.problems[0]["line"] == 4


# -- what is right ----------------------------------------------------------------------------------------------------


def test_both_forms_become_the_same_scenario() -> None:
    """A kill of one agent after a wait, expected to succeed."""
    policy: dict[str, Any] = {"parallel_actions": True, "max_concurrent": 2, "timeout": "1m", "warmup": 1.5}
    extras: dict[str, Any] = {"delay": "500ms", "expect_success": True, "label": "gone", "depends_on": []}
    ours = parse_scenario(
        experiment(
            activity(name="kill", agent_id="a", force=True),
            extensions=[{"name": "ares", "config": policy, "activities": {"kill": extras}}, {"name": "theirs", "x": 1}],
        )
    )
    theirs = parse_scenario(seed(step(id="kill", metadata={"force": True}, **extras), **policy))
    assert ours.method[0] == theirs.method[0]
    assert ours.policy == theirs.policy
    assert ours.method[0].provider == PythonProvider(OURS, "kill_agent", {"agent_id": "a", "force": True})
    assert ours.method[0].delay.total_seconds() == 0.5
    assert ours.method[0].tolerance is NOTHING


def test_yaml_and_json_say_the_same() -> None:
    """Chaos Toolkit's form, with every provider."""
    text = """
title: t
configuration:
  agent_id: {type: env, key: NOBODY_SETS_THIS, default: counter-1}
  port: 8080
method:
  - {type: action, name: ask, provider: {type: http, url: "http://127.0.0.1:${port}/x", method: POST, timeout: 2}}
  - {type: probe, name: list, provider: {type: process, path: ls, arguments: [-l, 3]}, tolerance: [0, 1]}
  - type: action
    name: slow
    provider:
      type: python
      module: ares_celery.arena.actions
      func: slow_agent
      arguments: {agent_id: "${agent_id}", delay: 2s}
    pauses: {after: 1}
"""
    found = parse_scenario(text)
    http, process, python = (one.provider for one in found.method)
    assert isinstance(http, HttpProvider)
    assert (http.url, http.method, http.timeout.total_seconds()) == ("http://127.0.0.1:8080/x", "POST", 2)
    assert isinstance(process, ProcessProvider)
    assert process.arguments == ["-l", 3]
    assert isinstance(python, PythonProvider)
    assert python.arguments == {"agent_id": "counter-1", "delay": "2s"}
    assert (found.method[2].target, found.method[2].fault) == ("counter-1", "slow_agent")


def test_variables_come_from_who_runs_it_or_are_missing() -> None:
    """What is given wins over the file; what nobody gives is a fault, unless the file is only looked at."""
    data = experiment(activity(agent_id="${agent_id}"), configuration={"agent_id": {"type": "env", "key": "NO_SUCH"}})
    found = problems_of(data)
    assert "pass --var agent_id=…" in found["method[0].provider.arguments.agent_id"][0]
    assert parse_scenario(data, variables={"agent_id": "x"}).method[0].target == "x"
    assert parse_scenario(data, demand_variables=False).method[0].target == "${agent_id}"
    odd = {"agent_id": {"type": "vault", "key": "k"}, "n": {"type": "env", "key": "PATH", "env_var_type": "int"}}
    assert set(problems_of(experiment(configuration=odd))) == {"configuration.agent_id.type", "configuration.n"}


def test_what_a_person_typed_is_what_the_file_says_it_is() -> None:
    """An agent may be called 7 or true; what the file says nothing of is taken by its look."""
    declared = {
        "agent_id": {"type": "env", "key": "NO_SUCH"},
        "force": {"type": "env", "key": "NO_SUCH", "env_var_type": "bool", "default": False},
        "count": 1,
    }
    data = experiment(
        activity(agent_id="${agent_id}", force="${force}"),
        activity("slow_agent", "slow", agent_id="a", delay="${delay}", count="${count}"),
        configuration=declared,
    )
    typed = {"agent_id": "7", "force": "yes", "delay": "1.5", "count": "3"}
    first, second = parse_scenario(data, variables={name: Typed(text) for name, text in typed.items()}).method
    assert isinstance(first.provider, PythonProvider)
    assert first.provider.arguments == {"agent_id": "7", "force": True}
    assert isinstance(second.provider, PythonProvider)
    assert second.provider.arguments == {"agent_id": "a", "delay": 1.5, "count": 3}
    wrong = {**typed, "force": "perhaps"}
    found = problems_of(data, variables={name: Typed(text) for name, text in wrong.items()})
    assert "'perhaps' is neither true nor false" in found["configuration.force"][0]


@pytest.mark.parametrize("demand_variables", [True, False])
def test_a_name_that_the_scenario_does_not_have_is_refused(demand_variables: bool) -> None:  # noqa: FBT001
    """A slip in a name would change nothing, and nobody would see; what it may have meant is said."""
    data = experiment(
        activity(agent_id="${agent_id}", force="${hard}"), configuration={"agent_id": "a", "unused": 1, "hard": True}
    )
    given = {"agentid": "b", "x": 1, "unused": 2, "hard": False}
    found = problems_of(data, variables=given, demand_variables=demand_variables)
    assert found == {
        "variables.agentid": ["the scenario has no variable 'agentid'; did you mean 'agent_id'?"],
        "variables.x": ["the scenario has no variable 'x'; it has agent_id, hard, unused"],
    }
    assert problems_of(seed(), variables={"x": 1})["variables.x"] == ["the scenario has no variable 'x'; it has none"]
    # Not configured, but used: within a text as well as for a whole one.
    used = seed(step(target="${agent_id}"), step(target="a-${number}"))
    assert [one.target for one in parse_scenario(used, variables={"agent_id": "b", "number": 2}).method] == ["b", "a-2"]


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("title: t\nmethod: [1\nx: 1\n", 3, "it is no YAML: did not find expected ',' or ']', while parsing a flow "),
        ("title: t\nmethod:\n- a: b: c\n", 3, "it is no YAML: mapping values are not allowed in this context, in col"),
        ('{"name": "n",\n\n "actions": [}', 3, "it is no JSON: Expecting value, in column 14"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_line(text: str, line: int, said: str) -> None:
    """And without words of the library that reads it."""
    with pytest.raises(InvalidScenarioError) as raised:
        parse_scenario(text)
    (problem,) = raised.value.problems
    assert (problem["line"], problem["problem"].startswith(said)) == (line, True), problem
    assert "unicode string" not in str(raised.value)
    assert ("that begins in line 2" in str(raised.value)) == ("[1" in text)


def who(name: str) -> dict[str, str]:
    """Names for what nobody else says in a ready scenario."""
    needed = [one for one, value in load_scenario(name, demand_variables=False).variables.items() if value is None]
    return {one: {"agent_id": "a", "worker": "w@host"}[one] for one in needed}


@pytest.mark.parametrize("name", ready_scenarios())
def test_the_ready_scenarios_are_right(name: str) -> None:
    """Each, with the names of an agent and a worker; without them it is said what is missing."""
    found = load_scenario(name, variables=who(name))
    assert found.title
    assert found.description
    with pytest.raises(InvalidScenarioError, match="pass --var"):
        load_scenario(name)


def test_ten_scenarios_come_with_the_package() -> None:
    """Every fault of the seed that lasts has one."""
    found = [load_scenario(name, variables=who(name)) for name in ready_scenarios()]
    assert len(found) == 10
    faults = {one.fault for scenario in found for one in scenario.method if one.kind == "action"} - {"heal"}
    lasting = {"slow_agent", "tool_timeout", "partition_network", "corrupt_memory", "disconnect_mcp"}
    assert faults == lasting | {"inject_llm_failure", "kill_agent", "kill_worker", "pause_agent"}


@pytest.mark.parametrize("name", ready_scenarios())
def test_chaos_toolkit_takes_the_ready_scenarios(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own validation has nothing to say of them, functions and arguments included."""
    experiments: Any = pytest.importorskip("chaoslib.experiment", reason="in the set of highest versions only")
    loader: Any = pytest.importorskip("chaoslib.loader")
    monkeypatch.setenv("ARES_ARENA_AGENT", "a")
    monkeypatch.setenv("ARES_ARENA_WORKER", "w@host")
    with as_file(files("ares_celery.arena") / "scenarios" / f"{name}.yaml") as path:
        experiments.ensure_experiment_is_valid(loader.load_experiment(str(path)))


@pytest.mark.parametrize("kind", SEED_TYPES)
def test_every_type_of_the_seed_is_taken(kind: str) -> None:
    """All thirteen and ours, with what they need."""
    metadata = {"metadata": {"offset": "2h"}} if kind == "clock_offset" else {}
    found = parse_scenario(seed(step(kind, "a", source_id="b", id="one", **metadata)))
    assert found.method[0].fault == kind
    assert len(SEED_TYPES) == 13 + 1


def test_what_is_wrong_with_a_clock_is_named_in_either_form() -> None:
    """How far has to be said, as an offset; the file is the target of the seed's form, whose faults last 5 s."""
    assert problems_of(seed(step("clock_offset"), step("clock_offset", "", metadata={"offset": "soon", "by": 1}))) == {
        "actions[0].action.metadata.offset": ["clock_offset needs it, and it is missing"],
        "actions[1].action.target_id": ["clock_offset needs it, and it is missing"],
        "actions[1].action.metadata.by": ["clock_offset takes duration, offset"],
        "actions[1].action.metadata.offset": ["'soon' is no offset; write seconds as a number, or 2h, -90s, +1h30m"],
    }
    wrong = problems_of(experiment(activity("clock_offset", file="/run/w1", offset="367d", duration="25h")))
    assert {place.rpartition(".")[2] for place in wrong} == {"offset", "duration"}
    provider = parse_scenario(seed(step("clock_offset", "/run/w1", metadata={"offset": -90}))).method[0].provider
    assert isinstance(provider, PythonProvider)
    assert provider.arguments == {"file": "/run/w1", "offset": -90, "duration": "5s"}


def test_the_seed_says_with_duration_how_slow_and_how_long() -> None:
    """Alone it is how much, as the seed meant it; beside a delay it is how long."""

    def arguments(**metadata: Any) -> Any:
        provider = parse_scenario(seed(step("slow_agent", metadata=metadata))).method[0].provider
        assert isinstance(provider, PythonProvider)
        return provider.arguments

    assert arguments() == {"agent_id": "a", "delay": "5s"}
    assert arguments(duration=2) == {"agent_id": "a", "delay": 2}
    assert arguments(duration="1m", delay="2s") == {"agent_id": "a", "delay": "2s", "duration": "1m"}


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    """Neither a path nor a ready scenario."""
    with pytest.raises(ScenarioNotFoundError, match="ares arena list"):
        load_scenario(tmp_path / "none.yaml")


# -- what nobody would write, and somebody sends ----------------------------------------------------------------------

TOO_MUCH = "it stands for more than 200000 values, or nests deeper than 60"


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    [
        "a: [" + "a," * 5_000_000 + "]",
        json.dumps(seed(*[{"x": 1}] * 200_000)),
        json.dumps({"name": "n", "actions": list(range(300_000))}),
        '{"name": "n", "actions": ' + "[" * 900 + "]" * 900 + "}",
        experiment(activity(agent_id="a", x=[[]] * 300_000)),
    ],
    ids=["YAML", "wrong steps", "numbers", "nested", "values"],
)
def test_a_scenario_of_millions_of_values_is_refused_in_seconds(text: object) -> None:
    """In whatever form it comes, and before memory is taken for each of them."""
    assert problems_of(text) == {"file": [TOO_MUCH]}


def test_so_are_variables_that_make_a_few_lines_terabytes() -> None:
    """Counted as they are used; those that are given from outside as well."""
    bomb = experiment(title="${a}" * 100_000, configuration={"a": "x" * 1_000_000})
    assert "more than 10 MiB" in problems_of(bomb)["configuration"][0]
    whole = experiment(*[activity(agent_id="a", x="${a}")] * 100, configuration={"a": ["x" * 1_000] * 1_000})
    assert "more than 10 MiB" in problems_of(whole)["configuration"][0]
    deep: list[Any] = []
    for _ in range(900):
        deep = [deep]
    assert problems_of(seed(step(metadata={"x": "${a}"})), variables={"a": deep}) == {"file": [TOO_MUCH]}


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("title: t\ud800", "file", "no text"),
        (experiment(configuration={"a": {"type": "env", "key": "\ud800"}}, title="${a}"), "title", "has no value"),
        (experiment(activity("slow_agent", agent_id="a", delay=1, probability=10**400)), "", "at most 1"),
        ("title: 2030-13-45\nmethod: []", "method", "is empty"),
        (f"title: {'9' * 5000}\nmethod: []", "title", "at most 1000 characters"),
        ("? [a, b]\n: 1", "<sequence>", "a key has to be text"),
    ],
    ids=["surrogate", "environment", "number", "date", "digits", "key"],
)
def test_odd_values_are_faults_of_the_file_and_not_of_the_reader(text: object, place: str, said: str) -> None:
    """Each is told as a problem, with its place."""
    found = problems_of(text)
    assert any(said in one for at, all_of in found.items() if place in at for one in all_of), found


def test_what_it_may_read_of_the_environment_is_said_by_whoever_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of it where the file is of somebody else: a report would show it."""
    monkeypatch.setenv("SECRET", "hush")
    reads = experiment(title="${a}", configuration={"a": {"type": "env", "key": "SECRET", "default": "d"}})
    assert parse_scenario(reads).title == "hush"
    assert parse_scenario(reads, environ={}).title == "d"
