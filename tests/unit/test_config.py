"""Settings: defaults, bad values by name, the environment, and the policy that they make."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from ares_celery.config import ProcessSettings, RuntimeConfig, default_config
from ares_celery.errors import InvalidSettingError
from ares_celery.model.agent import AgentSpec, RestartType
from ares_celery.model.restart import backoff_delay


def seconds(value: float) -> timedelta:
    """Short for a duration."""
    return timedelta(seconds=value)


@pytest.mark.spec(1)
def test_without_a_config_the_six_settings_of_the_seed_have_their_values() -> None:
    """10 s, 10 restarts, 10 000 events, 10 s, 30 s, 60 s; MaxReplayEvents of 0 or less means 10 000."""
    config = default_config()
    assert config == RuntimeConfig()
    assert config.health_check_interval == seconds(10)
    assert config.max_restarts_per_agent == 10
    assert config.max_replay_events == 10_000
    assert config.agent_stop_timeout == seconds(10)
    assert config.overall_stop_timeout == seconds(30)
    assert config.restore_timeout == seconds(60)
    for nothing in (0, -1):
        assert RuntimeConfig(max_replay_events=nothing).max_replay_events == 10_000


def test_our_own_settings_have_the_values_of_the_contract() -> None:
    """Each default as printed there."""
    expected: dict[str, Any] = {
        "heartbeat_interval": seconds(2),
        "lease_ttl": seconds(8),
        "start_timeout": seconds(60),
        "restore_attempts": 5,
        "restore_backoff": seconds(1),
        "restore_backoff_max": seconds(30),
        "restore_jitter": 0.0,
        "restart_period": None,
        "sweep_interval": seconds(0.25),
        "stable_after": seconds(10),
        "startup_grace": seconds(0),
        "allowed_misses": 0,
        "snapshot_interval": seconds(60),
        "snapshot_every_events": 1_000,
        "snapshots_kept": 3,
        "replay_overflow": "full",
        "integrity": "fail",
        "drain_timeout": seconds(20),
        "max_event_bytes": 1 << 20,
        "checkpoint_retention": timedelta(hours=24),
        "shards": 16,
        "chaos": False,
    }
    config = default_config()
    assert {name: getattr(config, name) for name in expected} == expected


DURATIONS = [
    name
    for name, value in RuntimeConfig()
    if isinstance(value, timedelta) and name not in {"startup_grace", "restart_period", "summary_ttl"}
]


@pytest.mark.spec(4)
@pytest.mark.parametrize("value", [0, -1, "0s", timedelta(0), timedelta(seconds=-1)], ids=repr)
@pytest.mark.parametrize("name", DURATIONS)
def test_an_interval_or_timeout_of_nothing_is_refused_by_name(name: str, value: object) -> None:
    """The error names the field; the constructor refuses it as well."""
    with pytest.raises(InvalidSettingError, match=name) as caught:
        RuntimeConfig.parse({name: value})
    assert caught.value.field == name
    with pytest.raises(ValueError, match=name):
        RuntimeConfig.model_validate({name: value})


@pytest.mark.parametrize("name", ["startup_grace", "restart_period"])
def test_zero_has_a_meaning_where_it_is_documented(name: str) -> None:
    """No grace; no window."""
    config = RuntimeConfig.parse({name: 0})
    assert getattr(config, name) == timedelta(0)
    assert config.policy_for(None).restart_period is None
    with pytest.raises(InvalidSettingError, match=name):
        RuntimeConfig.parse({name: -1})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_restarts_per_agent", -1),
        ("max_restarts_per_agent", "many"),
        ("restore_attempts", 0),
        ("restore_jitter", 1.1),
        ("restore_jitter", -0.1),
        ("allowed_misses", -1),
        ("snapshot_every_events", 0),
        ("snapshots_kept", 0),
        ("snapshots_kept", 101),
        ("replay_overflow", "oldest"),
        ("integrity", "maybe"),
        ("max_event_bytes", 0),
        ("max_event_bytes", "1 parsec"),
        ("shards", 0),
        ("shards", 1025),
        ("chaos", "perhaps"),
        ("lease_ttl", "soon"),
        ("lease_ttl", float("inf")),
        ("lease_ttl", float("nan")),
        ("lease_tll", 8),
    ],
)
def test_a_value_that_cannot_work_is_refused_with_field_and_value(name: str, value: object) -> None:
    """Unknown names too: a typo is not a setting."""
    with pytest.raises(InvalidSettingError) as caught:
        RuntimeConfig.parse({name: value})
    assert caught.value.field == name
    is_json = not isinstance(value, float) or math.isfinite(value)
    assert caught.value.value == (value if is_json else str(value))
    assert name in str(caught.value)


def test_values_that_only_together_cannot_work_are_named() -> None:
    """A lease needs two heartbeats; a snapshot comes before the limit of a replay."""
    with pytest.raises(InvalidSettingError, match="lease_ttl"):
        RuntimeConfig.parse({"heartbeat_interval": 5})
    with pytest.raises(InvalidSettingError, match="snapshot_every_events"):
        RuntimeConfig.parse({"max_replay_events": 1_000})
    assert RuntimeConfig(heartbeat_interval=seconds(4), lease_ttl=seconds(8)).lease_ttl == seconds(8)


def test_every_setting_can_come_from_the_environment() -> None:
    """ARES_<FIELD>, written as people write durations and sizes; others keep their default."""
    config = RuntimeConfig.from_env(
        {
            "ARES_LEASE_TTL": "1500ms",
            "ARES_HEARTBEAT_INTERVAL": "0.5",
            "ARES_MAX_RESTARTS_PER_AGENT": "3",
            "ARES_CHAOS": "true",
            "ARES_MAX_EVENT_BYTES": "64KiB",
            "ARES_RESTART_PERIOD": "none",
            "ARES_RESTORE_JITTER": "0.25",
            "ARES_REDIS_URL": "redis://elsewhere",
            "HOME": "/home/x",
        }
    )
    assert config.lease_ttl == seconds(1.5)
    assert config.heartbeat_interval == seconds(0.5)
    assert (config.max_restarts_per_agent, config.chaos, config.max_event_bytes) == (3, True, 65_536)
    assert (config.restart_period, config.restore_jitter) == (None, 0.25)
    assert config.snapshot_interval == seconds(60)


def test_a_bad_value_in_the_environment_is_named() -> None:
    """With what was written there."""
    with pytest.raises(InvalidSettingError, match="lease_ttl") as caught:
        RuntimeConfig.from_env({"ARES_LEASE_TTL": "quick"})
    assert caught.value.value == "quick"


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an argument."""
    monkeypatch.setenv("ARES_SHARDS", "4")
    monkeypatch.setenv("ARES_NAMESPACE", "shop")
    assert RuntimeConfig.from_env().shards == 4
    assert ProcessSettings.from_env().namespace == "shop"


