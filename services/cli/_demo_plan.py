"""What a demo runs: the traffic, the model that is served, and the workers. Starts nothing."""

import math
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from schemas.profile import SMOLLM2_135M, Profile, kv_bytes_per_token
from services.cli._demo_embeddings import TextSending, encoder, text_sendings
from services.cli._demo_job import ITEMS_AT_FULL_SIZE, TIME_SHARE, Job, items_for, new_job
from services.cli._demo_traffic import (
    TEMPLATE_TOKENS,
    Sending,
    fitting_scales,
    request_s,
    sendings,
)
from services.cli._stack import WorkerPlan
from services.lab.arrivals import AZURE_CODE_PER_S, Arrival, scaled, typical_window
from services.lab.traces import read_trace
from services.worker.engine import BLOCK_TOKENS

MS_PER_S = 1000.0
TORCH_WORKERS = 1
TORCH_BATCH = 16
# The KV pool holds about so many requests, fewer than the batch could: so KV is what decides.
TORCH_POOL_REQUESTS = 10
SIMULATED_WORKERS = 4
SIMULATED_BATCH = 256
SIMULATED_PREFILL_TOKENS = 2048
SIMULATED_POOL_BYTES = 50 * 2**30
# Llama-3.1-8B in bf16: what the simulated engine's latency was fitted to (services/worker/latency).
LLAMA_3_1_8B = Profile(
    model="llama-3.1-8b",
    layers=32,
    kv_heads=8,
    head_size=128,
    kv_dtype_bytes=2,
    max_sequence_tokens=131_072,
    tokenizer="bytes",
    weights_bytes=16_000_000_000,
)


# Sent before the traffic, to see how fast the machine is: so many chats of so many tokens.
PROBES = 8
# The online traffic is made to need so much of the machine's time; the offline job has the rest.
SHARE = 1 - TIME_SHARE
PROBE_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Plan:
    """A demo to run: what is served, by which workers, and what is sent when.

    Attributes:
        run: what the ids of its requests begin with.
        simulated: whether the engines make up words and vectors.
        encoder, encoder_workers: what answers the embedding requests.
        arrivals: when, and of what lengths before they are scaled.
        seconds: within which they come.
        scales: of prompts and outputs; None is what the machine can serve.
    """

    run: str
    profile: Profile
    workers: list[WorkerPlan]
    simulated: bool
    encoder: Profile
    encoder_workers: list[WorkerPlan]
    arrivals: list[Arrival]
    seconds: float
    scales: tuple[float, float] | None
    seed: int
    setting: dict[str, Any]

    @property
    def workers_by_model(self) -> dict[str, list[WorkerPlan]]:
        """The workers as a deployment is given them."""
        return {self.profile.model: self.workers, self.encoder.model: self.encoder_workers}

    def headline(self) -> str:
        """Return in one line what is run."""
        told = self.setting
        return (
            f"Headway demo: {told['requests']} requests in {self.seconds:g} s"
            f" ({told['traffic']} traffic) to {self.profile.model} on {told['workers']}"
            f" {told['engine']} worker{'s' if told['workers'] > 1 else ''}; an offline job and an"
            " encoder beside them"
        )

    def probe(self) -> list[Sending]:
        """Return what is sent first, to see how fast the machine is; nothing if that is no matter.

        A machine that is slower than it should be gets shorter requests, not a demo that fails.
        """
        if self.scales is not None:
            return []
        short = [Arrival(0.0, PROBE_TOKENS, PROBE_TOKENS)] * PROBES
        return sendings(short, self.profile, f"{self.run}-probe", self.seed, chat=True, plain=True)

    def job(self, speed: float) -> Job:
        """Return the offline job that is there before the traffic."""
        items = ITEMS_AT_FULL_SIZE if self.simulated else items_for(self.seconds, speed)
        return new_job(self.run, self.profile, items, self.seed)

    def texts(self) -> list[TextSending]:
        """Return the embedding requests that are sent beside the traffic."""
        return text_sendings(self.run, self.encoder.model, self.seconds)

    def traffic(self, speed: float) -> tuple[list[Sending], tuple[float, float]]:
        """Return what to send, and the scales of prompts and outputs.

        Args:
            speed: of the machine, over the one that the default is made for, 1 at most.
        """
        scales = self.scales or fitting_scales(self.arrivals, self.seconds * SHARE, speed)
        fitted = _capped(scaled(self.arrivals, *scales), self.profile)
        chat = self.profile.tokenizer != "bytes"
        return sendings(fitted, self.profile, self.run, self.seed, chat=chat), scales


