"""The table of our routes."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import Any, Final

from tornado.routing import URLSpec

from ares_celery.web.flower_extension.arena import (
    RUN_FIELDS,
    SURVIVAL_FIELDS,
    VALIDATE_FIELDS,
    list_scenarios,
    run_scenario,
    show_run,
    show_survival,
    start_survival,
    stop_survival,
    validate_scenario,
)
from ares_celery.web.flower_extension.base import Call, Getter, Nowhere, Poster
from ares_celery.web.flower_extension.faults import ACTIONS, act, heal, list_faults
from ares_celery.web.flower_extension.records import HISTORY_FIELDS, JUDGED_FIELDS, history, metrics, score, stats
from ares_celery.web.flower_extension.stream import EventStream

__all__ = ["PREFIX", "is_ours", "routes"]

PREFIX: Final = "/api/ares"
#: An agent's id, or whatever stands in its place: what is wrong with it is told by the handler.
_ID: Final = "([^/]*)"


def routes() -> list[URLSpec]:
    """Our routes, as URLSpecs: of those Flower keeps the arguments when it serves below a prefix."""
    return [
        _get("/chaos/faults", list_faults, "agent_id"),
        _post("/chaos/heal", heal, "agent_id", "fault", "reason", "op"),
        *(
            _post(f"/arena/agent/{_ID}/{name}", partial(act, name=name), *action.fields)
            for name, action in ACTIONS.items()
        ),
        _post(f"/arena/agent/{_ID}/heal", heal, "fault", "reason", "op"),
        _post("/arena/survival", start_survival, *SURVIVAL_FIELDS, status=HTTPStatus.ACCEPTED),
        _post("/arena/survival/stop", stop_survival, "reason"),
        _get("/arena/survival/status", show_survival),
        _get("/arena/scenarios", list_scenarios),
        _post("/arena/scenario/validate", validate_scenario, *VALIDATE_FIELDS),
        _post("/arena/scenario/run", run_scenario, *RUN_FIELDS),
        _get(f"/arena/run/{_ID}", show_run),
        _get("/arena/stats", stats),
        _get("/arena/history", history, *HISTORY_FIELDS),
        _get("/arena/score", score, *JUDGED_FIELDS),
        _get("/arena/metrics", metrics, *JUDGED_FIELDS),
        URLSpec(f"{PREFIX}/arena/stream", EventStream),
        URLSpec(f"{PREFIX}(?:/.*)?", Nowhere),
    ]


def is_ours(handler: Any) -> bool:  # noqa: ANN401 - of Flower's list: a URLSpec or a tuple
    """Whether an entry of Flower's list is one of ours."""
    pattern: object = getattr(getattr(handler, "regex", None), "pattern", "")
    return isinstance(pattern, str) and pattern.startswith(PREFIX)


def _get(path: str, call: Call, *known: str) -> URLSpec:
    return URLSpec(PREFIX + path, Getter, {"call": call, "known": known})


def _post(path: str, call: Call, *known: str, status: HTTPStatus = HTTPStatus.OK) -> URLSpec:
    return URLSpec(PREFIX + path, Poster, {"call": call, "known": known, "status": status})