def test_a_config_survives_json() -> None:
    """As the namespace keeps it."""
    config = RuntimeConfig(lease_ttl=seconds(3), heartbeat_interval=seconds(1.5), restart_period=timedelta(hours=1))
    assert RuntimeConfig.model_validate_json(config.model_dump_json()) == config


def test_a_policy_takes_the_namespaces_numbers() -> None:
    """For an agent whose spec says nothing."""
    config = RuntimeConfig(max_restarts_per_agent=4, restore_jitter=0.5, restart_period=seconds(60))
    policy = config.policy_for(AgentSpec(id="a", type="t"))
    assert policy == config.policy_for(None)
    assert (policy.max_restarts, policy.jitter, policy.restart_period) == (4, 0.5, seconds(60))
    assert (policy.restore_attempts, policy.backoff, policy.backoff_max) == (5, seconds(1), seconds(30))
    assert (policy.stable_after, policy.agent_stop_timeout) == (seconds(10), seconds(10))
    assert (policy.start_timeout, policy.lease_ttl) == (seconds(60), seconds(8))


def test_a_specs_own_numbers_win() -> None:
    """Also where they are zero: no cap, no jitter."""
    spec = AgentSpec(
        id="a",
        type="t",
        restart=RestartType.PERMANENT,
        max_restarts=0,
        restart_period=seconds(5),
        restore_attempts=2,
        backoff=seconds(3),
        backoff_max=seconds(4),
        jitter=0.0,
        stable_after=seconds(1),
    )
    policy = RuntimeConfig(restore_jitter=0.5, restart_period=seconds(60)).policy_for(spec)
    assert (policy.restart, policy.max_restarts, policy.jitter) == (RestartType.PERMANENT, 0, 0.0)
    assert (policy.restart_period, policy.restore_attempts) == (seconds(5), 2)
    assert (policy.backoff, policy.backoff_max, policy.stable_after) == (seconds(3), seconds(4), seconds(1))


def test_the_backoff_follows_the_settings() -> None:
    """Base and cap of the namespace, doubled in between."""
    policy = RuntimeConfig(restore_backoff=seconds(2), restore_backoff_max=seconds(10)).policy_for(None)
    assert [backoff_delay(policy, n).total_seconds() for n in range(1, 7)] == [0, 2, 4, 8, 10, 10]


def test_a_process_finds_its_namespace_in_the_environment_and_arguments_win() -> None:
    """Absent and empty variables keep the default; None is no argument."""
    settings = ProcessSettings.from_env(
        {"ARES_REDIS_URL": "redis://h:1/2", "ARES_NAMESPACE": "shop", "ARES_BROKER_URL": ""}, namespace=None, app="x:y"
    )
    assert (settings.redis_url, settings.namespace, settings.broker_url, settings.app) == (
        "redis://h:1/2",
        "shop",
        None,
        "x:y",
    )
    assert ProcessSettings.from_env({"ARES_NAMESPACE": "shop"}, namespace="mine").namespace == "mine"
    assert ProcessSettings.from_env({}).redis_url == "redis://127.0.0.1:6379/0"


def test_agent_modules_are_separated_by_commas() -> None:
    """None means the default module, which may be missing; a named one may not."""
    assert ProcessSettings.from_env({}).agent_modules is None
    assert ProcessSettings.from_env({"ARES_AGENT_MODULES": " a.b , c,"}).agent_modules == ("a.b", "c")
    assert ProcessSettings(agent_modules=("a",)).agent_modules == ("a",)


@pytest.mark.parametrize(("name", "value"), [("namespace", "a b"), ("namespace", "a:b"), ("broker", "redis://h")])
def test_a_bad_process_setting_is_named(name: str, value: str) -> None:
    """Like those of the namespace."""
    with pytest.raises(InvalidSettingError) as caught:
        ProcessSettings.from_env({}, **{name: value})
    assert caught.value.field == name
