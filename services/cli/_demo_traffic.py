"""Turns arrivals into requests: who asks, how urgently, and for what. Decides nothing at run time.

Traces have neither tenants nor tiers, deadlines, streams or cancels: all of these are made up here,
from the seed alone, and the demo says so.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from schemas.policy import Tier
from schemas.profile import Profile
from schemas.requests import ChatMessage, InferenceRequest
from services.lab import prompts
from services.lab.arrivals import Arrival

MS_PER_S = 1000.0
# (name, weight of its requests)
TENANTS: tuple[tuple[str, int], ...] = (
    ("search", 5),
    ("support", 3),
    ("editor", 2),
    ("reports", 1),
)
TIER_WEIGHTS: tuple[tuple[Tier, int], ...] = (
    ("realtime", 2),
    ("critical", 3),
    ("normal", 10),
    ("batch", 3),
)
STREAM_SHARE = 0.3
DEADLINE_SHARE = 0.05
DEADLINE_MS = 3_000
CANCELS = 2
CANCEL_AFTER_S = 0.5
TEMPERATURES = (0.0, 0.0, 0.0, 0.7)
# The model's chat template wraps each question in so many tokens.
TEMPLATE_TOKENS = 32

# What a small machine does, in tokens a second of each kind, carefully: SmolLM2-135M in float32 on
# two cores that the rest of the deployment shares. Traffic is scaled so that serving it takes no
# longer than it takes to arrive.
PREFILL_TOKENS_PER_S = 400.0
DECODE_TOKENS_PER_S = 120.0
OUTPUT_TIME_SHARE = 0.6
# Even a slow machine gets requests of some variety: the median prompt is 7 tokens then.
PROMPT_SCALE_MIN = 0.005
OUTPUT_SCALE_MIN = 0.25


@dataclass(frozen=True, slots=True)
class Sending:
    """One request and when it is sent, from the beginning on; perhaps it is cancelled later."""

    at_s: float
    request: InferenceRequest
    cancel_after_s: float | None = None


def request_s(prompt_tokens: float, output_tokens: float) -> float:
    """Return about how long a small machine is busy with a chat of such lengths."""
    prefill_tokens = prompt_tokens + TEMPLATE_TOKENS
    return prefill_tokens / PREFILL_TOKENS_PER_S + output_tokens / DECODE_TOKENS_PER_S


def fitting_scales(
    arrivals: Sequence[Arrival], seconds: float, speed: float = 1.0
) -> tuple[float, float]:
    """Return what to multiply prompt and output lengths with, 1 at most, for a small machine.

    So that it is busy with them for `seconds`, if it is `speed` times as fast as it should be; a
    very slow one is busy for longer.
    """
    budget_s = seconds * speed
    output_s = request_s(0, sum(arrival.output_tokens for arrival in arrivals))
    prompt_s = request_s(sum(arrival.prompt_tokens for arrival in arrivals), 0)
    template_s = len(arrivals) * request_s(0, 0)
    output_scale = OUTPUT_TIME_SHARE * budget_s / max(output_s, 1e-9)
    output_scale = min(1.0, max(OUTPUT_SCALE_MIN, output_scale))
    left_s = budget_s - template_s - output_s * output_scale
    prompt_scale = min(1.0, max(PROMPT_SCALE_MIN, left_s / max(prompt_s, 1e-9)))
    return prompt_scale, output_scale


def sendings(
    arrivals: Sequence[Arrival],
    profile: Profile,
    run: str,
    seed: int,
    *,
    chat: bool,
    plain: bool = False,
) -> list[Sending]:
    """Return the requests to send to the profile's model, in the order of time.

    Args:
        arrivals: when, and of what lengths.
        profile: of the model that is asked.
        seed: of everything that is made up.
        run: a prefix of the ids, so that no two runs on one deployment share any.
        chat: chats of natural length; otherwise prompts of exactly the wanted size in bytes.
        plain: without deadlines and cancels.
    """
    chance = random.Random(f"{seed}/requests")  # noqa: S311 - traffic, not secrets
    cancelled: set[int] = set() if plain else _to_cancel(arrivals)
    deadline_share = 0.0 if plain else DEADLINE_SHARE
    tenants, tenant_weights = zip(*TENANTS, strict=True)
    tiers, tier_weights = zip(*TIER_WEIGHTS, strict=True)
    plan: list[Sending] = []
    for index, arrival in enumerate(arrivals):
        text: dict[str, object] = (
            {"messages": (_question(arrival, profile, chance),)}
            if chat
            else {"prompt": prompts.exactly(max(1, arrival.prompt_tokens), chance)}
        )
        fields = {
            "kind": "inference-request.v1",
            "id": f"{run}-{index:05}",
            "model": profile.model,
            "tenant": chance.choices(tenants, tenant_weights)[0],
            "tier": chance.choices(tiers, tier_weights)[0],
            "max_output_tokens": max(1, arrival.output_tokens),
            "temperature": chance.choice(TEMPERATURES),
            "deadline_ms": DEADLINE_MS if chance.random() < deadline_share else None,
            "stream": chance.random() < STREAM_SHARE,
            "metadata": {"run": run},
        }
        request = InferenceRequest.model_validate(fields | text)
        plan.append(
            Sending(
                arrival.t_ms / MS_PER_S, request, CANCEL_AFTER_S if index in cancelled else None
            )
        )
    return plan


def _question(arrival: Arrival, profile: Profile, chance: random.Random) -> ChatMessage:
    room = profile.max_sequence_tokens - arrival.output_tokens - TEMPLATE_TOKENS
    tokens = min(arrival.prompt_tokens, max(1, room))
    return ChatMessage(role="user", content=prompts.question(tokens, chance))


def _to_cancel(arrivals: Sequence[Arrival]) -> set[int]:
    """Choose the longest outputs, so that they are likely to run still when the cancel comes."""
    by_length = sorted(range(len(arrivals)), key=lambda index: -arrivals[index].output_tokens)
    return set(by_length[:CANCELS]) if len(arrivals) > CANCELS * CANCELS else set()
