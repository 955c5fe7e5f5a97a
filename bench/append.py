"""What does an append cost, with fence, version and feed, next to a bare XADD on the same connection?

    python -m bench.append [--rounds 3000] [--bytes 300]

Starts a Redis server of its own (append-only file, fsync every second), and takes turns on one connection: a bare
``xadd`` of redis-py with bytes that are there; the whole append; a bare one with a dict that it encodes first, as its
user must; an append of an event that is encoded already. Turns make all four meet the same noise, and each follows one
of the other kind, as whatever repeats the call before it finds all caches warm. Medians and quartiles of each are
printed, and ratios of medians to both bare ones.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import msgspec
import redis

from ares_celery.config import ProcessSettings, RuntimeConfig
from ares_celery.ids import AgentId, Version
from ares_celery.model.agent import AgentSpec, Owner, RuntimeState
from ares_celery.model.command import Start
from ares_celery.model.event import NewEvent
from ares_celery.model.lifecycle import decide
from ares_celery.model.plan import Situation
from ares_celery.store.redis import event_calls
from ares_celery.store.redis.client import RedisClient
from ares_celery.store.redis.connections import Connector, Driver
from ares_celery.store.redis.driver_errors import DriverErrors
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.scripts import Scripts
from ares_celery.store.redis.server import scripts_for
from ares_celery.store.redis.store import Drivers, RedisStore
from ares_celery.store.redis.stored_events import encode_events
from tests.redis_server import RedisServer

AGENT = AgentId("bench-agent-1")
#: The most that an append may cost of a bare XADD.
TARGET = 1.4
#: Rounds that only warm up.
WARM_UP = 300


def open_claimed(url: str) -> tuple[RedisStore, redis.Redis, str]:
    """A store on one connection, the client that owns this connection, and the fence of a claimed agent."""
    connector = Connector.to(url)
    driver = connector.driver(connections=1)
    assert isinstance(driver, redis.Redis)
    drivers = Drivers(driver, connector.driver(), connector.driver, connector.async_driver)
    settings = ProcessSettings(redis_url=url)
    store = RedisStore.connect(drivers, settings.namespace, RuntimeConfig(), errors=DriverErrors(url))
    store.set_runtime(RuntimeState.RUNNING, only_from=[RuntimeState.NEW], reason="bench", actor="bench")
    read = store.read(AGENT)
    spec = AgentSpec(id=AGENT, type="bench")
    situation = Situation(None, read.now, store.config.policy_for(spec), read.runtime)
    committed = store.commit(decide(situation, Start(spec=spec)), read, op="start")
    owner = Owner("bench:0:0:1:0", "bench@localhost", "task")
    return store, driver, store.claim(AGENT, committed.epoch, token="t", owner=owner, page=1).record.fence  # noqa: S106


class Turns:
    """The three things that are compared; each call does one."""

    def __init__(self, store: RedisStore, client: redis.Redis, fence: str, size: int) -> None:
        self._store, self._client, self._fence = store, client, fence
        self._payload = {"text": "x" * (size - len('{"text":""}'))}
        self._calls = RedisClient(self._store_driver(), self._scripts(), DriverErrors("bench"))
        self._keys = Keys(store.namespace, store.config.shards)
        self._encoded = encode_events(AGENT, [NewEvent("bench.ticked", self._payload)], epoch=1, limit=1 << 20)
        self._version = Version(0)
        self._number = 0

    def _store_driver(self) -> redis.Redis:
        return self._client

    def _scripts(self) -> Scripts:
        return scripts_for(self._client, DriverErrors("bench"))

    def bare(self) -> None:
        """XADD of the same bytes, as redis-py has it."""
        self._client.xadd("bare", {"d": self._encoded[0].data})

    def encoding(self) -> None:
        """XADD of a dict, encoded as fast as can be, unchecked."""
        self._client.xadd("bare", {"d": msgspec.json.encode(self._payload)})

    def append(self) -> None:
        """The whole append: JSON checked and encoded, fence, version, event, feed."""
        self._number += 1
        events = [NewEvent("bench.ticked", self._payload)]
        stored = self._store.append(AGENT, self._fence, events, op=f"op-{self._number}", expected=self._version)
        self._version = stored[-1].version

    def script(self) -> None:
        """The append of an event that is encoded already."""
        self._number += 1
        append = event_calls.Append(AGENT, self._fence, self._encoded, f"op-{self._number}", self._version)
        stored = self._calls.run(event_calls.append_one(self._keys, append=append))
        assert stored is not None
        self._version = stored[-1].version


def store_version(client: Driver) -> str:
    """The version of the server."""
    return str(client.execute_command("INFO", "server")["redis_version"])


def measure(turns: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Microseconds of each turn, in rounds."""
    times: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(WARM_UP + rounds):
        for name, turn in turns.items():
            began = time.perf_counter()
            turn()
            if number >= WARM_UP:
                times[name].append((time.perf_counter() - began) * 1e6)
    return times


def report(times: dict[str, list[float]]) -> None:
    """Prints a line for each, with its ratios to the first and to the third: both are bare."""
    bare, _, encoding, *_ = (statistics.median(micros) for micros in times.values())
    for name, micros in times.items():
        low, median, high = statistics.quantiles(micros, n=4)
        ratios = f"ratio {median / bare:.2f}, {median / encoding:.2f}"
        print(f"{name:<24} p50 {median:7.1f} µs  (quartiles {low:.1f} to {high:.1f})  {ratios}")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3_000)
    parser.add_argument("--bytes", type=int, default=300, help="size of the payload as JSON")
    arguments = parser.parse_args()
    options = {"appendfsync": "everysec"}
    with RedisServer(appendonly=True, options=options) as server:
        store, client, fence = open_claimed(server.url)
        turns = Turns(store, client, fence, arguments.bytes)
        compared = {
            "bare xadd": turns.bare,
            "append": turns.append,
            "bare xadd, encoding": turns.encoding,
            "append, encoded already": turns.script,
        }
        times = measure(compared, arguments.rounds)
        version = store_version(client)
        store.close()
    print(f"redis {version}, redis-py {redis.__version__}, Python {platform.python_version()}, {arguments.bytes} B,")
    print(f"{arguments.rounds} rounds in turns on one connection, AOF everysec; target ratio {TARGET}")
    report(times)


if __name__ == "__main__":
    main()
