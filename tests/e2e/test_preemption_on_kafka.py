"""Preemption through the real broker: it leaves, waits, goes on, and no token is lost or twice."""

import asyncio
from collections.abc import Callable
from zlib import crc32

from schemas import decisions as d
from schemas.bus import HEADER_CELL, HEADER_INDEX, HEADER_SEQ, Tokens, WorkLeave
from schemas.codec import decode, encode
from schemas.facts import ReplicaReady
from schemas.topics import TOKENS, work_topic
from services import bus
from services.worker.engine import Work
from services.worker.latency import VirtualClock
from services.worker.simulated import SimulatedEngine, llama_on_h100
from tests.e2e.deployment import Deployment

SLOW = ("--speed", "0.5", "--max-batch", "1")
JOB_TOKENS = 250


async def until(deployment: Deployment, happened: Callable[[d.Decision], bool]) -> None:
    """Wait until a decision on the ledger is the one."""
    async with asyncio.timeout(60):
        while True:
            decisions = [item for entry in await deployment.entries() for item in entry.decisions]
            if any(happened(item) for item in decisions):
                return
            await asyncio.sleep(0.1)


def uninterrupted_text(request_id: str, prompt_tokens: int, output_tokens: int) -> str:
    """Return what the request's text is when nothing comes in between."""
    engine = SimulatedEngine(llama_on_h100("m"), VirtualClock())
    engine.add(
        Work(
            request_id,
            1,
            output_tokens,
            1000,
            prompt="made up",
            prompt_tokens=prompt_tokens,
            seed=crc32(request_id.encode()),
        )
    )
    while True:
        for done in engine.step().finished:
            return done.text


async def test_s4_a_batch_job_leaves_for_a_realtime_request_and_goes_on_even_after_a_crash(
    deployment: Deployment,
) -> None:
    deployment.start_cell()
    deployment.start_worker(0, *SLOW)
    await deployment.wait_for_replicas()
    job = deployment.request("job", tier="batch", max_output_tokens=JOB_TOKENS, stream=True)
    ids = await deployment.send([job])
    await until(deployment, lambda x: isinstance(x, d.RequestDispatched) and x.id == "job")
    await asyncio.sleep(0.5)
    urgent = deployment.request("urgent", tier="realtime", max_output_tokens=100)
    ids += await deployment.send([urgent])
    await until(deployment, lambda x: isinstance(x, d.RequestPreempted) and x.id == "job")
    # The owner that knew the tokens dies; the next one reads them again by their offset.
    deployment.kill("cell")
    deployment.start_cell("cell-2")
    outcomes = await deployment.outcomes(ids, 90)
    assert {name: x.outcome for name, x in outcomes.items()} == {
        "job": "completed",
        "urgent": "completed",
    }
    resumed = [
        item
        for entry in await deployment.entries()
        for item in entry.decisions
        if isinstance(item, d.RequestDispatched) and item.id == "job" and item.attempt == 2
    ]
    assert resumed[0].resume_tokens > 0
    usage = outcomes["job"].usage
    assert usage is not None
    expected = uninterrupted_text("job", usage.prompt_tokens, JOB_TOKENS)
    assert outcomes["job"].text == expected
    await check_stream(deployment, "job", expected)
    await deployment.check_record(ids)
    assert await deployment.mismatches() == []


async def check_stream(deployment: Deployment, request_id: str, expected: str) -> None:
    """Check that each token was streamed once, in order, over both attempts."""
    messages = [decode(raw) for raw in await deployment.read_all(TOKENS)]
    pieces = [
        piece
        for message in messages
        if isinstance(message, Tokens)
        for piece in message.pieces
        if piece.id == request_id
    ]
    assert [piece.index for piece in pieces if piece.tokens] == list(range(JOB_TOKENS))
    assert "".join(piece.text for piece in pieces) == expected
    assert {piece.attempt for piece in pieces} == {1, 2}


async def test_work_that_a_worker_passes_over_does_not_count_as_running_for_ever(
    deployment: Deployment,
) -> None:
    deployment.start_cell()
    deployment.start_worker(0, "--speed", "10")
    await deployment.wait_for_replicas()
    ready = [
        entry.fact for entry in await deployment.entries() if isinstance(entry.fact, ReplicaReady)
    ]
    # Somebody writes with a seq far ahead: what the cell sends looks old to the worker from now on.
    forged = WorkLeave(id="x", attempt=1, incarnation=ready[0].incarnation, cause="cancelled")
    headers = [
        (HEADER_CELL, b"%d" % deployment.cell_number),
        (HEADER_SEQ, b"999999999"),
        (HEADER_INDEX, b"0"),
    ]
    async with bus.producing(deployment.bootstrap) as producer:
        topic = work_topic(deployment.profile.model)
        await producer.send_and_wait(topic, encode(forged), partition=0, headers=headers)
    ids = await deployment.send([deployment.request("passed-over", max_output_tokens=2)])
    outcomes = await deployment.outcomes(ids, 30)
    assert outcomes["passed-over"].reason == "attempts-exhausted"
    assert "read past it" in outcomes["passed-over"].detail
    assert await deployment.mismatches() == []
