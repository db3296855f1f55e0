"""Records that the client cannot decode, on every topic that is read: each reader goes on.

The broker takes them all: a header's name that is no UTF-8, bytes behind a compressed stream, an
offset inside a batch that is not its own.
"""

import asyncio
import base64
import json
import time

import pytest
from aiokafka.codec import lz4_encode

from schemas.bus import DeadLetter
from schemas.codec import decode
from schemas.requests import InferenceRequest
from schemas.topics import CONFIG, LEDGER, REQUESTS, RESULTS, TOKENS, WORKER_EVENTS, work_topic
from services.gateway.client import Client
from services.inflate import LZ4
from tests.e2e.deployment import Deployment
from tests.e2e.raw_batches import RawBatch, RawRecord, plain_of, write_batch

pytestmark = pytest.mark.broker

NO_UTF8 = ((b"\xff\xfe", b"1"),)
STRANGE = RawRecord(b"strange", headers=NO_UTF8)
# The whole of it is out of reach.
DAMAGED = RawBatch([STRANGE] * 3, LZ4, lz4_encode(plain_of([STRANGE] * 3)) + b"more")


async def _letters(deployment: Deployment, count: int) -> list[DeadLetter]:
    """Return all dead letters, as soon as there are `count`."""
    until_s = time.monotonic() + 60
    while True:
        found = [decode(value) for value in await deployment.dead_letters()]
        if len(found) >= count or time.monotonic() > until_s:
            return [letter for letter in found if isinstance(letter, DeadLetter)]
        await asyncio.sleep(0.2)


def _body(deployment: Deployment, request_id: str) -> bytes:
    return json.dumps(deployment.request(request_id)).encode()


async def test_a_cell_puts_away_what_cannot_be_decoded_and_answers_what_stands_beside_it(
    deployment: Deployment,
) -> None:
    deployment.start_cell()
    deployment.start_worker()
    await deployment.wait_for_replicas()
    bootstrap, cell = deployment.bootstrap, deployment.cell_number
    beside = RawBatch(
        [
            RawRecord(_body(deployment, "before")),
            RawRecord(_body(deployment, "strange"), headers=NO_UTF8),
            RawRecord(_body(deployment, "behind")),
        ]
    )
    far = [RawRecord(_body(deployment, name)) for name in ("near", "far", "last")]
    jump = far[0].encoded(0) + far[1].encoded(1_000_000) + far[2].encoded(2)
    first = await write_batch(bootstrap, REQUESTS, cell, beside)
    await write_batch(bootstrap, REQUESTS, cell, DAMAGED)
    await write_batch(bootstrap, REQUESTS, cell, RawBatch(far, packed=jump))
    report = await write_batch(bootstrap, WORKER_EVENTS, cell, RawBatch([STRANGE]))
    config = await write_batch(bootstrap, CONFIG, 0, RawBatch([STRANGE]))
    expected = [
        (CONFIG, 0, config, "no UTF-8"),
        # Every cell reads the config.
        (CONFIG, 0, config, "no UTF-8"),
        (REQUESTS, cell, first + 1, "no UTF-8"),
        (REQUESTS, cell, first + 5, "inflated"),
        (REQUESTS, cell, first + 7, "its offset as"),
        (WORKER_EVENTS, cell, report, "no UTF-8"),
    ]
    ids = ["before", "behind", "near", "last"]
    ids += await deployment.send([deployment.request("after")])
    outcomes = await deployment.outcomes(ids)
    assert {result.outcome for result in outcomes.values()} == {"completed"}
    letters = await _letters(deployment, len(expected))
    letters.sort(key=lambda letter: (letter.topic, letter.offset))
    for letter, (topic, partition, offset, why) in zip(letters, expected, strict=True):
        assert (letter.topic, letter.partition, letter.offset) == (topic, partition, offset)
        assert why in letter.reason
    assert base64.b64decode(letters[2].body_base64 or "") == _body(deployment, "strange")
    # After a crash the same is read again, and derived again, from the log.
    deployment.kill("cell")
    deployment.start_cell()
    ids += await deployment.send([deployment.request("later")])
    await deployment.outcomes(ids)
    await deployment.check_record(ids)
    assert len(await _letters(deployment, len(expected))) == len(expected)


async def test_ledger_work_results_and_tokens_are_followed_past_what_cannot_be_decoded(
    deployment: Deployment,
) -> None:
    deployment.start_cell()
    deployment.start_worker()
    await deployment.wait_for_replicas()
    bootstrap, cell = deployment.bootstrap, deployment.cell_number
    async with Client(bootstrap) as client:
        for number, batch in enumerate((RawBatch([STRANGE]), DAMAGED)):
            for topic, partition in (
                (LEDGER, cell),
                (work_topic(deployment.profile.model), 0),
                (RESULTS, cell),
                (TOKENS, cell),
            ):
                await write_batch(bootstrap, topic, partition, batch)
            asked = InferenceRequest.model_validate(deployment.request(f"followed-{number}"))
            *pieces, result = [one async for one in client.follow(asked, 60)]
            assert (getattr(result, "outcome", None), bool(pieces)) == ("completed", True)
    deployment.kill("cell")
    deployment.start_cell()
    async with Client(bootstrap) as client:
        asked = InferenceRequest.model_validate(deployment.request("recovered"))
        assert (await client.run(asked, 60)).outcome == "completed"
    entries = await deployment.entries()
    assert [entry.seq for entry in entries] == list(range(len(entries)))
    assert await deployment.mismatches() == []
