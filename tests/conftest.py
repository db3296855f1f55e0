"""Fixtures that give tests the real parts: a Kafka broker here, others where they are needed.

The broker is the one that HEADWAY_TEST_KAFKA names, else one in Docker where an engine answers,
else the embedded one. Tests share it, so each uses names of its own.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.embedded.broker import Broker
from services.settings import load

DOCKER_S_MAX = 5.0


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


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the bootstrap servers of a broker that all tests share."""
    named = os.environ.get("HEADWAY_TEST_KAFKA")
    if named:
        yield named
        return
    if docker_answers():
        from testcontainers.kafka import KafkaContainer  # noqa: PLC0415 - only where Docker is

        with KafkaContainer("apache/kafka:4.4.0") as container:
            yield container.get_bootstrap_server()
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
