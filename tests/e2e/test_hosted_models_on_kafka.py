"""Several models in one worker process, over the real broker: real models, turns, kills, faults."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from schemas.bus import Result
from schemas.facts import ReplicaHeartbeat, ReplicaReady, ReplicaStopped, WorkStarted
from schemas.ledger import Entry
from schemas.policy import Override, Policy
from schemas.profile import MINILM_L6, SMOLLM2_135M
from schemas.topics import CONFIG
from services import bus
from services.embedded.processes import Child
from services.gateway.vectors import vectors_of
from services.worker import turn_weights
from services.worker.engine import Work
from services.worker.host import Hosted, WorkerHost
from services.worker.plan import Bounds
from services.worker.simulated import SimulatedEngine, llama_on_h100
from services.worker.turns import Replica
from tests.e2e.deployment import BYTES_PROFILE, Deployment

POOL_BYTES = 64 * 2**20
MODELS = ["cold", "hot"]
HOT, COLD = replace(BYTES_PROFILE, model="hot"), replace(BYTES_PROFILE, model="cold")
SLOW = ("--engine", "simulated", "--speed", "2", "--max-batch", "4")


@pytest.fixture
async def pair(
    deployment: Deployment, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[tuple[Deployment, Deployment]]:
    """Give two models over one broker; the first one's processes serve both."""
    profiles = request.param
    folders = [tmp_path / profile.model for profile in profiles]
    for folder in folders:
        folder.mkdir()
    made = [
        Deployment(deployment.bootstrap, folder, profile=profile)
        for folder, profile in zip(folders, profiles, strict=True)
    ]
    for one in made:
        await one.prepare()
    yield made[0], made[1]
    for one in made:
        one.close()


def host(*specs: str) -> list[str]:
    return [word for spec in specs for word in ("--host", spec)]


async def until_logged(child: Child, sentence: str, seconds: float = 60.0) -> None:
    """Wait until a process has said so."""
    until_s = time.monotonic() + seconds
    while sentence not in "\n".join(child.last_lines(200)):
        if time.monotonic() > until_s:
            raise AssertionError(f"nobody said {sentence!r}: {child.last_lines(20)}")
        await asyncio.sleep(0.1)


def kinds_of(outcomes: Iterable[Result]) -> set[str]:
    return {outcome.outcome for outcome in outcomes}


# Real models


def alone(prompt: str, tokens: int) -> str:
    """Return what SmolLM2 writes when nothing shares its process."""
    from services.worker.smollm2_engine import (  # noqa: PLC0415 - torch takes seconds to import
        SmolLM2Config,
        SmolLM2Engine,
    )

    engine = SmolLM2Engine(SmolLM2Config(POOL_BYTES, Bounds(1, 64), device="cpu", threads=1))
    engine.add(Work("alone", 1, tokens, 20, prompt=prompt))
    while True:
        for done in engine.step().finished:
            return done.text


def embedding(request_id: str, *texts: str) -> dict[str, Any]:
    kind = "embedding-request.v1"
    return {"kind": kind, "id": request_id, "model": MINILM_L6.model, "input": list(texts)}


@pytest.mark.torch
@pytest.mark.timeout(400)
@pytest.mark.parametrize("pair", [(SMOLLM2_135M, MINILM_L6)], indirect=True, ids=["torch"])
async def test_a_text_model_and_an_encoder_in_one_process_answer_rightly_also_through_kill_9(
    pair: tuple[Deployment, Deployment],
) -> None:
    texts, vectors = pair
    worker = (
        *("worker", "--threads", "1", "--max-batch", "8", "--kv-pool-bytes", str(POOL_BYTES)),
        *host("model=smollm2-135m,slot=0", "model=all-minilm-l6-v2,slot=0,engine=minilm"),
    )
    texts.start_cell()
    texts.spawn("worker", *worker)
    await texts.wait_for_replicas(seconds=120)
    await vectors.wait_for_replicas(seconds=120)

    prompt = "The capital of France is"
    france = texts.request("france", prompt=prompt, max_output_tokens=12, temperature=0)
    text_ids = await texts.send_many([france])
    vector_ids = await vectors.send_many(
        [
            embedding("one", "This is an example sentence"),
            embedding("two", "Each sentence is converted", "What is a queue?"),
        ]
    )
    written = (await texts.outcomes(text_ids, 120))["france"].text
    assert written is not None
    assert "Paris" in written
    assert written == alone(prompt, 12)
    embedded = await vectors.outcomes(vector_ids, 120)
    (first,), (second, queue) = (told(embedded[name]) for name in ("one", "two"))
    assert first[:3] == pytest.approx([0.067657, 0.063496, 0.048713], abs=1e-5)
    assert second[:3] == pytest.approx([0.086439, 0.102763, 0.005395], abs=1e-5)
    assert queue[:3] == pytest.approx([-0.077128, -0.015862, -0.083551], abs=1e-5)

    many = [texts.request(f"t-{n}", prompt=prompt, max_output_tokens=48) for n in range(10)]
    more_text_ids = await texts.send_many(many)
    more_vector_ids = await vectors.send_many(
        [embedding(f"v-{n}", f"text number {n}", "What is a queue?") for n in range(30)]
    )
    await vectors.outcomes(["v-0"], 120)
    texts.kill("worker")
    texts.spawn("worker", *worker)
    text_outcomes = await texts.outcomes(more_text_ids, 200)
    vector_outcomes = await vectors.outcomes(more_vector_ids, 200)
    assert kinds_of(text_outcomes.values()) == kinds_of(vector_outcomes.values()) == {"completed"}
    assert any(outcome.attempts > 1 for outcome in text_outcomes.values())
    assert {outcome.text for outcome in text_outcomes.values()} == {alone(prompt, 48)}
    for outcome in vector_outcomes.values():
        assert told(outcome)[1][:3] == pytest.approx(queue[:3], abs=1e-5)
    await texts.check_record([*text_ids, *more_text_ids])
    await vectors.check_record([*vector_ids, *more_vector_ids])


