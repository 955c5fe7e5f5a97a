"""The page on Flower: its requests are answered as printed, and its tables name each route there is."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

from ares_celery.web.flower_extension.faults import ACTIONS
from ares_celery.web.flower_extension.routes import routes
from tests.contract.web.flower_site import PREFIX, FlowerSite

PAGE = (Path(__file__).parents[3] / "docs/howto/use-flower.md").read_text()


def requests() -> list[tuple[str, str, Any]]:
    """Method, path and body of each call of the page that is answered and over."""
    found: list[tuple[str, str, Any]] = []
    for line in re.findall(r"(?m)^\$ ask (?!-N)(.*)$", PAGE):
        words = shlex.split(line)
        body = json.loads(words[words.index("-d") + 1]) if "-d" in words else None
        (path,) = [word.removeprefix("$api") for word in words if word.startswith("$api")]
        found.append(("POST" if "-d" in words or "POST" in words else "GET", path, body))
    return found


def test_the_requests_of_the_page_are_answered(site: FlowerSite) -> None:
    """In their order, about an agent of the test; what they inject is healed by the last one."""
    asked = [(method, path.replace("counter-1", "one"), body) for method, path, body in requests()]
    assert len(asked) == 4
    answers = [site.ask(method, path, body) for method, path, body in asked]
    assert [one.status for one in answers] == [200] * 4
    assert (answers[0].json["delay"], answers[1].json["retry_after"]) == (0.5, 7.0)
    assert {one["kind"] for one in answers[2].json["faults"]} == {one["kind"] for one in answers[3].json["healed"]}


def test_the_tables_name_each_route() -> None:
    """None is missing, and none is told of that is not there."""
    rows = re.findall(r"(?m)^\| (?:GET |POST )?(`.*?) \|", PAGE)
    named = {name for row in rows for name in re.findall(r"`(/?[\w/-]+)`", row)}
    agents = {name for name in named if not name.startswith("/")}
    assert agents >= {*ACTIONS, "heal"}
    told = {path.replace("/ID", "/x") for path in named if path.startswith("/")} | {"/chaos/heal"}
    made = [route.regex for route in routes()[:-1]]
    assert all(any(one.fullmatch(PREFIX + path) for one in made) for path in told)
    agent_routes = {f"/arena/agent/x/{name}" for name in [*ACTIONS, "heal"]}
    assert [one.pattern for one in made if not any(one.fullmatch(PREFIX + path) for path in told | agent_routes)] == []
