"""An app with hostile settings and RabbitMQ: its own tasks notice nothing, and its agents outlive everything."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from celery.exceptions import TimeLimitExceeded

from ares_celery import AgentSpec
from ares_celery.celery_app.beat import ENTRY
from tests.fleet import AGENTS, CONTROL, SUPERVISION, Process
from tests.integration.guests.guest_fleet import AFTER, BEFORE, GuestFleet
from tests.integration.guests.shop import TIME_LIMIT
from tests.rabbitmq_server import RabbitServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(150)]

ALL = (AGENTS, SUPERVISION, CONTROL)


def test_agents_live_in_an_app_on_rabbitmq(rabbit_server: RabbitServer, make_guests: Callable[..., GuestFleet]) -> None:
    """Their settings and tasks before and after; their time limit; two namespaces; lost workers; a broker restart."""
    shop = make_guests({"broker_url": rabbit_server.url})
    other = make_guests({"broker_url": rabbit_server.url}, "x")
    before, after = shop.theirs("before", BEFORE), shop.theirs("after", AFTER)
    first, second = shop.guests("first", ALL, pool="prefork", slots=3), shop.guests("second", ALL)
    foreign = other.guests("foreign", ALL)
    shop.ready(before, after, first, second, foreign)

    their_workers_are_the_same(shop)
    agents_outlive_the_time_limit(shop, other)
    messages_of_another_namespace_go_home(shop, other)
    assert "sent on to queue" in first.log() + second.log()
    assert "sent on to queue" not in foreign.log()

    # A worker that ends in order hands its agents over; what one loses by SIGKILL comes back elsewhere.
    assert second.terminate() == 0
    for name in ("a", "b", "c"):
        shop.until(name, "running")
        shop.check_streams(name)
    third = shop.guests("third", ALL)
    shop.ready(third)
    lost = {name: shop.info(name).incarnation for name in ("a", "b", "c")}
    first.kill()
    for name, incarnation in lost.items():
        assert shop.until(name, "running", incarnation=incarnation + 1).worker == "third@host"

    # While the broker is away agents run on; when it is back, workers are, too.
    rabbit_server.stop()
    for name in ("a", "b", "c"):
        shop.until_ticks(name, shop.ticks(name) + 5)
    rabbit_server.start(patience=1.5)
    shop.manager.start_agent(AgentSpec(id="e", type="ticker"), wait="running", timeout=30)
    assert shop.app.send_task("shop.sum", (1, 1)).get(timeout=20) == 2

    a_full_worker_outlives_the_brokers_patience(shop, third)
    assert {name: shop.info(name).incarnation - 1 for name in lost} == lost
    for name in ("a", "b", "c", "f"):
        shop.manager.stop_agent(name)
        shop.until(name, "stopped")
        shop.check_streams(name)


def their_workers_are_the_same(shop: GuestFleet) -> None:
    """They say the same of themselves, and do the same."""
    told = {name: shop.conf(name) for name in ("before", "after")}
    assert told["after"]["beat_schedule"].pop(ENTRY)["options"]["queue"] == f"{shop.namespace}.supervision"
    assert told["after"] == told["before"]
    queues = shop.app.control.inspect(timeout=10, limit=5).active_queues() or {}
    read = {name: sorted(queue["name"] for queue in found) for name, found in queues.items()}
    assert read["before@host"] == read["after@host"] == ["celery"]
    assert read["first@host"] == sorted(f"{shop.namespace}.{queue}" for queue in ALL)
    sums = [shop.app.send_task("shop.sum", (n, 1)) for n in range(6)]
    assert [one.get(timeout=20) for one in sums] == [1, 2, 3, 4, 5, 6]


def agents_outlive_the_time_limit(shop: GuestFleet, other: GuestFleet) -> None:
    """Agents run far beyond what ends a task of theirs, each in a worker of its namespace."""
    agents = [(shop, "a"), (shop, "b"), (shop, "c"), (other, "a"), (other, "d")]
    for fleet, name in agents:
        fleet.manager.start_agent(AgentSpec(id=name, type="ticker"))
    slow = shop.app.send_task("shop.sleep", (30,))
    with pytest.raises(TimeLimitExceeded):
        slow.get(timeout=20)
    for fleet, name in agents:
        fleet.until_ticks(name, int(TIME_LIMIT / 0.05))
        found = fleet.until(name, "running")
        assert (found.incarnation, found.restarts) == (1, 0)
        assert found.worker in ({"first@host", "second@host"} if fleet is shop else {"foreign@host"})


def messages_of_another_namespace_go_home(shop: GuestFleet, other: GuestFleet) -> None:
    """A task by name, as a service sends it; one that came to the wrong namespace is sent on to its own."""
    asked = shop.app.send_task("ares.process", kwargs={"agent_id": "a", "message": {"n": 1}})
    assert asked.get(timeout=20)["echo"] == {"n": 1}
    shop.app.send_task(
        "ares.start_agent",
        kwargs={"agent": {"id": "home", "type": "ticker"}},
        headers={"ares_namespace": other.namespace},
    )
    other.wait(lambda: other.manager.get_agent_info("home"), "the message to reach its namespace")
    other.until("home", "running")
    assert shop.manager.get_agent_info("home") is None


def a_full_worker_outlives_the_brokers_patience(shop: GuestFleet, worker: Process) -> None:
    """Without a free slot it holds messages for longer than RabbitMQ likes; it reads anew, and agents run on."""
    shop.manager.start_agent(AgentSpec(id="f", type="ticker"))
    # RabbitMQ is not asked how many wait there.
    assert shop.manager._ports.committer.waiting(None) is None
    shop.wait(lambda: "PRECONDITION_FAILED" in worker.log(), "RabbitMQ to lose its patience")
    assert shop.info("f").state == "starting"
    shop.manager.stop_agent("e")
    found = shop.until("f", "running")
    assert (found.incarnation, found.restarts) == (1, 0)
