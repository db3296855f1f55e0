"""Whether a model gives what a request asks for, and whether its texts fit. Pure; reads only.

A chat model has no vectors to give, and an encoder no words. The rest of the door is the same for
both (services/scheduler/answers.py).
"""

from schemas.decisions import Reason
from schemas.facts import EmbeddingSize, RequestArrived
from schemas.policy import Policy
from services.scheduler import windows
from services.scheduler.state import Model


def wrong_kind(model: Model, fact: RequestArrived) -> tuple[Reason, str] | None:
    """Return why the model cannot give what is asked for, or None when it can."""
    if (fact.embedding is None) == (model.profile.serves == "generative"):
        return None
    if fact.embedding is None:
        return "wrong-kind", (
            f"{fact.model} serves one-shot: it gives vectors and generates no text; send it an"
            " embedding-request.v1, or name a generative model"
        )
    return "wrong-kind", (
        f"{fact.model} is generative: it gives text and no vectors; send it an"
        " inference-request.v1, or name a model that serves one-shot"
    )


def too_large(keys: Policy, model: Model, size: EmbeddingSize) -> tuple[Reason, str] | None:
    """Return why the texts of an embedding request are too large for the model, or None."""
    context = model.profile.max_sequence_tokens
    if size.longest_tokens > context:
        return "over-context", (
            f"the longest of its texts has {size.longest_tokens} tokens or more, but the context"
            f" of {model.profile.model} holds {context}; texts are not cut: send parts"
        )
    if windows.over_every_pool(keys, model, size.texts, size.longest_tokens):
        detail = windows.over_pool_detail(keys, model, size.texts, size.longest_tokens)
        return "over-pool", detail
    return None
