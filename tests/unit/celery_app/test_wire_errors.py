"""Errors on their way through Celery's JSON results: nothing is lost, with or without this package at the other end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from ares_celery.celery_app.factory import create_app
from ares_celery.config import ProcessSettings
from ares_celery.errors import AgentFailedError, AgentNotFoundError, AresError
from tests.unit.test_errors import KINDS, sample
from tests.without_package import run_without_package

SERVICE = """
import json
from celery import Celery

# A service's own app, with Celery's own settings.
backend = Celery("service", backend="cache+memory://").backend
for line in sys.stdin:
    error = backend.exception_to_python(backend.decode_result(line)["result"])
    assert not type(error).__module__.startswith("ares_celery"), type(error)
    (fields,) = error.args
    print(json.dumps([type(error).__name__, fields, fields["code"]]))
"""
LAZY = """
import ares_celery, sys
from celery import Celery
backend = Celery("service", backend="cache+memory://").backend
error = backend.exception_to_python(backend.decode_result(sys.stdin.read())["result"])
try:
    raise error
except ares_celery.NotFoundError as found:
    print(type(found) is ares_celery.AgentNotFoundError, found.agent_id)
"""


@pytest.fixture
def app(namespace: str) -> Celery:
    """An app with a result backend in this process."""
    settings = ProcessSettings(namespace=namespace, broker_url="memory://", result_url="cache+memory://")
    return create_app(settings, set_as_current=False)


def stored(app: Celery, error: AresError) -> str:
    """What a worker stores when a task raises."""
    backend: Any = app.backend
    meta = {"status": "FAILURE", "result": backend.prepare_exception(error, "json"), "task_id": "t"}
    encoded = backend.encode(meta)
    return encoded if isinstance(encoded, str) else encoded.decode()


@pytest.mark.parametrize("kind", KINDS)
def test_a_caller_with_this_package_gets_the_class_and_every_field(kind: type[AresError], app: Celery) -> None:
    """`except AgentNotFoundError` works around result.get()."""
    error = sample(kind)
    app.backend.mark_as_failure("t", error)
    with pytest.raises(kind) as raised:
        app.AsyncResult("t").get(timeout=1)
    assert type(raised.value) is kind
    assert (raised.value.fields, str(raised.value)) == (error.fields, str(error))


def test_a_caller_without_this_package_reads_the_code_and_every_field(app: Celery, tmp_path: Path) -> None:
    """All kinds of errors, in a process that cannot import it: exc.args[0]["code"]."""
    samples = [sample(kind) for kind in KINDS]
    lines = "\n".join(stored(app, error) for error in samples)
    said = [json.loads(line) for line in run_without_package(SERVICE, tmp_path, given=lines).splitlines()]
    assert said == [[type(error).__name__, error.fields, error.code] for error in samples]


def test_an_agents_own_error_arrives_with_type_message_and_traceback(app: Celery, tmp_path: Path) -> None:
    """Odd fields cost none of the others."""
    error = AgentFailedError(
        agent_id="a",
        type="ValueError",
        error="bad row",
        traceback="Traceback …\n  line 1",
        odd={1},
        cause=OSError("x"),
    )
    (line,) = run_without_package(SERVICE, tmp_path, given=stored(app, error)).splitlines()
    name, fields, code = json.loads(line)
    assert (name, code) == ("AgentFailedError", "agent_failed")
    assert (fields["type"], fields["error"], fields["traceback"]) == ("ValueError", "bad row", "Traceback …\n  line 1")
    assert (fields["odd"], fields["cause"]) == ([1], "x")


def test_a_caller_who_has_imported_the_package_alone_catches_the_class(app: Celery) -> None:
    """Names are loaded on first use, and the first may stand in its except clause."""
    line = stored(app, AgentNotFoundError(agent_id="a-1"))
    done = subprocess.run([sys.executable, "-c", LAZY], input=line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["True", "a-1"]), done.stderr
