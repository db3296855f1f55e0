"""Fixtures that give tests the real parts: a Kafka broker here, others where they are needed.

The broker is the one that HEADWAY_TEST_KAFKA or HEADWAY_KAFKA names, else one in Docker where an
engine answers, else the embedded one. Tests share it, so each uses names of its own.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import hypothesis
import pytest

from services.embedded.broker import Broker
from services.embedded.ports import free_port
from services.embedded.serving import wait_until_serving
from services.settings import load

# A loaded machine is no failing example.
hypothesis.settings.register_profile("headway", deadline=None)
hypothesis.settings.load_profile("headway")

COMPOSE = Path(__file__).parents[1] / "compose.yaml"
DOCKER_S_MAX = 5.0
CONTAINER_S_MAX = 120.0


def docker_answers() -> bool:
    """Return whether a Docker engine answers."""
    docker = shutil.which("docker")
    if docker is None:
        return False
    try:
        told = subprocess.run(
            [docker, "info"], capture_output=True, timeout=DOCKER_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return told.returncode == 0


@contextmanager
def in_docker() -> Generator[str]:
    """Run the broker of compose.yaml, on a port of its own, for as long as the context lasts."""
    # Only needed, and slow to import, where Docker is.
    import yaml  # noqa: PLC0415
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415

    service = yaml.safe_load(COMPOSE.read_text())["services"]["kafka"]
    port = free_port()
    environment: dict[str, str] = service["environment"]
    container = DockerContainer(service["image"]).with_bind_ports(9092, port)
    for name, value in environment.items():
        # One container alone: what others reach it by is its own address, and clients know it by
        # the port it has outside.
        told = value.replace("kafka:", "127.0.0.1:").replace(
            "HOST://127.0.0.1:9092", f"HOST://127.0.0.1:{port}"
        )
        container = container.with_env(name, told)
    with container:
        bootstrap = f"127.0.0.1:{port}"
        wait_until_serving(bootstrap, CONTAINER_S_MAX)
        yield bootstrap


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the bootstrap servers of a broker that all tests share."""
    named = os.environ.get("HEADWAY_TEST_KAFKA") or os.environ.get("HEADWAY_KAFKA")
    if named:
        yield named
        return
    if docker_answers():
        with in_docker() as bootstrap:
            yield bootstrap
        return
    broker = Broker(load(), tmp_path_factory.mktemp("kafka"))
    broker.start()
    yield broker.bootstrap
    broker.stop()


@pytest.fixture
def new_broker(tmp_path: Path) -> Iterator[Callable[[], Broker]]:
    """Give a function that starts an embedded broker which the test may stop and kill."""
    brokers: list[Broker] = []

    def start() -> Broker:
        broker = Broker(load(), tmp_path / f"broker-{len(brokers)}")
        broker.start()
        brokers.append(broker)
        return broker

    yield start
    for broker in brokers:
        broker.stop()
