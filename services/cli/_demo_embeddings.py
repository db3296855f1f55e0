"""The demo's embedding requests: statements to be found again, and then a question to find one by.

They go to the encoder as requests of their own, so that the cell makes batches of them. What they
need of the deployment stands here too: the encoder's profile and a worker for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from schemas.bus import Result
from schemas.embeddings import EmbeddingRequest
from schemas.profile import MINILM_L6, Profile
from services.cli._stack import WorkerPlan
from services.gateway.vectors import vectors_of
from services.lab.prompts import QUESTIONS, STATEMENTS

# When they are sent, as a share of the traffic's time: the statements at once, later the questions,
# one after the other.
STATEMENTS_AT = 0.3
QUESTIONS_AT = 0.6
QUESTION_PAUSE_S = 0.03
TENANT = "search"
# Its nearest statement is shown.
ASKED = "Why do queues grow?"

# One thread: the encoder stands beside everything else of the demo.
MINILM_WORKER = ("--engine", "minilm", "--threads", "1")
SIMULATED_WORKER = ("--engine", "simulated-oneshot")


@dataclass(frozen=True, slots=True)
class TextSending:
    """One embedding request and when it is sent, from the beginning on."""

    at_s: float
    request: EmbeddingRequest


@dataclass(frozen=True, slots=True)
class Embedded:
    """What became of the texts.

    Attributes:
        sent, completed: texts. question, nearest: the statement nearest to the question, or ""
            where the vectors say nothing. cosine: of their vectors.
        wait_ms_p50: half of the texts waited no longer for their batch.
    """

    sent: int
    completed: int
    wait_ms_p50: float | None
    question: str
    nearest: str
    cosine: float | None


def encoder(*, simulated: bool) -> tuple[Profile, list[WorkerPlan]]:
    """Return the encoder's profile, and the worker that serves it."""
    if simulated:
        profile = replace(MINILM_L6, tokenizer="bytes", bytes_per_token=4)
        return profile, [WorkerPlan(0, SIMULATED_WORKER)]
    return MINILM_L6, [WorkerPlan(0, MINILM_WORKER)]


def text_sendings(run: str, model: str, seconds: float) -> list[TextSending]:
    """Return the requests to send, in the order of time."""
    timed = [(STATEMENTS_AT * seconds, text) for text in STATEMENTS]
    first_s = QUESTIONS_AT * seconds
    timed += [(first_s + at * QUESTION_PAUSE_S, text) for at, text in enumerate(QUESTIONS)]
    return [
        TextSending(
            at_s,
            EmbeddingRequest(
                kind="embedding-request.v1",
                id=f"{run}-text-{number:02}",
                model=model,
                tenant=TENANT,
                tier="normal",
                input=(text,),
                metadata={"run": run},
            ),
        )
        for number, (at_s, text) in enumerate(timed)
    ]


def embedded(
    sent: list[TextSending], results: Mapping[str, Result], *, meaningful: bool
) -> Embedded:
    """Return what became of the texts; `meaningful` says whether vectors tell what they mean."""
    found: dict[str, Result] = {}
    for one in sent:
        result = results.get(one.request.id)
        if result is not None and result.outcome == "completed" and result.embedding is not None:
            found[one.request.input[0]] = result
    waits_ms = sorted(result.wait_us / 1000 for result in found.values())
    nearest, cosine = _nearest(found) if meaningful else ("", None)
    return Embedded(
        sent=len(sent),
        completed=len(found),
        wait_ms_p50=waits_ms[len(waits_ms) // 2] if waits_ms else None,
        question=ASKED,
        nearest=nearest,
        cosine=cosine,
    )


def _nearest(found: Mapping[str, Result]) -> tuple[str, float | None]:
    """Return the statement nearest to the question that is shown, and how near it is."""
    vectors = {
        text: vectors_of(result.embedding)[0]
        for text, result in found.items()
        if result.embedding is not None
    }
    asked = vectors.get(ASKED)
    statements = [text for text in STATEMENTS if text in vectors]
    if asked is None or not statements:
        return "", None
    cosines = {
        text: sum(a * b for a, b in zip(asked, vectors[text], strict=True)) for text in statements
    }
    best = max(statements, key=cosines.__getitem__)
    return best, cosines[best]
