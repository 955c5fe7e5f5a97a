"""Which of the driver's errors mean "not now", and which mean "never like this"."""

from __future__ import annotations

import pytest
import redis.exceptions as driver

from ares_celery.errors import AresError, FencedError, StoreUnavailableError
from ares_celery.store.redis.driver_errors import DriverErrors

ERRORS = DriverErrors("redis://u:***@db:6379/0", ("s3cret",))


@pytest.mark.parametrize(
    "error",
    [
        driver.ConnectionError("Error 111 connecting to db:6379. Connection refused."),
        driver.TimeoutError("Timeout reading from socket"),
        driver.BusyLoadingError("Redis is loading the dataset in memory"),
        driver.ReadOnlyError("You can't write against a read only replica."),
        driver.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
        driver.ResponseError("OOM command not allowed when used memory > 'maxmemory'. script: 12, on @user_script:1."),
        driver.ResponseError("MISCONF Redis is configured to save RDB snapshots"),
        driver.ResponseError("NOREPLICAS Not enough good replicas to write."),
        driver.ResponseError("CLUSTERDOWN The cluster is down"),
        driver.ResponseError("BUSY Redis is busy running a script."),
        driver.AuthenticationError("invalid username-password pair or user is disabled."),
        driver.ResponseError("WRONGPASS invalid username-password pair or user is disabled."),
        driver.ResponseError("Protocol error: unauthenticated multibulk length"),
        driver.ResponseError("Protocol error: unauthenticated bulk length"),
        OSError("Network is unreachable"),
    ],
)
def test_a_server_that_cannot_serve_now_is_unavailable(error: Exception) -> None:
    """Repeating the call is safe and may help."""
    with pytest.raises(StoreUnavailableError) as mapped, ERRORS:
        raise error
    assert mapped.value.problem == str(error)
    assert mapped.value.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [
        driver.ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"),
        driver.NoPermissionError("this user has no permissions to run the 'evalsha' command"),
        driver.DataError("Invalid input of type: 'NoneType'."),
    ],
)
def test_a_call_that_is_wrong_is_another_error(error: Exception) -> None:
    """It says what was refused, and repeating it would not help."""
    with pytest.raises(AresError, match="refused a call") as mapped, ERRORS:
        raise error
    assert not isinstance(mapped.value, StoreUnavailableError)


def test_a_server_without_memory_can_be_told_from_one_that_is_away() -> None:
    """The one goes on to renew and to stop, so who waits for room can be stopped."""
    for error in (driver.OutOfMemoryError("command not allowed"), driver.ResponseError("OOM command not allowed")):
        with pytest.raises(StoreUnavailableError) as mapped, ERRORS:
            raise error
        assert mapped.value.out_of_memory is True
        assert "raise its maxmemory" in str(mapped.value)
        assert "is it up" not in str(mapped.value)
    with pytest.raises(StoreUnavailableError) as mapped, ERRORS:
        raise driver.ConnectionError("refused")
    assert "out_of_memory" not in mapped.value.fields


def test_no_secret_is_shown() -> None:
    """Neither in the error nor in what a traceback prints as its cause."""
    with pytest.raises(StoreUnavailableError) as mapped, ERRORS:
        raise driver.ConnectionError("cannot connect to redis://u:s3cret@db")
    assert mapped.value.problem == "cannot connect to redis://u:***@db"
    assert mapped.value.__cause__ is None
    assert mapped.value.__suppress_context__


def test_our_own_errors_and_all_others_pass() -> None:
    """The context concerns the driver alone."""
    with pytest.raises(FencedError), ERRORS:
        raise FencedError(agent_id="a", epoch="1")
    with pytest.raises(KeyError), ERRORS:
        raise KeyError("x")
    with ERRORS:
        pass
