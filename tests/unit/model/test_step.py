"""Records of steps: what is stored and read back, whatever version wrote it, and what functions are known by."""

from __future__ import annotations

from functools import partial, wraps

import pytest

from ares_celery.errors import UnreadableCheckpointError
from ares_celery.ids import AgentId
from ares_celery.model.step import (
    RecordedSteps,
    StepRecord,
    decode_step,
    encode_step,
    function_identity,
)


def test_what_holds_nothing_takes_no_room() -> None:
    """Ten thousand of them are read at once."""
    assert encode_step(StepRecord("s", "f", "safe"))[0] == b'{"function":"f","replay":"safe"}'


@pytest.mark.parametrize(
    "data", [b"", b"7", b"7|8", b"7|8|", b"7|8|[]", b"x|8|{}", b"7||{}", b"7|8|{", b'7|8|{"attempts":"many"}']
)
def test_damage_is_said(data: bytes) -> None:
    """Never a record that was not written; the error names agent, execution and step."""
    with pytest.raises(ValueError, match=r".+"):
        decode_step("s", data)
    steps = RecordedSteps(AgentId("a"), "e", {"s": data, "ok": b'{"value":1}'})
    assert (len(steps), list(steps), "s" in steps, steps["ok"].value) == (2, ["s", "ok"], True, 1)
    with pytest.raises(UnreadableCheckpointError, match="checkpoint 'e' of agent 'a' cannot be read: step 's': "):
        _ = steps["s"]
    with pytest.raises(KeyError):
        _ = steps["other"]


class Tools:
    """A class of functions."""

    def charge(self) -> None:
        """A method."""

    @staticmethod
    def fetch() -> None:
        """A function of the class."""


class Called:
    """An object that is called."""

    def __call__(self) -> None:
        """Does nothing."""


def test_a_function_is_known_by_its_name_and_its_classes() -> None:
    """Not by its module, nor by the function it was defined in, nor by what was put around it."""

    def local() -> None:
        """Defined in a function."""

    class Inner:
        def charge(self) -> None:
            """A method of a class that was defined in a function."""

    @wraps(Tools.fetch)
    def wrapped() -> None:
        """Around another one."""

    assert function_identity(local) == "local"
    assert function_identity(Inner().charge) == function_identity(Inner.charge) == "Inner.charge"
    assert function_identity(Tools().charge) == "Tools.charge"
    assert function_identity(wrapped) == function_identity(partial(partial(Tools.fetch))) == "Tools.fetch"
    assert function_identity(Called()) == "Called"
    assert function_identity(len) == "len"
    assert function_identity(lambda: None) == "<lambda>"
