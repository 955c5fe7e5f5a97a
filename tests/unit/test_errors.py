"""Errors keep all their fields on every way, and signals are no errors."""

from __future__ import annotations

import contextlib
import copy
import json
import pickle
import string
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from typing_extensions import override

from ares_celery import errors
from ares_celery.errors import (
    AgentFailedError,
    AgentNotFoundError,
    AgentSignal,
    AresError,
    FencedSignal,
    NotFoundError,
    StopSignal,
    WaitSignal,
    error_from_wire,
)
from ares_celery.model.agent import AgentState


def all_errors(root: type[AresError] = AresError) -> Iterator[type[AresError]]:
    """Yield the product's own classes, not those that tests add."""
    if root.__module__.partition(".errors")[0] == "ares_celery":
        yield root
    for child in root.__subclasses__():
        yield from all_errors(child)


def needed(kind: type[AresError]) -> set[str]:
    """The fields that an error's sentence shows."""
    return {name for _, name, _, _ in string.Formatter().parse(kind.template) if name}


def sample(kind: type[AresError]) -> AresError:
    """An error with a value for each field of its sentence, and one more of every JSON type."""
    fields: dict[str, object] = {name: f"<{name}>" for name in needed(kind)}
    return kind(**fields, extra={"list": [1, 2.5, None, True, "ü"]}, epoch_number=1_750_000_000_000_001)


KINDS = sorted(set(all_errors()), key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_keeps_its_fields_through_json(kind: type[AresError]) -> None:
    """Celery's JSON results carry args; error_from_wire gives the class back with everything in it."""
    error = sample(kind)
    (data,) = error.args
    back = error_from_wire(json.loads(json.dumps(data)))
    assert type(back) is kind
    assert back.fields == error.fields
    assert str(back) == str(error)
    assert data["code"] == kind.code


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_rebuilt_from_its_only_argument(kind: type[AresError]) -> None:
    """What Celery does with exc_type and exc_message: call the class with args."""
    error = sample(kind)
    assert kind(*error.args).fields == error.fields


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["pickle", "copy", "deepcopy"])
def test_an_error_keeps_its_fields_through_pickle_and_copy(kind: type[AresError], way: str) -> None:
    """Process pools pickle; debuggers copy."""
    error = sample(kind)
    ways: dict[str, Callable[[AresError], AresError]] = {
        "pickle": lambda it: pickle.loads(pickle.dumps(it)),  # noqa: S301 - our own bytes
        "copy": copy.copy,
        "deepcopy": copy.deepcopy,
    }
    back = ways[way](error)
    assert type(back) is kind
    assert back.fields == error.fields


@pytest.mark.parametrize("kind", KINDS)
def test_the_sentence_shows_every_field_it_needs(kind: type[AresError]) -> None:
    """Nothing stays unknown, and the values are in it."""
    text = str(sample(kind))
    assert all(f"<{name}>" in text for name in needed(kind))
    assert text.count("?") == kind.template.count("?")


@pytest.mark.parametrize("kind", KINDS)
def test_an_absent_field_does_not_hide_the_error(kind: type[AresError]) -> None:
    """An error without its fields is still itself, not a KeyError."""
    assert str(kind())


@pytest.mark.parametrize("kind", KINDS)
def test_fields_are_attributes(kind: type[AresError]) -> None:
    """error.agent_id; what is not there is an AttributeError like everywhere."""
    error = sample(kind)
    assert error.epoch_number == 1_750_000_000_000_001
    assert not hasattr(error, "never_given")


def test_every_error_has_a_code_of_its_own_in_snake_case() -> None:
    """Stable names that other languages branch on."""
    codes = [kind.code for kind in KINDS]
    assert len(set(codes)) == len(codes)
    assert all(code == code.lower() and code.replace("_", "").isalpha() for code in codes)


def test_the_module_exports_every_error_and_signal() -> None:
    """A caller can catch each by name."""
    names = {kind.__name__ for kind in KINDS} | {
        "AgentSignal",
        "StopSignal",
        "FencedSignal",
        "WaitSignal",
        "error_from_wire",
    }
    assert set(errors.__all__) == names


def test_an_unknown_code_becomes_a_plain_error_with_everything_in_it() -> None:
    """A newer worker may send kinds that this process does not know."""
    error = error_from_wire({"code": "from_the_future", "message": "new sentence", "agent_id": "a"})
    assert type(error) is AresError
    assert (str(error), error.agent_id, error.fields["code"]) == ("new sentence", "a", "from_the_future")


