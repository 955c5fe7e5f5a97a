"""compose/ fits the Compose specification, the package that it runs, and the rules for containers to be trusted."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import timedelta
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import click
import pytest
from celery.bin.beat import beat
from celery.bin.worker import worker
from flower.command import flower

from ares_celery.celery_app.factory import create_app
from ares_celery.celery_app.names import CONTROL_QUEUE, SUPERVISION_QUEUE, queue_name
from ares_celery.config import ProcessSettings, RuntimeConfig
from ares_celery.model.durations import parse_duration
from tests import compose_file
from tests.compose_file import FOLDER, ROOT, Service

SERVICES = compose_file.services()
OURS = {name: service for name, service in SERVICES.items() if name != "redis"}
COMMANDS: dict[str, click.Command] = {"worker": worker, "beat": beat, "flower": flower}
#: What a person would put into .env.
DOT_ENV = {"FLOWER_BASIC_AUTH": "me:mine"}

every_service = pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
our_services = pytest.mark.parametrize("service", OURS.values(), ids=OURS)


def options_of(service: Service) -> dict[str, Any]:
    """Parse the command as Celery will, and return its options by name; what Celery would refuse fails here."""
    program, *app, subcommand = service["command"][:4]
    # Ours hands its options to Celery's command.
    assert [program, *app] == ["ares" if subcommand == "flower" else "celery", "-A", "workers.app"]
    command = COMMANDS[subcommand]
    options, rest, _ = command.make_parser(click.Context(command)).parse_args(list(service["command"][4:]))
    assert rest == []
    return dict(options)


def queues_of(service: Service) -> list[str]:
    """The queues that a worker takes messages from; none for other commands."""
    named: str = options_of(service).get("queues", "")
    return [name for name in named.split(",") if name]


def config_of(service: Service) -> RuntimeConfig:
    """The namespace's settings as this service would make them."""
    return RuntimeConfig.from_env(compose_file.environment(service, DOT_ENV))


# ------------------------------------------------------------------------------------------------- the files themselves


def test_a_misspelt_key_would_be_found() -> None:
    """The validator that reads compose.yaml for all tests here refuses what the specification does not know."""
    with pytest.raises(ValueError, match="helthcheck"):
        compose_file.load("services: {redis: {image: redis, helthcheck: {}}}")


def test_the_dockerfile_is_clean() -> None:
    """Hadolint has nothing to say, not even as information."""
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, compose_file.DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_hadolint_would_find_a_fault(tmp_path: Path) -> None:
    """The linter really runs: a base image without a tag is refused."""
    (tmp_path / "Dockerfile").write_text("FROM python\n")
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, tmp_path / "Dockerfile"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "DL3006" in done.stdout


def test_no_secret_is_in_the_files() -> None:
    """The login comes from .env, which is not committed; its example has none, and there is no default."""
    flower_environment = SERVICES["flower"]["environment"]
    assert flower_environment["FLOWER_BASIC_AUTH"].startswith("${FLOWER_BASIC_AUTH:?")
    with pytest.raises(KeyError, match="set it"):
        compose_file.environment(SERVICES["flower"], {})
    assert "FLOWER_BASIC_AUTH=\n" in (FOLDER / ".env.example").read_text()
    assert (FOLDER / ".gitignore").read_text() == ".env\n"
    assert not any("@" in value for service in OURS.values() for value in service["environment"].values())


def test_the_example_of_dot_env_names_what_the_file_asks_for() -> None:
    """No variable is missing in it, and none is left from former times."""
    named = re.findall(r"(?m)^(\w+)=", (FOLDER / ".env.example").read_text())
    assert set(named) == compose_file.variables()


# ------------------------------------------------------------------------------------------------- against the package


@our_services
def test_every_setting_is_one_that_the_package_knows(service: Service) -> None:
    """A misspelt ARES_ name would do nothing, in silence; a bad value is refused here as it would be at the start."""
    environment = compose_file.environment(service, DOT_ENV)
    known = {*ProcessSettings.model_fields, *RuntimeConfig.model_fields}
    ours = {name.removeprefix("ARES_").lower() for name in environment if name.startswith("ARES_")}
    assert ours <= known
    assert ProcessSettings.from_env(environment).redis_url == "redis://redis:6379/0"
    RuntimeConfig.from_env(environment)


def test_all_services_mean_the_same_namespace_with_the_same_settings() -> None:
    """Whoever comes first makes the namespace; it must not matter who that is."""
    settings = {str(ProcessSettings.from_env(compose_file.environment(service, DOT_ENV))) for service in OURS.values()}
    assert len(settings) == 1
    assert len({str(config_of(service)) for service in OURS.values()}) == 1


def test_the_workers_take_every_queue_of_the_namespace_once() -> None:
    """No queue is without a worker, and agents, which fill their slots for good, share a pool with nobody."""
    settings = ProcessSettings.from_env(compose_file.environment(OURS["agents"], DOT_ENV))
    namespace = settings.namespace
    assert queues_of(OURS["agents"]) == [queue_name(namespace)]
    assert queues_of(OURS["supervision"]) == [
        queue_name(namespace, kind) for kind in (SUPERVISION_QUEUE, CONTROL_QUEUE)
    ]
    queues = create_app(settings, set_as_current=False).conf.task_queues
    taken = [name for service in OURS.values() for name in queues_of(service)]
    assert sorted(taken) == sorted(queue.name for queue in queues)


