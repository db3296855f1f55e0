"""Readers that stand still or end: whoever waits for them is told, in a sentence."""

import asyncio

import pytest
from aiokafka import TopicPartition

from schemas.codec import BusMessage
from schemas.requests import InferenceRequest
from schemas.topics import RESULTS
from services import bus
from services.gateway import client as gateway
from services.gateway.client import Client

pytestmark = pytest.mark.broker


async def test_a_range_of_which_nothing_comes_ends_in_a_sentence_that_says_where(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bus.ensure_topics(kafka, 1)
    partition = TopicPartition(RESULTS, 0)
    async with bus.producing(kafka) as producer:
        at = (await producer.send_and_wait(RESULTS, b"one", partition=0)).offset
    monkeypatch.setattr(bus, "CALL_S_MAX", 1.0)
    async with bus.consuming(kafka, [partition]) as consumer:
        # So it stands still, as one may after a broker's restart.
        consumer.pause(partition)
        with pytest.raises(bus.BusError, match=f"of headway.results/0 from offset {at} on for 1 s"):
            [record async for record in bus.read_range(consumer, partition, at, at + 1)]


async def test_who_waits_for_an_outcome_learns_that_its_reader_has_ended(
    kafka: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await bus.ensure_topics(kafka, 1)

    def defect(_raw: bytes) -> BusMessage:
        raise ZeroDivisionError("a defect")

    asked = InferenceRequest(kind="inference-request.v1", id="a", model="m", prompt="hello")
    told = "headway.results is not read any more, .*ZeroDivisionError"
    async with Client(kafka) as client:
        await client.submit(asked)
        monkeypatch.setattr(gateway, "decode", defect)
        waiting = asyncio.create_task(client.outcome("a", 60))
        async with bus.producing(kafka) as producer:
            await producer.send_and_wait(RESULTS, b"{}", key=b"a", partition=0)
        with pytest.raises(bus.BusError, match=told):
            await waiting
        with pytest.raises(bus.BusError, match=told):
            [one async for one in client.follow(asked.model_copy(update={"id": "b"}), 60)]
    assert "reading headway.results ends" in caplog.text