def test_errors_fit_the_classes_that_python_programmers_expect() -> None:
    """LookupError, TimeoutError, ConnectionError, ValueError, TypeError where they mean just that."""
    for kind, base in {
        errors.NotFoundError: LookupError,
        errors.AgentNotFoundError: NotFoundError,
        errors.StreamNotFoundError: NotFoundError,
        errors.ProcessTimeoutError: TimeoutError,
        errors.WaitTimeoutError: TimeoutError,
        errors.StoreUnavailableError: ConnectionError,
        errors.InvalidAgentIdError: ValueError,
        errors.NilAgentError: ValueError,
        errors.NilFactoryError: ValueError,
        errors.UnknownAgentTypeError: ValueError,
        errors.InvalidConfigError: ValueError,
        errors.UnserialisableError: TypeError,
    }.items():
        assert issubclass(kind, base)


def test_a_sentence_names_the_value_and_a_cure() -> None:
    """Field, value, cure: bad input tells what to do."""
    assert str(AgentNotFoundError(agent_id="a")) == "agent 'a' does not exist; `ares agents ls` lists those that do"
    assert "if_exists" in str(errors.AgentAlreadyRegisteredError(agent_id="a", state="running", desired="running"))
    assert "ARES_CHAOS=true" in str(errors.ChaosDisabledError(operation="kill_agent", namespace="ares"))
    assert "6.2" in str(errors.UnsupportedServerError(url="redis://h", version="5.0"))


def test_an_agents_own_error_travels_with_type_message_and_traceback() -> None:
    """Nothing is lost of what its code raised."""
    error = AgentFailedError(agent_id="a", type="ValueError", error="bad row", traceback="Traceback …")
    assert error.args[0]["traceback"] == "Traceback …"
    assert "ValueError: bad row" in str(error)


def agent_that_eats_exceptions(signal: type[AgentSignal]) -> None:
    """What agents write around a call."""
    with contextlib.suppress(Exception):
        raise signal


@pytest.mark.parametrize("signal", [StopSignal, FencedSignal, WaitSignal])
def test_a_signal_is_no_exception_that_an_agent_could_eat(signal: type[AgentSignal]) -> None:
    """`except Exception` in an agent's code lets it through."""
    assert not issubclass(signal, Exception)
    with pytest.raises(AgentSignal):
        agent_that_eats_exceptions(signal)


class Odd:
    """What an error may be given by mistake."""

    @override
    def __str__(self) -> str:
        message = "no text"
        raise ValueError(message)


def test_odd_fields_become_plain_json_and_cost_none_of_the_others() -> None:
    """A set, an exception, NaN, a member of an enumeration, half a surrogate pair, and what has no text at all."""
    error = AresError(
        names={"a"},
        pair=("a", b"b"),
        cause=ValueError("no"),
        share=float("nan"),
        limit=float("inf"),
        state=AgentState.PARKED,
        half="\ud800",
        odd=Odd(),
        nested={"when": {1: timedelta(seconds=1)}},
        whole=2**70,
    )
    fields = json.loads(json.dumps(error.args[0], allow_nan=False))
    assert fields["odd"] == "<Odd without a text: ValueError>"
    assert {name: fields[name] for name in ("names", "pair", "cause", "share", "limit", "state", "half", "whole")} == {
        "names": ["a"],
        "pair": ["a", "b'b'"],
        "cause": "no",
        "share": "nan",
        "limit": "inf",
        "state": "parked",
        "half": "\\ud800",
        "whole": 2**70,
    }
    assert fields["nested"] == {"when": {"1": "0:00:01"}}
    assert error.fields == fields


def test_data_nested_without_end_is_cut() -> None:
    """It is an error's data, no document."""
    deep: dict[str, object] = {}
    deep["self"] = deep
    assert len(json.dumps(AresError(deep=deep).args[0])) < 1000


def test_what_logs_show_of_an_error_holds_no_value() -> None:
    """Celery logs the repr of what a task raises, and a refused value may be a secret; the text is for the caller."""
    error = errors.InvalidSettingError(field="message_id", value="hunter2", problem="must be a text")
    assert repr(error) == "InvalidSettingError(field='message_id')"
    assert "hunter2" in str(error)
    assert repr(AgentNotFoundError(agent_id="a")) == "AgentNotFoundError(agent_id='a')"
    assert repr(errors.RuntimeAlreadyStartedError()) == "RuntimeAlreadyStartedError()"