def test_the_commands_are_those_of_the_contract() -> None:
    """What the README says to type is what the containers run; Celery knows each option."""
    commands = {name: " ".join(service["command"]) for name, service in OURS.items()}
    assert commands == {
        "agents": "celery -A workers.app worker -Q ares.agents -P threads -c 200",
        "supervision": "celery -A workers.app worker -Q ares.supervision,ares.control",
        "beat": "celery -A workers.app beat",
        "flower": "ares -A workers.app flower",
    }
    assert options_of(OURS["agents"]) == {"queues": "ares.agents", "pool": "threads", "concurrency": "200"}


def test_faults_are_off() -> None:
    """No service makes a namespace that allows them, and Flower's routes only look until .env says otherwise."""
    assert not any(config_of(service).chaos for service in OURS.values())
    assert compose_file.environment(SERVICES["flower"], DOT_ENV)["FLOWER_READ_ONLY"] == "true"


def test_the_image_has_what_the_commands_need() -> None:
    """Flower, scenarios and their comparison, clients for language models; each an extra of the package."""
    (wheel,) = [line.arguments for line in compose_file.instructions() if "/dist/*.whl" in line.arguments]
    (extras,) = re.findall(r"whl\)\[([\w,]+)\]", wheel)
    assert set(extras.split(",")) == {"arena", "flower", "llm"}
    assert set(extras.split(",")) <= set(metadata("ares-celery").get_all("Provides-Extra", []))


def test_the_image_alone_hosts_agents() -> None:
    """Run without a command, it does what the service `agents` does."""
    assert compose_file.image_command() == OURS["agents"]["command"]


# --------------------------------------------------------------------------------------------- containers to be trusted


@every_service
def test_a_container_has_no_more_rights_than_it_needs(service: Service) -> None:
    """Not root, by number so that the engine can tell; no capabilities, no way to new ones, nothing to write to."""
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", service["user"])
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    assert "cap_add" not in service


@every_service
def test_a_container_ends_in_order(service: Service) -> None:
    """SIGTERM reaches the process itself: no shell in between, and an init process that passes it on and reaps."""
    assert service["init"] is True
    assert service["stop_signal"] == "SIGTERM"
    assert isinstance(service["command"], list)
    assert service["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", ["agents", "supervision"])
def test_a_worker_gets_more_time_to_end_than_its_agents_may_take(name: str) -> None:
    """Else the engine kills it in the middle of a drain."""
    grace = parse_duration(OURS[name]["stop_grace_period"])
    assert grace >= config_of(OURS[name]).drain_timeout + timedelta(seconds=10)


@our_services
def test_a_service_waits_for_a_healthy_redis(service: Service) -> None:
    """Started, but still loading its file, is not enough."""
    assert service["depends_on"] == {"redis": {"condition": "service_healthy"}}


@every_service
def test_a_health_check_is_cheap(service: Service) -> None:
    """None loads Celery: `inspect ping` costs a second of CPU each time, and kills busy workers."""
    kind, program, *_ = service["healthcheck"]["test"]
    assert kind == "CMD"
    assert program in {"redis-cli", "ares-alive", "python"}
    assert "celery" not in " ".join(service["healthcheck"]["test"])


def test_nothing_is_open_to_other_machines() -> None:
    """Flower listens on this machine alone; Redis is on a network without a way in or out."""
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert list(published) == ["flower"]
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    # Inside of its container it is to be reached from without; `ares flower` alone keeps to the loopback.
    assert SERVICES["flower"]["environment"]["FLOWER_ADDRESS"] == "0.0.0.0"  # noqa: S104 - the container's
    assert SERVICES["flower"]["ports"] == ["127.0.0.1:5555:5555"]
    content = compose_file.load()
    assert SERVICES["redis"]["networks"] == ["store"]
    assert content["networks"]["store"] == {"internal": True}


def test_redis_keeps_its_data_in_a_volume() -> None:
    """The container may be replaced; the agents are in the volume."""
    assert "data:/data" in SERVICES["redis"]["volumes"]
    assert "data" in compose_file.load()["volumes"]


# ------------------------------------------------------------------------------------------------------------ the image


def test_the_image_has_a_pinned_base_and_a_user_of_its_own() -> None:
    """Both stages from one tag, so that the environment fits the interpreter; the user is the one the services name."""
    bases = [line.arguments.split()[0] for line in compose_file.instructions() if line.name == "FROM"]
    assert len(set(bases)) == 1
    assert bases[0].startswith("python:3.13-slim")
    (user,) = [line.arguments for line in compose_file.instructions() if line.name == "USER"]
    assert {service["user"] for service in OURS.values()} == {user}


def test_images_are_pinned() -> None:
    """Neither no tag nor `latest`."""
    assert re.fullmatch(r"redis:\d+\.\d+[\w.-]*", SERVICES["redis"]["image"])
    assert len({service["image"] for service in OURS.values()}) == 1


def test_what_the_image_copies_is_there_and_is_all_that_the_builder_gets() -> None:
    """.dockerignore lets in exactly what the Dockerfile copies: no history, no environment, no .env."""
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert rules[0] == "*"
    let_in = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    sources = compose_file.copied_sources()
    assert let_in == set(sources)
    assert [source for source in sources if not (ROOT / source).exists()] == []
    assert "**/.env" in rules


def test_the_health_check_can_be_executed() -> None:
    """Its mode is part of what is committed."""
    assert (FOLDER / "healthcheck").stat().st_mode & 0o111 == 0o111
