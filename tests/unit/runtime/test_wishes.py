"""What plug-ins wish of steps, as an incarnation takes it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ares_celery.plugins.contract import StepCall
from ares_celery.runtime.step_scope import NEVER
from ares_celery.runtime.waits import Wishes


class Listener:
    """Wants a word about every step, without the slot."""

    has_interrupters = True

    def approval_wish(self, step: StepCall) -> Any:
        return SimpleNamespace(payload={"step": step.step_id}, timeout=None, release_slot=True)


@pytest.mark.parametrize("around", ["", "pay"])
def test_a_wish_gives_the_slot_back_only_outside_of_never_steps(around: str) -> None:
    """Inside of one the word is waited for in place: the plug-in cannot know what is around the step."""
    step = replace(StepCall("a-1", "book"), execution="main")
    token = NEVER.set(around)
    try:
        found = Wishes(Listener()).wish(step)
    finally:
        NEVER.reset(token)
    assert found is not None
    assert found.name == "step:book"
    assert found.release_slot is not bool(around)
