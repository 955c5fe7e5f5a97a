"""A scenario as a value, whichever form its file has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final, Literal

from ares_celery.arena.verdict.journal import STEADY

__all__ = [
    "NOTHING",
    "SETTLE",
    "Activity",
    "Form",
    "HttpProvider",
    "Hypothesis",
    "Pauses",
    "Policy",
    "ProcessProvider",
    "Provider",
    "PythonProvider",
    "Scenario",
]

Form = Literal["chaostoolkit", "seed"]
#: Stands for an absent tolerance, as None is a tolerance, too: the probe has to give none.
NOTHING: Final = object()
_ZERO: Final = timedelta(0)
#: How long agents may take to come back, unless a run says otherwise.
SETTLE: Final = timedelta(minutes=1)


def _empty() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PythonProvider:
    """Calls a function of an allowed module with the arguments."""

    module: str
    func: str
    arguments: Mapping[str, Any] = field(default_factory=_empty)


@dataclass(frozen=True, slots=True)
class HttpProvider:
    """Sends a request; ``arguments`` are the query of a GET, else the JSON body. An answer of 400 or above fails."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=_empty)
    arguments: Any = None
    timeout: timedelta = timedelta(seconds=30)
    verify_tls: bool = True


@dataclass(frozen=True, slots=True)
class ProcessProvider:
    """Starts a program without a shell. A probe gives its exit code and output; an action of another code fails."""

    path: str
    arguments: Any = None
    timeout: timedelta = timedelta(seconds=60)


Provider = PythonProvider | HttpProvider | ProcessProvider


@dataclass(frozen=True, slots=True)
class Pauses:
    """How long to wait around an activity."""

    before: timedelta = _ZERO
    after: timedelta = _ZERO


@dataclass(frozen=True, slots=True)
class Activity:
    """One thing that a scenario does or looks at.

    Attributes:
        kind: ``action`` changes something, ``probe`` looks.
        name: Unique among the activities of the method.
        provider: What is called.
        tolerance: What a probe has to give; NOTHING = anything.
        pauses: Waits around it.
        background: The next one does not wait for its end.
        delay: Wait before it, once it may run.
        depends_on: Names of the activities that have to be over, as they were expected to be.
        expect_success: It has to succeed.
        expect_failure: It has to fail; a text: with an error that says this.
        label: What reports call it.
        target: The agent that it is about, for the report.
        fault: What kind of fault it is, for the report; empty for a probe.
    """

    kind: Literal["action", "probe"]
    name: str
    provider: Provider
    tolerance: Any = NOTHING
    pauses: Pauses = Pauses()
    background: bool = False
    delay: timedelta = _ZERO
    depends_on: tuple[str, ...] = ()
    expect_success: bool = False
    expect_failure: bool | str = False
    label: str = ""
    target: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """What has to be true before the faults, and again after them."""

    title: str
    probes: tuple[Activity, ...]


@dataclass(frozen=True, slots=True)
class Policy:
    """How the method is run.

    Attributes:
        stop_on_error: The first activity that does not end as expected ends the method.
        parallel_actions: Whatever does not depend on another may run beside it.
        max_concurrent: At most so many at once; 0 = as many as there are.
        timeout: The method ends after that; zero = never.
        warmup: Wait between the hypothesis and the first activity.
        cooldown: Wait between the last activity and the hypothesis.
        settle: How long agents that died may take to come back, at the end.
        steady: How long each of them has to stay up then, else it has not come back.
    """

    stop_on_error: bool = False
    parallel_actions: bool = False
    max_concurrent: int = 0
    timeout: timedelta = _ZERO
    warmup: timedelta = _ZERO
    cooldown: timedelta = _ZERO
    settle: timedelta = SETTLE
    steady: timedelta = timedelta(seconds=STEADY)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Faults in an order, what has to hold around them, and what sets things right again.

    Attributes:
        title: Its name.
        description: What it shows.
        tags: Words to find it by.
        hypothesis: What has to hold before and after; None = nothing was said.
        method: The activities.
        rollbacks: What is done at the end, whatever happened.
        policy: How the method is run.
        agents: The agents to judge; empty = all of the namespace.
        form: Of the file.
        variables: What ``--var`` may say, and what holds when nobody does; None: somebody has to.
    """

    title: str
    description: str = ""
    tags: tuple[str, ...] = ()
    hypothesis: Hypothesis | None = None
    method: tuple[Activity, ...] = ()
    rollbacks: tuple[Activity, ...] = ()
    policy: Policy = Policy()
    agents: tuple[str, ...] = ()
    form: Form = "chaostoolkit"
    variables: Mapping[str, Any] = field(default_factory=_empty)
