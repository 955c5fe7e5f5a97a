"""How long after an append a subscriber has the event, on an idle machine."""

from __future__ import annotations

import threading
import time

from ares_celery import Event, NewEvent
from ares_celery.config import ProcessSettings, RuntimeConfig
from ares_celery.store.redis.open import open_store
from bench.figures import Spread, spread
from tests.redis_server import RedisServer

__all__ = ["delivery"]

#: Seconds between two appends: the subscriber waits on the server each time.
PAUSE = 0.01
TARGET = 50


def delivery(events: int = 1_000, streams: int = 20) -> Spread:
    """Milliseconds from the call of append, in this thread, until another thread has the event.

    Writer and subscriber have stores of their own, as two processes would; all shards are followed.
    """
    with RedisServer(appendonly=True, options={"appendfsync": "everysec"}) as server:
        settings = ProcessSettings(redis_url=server.url, namespace="bench")
        writer, reader = open_store(settings, RuntimeConfig()), open_store(settings)
        taken: list[float] = []
        subscription = reader.events.subscribe()

        thread = threading.Thread(target=lambda: taken.extend(map(_since, subscription)))
        thread.start()
        for number in range(events):
            began = {"began": time.perf_counter()}
            writer.events.append(f"s{number % streams}", [NewEvent("bench.ticked", began)])
            time.sleep(PAUSE)
        while len(taken) < events:
            time.sleep(PAUSE)
        subscription.close()
        thread.join()
        assert (len(taken), subscription.missed, subscription.lost) == (events, 0, 0)
        writer.close()
        reader.close()
    return spread(taken[events // 10 :])


def _since(event: Event) -> float:
    began: float = event.payload["began"]
    return (time.perf_counter() - began) * 1_000


if __name__ == "__main__":
    print(f"append to subscriber (ms), target p99 {TARGET}: {delivery()}")