def told(result: Result) -> list[list[float]]:
    assert result.embedding is not None, result
    return vectors_of(result.embedding)


# Turns, weights and faults, with simulated models


both = pytest.mark.parametrize("pair", [(HOT, COLD)], indirect=True, ids=["simulated"])


@both
async def test_a_hot_model_cannot_freeze_a_cold_one_and_each_keeps_to_its_own_kv_pool(
    pair: tuple[Deployment, Deployment],
) -> None:
    hot, cold = pair
    hot.start_cell()
    hot.spawn(
        "worker",
        *("worker", *SLOW),
        *host("model=hot,slot=0,kv-pool-bytes=100663296", "model=cold,slot=0,max_batch=2"),
    )
    # Both models are of one cell.
    await hot.wait_for_replicas(2)
    hot_ids = await hot.send_many(
        [
            hot.request(f"h-{n}", tier="realtime", tenant=f"t{n % 3}", max_output_tokens=300)
            for n in range(40)
        ]
    )
    await hot.outcomes(["h-0"])
    cold_ids = await cold.send_many(
        [cold.request(f"c-{n}", tier="batch", max_output_tokens=5) for n in range(6)]
    )
    await cold.outcomes(cold_ids)
    done = {result.id for result in await hot.results()}
    assert not set(hot_ids) <= done, "the hot model was saturated all the time"
    assert kinds_of((await hot.outcomes(hot_ids, 120)).values()) == {"completed"}
    await hot.check_record([*hot_ids, *cold_ids])
    facts = [entry.fact for entry in await hot.entries()]
    blocks = {fact.model: fact.kv_blocks for fact in facts if isinstance(fact, ReplicaReady)}
    # 96 MiB, and the 512 MiB that are the default, at 16 tokens of 46,080 bytes a block.
    assert blocks == {"hot": 136, "cold": 728}
    used = [fact for fact in facts if isinstance(fact, ReplicaHeartbeat)]
    assert {fact.model for fact in used if fact.kv_blocks_used} >= {"hot"}
    assert all(fact.kv_blocks_used <= blocks[fact.model] for fact in used)


@both
async def test_new_weights_reach_the_worker_and_what_is_no_policy_does_not_stop_it(
    pair: tuple[Deployment, Deployment],
) -> None:
    hot, cold = pair
    hot.start_cell()
    worker = hot.spawn("worker", "worker", *SLOW, *host("model=hot,slot=0", "model=cold,slot=0"))
    await hot.wait_for_replicas(2)
    async with bus.producing(hot.bootstrap) as producer:
        for key, value in (
            (b"policy/2/x", b"no JSON at all"),
            (b"policy/2/x", json.dumps({"kind": "policy-set.v1", "policy": 7}).encode()),
            (b"policy/2/x", None),
            (b"policy/9/y", b"[" * 100_000),
            (b"\xff", b"\xff"),
        ):
            await producer.send_and_wait(CONFIG, value, key=key)
    override = Override(model="cold", key="iteration_weight", value=100)
    await hot.set_policy(Policy(version=2, overrides=(override,)))
    await until_logged(worker, "turns follow version 2 of the policy")
    # The version is taken: this one is refused, by the worker as by the cells.
    await hot.set_policy(Policy(version=2, iteration_weight=7))
    await hot.set_policy(Policy(version=3))
    await until_logged(worker, "turns follow version 3 of the policy")
    ids = await hot.send_many([hot.request("h")]) + await cold.send_many([cold.request("c")])
    assert kinds_of((await hot.outcomes(ids)).values()) == {"completed"}
    await hot.check_record(ids)


