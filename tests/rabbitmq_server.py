"""A RabbitMQ node of the suite's own: free ports, a private folder, a port mapper of its own, nothing left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import amqp
from amqp.exceptions import AMQPError

from tests.redis_server import free_port
from tests.wait import wait_until

#: Seconds a node may take to answer; it starts a virtual machine and a database.
START_TIMEOUT = 60.0
STOP_TIMEOUT = 20.0
#: Where Debian keeps the script itself; the one on PATH becomes another user and uses the machine's own folders.
SCRIPTS = (Path("/usr/lib/rabbitmq/bin/rabbitmq-server"), Path("/opt/rabbitmq/sbin/rabbitmq-server"))


class NoRabbitServerError(RuntimeError):
    """This machine has no RabbitMQ."""


def find_rabbit_script() -> Path | None:
    """The server's start script; None where RabbitMQ, or the Erlang that it runs on, is missing."""
    if shutil.which("erl") is None or shutil.which("epmd") is None:
        return None
    return next((script for script in SCRIPTS if script.exists()), None)


class RabbitServer:
    """One node, reachable from this machine only, and its folder; both gone after `close`.

    Example:
        with RabbitServer() as server:
            app = Celery(broker=server.url)
    """

    def __init__(self) -> None:
        """Choose folder and ports; nothing runs before `start`.

        Raises:
            NoRabbitServerError: None is installed.
        """
        script = find_rabbit_script()
        if script is None:
            raise NoRabbitServerError("no RabbitMQ found: install rabbitmq-server")
        self._script = script
        self._folder = Path(tempfile.mkdtemp(prefix="ares-rabbit-"))
        self._port, self._mapper_port, self._node_port = free_port(), free_port(), free_port()
        self._mapper: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address for clients, default virtual host; the default user may come from this machine only."""
        return f"amqp://guest:guest@127.0.0.1:{self._port}//"

    @property
    def is_running(self) -> bool:
        """True while the node's process exists."""
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """What the node said so far."""
        return (self._folder / "output.log").read_text(errors="replace")

    def start(self, *, patience: float = 1800.0) -> None:
        """Start the node (again, with the data it left) and return when it answers.

        Args:
            patience: Seconds that a consumer may hold a message before its channel is closed.
        """
        if self.is_running:
            return
        if self._mapper is None:
            # Else the virtual machine would start one that outlives it.
            command = ["epmd", "-port", str(self._mapper_port), "-address", "127.0.0.1"]
            self._mapper = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        with (self._folder / "output.log").open("ab") as log:
            # A session of its own: the script's children end with it.
            self._process = process = subprocess.Popen(
                [str(self._script)],
                env=self._environment(patience),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            wait_until(lambda: process.poll() is not None or self._answers(), "RabbitMQ", timeout=START_TIMEOUT)
        except AssertionError as error:
            self._end()
            raise AssertionError(f"{error}\n{self.log()[-4000:]}") from None
        assert process.poll() is None, self.log()[-4000:]

    def stop(self) -> None:
        """End the node in order."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._end()

    def close(self) -> None:
        """Stop it and remove its folder."""
        self.stop()
        self._end()
        if self._mapper is not None:
            self._mapper.terminate()
            self._mapper.wait(STOP_TIMEOUT)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def version(self) -> str:
        """The server's version, as it tells its clients."""
        connection: Any = amqp.Connection(f"127.0.0.1:{self._port}")
        with connection:
            return str(connection.server_properties["version"])

    # ----------------------------------------------------------------------------------------------------------- inside

    def _end(self) -> None:
        """Whatever is left of the process group of the script."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(STOP_TIMEOUT)

    def _answers(self) -> bool:
        try:
            self.version()
        except (OSError, AMQPError):
            return False
        return True

    def _environment(self, patience: float) -> dict[str, str]:
        folder = str(self._folder)
        (self._folder / "rabbitmq.conf").write_text("loopback_users.guest = true\nlog.console = false\n")
        for name in ("env.conf", "plugins"):
            (self._folder / name).touch()
        (self._folder / "plugins").write_text("[].\n")
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            # The nodes' shared secret is kept there.
            "HOME": folder,
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_CONF_ENV_FILE": f"{folder}/env.conf",
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "RABBITMQ_DIST_PORT": str(self._node_port),
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_MNESIA_BASE": f"{folder}/data",
            "RABBITMQ_NODENAME": f"ares{self._port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self._port),
            "RABBITMQ_PID_FILE": f"{folder}/pid",
            # Two threads are plenty, and it is asked for by this machine only.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 -kernel inet_dist_use_interface {127,0,0,1} "
            f"-rabbit channel_tick_interval 500 -rabbit consumer_timeout {int(patience * 1000)}",
        }
