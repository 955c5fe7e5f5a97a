"""A config is held against the constructor's annotations, as far as these say something about JSON values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional

import pytest

from ares_celery.agents.registry import Registry
from ares_celery.errors import InvalidConfigError
from ares_celery.model.agent import AgentSpec

if TYPE_CHECKING:
    from decimal import Decimal


class Takes:
    def __init__(  # noqa: PLR0913 - each is a case
        self,
        agent_id: str,
        *,
        whole: int = 1,
        number: float = 1.0,
        text: str = "",
        truth: bool = False,
        maybe: Optional[int] = None,  # noqa: UP045 - as older code has it
        late: str = None,  # type: ignore[assignment]  # noqa: RUF013 - as older code has it
        either: int | list[str] = 1,
        choice: Literal["a", "b"] = "a",
        numbers: list[float] | None = None,
        table: dict[str, int] | None = None,
        view: Mapping[str, list[int]] | None = None,
        loose: list = [],  # type: ignore[type-arg]  # noqa: B006
        noted: Annotated[int, "more than this"] = 1,
        path: Path | str = "",
        many: Sequence[str] = (),
        unknown: Decimal | int = 1,
        anything: Any = None,
        **more: int,
    ) -> None: ...

    async def process(self, ctx: object, message: object) -> object:
        return message


@dataclass
class Made:
    agent_id: str
    pause: float = 1.0

    def process(self, ctx: object, message: object) -> object:
        return message


GOOD: list[dict[str, Any]] = [
    {"whole": 3},
    {"whole": 3.0},
    {"whole": True},
    {"number": 3},
    {"number": 3.5},
    {"text": "3"},
    {"truth": True},
    {"truth": False},
    {"maybe": None},
    {"late": None},
    {"late": "x"},
    {"either": ["x"]},
    {"choice": "b"},
    {"numbers": [1, 2.5]},
    {"table": {"a": 1}},
    {"view": {"a": [1]}},
    {"loose": [1, "a", None]},
    {"noted": 2},
    {"path": "/x"},
    {"path": 3},
    {"many": "text"},
    {"many": ["x"]},
    {"unknown": "1.5"},
    {"anything": {"x": 1}},
    {"else": "x"},
]
BAD = [
    ({"whole": "3"}, "whole is a text, and the constructor takes whole: int"),
    ({"whole": 3.5}, "whole is a number, and the constructor takes whole: int"),
    ({"number": "abc"}, "number is a text, and the constructor takes number: float"),
    ({"number": None}, "number is null, and the constructor takes number: float"),
    ({"text": 3}, "text is a number, and the constructor takes text: str"),
    ({"truth": "no"}, "truth is a text, and the constructor takes truth: bool; a bool is true or false"),
    ({"truth": 2}, "truth is a number, and the constructor takes truth: bool; a bool is true or false"),
    ({"truth": 1}, "truth is a number, and the constructor takes truth: bool; a bool is true or false"),
    ({"maybe": "x"}, "maybe is a text, and the constructor takes maybe: int | None"),
    ({"late": True}, "late is a truth value, and the constructor takes late: str | None"),
    ({"either": "x"}, "either is a text, and the constructor takes either: int | list[str]"),
    ({"choice": "c"}, "choice is a text, and the constructor takes choice: Literal['a', 'b']"),
    ({"numbers": [1, "x"]}, "numbers is a list, and the constructor takes numbers: list[float] | None"),
    ({"table": {"a": "b"}}, "table is an object, and the constructor takes table: dict[str, int] | None"),
    ({"view": {"a": 1}}, "view is an object, and the constructor takes view: dict[str, list[int]] | None"),
    ({"loose": "x"}, "loose is a text, and the constructor takes loose: list"),
    ({"noted": "x"}, "noted is a text, and the constructor takes noted: int"),
]


def check_here(config: dict[str, Any]) -> None:
    """Where the class is known."""
    Registry().register("takes", Takes).check_config(AgentSpec(id="a", type="takes", config=config))


def check_afar(config: dict[str, Any]) -> None:
    """By what a worker said of it, in JSON."""
    registry = Registry()
    registry.register("takes", Takes)
    described = json.loads(json.dumps(registry.describe()))
    Registry.check_described(described["takes"], AgentSpec(id="a", type="takes", config=config))


@pytest.mark.parametrize("check", [check_here, check_afar])
@pytest.mark.parametrize("config", GOOD, ids=str)
def test_what_a_constructor_could_use_is_taken(check: Any, config: dict[str, Any]) -> None:
    """Nothing is converted, and of what it does not understand nothing is refused."""
    check(config)


@pytest.mark.parametrize("check", [check_here, check_afar])
@pytest.mark.parametrize(("config", "said"), BAD, ids=str)
def test_what_an_annotation_rules_out_is_refused(check: Any, config: dict[str, Any], said: str) -> None:
    """The text has name and type, and not the value, which may be a secret."""
    with pytest.raises(InvalidConfigError) as caught:
        check(config)
    assert str(caught.value).endswith(f": {said}")


def test_a_dataclass_says_as_much() -> None:
    """Its constructor is written for it."""
    known = Registry().register("made", Made)
    known.check_config(AgentSpec(id="a", type="made", config={"pause": 2}))
    with pytest.raises(InvalidConfigError, match="pause is a text"):
        known.check_config(AgentSpec(id="a", type="made", config={"pause": "2"}))


def test_a_worker_of_an_older_version_says_nothing_of_types() -> None:
    """What it says is used as before."""
    older = {"open": False, "names": ["pause"], "required": []}
    Registry.check_described(older, AgentSpec(id="a", type="made", config={"pause": "2"}))


def test_a_wrong_name_is_told_alike_here_and_afar() -> None:
    """With the names that there are."""
    registry = Registry()
    known = registry.register("made", Made)
    spec = AgentSpec(id="a", type="made", config={"paus": 2})
    with pytest.raises(InvalidConfigError) as here:
        known.check_config(spec)
    with pytest.raises(InvalidConfigError) as afar:
        Registry.check_described(registry.describe()["made"], spec)
    assert str(here.value) == str(afar.value)
    assert str(here.value).endswith("unknown: paus; it takes pause")


def test_an_agent_that_was_made_before_lives_on() -> None:
    """Its next incarnation is made as ever."""
    spec = AgentSpec(id="a", type="made", config={"pause": "2"})
    assert Registry().register("made", Made).create(spec).pause == "2"  # type: ignore[attr-defined]


def test_an_agent_that_runs_already_is_judged_by_names_alone() -> None:
    """A restart by hand must not fail for what an annotation says only now."""
    known = Registry().register("made", Made)
    with pytest.raises(InvalidConfigError, match="unknown"):
        known.check_config(AgentSpec(id="a", type="made", config={"paus": 2}), values=False)
    known.check_config(AgentSpec(id="a", type="made", config={"pause": "2"}), values=False)
