"""The world of two agents as a state machine that Hypothesis drives and shrinks."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from typing_extensions import override

from ares_celery.model.agent import RestartType, RuntimeState
from ares_celery.model.restart import LifecyclePolicy
from tests.property.lifecycle_store import default_policy
from tests.property.lifecycle_world import FATE, OPERATORS, SUPERVISION, WORKERS, Move, World


@st.composite
def policies(draw: st.DrawFn) -> LifecyclePolicy:
    """Restart policies small enough to reach their limits."""
    return replace(
        default_policy(),
        restart=draw(st.sampled_from(RestartType)),
        max_restarts=draw(st.integers(0, 3)),
        restart_period=draw(st.sampled_from([None, timedelta(seconds=20)])),
        restore_attempts=draw(st.integers(1, 3)),
        jitter=draw(st.sampled_from([0.0, 0.5])),
    )


RUNTIMES = st.sampled_from([*[RuntimeState.RUNNING] * 5, RuntimeState.NEW])
PICK = st.integers(0, 99)


class LifecycleMachine(RuleBasedStateMachine):
    """Workers, fate, supervision and operators take turns in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @initialize(first=policies(), second=policies(), runtime=RUNTIMES)
    def begin(self, first: LifecyclePolicy, second: LifecyclePolicy, runtime: RuntimeState) -> None:
        self.world.begin({"a": first, "b": second}, runtime)

    @rule(move=st.sampled_from(WORKERS), who=PICK, how=PICK)
    def workers(self, move: Move, who: int, how: int) -> None:
        move(self.world, who, how)

    @rule(move=st.sampled_from(FATE), who=PICK, how=PICK)
    def fate(self, move: Move, who: int, how: int) -> None:
        move(self.world, who, how)

    @rule(move=st.sampled_from(SUPERVISION), who=PICK, how=PICK)
    def supervision(self, move: Move, who: int, how: int) -> None:
        move(self.world, who, how)

    @rule(move=st.sampled_from(OPERATORS), who=PICK, how=PICK)
    def operators(self, move: Move, who: int, how: int) -> None:
        move(self.world, who, how)

    @invariant()
    def always(self) -> None:
        self.world.check()

    @override
    def teardown(self) -> None:
        self.world.calm_down()


def run(**options: Any) -> None:
    """Runs the machine with settings of its own."""
    run_state_machine_as_test(LifecycleMachine, settings=settings(**options))
