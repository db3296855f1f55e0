"""The topics are those of the design, each described, each with settings that a broker takes."""

import pytest

from schemas.export import SCHEMAS
from schemas.topics import TOPICS, Topic, work_topic

BY_NAME = {topic.name: topic for topic in TOPICS}
# The design's table: name, and how many partitions it has in a deployment of four cells.
DESIGN = {
    "headway.requests": 4,
    "headway.batch.jobs": 4,
    "headway.batch.status": 4,
    "headway.telemetry": 4,
    "headway.signals": 1,
    "headway.worker.events": 4,
    "headway.config": 1,
    "headway.control": 1,
    "headway.ledger": 5,
    "headway.work.MODEL": None,
    "headway.tokens": 4,
    "headway.results": 4,
    "headway.node.commands": 1,
    "headway.snapshots": 5,
    "headway.dead-letter": 4,
}


def test_the_topics_are_those_of_the_design() -> None:
    assert [topic.name for topic in TOPICS] == list(DESIGN)


@pytest.mark.parametrize("name", [name for name, count in DESIGN.items() if count])
def test_a_topic_has_its_partitions(name: str) -> None:
    assert BY_NAME[name].partition_count(4) == DESIGN[name]


def test_the_partitions_of_a_work_topic_come_from_the_profile() -> None:
    with pytest.raises(ValueError, match=r"of headway\.work\.MODEL are its model's work slots"):
        BY_NAME["headway.work.MODEL"].partition_count(4)
    assert work_topic("smollm2-135m") == "headway.work.smollm2-135m"


def test_what_a_cell_merges_has_equal_partition_numbers() -> None:
    merged = ("headway.requests", "headway.batch.jobs", "headway.worker.events")
    assert {BY_NAME[name].partitions for name in merged} == {"cells"}


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_a_topic_is_described_and_has_an_owner(topic: Topic) -> None:
    assert topic.purpose
    assert topic.writers
    assert topic.readers
    assert topic.keyed_by
    assert set(topic.kinds) <= set(SCHEMAS)


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_the_brokers_clock_stamps_every_record(topic: Topic) -> None:
    config = topic.config()
    assert config["message.timestamp.type"] == "LogAppendTime"
    assert all(isinstance(value, str) for value in config.values())


def test_configuration_and_snapshots_are_compacted_and_all_else_ages_out() -> None:
    compacted = {name for name, topic in BY_NAME.items() if topic.retention_ms is None}
    assert compacted == {"headway.batch.status", "headway.config", "headway.snapshots"}
    for name, topic in BY_NAME.items():
        policy = topic.config()["cleanup.policy"]
        assert policy == ("compact" if name in compacted else "delete")
        assert ("retention.ms" in topic.config()) == (name not in compacted)


def test_a_setting_of_the_topic_joins_the_common_ones() -> None:
    # Seven days; a request of up to 4 MiB.
    assert BY_NAME["headway.requests"].config() == {
        "cleanup.policy": "delete",
        "retention.ms": "604800000",
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": "4194304",
    }
