"""The demo's embedding batch: sentences go to the encoder at once, and the nearest is found.

What it needs of the deployment stands here too: the encoder's profile and a worker for it.
"""

import asyncio
import secrets
from dataclasses import dataclass

from schemas.bus import Result
from schemas.embeddings import EmbeddingRequest
from schemas.profile import MINILM_L6
from services.cli._stack import WorkerPlan
from services.gateway.client import Client
from services.gateway.vectors import vectors_of
from services.lab.prompts import STATEMENTS

PROFILE = MINILM_L6
# One thread: the encoder stands beside everything else of the demo.
WORKERS = [WorkerPlan(0, ("--engine", "minilm", "--threads", "1"))]
QUESTION = "How can tenants get equal parts of one machine?"
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Embedded:
    """What became of the sentences.

    Attributes:
        results: one for each sentence, and the question's at the end.
        nearest: the sentence nearest to the question, or "" when not all completed.
        cosine: of its vector and the question's.
    """

    results: tuple[Result, ...]
    question: str
    nearest: str
    cosine: float

    @property
    def completed(self) -> int:
        """How many completed."""
        return sum(result.outcome == "completed" for result in self.results)

    def sentence(self) -> str:
        """Say it for people."""
        waits = sorted(result.wait_us for result in self.results)
        return (
            f"{self.completed} of {len(self.results)} sentences embedded, half of them within"
            f" {waits[len(waits) // 2] / 1000:.0f} ms of waiting for their batch; nearest to"
            f" {self.question!r}: {self.nearest!r} (cosine {self.cosine:.2f})"
        )


async def embed_sentences(kafka: str, tenant: str = "search") -> Embedded:
    """Send the sentences and a question as requests of their own, all at once.

    Raises:
        bus.BusError: the broker did not take them.
        NoOutcomeError: one has no outcome within TIMEOUT_S.
    """
    run = secrets.token_hex(4)
    asked = [
        EmbeddingRequest(
            kind="embedding-request.v1",
            id=f"embed-{run}-{number}",
            model=PROFILE.model,
            tenant=tenant,
            input=(text,),
        )
        for number, text in enumerate((*STATEMENTS, QUESTION))
    ]
    async with Client(kafka) as client:
        results = await asyncio.gather(*(client.run(request, TIMEOUT_S) for request in asked))
    vectors = [
        vectors_of(result.embedding)[0] for result in results if result.embedding is not None
    ]
    if len(vectors) < len(asked):
        return Embedded(tuple(results), QUESTION, "", 0.0)
    *sentences, question = vectors
    cosines = [sum(a * b for a, b in zip(one, question, strict=True)) for one in sentences]
    best = max(range(len(cosines)), key=cosines.__getitem__)
    return Embedded(tuple(results), QUESTION, STATEMENTS[best], cosines[best])