@both
async def test_a_model_that_is_turned_away_leaves_and_the_others_of_its_worker_go_on(
    pair: tuple[Deployment, Deployment],
) -> None:
    hot, cold = pair
    hot.start_cell()
    worker = hot.spawn("worker", "worker", *SLOW, *host("model=hot,slot=0", "model=cold,slot=0"))
    await hot.wait_for_replicas(2)
    # Somebody moves the cold model to a worker of its own.
    cold.spawn("other", "worker", *SLOW, "--model", "cold", "--slot", "0")
    await until_logged(worker, "another life of cold/0 holds the slot")
    await until_logged(worker, "the other models of this worker go on")
    ids = await hot.send_many([hot.request(f"h-{n}") for n in range(8)])
    ids += await cold.send_many([cold.request(f"c-{n}") for n in range(8)])
    assert kinds_of((await hot.outcomes(ids)).values()) == {"completed"}
    await hot.check_record(ids)
    worker.terminate()
    assert worker.wait(40) == 0


@both
async def test_a_worker_that_is_told_to_stop_ends_all_its_models_in_order(
    pair: tuple[Deployment, Deployment],
) -> None:
    hot, cold = pair
    hot.start_cell()
    worker = hot.spawn("worker", "worker", *SLOW, *host("model=hot,slot=0", "model=cold,slot=0"))
    await hot.wait_for_replicas(2)
    ids = await hot.send_many([hot.request(f"h-{n}", max_output_tokens=60) for n in range(4)])
    ids += await cold.send_many([cold.request(f"c-{n}", max_output_tokens=60) for n in range(4)])
    # What has not reached the worker by then is another replica's to do, and there is none.
    await hot.until_recorded("8 requests started", lambda entries: _started(entries) == 8)
    worker.terminate()
    assert worker.wait(40) == 0
    outcomes = await hot.outcomes(ids)
    assert kinds_of(outcomes.values()) == {"completed"}
    assert {outcome.attempts for outcome in outcomes.values()} == {1}
    assert _stopped(await hot.entries()) == MODELS


def _started(entries: list[Entry]) -> int:
    facts = [entry.fact for entry in entries]
    return sum(len(fact.items) for fact in facts if isinstance(fact, WorkStarted))


@both
async def test_a_model_that_cannot_be_loaded_ends_its_worker_before_any_work_is_taken(
    pair: tuple[Deployment, Deployment],
) -> None:
    hot, _ = pair
    hot.start_cell()
    worker = hot.spawn(
        "worker",
        *("worker", "--engine", "simulated"),
        *host("model=hot,slot=0", "model=cold,slot=0,kv-pool-bytes=1"),
    )
    await hot.until_recorded(
        "starting replica",
        lambda entries: any(entry.fact.kind == "replica-starting.v1" for entry in entries),
    )
    assert worker.wait(60) == 1
    said = "\n".join(worker.last_lines(20))
    assert "worker cold/0 cannot load its model: A KV pool of 1 bytes does not hold" in said
    assert "Traceback" not in said
    facts = [entry.fact for entry in await hot.entries()]
    assert not any(isinstance(fact, ReplicaReady) for fact in facts)


@both
async def test_a_worker_that_can_no_longer_follow_the_policies_ends_in_order_with_that_error(
    pair: tuple[Deployment, Deployment], monkeypatch: pytest.MonkeyPatch
) -> None:
    hot, cold = pair
    hot.start_cell()
    worker = WorkerHost(
        hot.bootstrap,
        [Hosted(Replica(model, 0), lambda model=model: slow_engine(model)) for model in MODELS],
    )
    serving = asyncio.create_task(worker.run())
    try:
        await hot.wait_for_replicas(2)
        ids = await hot.send_many([hot.request("h")]) + await cold.send_many([cold.request("c")])
        await hot.until_recorded("2 requests started", lambda entries: _started(entries) == 2)

        # No policy is known to do this: it stands for a fault of the code.
        def fails(_policy: Policy) -> None:
            raise ArithmeticError("no weight is left")

        monkeypatch.setattr(turn_weights, "Settings", fails)
        await hot.set_policy(Policy(version=2))
        with pytest.raises(ArithmeticError, match="no weight is left"):
            await asyncio.wait_for(serving, 60)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    # What ran has ended first, and both have told the cell that they stop.
    outcomes = await hot.outcomes(ids)
    assert [(one.outcome, one.attempts) for one in outcomes.values()] == [("completed", 1)] * 2
    await hot.until_recorded("2 replicas stopped", lambda entries: _stopped(entries) == MODELS)


def slow_engine(model: str) -> SimulatedEngine:
    return SimulatedEngine(llama_on_h100(model, 2.0))


def _stopped(entries: list[Entry]) -> list[str]:
    facts = [entry.fact for entry in entries]
    return sorted(fact.model for fact in facts if isinstance(fact, ReplicaStopped))
