"""Records that no part of Headway would write, on every topic that a cell reads: it goes on."""

import asyncio
import gzip
import json
import time
from dataclasses import replace
from typing import Any

from aiokafka import AIOKafkaProducer

from schemas.bus import HEADER_INDEX, HEADER_SEQ, DeadLetter, WorkLeave
from schemas.codec import decode, encode
from schemas.edge import REQUEST_BYTES_MAX
from schemas.topics import CONFIG, LEDGER, REQUESTS, work_topic
from services import bus
from services.inflate import GZIP
from tests.e2e.deployment import Deployment
from tests.e2e.raw_batches import RawBatch, RawRecord, plain_of, write_batch


async def _in_service(deployment: Deployment) -> None:
    deployment.start_cell()
    deployment.start_worker()
    await deployment.wait_for_replicas()


async def _write(
    deployment: Deployment, topic: str, value: bytes, partition: int, key: bytes = b"k"
) -> None:
    async with bus.producing(deployment.bootstrap) as producer:
        await producer.send_and_wait(topic, value, key=key, partition=partition)


async def _dead_letter_reasons(deployment: Deployment, count: int) -> list[str]:
    """Return the reasons of all dead letters, as soon as there are `count`."""
    until_s = time.monotonic() + 20
    while True:
        letters = [decode(value) for value in await deployment.dead_letters()]
        reasons = [letter.reason for letter in letters if isinstance(letter, DeadLetter)]
        if len(reasons) >= count or time.monotonic() > until_s:
            return reasons
        await asyncio.sleep(0.2)


async def test_a_foreign_record_on_the_ledger_is_passed_over_by_its_owner_and_the_next(
    deployment: Deployment,
) -> None:
    await _in_service(deployment)
    ids = await deployment.send([deployment.request("before")])
    await deployment.outcomes(ids)
    await _write(deployment, LEDGER, b"garbage", deployment.cell_number)
    ids += await deployment.send([deployment.request("after")])
    await deployment.outcomes(ids)
    # The same owner goes on, without the pause that another one's record would cost.
    assert {entry.epoch for entry in await deployment.entries()} == {1}
    deployment.kill("cell")
    deployment.start_cell()
    ids += await deployment.send([deployment.request("recovered")])
    await deployment.outcomes(ids)
    await deployment.check_record(ids)


async def test_a_request_that_only_compression_made_small_enough_is_rejected(
    deployment: Deployment,
) -> None:
    profile = replace(deployment.profile, version=2, bytes_per_token=10_000)
    await _write(deployment, CONFIG, encode(profile), 0, f"profile/{profile.model}".encode())
    await _in_service(deployment)
    producer = AIOKafkaProducer(
        bootstrap_servers=deployment.bootstrap,
        compression_type="gzip",
        max_request_size=8 * REQUEST_BYTES_MAX,
    )
    await producer.start()
    body = deployment.request("huge", prompt="x" * 5 * REQUEST_BYTES_MAX)
    await producer.send_and_wait(
        REQUESTS, json.dumps(body).encode(), partition=deployment.cell_number
    )
    await producer.stop()
    largest = deployment.request("largest", prompt="")
    room = REQUEST_BYTES_MAX - len(json.dumps(largest))
    ids = await deployment.send([largest | {"prompt": "x" * room}])
    outcomes = await deployment.outcomes(["huge", *ids])
    assert (outcomes["huge"].outcome, outcomes["huge"].reason) == ("rejected", "bad-field")
    assert "bytes long" in outcomes["huge"].detail
    assert outcomes["largest"].outcome == "completed"
    await deployment.check_record(["huge", *ids])


async def test_a_batch_that_would_become_far_too_large_is_a_dead_letter(
    deployment: Deployment,
) -> None:
    await _in_service(deployment)
    one = [RawRecord(bytes(200 * 1024 * 1024))]
    packed = gzip.compress(plain_of(one))
    await write_batch(
        deployment.bootstrap, REQUESTS, deployment.cell_number, RawBatch(one, GZIP, packed)
    )
    ids = await deployment.send([deployment.request("after")])
    assert (await deployment.outcomes(ids))["after"].outcome == "completed"
    (reason,) = await _dead_letter_reasons(deployment, 1)
    assert "its gzip would become more than" in reason
    assert await deployment.mismatches() == []


async def test_a_profile_whose_topic_kafka_refuses_is_a_dead_letter_for_each_cell(
    deployment: Deployment,
) -> None:
    await _in_service(deployment)
    for number, name in enumerate(("a.b", "a_b")):
        profile = replace(deployment.profile, model=name)
        await _write(deployment, CONFIG, encode(profile), 0, b"profile/%d" % number)
    ids = await deployment.send(
        [deployment.request("known"), deployment.request("refused", model="a_b")]
    )
    outcomes = await deployment.outcomes(ids)
    assert outcomes["known"].outcome == "completed"
    assert (outcomes["refused"].outcome, outcomes["refused"].reason) == (
        "rejected",
        "unknown-model",
    )
    reasons = await _dead_letter_reasons(deployment, 2)
    assert len(reasons) == 2
    assert all("headway.work.a_b" in reason and "collides" in reason for reason in reasons)
    assert await deployment.mismatches() == []


async def test_strange_records_for_a_worker_neither_end_nor_deafen_it(
    deployment: Deployment,
) -> None:
    await _in_service(deployment)
    other = WorkLeave(id="a", attempt=1, incarnation="another life", cause="cancelled")
    far = [(HEADER_SEQ, b"9" * 15), (HEADER_INDEX, b"0")]
    topic = work_topic(deployment.profile.model)
    strange: list[tuple[bytes, list[tuple[str, Any]]]] = [
        (b"garbage", far),
        (encode(other), [(HEADER_SEQ, None), (HEADER_INDEX, None)]),
        (encode(other), []),
        (encode(other), far),
    ]
    async with bus.producing(deployment.bootstrap) as producer:
        for value, headers in strange:
            await producer.send_and_wait(topic, value, partition=0, headers=headers)
    ids = await deployment.send([deployment.request("after")])
    outcomes = await deployment.outcomes(ids, 20)
    assert (outcomes["after"].outcome, outcomes["after"].attempts) == ("completed", 1)


async def test_a_worker_that_cannot_serve_says_so_in_a_sentence(deployment: Deployment) -> None:
    deployment.start_cell()
    model = ("worker", "--engine", "simulated", "--model")
    deployment.spawn("nobody", *model, "nobody", "--slot", "0")
    deployment.spawn("beyond", *model, deployment.profile.model, "--slot", "900")
    tiny = deployment.spawn(
        "tiny", *model, deployment.profile.model, "--slot", "1", "--kv-pool-bytes", "5"
    )
    assert await asyncio.to_thread(tiny.wait, 20) == 1
    assert "Error: worker smollm2-135m/1 cannot load its model: A KV pool of" in tiny.last_line()
    until_s = time.monotonic() + 20
    while "slot" not in _said(deployment, "nobody") or "slot" not in _said(deployment, "beyond"):
        assert time.monotonic() < until_s, deployment.log_tails()
        await asyncio.sleep(0.2)
    assert "headway.work.nobody has no slot 0 (it has none)" in _said(deployment, "nobody")
    assert "no slot 900 (it has 8 slots, from 0 on)" in _said(deployment, "beyond")


def _said(deployment: Deployment, name: str) -> str:
    return "".join(deployment.children[name].last_lines(4))
