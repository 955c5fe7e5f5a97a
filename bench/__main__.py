"""Runs the measurements: `python -m bench` all of them at full length, `python -m bench --json` a short run."""

from __future__ import annotations

import argparse
import json
import statistics

from bench import (
    append,
    async_callers,
    density,
    failover,
    importing,
    messages,
    recovery,
    start,
    steps,
    subscribe,
    sweep,
)
from tests.redis_server import RedisServer


def _append(rounds: int) -> dict[str, float]:
    """Medians in microseconds of a bare xadd and of an append, in turns on one connection, AOF everysec."""
    with RedisServer(appendonly=True, options={"appendfsync": "everysec"}) as server:
        store, client, fence = append.open_claimed(server.url)
        turns = append.Turns(store, client, fence, 300)
        compared = {"xadd": turns.bare, "script": turns.script, "append": turns.append}
        times = append.measure(compared, rounds)
        store.close()
    return {name: statistics.median(micros) for name, micros in times.items()}


def short() -> dict[str, float]:
    """A few minutes: enough to see that nothing has become ten times slower."""
    appended = _append(1_000)
    grown = sweep.sweep_growth(100, 2_000)
    dense = density.density(200, settle=12)
    replayed = recovery.replay_cost(20_000)
    recovered = recovery.fresh_snapshot(200_000, rounds=5)
    stepped = steps.step_cost(700)
    skipped = steps.recovery(rounds=5)
    return {
        "append_vs_xadd": round(appended["append"] / appended["xadd"], 3),
        "append_script_vs_xadd": round(appended["script"] / appended["xadd"], 3),
        "step_vs_xadd": round(stepped.ratio, 3),
        "never_step_vs_xadd": round(stepped.never_ratio, 3),
        "steps_10k_opened_ms_p50": round(skipped.opened.p50, 1),
        "steps_10k_entered_ms_p50": round(skipped.entered_again.p50, 1),
        "replay_events_per_s": round(replayed.typed),
        "replay_vs_xrange": round(replayed.ratio, 2),
        "recovery_200k_fresh_snapshot_ms_p50": round(recovered.recovery.p50, 1),
        "failover_child_ms_p50": round(failover.child_killed(5).p50, 1),
        "failover_worker_ms_p50": round(failover.worker_killed(3).p50, 1),
        "failover_lease_ms_p99": round(failover.by_lease(3).p99, 1),
        "import_ms": round(importing.import_cost(3)["import ares_celery"].p50, 1),
        "process_vs_ping": round(messages.round_trip(300).ratio, 2),
        "start_vs_noop": round(start.start_cost(20).ratio, 2),
        "agent_kb": round(dense.agent_kb, 1),
        "sweep_growth": round(grown.ratio, 2),
        "subscribe_ms_p99": round(subscribe.delivery(300).p99, 1),
        "stop_seen_ms_p99": round(failover.stop_seen(20).p99, 1),
    }


def full() -> None:
    """All measurements at full length, each with its spread."""
    appended = _append(3_000)
    for name, micros in appended.items():
        print(f"append, 300 B: {name} p50 {micros:.1f} µs, ratio {micros / appended['xadd']:.2f}")
    stepped = steps.step_cost(3_000)
    print(f"bare xadd of 1 kB (µs): {stepped.bare}")
    print(f"recorded step of 1 kB (µs): {stepped.step}, ratio {stepped.ratio:.2f}")
    print(f"step that is never repeated, 1 kB (µs): {stepped.never}, ratio {stepped.never_ratio:.2f}")
    skipped = steps.recovery()
    print(f"10,000 recorded steps of 1 kB: opened (ms) {skipped.opened}; all skipped (ms) {skipped.entered_again}")
    replayed = recovery.replay_cost(100_000)
    print(
        f"replay, 300 B: {replayed.typed:,.0f} events/s, bare XRANGE {replayed.bare:,.0f}, ratio {replayed.ratio:.2f}"
    )
    recovered = recovery.fresh_snapshot(200_000)
    print(f"recovery, 200,000 events, fresh snapshot of 10 kB (ms): {recovered.recovery}")
    print(f"replay of all 200,000 events: at most {recovered.replay_peak_mb:.1f} MiB held")
    print(f"append to subscriber (ms): {subscribe.delivery()}")
    print(f"failover, pool child killed (ms): {failover.child_killed(20)}")
    print(f"failover, worker killed (ms): {failover.worker_killed(10)}")
    print(f"failover by the lease alone, 2 s (ms from its end): {failover.by_lease(10)}")
    print(f"stop seen by the agent (ms): {failover.stop_seen(100)}")
    trip = messages.round_trip()
    print(f"PING {trip.ping:.0f} µs, process() {trip.process:.0f} µs (p50), ratio {trip.ratio:.2f}")
    times, lost = messages.crowd(2_000)
    print(f"2,000 agents asked by {messages.CALLERS} callers at once (ms): {times}; answers lost {lost}")
    streamed = messages.streams(2_000, 10)
    print(
        f"2,000 agents × {messages.RATE} chunks/s for 10 s: {streamed.chunks} of {streamed.wanted}, latency (ms) "
        f"{streamed.latency}, Redis {streamed.redis_percent:.0f} % of a core"
    )
    asked = async_callers.many_callers()
    print(
        f"1,000 coroutines ask at once (ms): {asked.times}; all in {asked.seconds:.2f} s, lost {asked.lost}, "
        f"{asked.connections} connections"
    )
    for name, imported in importing.import_cost().items():
        print(f"{name} (ms): {imported}")
    cost = start.start_cost(100)
    print(f"no-op task (ms): {cost.noop}\nagent start (ms): {cost.start}\nratio {cost.ratio:.2f}")
    grown = sweep.sweep_growth(100, 100_000)
    print(f"sweep, 100 agents (ms): {grown.few}\nsweep, 100,000 agents (ms): {grown.many}\nratio {grown.ratio:.2f}")
    dense = density.density(2_000)
    print(
        f"2,000 idle agents: {dense.agent_kb:.1f} kB each, all running after {dense.start_seconds:.1f} s, "
        f"idle {dense.idle_percent:.2f} % of a core"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="a short run, one line of JSON")
    if parser.parse_args().json:
        print(json.dumps(short()))
    else:
        full()
