"""Requests and programs of scenarios: what they give, how they fail, and that they end in time."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
from typing_extensions import override

from ares_celery.arena.loading import parse_scenario
from ares_celery.arena.runner import ScenarioRun
from ares_celery.arena.verdict.journal import ActivityReport, Outcome, Phase
from tests.integration.command_line import processes_with
from tests.unit.arena.managers import StandIn
from tests.wait import wait_until

pytestmark = pytest.mark.integration


class Handler(BaseHTTPRequestHandler):
    """Says what it was asked; drips without end below ``/drip``, and refuses below ``/no``."""

    def do_GET(self) -> None:
        self.send_response(404 if self.path.startswith("/no") else 200)
        self.end_headers()
        try:
            while self.path.startswith("/drip"):
                self.wfile.write(b".")
                over.wait(0.02)
                if over.is_set():
                    return
            self.wfile.write(json.dumps({"path": self.path, "x": self.headers.get("X-Say")}).encode())
        except OSError:
            pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.end_headers()
        self.wfile.write(body)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


over = threading.Event()


@pytest.fixture
def url() -> Iterator[str]:
    """A server of the test's own."""
    over.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    over.set()
    server.shutdown()
    server.server_close()
    thread.join()


def outcome(provider: dict[str, Any], **more: Any) -> ActivityReport:
    """What becomes of an activity with this provider."""
    activity = {"type": "action", "name": "it", "provider": provider, **more}
    run = ScenarioRun(cast("Any", StandIn()), parse_scenario({"title": "t", "method": [activity]}))
    (report,) = run.run().of(Phase.METHOD)
    return report


def test_a_request_gives_status_headers_and_body(url: str) -> None:
    """Arguments are the query of a GET and the JSON of a POST."""
    got = outcome({"type": "http", "url": f"{url}/a", "arguments": {"n": 1}, "headers": {"X-Say": "hi"}})
    assert (got.output["status"], got.output["body"]) == (200, {"path": "/a?n=1", "x": "hi"})
    sent = outcome({"type": "http", "url": url, "method": "POST", "arguments": {"n": [1]}})
    assert (sent.output["status"], sent.output["body"]) == (201, {"n": [1]})


def test_a_refused_request_fails_unless_its_status_is_tolerated(url: str) -> None:
    """As in Chaos Toolkit; so does one that nobody answers."""
    refused = outcome({"type": "http", "url": f"{url}/no"})
    assert refused.outcome is Outcome.FAILED
    assert "answers 404" in refused.problem
    assert outcome({"type": "http", "url": f"{url}/no"}, type="probe", tolerance=404).outcome is Outcome.SUCCEEDED
    assert outcome({"type": "http", "url": "http://127.0.0.1:1/"}).outcome is Outcome.FAILED


def test_an_answer_that_drips_ends_in_time(url: str) -> None:
    """Though each byte comes soon enough."""
    before = time.monotonic()
    dripping = outcome({"type": "http", "url": f"{url}/drip", "timeout": "200ms"})
    assert dripping.outcome is Outcome.FAILED
    assert "did not end in time" in dripping.problem
    assert time.monotonic() - before < 5


def test_a_program_gives_its_code_and_output_and_no_shell_reads_its_arguments() -> None:
    """A list or a mapping of arguments; an action of another code fails, a probe is judged by its tolerance."""
    code = "import sys; print(sys.argv[1:]); sys.exit(len(sys.argv) - 1)"
    none = outcome({"type": "process", "path": sys.executable, "arguments": ["-c", code]})
    assert (none.output["status"], none.output["stdout"]) == (0, "[]\n")
    odd = ["-c", code, "$HOME; ls | cat", "a b"]
    failed = outcome({"type": "process", "path": sys.executable, "arguments": odd})
    assert failed.outcome is Outcome.FAILED
    assert "exited with 2" in failed.problem
    assert "['$HOME; ls | cat', 'a b']" in failed.output["output"]["stdout"]
    probe = outcome({"type": "process", "path": sys.executable, "arguments": odd}, type="probe", tolerance=2)
    assert probe.outcome is Outcome.SUCCEEDED
    assert "there is no program" in outcome({"type": "process", "path": "no-such-program"}).problem


def test_a_program_that_does_not_end_is_killed_with_what_it_started(tmp_path: Path) -> None:
    """At its time limit, the whole session."""
    mark = f"arena-{tmp_path.name}"
    inner = f"import time; time.sleep(60)  # {mark}"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', '{inner}']).wait()"
    late = outcome({"type": "process", "path": sys.executable, "arguments": ["-c", code], "timeout": "400ms"})
    assert late.outcome is Outcome.FAILED
    assert "did not end within 0.4 s" in late.problem
    wait_until(lambda: not processes_with(mark), "the end of all")
