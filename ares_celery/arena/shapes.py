"""The fields of the two forms of a scenario's file, and which values they take."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ares_celery.arena.scenario import SETTLE
from ares_celery.arena.verdict.journal import STEADY
from ares_celery.model.durations import parse_duration

__all__ = [
    "ActivityShape",
    "AresExtension",
    "ExtrasShape",
    "HttpShape",
    "HypothesisShape",
    "PauseShape",
    "PolicyShape",
    "ProcessShape",
    "PythonShape",
    "SeedAction",
    "SeedFile",
    "SeedStep",
    "ToolkitFile",
]


def _span(value: object) -> timedelta:
    span = parse_duration(value)
    if span < timedelta(0):
        message = f"{value!r} is negative; a duration is zero or more"
        raise ValueError(message)
    return span


#: A duration as text or number, zero or more.
Span = Annotated[timedelta, BeforeValidator(_span)]
_ZERO: Final = timedelta(0)
Text = Annotated[str, Field(min_length=1, max_length=1_000)]
Count = Annotated[int, Field(ge=0, strict=True)]
Flag = Annotated[bool, Field(strict=True)]


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


Names = Annotated[list[str], BeforeValidator(_listed)]
Failure = Annotated[bool, Field(strict=True)] | Annotated[str, Field(min_length=1, strict=True)]


class _Shape(BaseModel):
    """Fields that are not named here are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


# -- what both have ----------------------------------------------------------------------------------------------------


class PolicyShape(_Shape):
    """How the method is run."""

    stop_on_error: Flag = False
    parallel_actions: Flag = False
    max_concurrent: Count = 0
    timeout: Span = _ZERO
    warmup: Span = _ZERO
    cooldown: Span = _ZERO
    settle: Span = SETTLE
    steady: Span = timedelta(seconds=STEADY)


class ExtrasShape(_Shape):
    """What the seed's form says of an action beside the action itself."""

    delay: Span = _ZERO
    label: str = ""
    expect_success: Flag = False
    expect_failure: Failure = False
    depends_on: Names = []


# -- Chaos Toolkit's experiments ---------------------------------------------------------------------------------------


class PythonShape(_Shape):
    """A function of a module."""

    type: Literal["python"]
    module: Text
    func: Text
    arguments: dict[str, Any] = {}


class HttpShape(_Shape):
    """A request."""

    type: Literal["http"]
    url: Annotated[str, Field(pattern=r"^https?://\S+$")]
    method: Annotated[str, Field(pattern=r"^[A-Za-z]{1,20}$")] = "GET"
    headers: dict[str, str] = {}
    arguments: Any = None
    timeout: Span = timedelta(seconds=30)
    verify_tls: Flag = True


class ProcessShape(_Shape):
    """A program with its arguments; no shell reads them."""

    type: Literal["process"]
    path: Text
    arguments: list[str | int | float] | dict[str, str | int | float] | str | None = None
    timeout: Span = timedelta(seconds=60)


class PauseShape(_Shape):
    """Waits around an activity."""

    before: Span = _ZERO
    after: Span = _ZERO


class ActivityShape(_Shape):
    """An action or a probe."""

    type: Literal["action", "probe"]
    name: Text
    provider: Annotated[PythonShape | HttpShape | ProcessShape, Field(discriminator="type")]
    tolerance: Any = None
    pauses: PauseShape = PauseShape()
    background: Flag = False
    #: Which names of the configuration it uses; told to no one, as all of them are there.
    configuration: list[str] = []


class HypothesisShape(_Shape):
    """What has to hold before and after."""

    title: Text
    probes: list[ActivityShape] = []


class _Strategy(_Shape):
    strategy: str = "default"


class _RuntimeShape(_Shape):
    """Which strategies an experiment names: rollbacks always run here, whatever it says."""

    hypothesis: _Strategy = _Strategy()
    rollbacks: _Strategy = _Strategy()


class ToolkitFile(_Shape):
    """An experiment."""

    version: str | int | float = "1.0.0"
    title: Text
    description: str = ""
    tags: list[str] = []
    contributions: dict[str, str] = {}
    configuration: dict[str, Any] = {}
    hypothesis: Annotated[HypothesisShape | None, Field(alias="steady-state-hypothesis")] = None
    method: Annotated[list[ActivityShape], Field(min_length=1)]
    rollbacks: list[ActivityShape] = []
    runtime: _RuntimeShape = _RuntimeShape()
    extensions: list[dict[str, Any]] = []


class AresExtension(_Shape):
    """What we add to an experiment, so that others still read it."""

    name: Literal["ares"]
    config: PolicyShape = PolicyShape()
    agents: Names = []
    activities: dict[str, ExtrasShape] = {}


# -- the seed's form ---------------------------------------------------------------------------------------------------


class SeedAction(_Shape):
    """What is done to whom."""

    id: str = ""
    type: str = ""
    target_id: str = ""
    source_id: str = ""
    metadata: dict[str, Any] = {}


class SeedStep(ExtrasShape):
    """An action and when it is due."""

    action: SeedAction


class SeedFile(_Shape):
    """A scenario of the seed."""

    name: Text
    description: str = ""
    tags: list[str] = []
    config: PolicyShape = PolicyShape()
    actions: Annotated[list[SeedStep], Field(min_length=1)]