def probe_speed(seconds: float) -> float:
    """Return how fast a machine is that took `seconds` for the probe; 1, the most, is hoped for."""
    speed = PROBES * request_s(PROBE_TOKENS, PROBE_TOKENS) / max(seconds, 1e-9)
    return min(1.0, speed)


def new_plan(
    *,
    seconds: float,
    engine: str,
    trace: Path | None,
    speed: float,
    scale_tokens: float | None,
    workers: int | None,
    seed: int,
) -> Plan:
    """Return the plan that the options describe.

    Raises:
        TraceError: the trace cannot be used.
    """
    arrivals = _arrivals(seconds, trace, speed, seed)
    if engine == "simulated":
        profile, count = LLAMA_3_1_8B, workers or SIMULATED_WORKERS
        scales = (scale_tokens or 1.0, scale_tokens or 1.0)
        worker = _simulated_worker(profile, speed)
    else:
        profile, count = SMOLLM2_135M, workers or TORCH_WORKERS
        scales = None if scale_tokens is None else (scale_tokens, scale_tokens)
        expected = scales or fitting_scales(arrivals, seconds * SHARE)
        worker = _torch_worker(profile, _capped(scaled(arrivals, *expected), profile))
    setting = {
        "model": profile.model,
        "engine": engine,
        "workers": count,
        "traffic": "generated" if trace is None else trace.name,
        "requests": len(arrivals),
        "seconds": seconds,
        "speed": speed,
        "seed": seed,
    }
    served, encoders = encoder(simulated=engine == "simulated")
    return Plan(
        run=f"demo-{secrets.token_hex(3)}",
        profile=profile,
        workers=[WorkerPlan(slot, worker) for slot in range(count)],
        simulated=engine == "simulated",
        encoder=served,
        encoder_workers=encoders,
        arrivals=arrivals,
        seconds=seconds,
        scales=scales,
        seed=seed,
        setting=setting,
    )


def _arrivals(seconds: float, trace: Path | None, speed: float, seed: int) -> list[Arrival]:
    """Return what is sent within `seconds`, at its times, with its lengths as they are."""
    if trace is None:
        return typical_window(seconds, AZURE_CODE_PER_S * speed, seed)
    faster = [replace(one, t_ms=one.t_ms / speed) for one in read_trace(trace)]
    return [one for one in faster if one.t_ms < seconds * MS_PER_S]


def _capped(arrivals: list[Arrival], profile: Profile) -> list[Arrival]:
    """Cut lengths to the model's context: the output first, to half of it at most."""
    context = profile.max_sequence_tokens - TEMPLATE_TOKENS
    capped: list[Arrival] = []
    for one in arrivals:
        output_tokens = min(one.output_tokens, context // 2)
        prompt_tokens = min(one.prompt_tokens, context - output_tokens)
        capped.append(replace(one, prompt_tokens=prompt_tokens, output_tokens=output_tokens))
    return capped


def _torch_worker(profile: Profile, arrivals: list[Arrival]) -> tuple[str, ...]:
    """Size the KV pool to the traffic, so that the demo shows admission by KV."""
    tokens = [one.prompt_tokens + one.output_tokens + TEMPLATE_TOKENS for one in arrivals]
    blocks = [math.ceil(count / BLOCK_TOKENS) + 1 for count in tokens]
    wanted = max(*blocks, 2, math.ceil(TORCH_POOL_REQUESTS * sum(blocks) / len(blocks)))
    pool_bytes = wanted * BLOCK_TOKENS * kv_bytes_per_token(profile)
    batch = ("--max-batch", str(TORCH_BATCH))
    return ("--engine", "torch", "--kv-pool-bytes", str(pool_bytes), *batch)


def _simulated_worker(profile: Profile, speed: float) -> tuple[str, ...]:
    return (
        *("--engine", "simulated", "--speed", str(speed)),
        *("--kv-pool-bytes", str(SIMULATED_POOL_BYTES)),
        *("--kv-bytes-per-token", str(kv_bytes_per_token(profile))),
        *("--max-sequence-tokens", str(profile.max_sequence_tokens)),
        *("--max-batch", str(SIMULATED_BATCH)),
        *("--prefill-tokens", str(SIMULATED_PREFILL_TOKENS)),
    )
