"""compose.yaml starts real servers with the settings that the embedded ones have, here alone."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from services.embedded.broker import PROPERTIES
from services.embedded.jars import KAFKA_VERSION

COMPOSE: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parents[2] / "compose.yaml").read_text(encoding="utf-8")
)

# What differs on purpose: addresses, places, and what keeps the embedded broker small.
OWN = {
    "controller.quorum.voters",
    "listeners",
    "advertised.listeners",
    "listener.security.protocol.map",
    "inter.broker.listener.name",
    "log.dirs",
    "log.segment.bytes",
    "log.cleaner.dedupe.buffer.size",
    "queued.max.request.bytes",
    "socket.request.max.bytes",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
}
SETTINGS: dict[str, str] = {
    line.partition("=")[0]: line.partition("=")[2] for line in PROPERTIES.splitlines() if line
}


@pytest.mark.parametrize("key", sorted(SETTINGS.keys() - OWN))
def test_the_broker_in_docker_has_the_embedded_broker_s_setting(key: str) -> None:
    environment = COMPOSE["services"]["kafka"]["environment"]
    assert environment[f"KAFKA_{key.upper().replace('.', '_')}"] == SETTINGS[key]


def test_the_broker_in_docker_has_the_embedded_broker_s_version() -> None:
    assert COMPOSE["services"]["kafka"]["image"] == f"apache/kafka:{KAFKA_VERSION}"


@pytest.mark.parametrize("name", ["kafka", "clickhouse"])
def test_a_server_is_checked_kept_and_reachable_from_this_machine_only(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["healthcheck"]["test"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    volumes = {volume.partition(":")[0] for volume in service["volumes"]}
    assert volumes
    assert volumes <= COMPOSE["volumes"].keys()
