"""A store that answers slowly, or not at all: a control task is over after a second all the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from inspect import Parameter
from typing import Any

import pytest

from ares_celery.celery_app.control_ports import LONGEST_WAIT
from ares_celery.celery_app.control_tasks import CONTROLS, call_control, parameters_of
from ares_celery.celery_app.factory import create_app
from ares_celery.celery_app.wiring import Wiring, wiring_of
from ares_celery.config import ProcessSettings
from ares_celery.errors import AresError, StoreUnavailableError
from tests.redis_server import RedisServer

pytestmark = pytest.mark.integration

BY_NAME = {control.method: control for control in CONTROLS}
GOOD: dict[str, Any] = {
    "agent_id": "a",
    "agent": {"id": "a", "type": "t"},
    "config": {},
    "message": 1,
    "key": "k",
    "value": 1,
    "states": ["running"],
    "execution_id": "e",
    "message_id": "m",
    "settings": {},
    "name": "g",
    "delay": 1,
    "duration": 1,
    "timeout": 1,
    "worker": "w@host",
}
#: What a method needs besides, as one of several parameters must be there.
BESIDES: dict[str, dict[str, Any]] = {"reconcile_agent": {"retry": True}}
#: Seconds that one call which was sent in time may still wait for its answer.
SOCKET = LONGEST_WAIT
#: Seconds for the machine's own part.
SLACK = 0.5


@pytest.fixture
def server(make_redis_server: Callable[..., RedisServer]) -> RedisServer:
    """The store's own, which no broker shares."""
    return make_redis_server()


@pytest.fixture
def stopped(namespace: str, server: RedisServer) -> Iterator[Wiring]:
    """An app whose store, already open, does not answer any more; its broker does."""
    settings = ProcessSettings(
        redis_url=server.url, namespace=namespace, broker_url="memory://", result_url="cache+memory://"
    )
    wiring = wiring_of(create_app(settings, set_as_current=False))
    timed(wiring, "stats")
    server.pause()
    yield wiring
    server.resume()
    wiring.close()


def timed(wiring: Wiring, method: str, **given: Any) -> tuple[Any, float]:
    """What a control task answers or raises, and how long it took."""
    begun = time.monotonic()
    try:
        answer = call_control(BY_NAME[method], wiring, f"task-{method}", (), given)
    except AresError as error:
        answer = error
    return answer, time.monotonic() - begun


def test_a_control_task_ends_within_its_second_while_the_store_does_not_answer(stopped: Wiring) -> None:
    """All of them at once, each with the same clear error."""
    with ThreadPoolExecutor(len(CONTROLS)) as pool:
        asked = {
            name: pool.submit(timed, stopped, name, **{key: GOOD[key] for key in needed(name)}, **BESIDES.get(name, {}))
            for name in BY_NAME
        }
        found = {name: future.result(timeout=20) for name, future in asked.items()}
    assert {name: type(answer) for name, (answer, _) in found.items()} == dict.fromkeys(BY_NAME, StoreUnavailableError)
    slow = {name: round(took, 2) for name, (_, took) in found.items() if took > LONGEST_WAIT + SOCKET + SLACK}
    assert slow == {}


def needed(method: str) -> list[str]:
    """The arguments without which the task is refused."""
    return [name for name, one in parameters_of(BY_NAME[method]).items() if one.default is Parameter.empty]


def test_a_store_that_answers_again_is_used_again(stopped: Wiring, server: RedisServer) -> None:
    """What timed out costs a connection and nothing more; a call that was sent acted once, and its repeat knows."""
    kept, _ = timed(stopped, "register_agent_dag", key="k", value=1)
    assert isinstance(kept, StoreUnavailableError)
    server.resume()
    assert timed(stopped, "register_agent_dag", key="k", value=2)[0] is None
    assert timed(stopped, "get_agent_dag", key="k")[0] == 2
