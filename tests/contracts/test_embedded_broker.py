"""The embedded broker is a real Kafka: it keeps what it acknowledged, and says why it fails."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from services.embedded import broker as broker_module
from services.embedded.broker import EXIT_STOPPED, Broker, BrokerError
from services.embedded.ports import COUNT, FIRST, free_port
from services.embedded.processes import Supervisor
from services.embedded.serving import NotServingError, cluster_id, wait_until_serving
from services.settings import load

pytestmark = pytest.mark.broker

TOPIC = "kept"


def a_listener(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    return listener


async def make_topic(bootstrap: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(TOPIC, num_partitions=1, replication_factor=1)])
    finally:
        await admin.close()


async def read_all(bootstrap: str) -> list[tuple[int, bytes | None]]:
    """Return the offset and value of each record of the topic."""
    partition = TopicPartition(TOPIC, 0)
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([partition])
        end = (await consumer.end_offsets([partition]))[partition]
        await consumer.seek_to_beginning(partition)
        read: list[tuple[int, bytes | None]] = []
        while await consumer.position(partition) < end:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                read.extend((record.offset, record.value) for record in records)
        return read
    finally:
        await consumer.stop()


async def test_what_was_acknowledged_survives_kill_9_in_order_and_once(
    new_broker: Callable[[], Broker],
) -> None:
    broker = await asyncio.to_thread(new_broker)
    address = broker.bootstrap
    await make_topic(address)
    producer = AIOKafkaProducer(
        bootstrap_servers=address, acks="all", enable_idempotence=True, request_timeout_ms=30_000
    )
    await producer.start()
    sent: list[int] = []
    under_way = asyncio.Event()

    async def send() -> None:
        for number in range(600):
            told = await producer.send_and_wait(TOPIC, str(number).encode(), partition=0)
            sent.append(told.offset)
            if number == 200:
                under_way.set()

    sending = asyncio.create_task(send())
    await asyncio.wait_for(under_way.wait(), 60)
    killed = broker.pid
    await asyncio.to_thread(broker.kill)
    await asyncio.to_thread(broker.start)
    await asyncio.wait_for(sending, 60)
    await producer.stop()

    assert broker.bootstrap == address
    assert broker.pid != killed
    assert sent == list(range(600))
    assert await read_all(address) == [(n, str(n).encode()) for n in range(600)]


async def test_a_stop_is_orderly_and_the_next_start_keeps_address_and_messages(
    tmp_path: Path,
) -> None:
    first = Broker(load(), tmp_path / "kafka")
    await asyncio.to_thread(first.start)
    address = first.bootstrap
    await make_topic(address)
    producer = AIOKafkaProducer(bootstrap_servers=address, acks="all")
    await producer.start()
    await producer.send_and_wait(TOPIC, b"kept", partition=0)
    await producer.stop()
    assert first.rss_mb() > 50
    assert await asyncio.to_thread(first.stop) == EXIT_STOPPED
    assert not first.alive

    second = Broker(load(), tmp_path / "kafka")
    await asyncio.to_thread(second.start)
    try:
        assert second.bootstrap == address
        assert second.notice is None
        assert await read_all(address) == [(0, b"kept")]
        await asyncio.to_thread(second.restart)
        assert second.bootstrap == address
        assert await read_all(address) == [(0, b"kept")]
    finally:
        await asyncio.to_thread(second.stop)


async def test_a_supervised_broker_that_is_killed_serves_again_at_the_same_address(
    tmp_path: Path,
) -> None:
    supervisor = Supervisor(lambda _sentence: None)
    looking = asyncio.create_task(supervisor.run())
    broker = Broker(load(), tmp_path / "kafka")
    try:
        child = supervisor.keep("broker", await asyncio.to_thread(broker.child))
        await asyncio.to_thread(broker.wait_until_serving)
        cluster = await asyncio.to_thread(wait_until_serving, broker.bootstrap, 10)
        killed = child.pid
        os.kill(killed, signal.SIGKILL)
        async with asyncio.timeout(60):
            while supervisor.status()[0].restarts == 0:  # noqa: ASYNC110 - nothing signals it
                await asyncio.sleep(0.05)
        assert await asyncio.to_thread(wait_until_serving, broker.bootstrap, 60) == cluster
        assert child.pid != killed
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        await supervisor.stop_all()


async def test_ten_large_records_at_once_do_not_end_the_broker(
    new_broker: Callable[[], Broker],
) -> None:
    broker = await asyncio.to_thread(new_broker)
    await make_topic(broker.bootstrap)
    producers = [
        AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap,
            acks="all",
            max_request_size=16 * 2**20,
            request_timeout_ms=60_000,
        )
        for _ in range(10)
    ]
    record = bytes(15 * 10**6)
    try:
        await asyncio.gather(*(producer.start() for producer in producers))
        sent = [producer.send_and_wait(TOPIC, record, partition=0) for producer in producers]
        told = await asyncio.wait_for(asyncio.gather(*sent), 90)
    finally:
        await asyncio.gather(*(producer.stop() for producer in producers))
    assert sorted(one.offset for one in told) == list(range(10))
    assert broker.alive


def test_another_port_is_taken_and_told_when_the_last_one_is_taken(tmp_path: Path) -> None:
    broker = Broker(load(), tmp_path / "kafka")
    broker.start()
    last = int(broker.bootstrap.rpartition(":")[2])
    broker.stop()
    with a_listener(last):
        again = Broker(load(), tmp_path / "kafka")
        again.start()
        assert again.bootstrap != f"127.0.0.1:{last}"
        assert again.notice is not None
        assert f"port {last}, which the broker had before, is taken" in again.notice
        again.stop()


def test_a_port_that_was_asked_for_and_is_taken_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "PORT_S_MAX", 0.1)
    port = free_port()
    broker = Broker(load(), tmp_path / "kafka", port=port)
    with a_listener(port), pytest.raises(BrokerError, match=f"port {port} .*is taken"):
        broker.start()


def test_ports_lie_below_those_of_outgoing_connections() -> None:
    assert FIRST <= free_port() < FIRST + COUNT <= 32_768


def test_a_second_broker_on_the_same_directory_says_what_is_wrong(
    new_broker: Callable[[], Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "LOCK_S_MAX", 0.1)
    running = new_broker()
    ports = (running.directory / "ports.json").read_text()
    second = Broker(load(), running.directory)
    with pytest.raises(BrokerError, match="another broker runs on the same directory"):
        second.start()
    assert (running.directory / "ports.json").read_text() == ports
    assert running.alive
    assert running.stop() == EXIT_STOPPED


def test_a_format_that_was_cut_short_is_made_again(tmp_path: Path) -> None:
    directory = tmp_path / "kafka"
    (directory / "data").mkdir(parents=True)
    (directory / "data.draft" / "__cluster_metadata-0").mkdir(parents=True)
    (directory / "ports.json").write_text('{"port": 1')
    broker = Broker(load(), directory)
    broker.start()
    assert cluster_id("127.0.0.1", int(broker.bootstrap.rpartition(":")[2]))
    broker.stop()
    assert not (directory / "data.draft").exists()


def test_data_without_its_meta_properties_is_left_alone(tmp_path: Path) -> None:
    topic = tmp_path / "kafka" / "data" / "headway.ledger-0"
    topic.mkdir(parents=True)
    with pytest.raises(BrokerError, match=r"not the meta\.properties .*it is left as it is"):
        Broker(load(), tmp_path / "kafka").start()
    assert topic.exists()


def test_a_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BrokerError, match=r"cannot be written.*HEADWAY_STATE"):
        Broker(load(), tmp_path / "file" / "kafka").start()


def test_a_disk_without_room_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "FREE_BYTES_MIN", 1 << 60)
    with pytest.raises(BrokerError, match="make room"):
        Broker(load(), tmp_path / "kafka").start()


def test_a_program_that_accepts_and_says_nothing_does_not_serve() -> None:
    port = free_port()
    with a_listener(port):
        assert cluster_id("127.0.0.1", port, seconds=0.2) is None
    with pytest.raises(NotServingError, match=f"127.0.0.1:{port}"):
        wait_until_serving(f"127.0.0.1:{port}", 0.1)


def test_a_broker_that_serves_tells_its_cluster(kafka: str) -> None:
    assert len(wait_until_serving(kafka, 10)) == 22
