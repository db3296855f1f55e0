"""Embeddings through the real broker: vectors, batches, wrong kinds, cancels and kills."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from schemas.batches import BatchFormed
from schemas.bus import Result
from schemas.profile import MINILM_L6
from services.gateway import batch
from services.gateway.batch_file import check
from services.gateway.batch_results import result_lines
from services.gateway.vectors import vectors_of
from tests.e2e.deployment import Deployment

BYTES_ENCODER = replace(MINILM_L6, tokenizer="bytes", bytes_per_token=4)


@pytest.fixture
async def encoders(deployment: Deployment, tmp_path: Path) -> AsyncIterator[Deployment]:
    """Give a deployment of the encoder over the broker of `deployment`."""
    found = Deployment(deployment.bootstrap, tmp_path, profile=MINILM_L6)
    await found.prepare()
    yield found
    found.close()


def embedding(request_id: str, *texts: str, **fields: Any) -> dict[str, Any]:
    return {
        "kind": "embedding-request.v1",
        "id": request_id,
        "model": MINILM_L6.model,
        "input": list(texts),
    } | fields


@pytest.mark.torch
async def test_texts_come_back_as_the_vectors_of_the_model_and_bad_ones_with_a_sentence(
    encoders: Deployment,
) -> None:
    encoders.start_cell()
    encoders.start_worker(0, "--engine", "minilm", "--max-batch", "8", "--threads", "1")
    await encoders.wait_for_replicas(seconds=120)
    bodies = [
        embedding("one", "This is an example sentence"),
        embedding("two", "Each sentence is converted", "What is a queue?"),
        embedding("long", "queue " * 300),
        embedding("none", input=[]),
        encoders.request("chat"),
    ]
    ids = await encoders.send_many(bodies)
    outcomes = await encoders.outcomes(ids, 120)
    (first,) = vectors(outcomes["one"])
    assert first[:3] == pytest.approx([0.067657, 0.063496, 0.048713], abs=1e-5)
    second, queue = vectors(outcomes["two"])
    assert second[:3] == pytest.approx([0.086439, 0.102763, 0.005395], abs=1e-5)
    assert queue[:3] == pytest.approx([-0.077128, -0.015862, -0.083551], abs=1e-5)
    assert (outcomes["one"].reason, outcomes["one"].text) == ("embedded", None)
    embedded = outcomes["two"].embedding
    assert embedded is not None
    assert embedded.text_tokens == (6, 7)
    assert {name: outcomes[name].reason for name in ("long", "none", "chat")} == {
        "long": "over-context",
        "none": "bad-field",
        "chat": "wrong-kind",
    }
    assert "embedding-request.v1" in outcomes["chat"].detail
    await encoders.check_record(ids)


@pytest.mark.torch
async def test_an_offline_job_of_texts_gives_vectors_in_openai_s_form(
    encoders: Deployment, tmp_path: Path
) -> None:
    encoders.start_cell()
    encoders.start_worker(0, "--engine", "minilm", "--max-batch", "8", "--threads", "1")
    await encoders.wait_for_replicas(seconds=120)
    path = tmp_path / "texts.jsonl"
    inputs = ["This is an example sentence", ["Each sentence is converted", "What is a queue?"]]
    path.write_text("".join(batch_line(f"row-{n}", text) for n, text in enumerate(inputs)))
    checked = check(path)
    header = checked.header("texts", None)
    await batch.submit(encoders.bootstrap, checked, header, lambda _: None)
    *_, done = [status async for status in batch.follow(encoders.bootstrap, "texts", 60)]
    assert (done.report.state, done.report.completed) == ("completed", 2), encoders.log_tails()
    first, second = [line async for line in result_lines(encoders.bootstrap, done)]
    assert [first["custom_id"], second["custom_id"]] == ["row-0", "row-1"]
    body = first["response"]["body"]
    assert (body["object"], body["model"]) == ("list", MINILM_L6.model)
    # "this is an example sentence" is five words of the vocabulary, between [CLS] and [SEP].
    assert body["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    (only,) = body["data"]
    assert (only["object"], only["index"], len(only["embedding"])) == ("embedding", 0, 384)
    assert only["embedding"][:3] == pytest.approx([0.067657, 0.063496, 0.048713], abs=1e-5)
    converted, queue = second["response"]["body"]["data"]
    assert converted["embedding"][:3] == pytest.approx([0.086439, 0.102763, 0.005395], abs=1e-5)
    assert (queue["index"], queue["embedding"][:3]) == (
        1,
        pytest.approx([-0.077128, -0.015862, -0.083551], abs=1e-5),
    )
    await encoders.check_record(["batch/texts/0", "batch/texts/1"])


def batch_line(custom_id: str, text: str | list[str]) -> str:
    """Return a line of an OpenAI batch file, as their documentation writes one."""
    body = {"model": MINILM_L6.model, "input": text, "encoding_format": "float"}
    line = {"custom_id": custom_id, "method": "POST", "url": "/v1/embeddings", "body": body}
    return json.dumps(line) + "\n"


def vectors(result: Result) -> list[list[float]]:
    assert result.embedding is not None, result
    return vectors_of(result.embedding)


async def test_a_killed_encoder_s_batch_runs_again_and_each_request_has_one_outcome(
    deployment: Deployment, tmp_path: Path
) -> None:
    encoders = Deployment(deployment.bootstrap, tmp_path, profile=BYTES_ENCODER)
    await encoders.prepare()
    slow = ("--engine", "simulated-oneshot", "--pass-ms", "400", "--max-batch", "4")
    try:
        encoders.start_cell()
        encoders.start_worker(0, *slow)
        await encoders.wait_for_replicas(seconds=120)
        bodies = [embedding(f"e-{n}", f"text number {n}", tenant=f"t{n % 3}") for n in range(24)]
        ids = await encoders.send_many(bodies)
        cancel = {"kind": "cancel.v1", "id": "e-23", "model": MINILM_L6.model}
        await encoders.send_raw(json.dumps(cancel).encode())
        await encoders.outcomes(["e-0"])
        encoders.kill("worker-0")
        encoders.start_worker(0, *slow)
        encoders.kill("cell")
        encoders.start_cell()
        outcomes = await encoders.outcomes(ids, 120)
        assert outcomes["e-23"].outcome == "cancelled"
        kinds = {outcome.outcome for name, outcome in outcomes.items() if name != "e-23"}
        assert kinds == {"completed"}
        assert any(outcome.attempts > 1 for outcome in outcomes.values())
        await encoders.check_record(ids)
        batches = [
            decision
            for entry in await encoders.entries()
            for decision in entry.decisions
            if isinstance(decision, BatchFormed)
        ]
        assert max(batch.texts for batch in batches) == 4
    finally:
        encoders.close()
