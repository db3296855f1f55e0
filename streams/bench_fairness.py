"""Measures how two tenants share a replica: one asks for ten times as much. Pure core, no bus.

Virtual time: a replica of a few slots, and requests whose tokens are drawn from one distribution
for both tenants, so what differs is only how many they send. Each takes as long as its tokens do,
and the core is told what it used when it ends. Equal weights.

`fairness.share_error`: both always have more waiting than can run, for 60 s; the difference of what
they have used, over what both used.

`fairness.light_wait_p95_ratio`: the heavy tenant alone asks for all that the replica serves, the
light one for a tenth of that; the p95 of the light tenant's time from arrival to its first token,
over that of the same requests alone on the replica. Time to the first token, because alone it
hardly waits in the queue at all, and a ratio to nothing says nothing. Three seeds are taken
together.
"""

import random
from dataclasses import dataclass, field
from heapq import heappop, heappush

from schemas import facts as f
from schemas.decisions import RequestDispatched
from schemas.facts import Fact
from schemas.figures import Figure
from schemas.policy import Policy
from schemas.profile import Profile
from services.scheduler.state import State
from services.scheduler.step import governing, step

SECOND_US = 1_000_000
_SECONDS = 60
_SLOTS = 32
_TOKEN_US = 10_000
_PREFILL_US = 1_000
_PROMPT = (16, 256)
_OUTPUT = (8, 128)
# What the replica serves: 32 slots, each for 136 prompt and 68 output tokens on average.
_SERVED_PER_S = _SLOTS * SECOND_US / (136 * _PREFILL_US + 68 * _TOKEN_US)
_LIGHT_PER_S = _SERVED_PER_S / 10
_TIMES_AS_MUCH = 10
_SEEDS = (1, 2, 3)


def fairness_figures() -> list[Figure]:
    """Return fairness.light_wait_p95_ratio and fairness.share_error."""
    both = Shared({"light": 2 * _SERVED_PER_S, "heavy": 20 * _SERVED_PER_S}).run()
    used = both.used
    error = abs(used["light"] - used["heavy"]) / (used["light"] + used["heavy"])
    heavy = {"light": _LIGHT_PER_S, "heavy": _TIMES_AS_MUCH * _LIGHT_PER_S}
    ratio = _light_p95_us(heavy) / _light_p95_us({"light": _LIGHT_PER_S})
    return [
        Figure("fairness.light_wait_p95_ratio", round(ratio, 3), "ratio"),
        Figure("fairness.share_error", round(error, 4), "ratio"),
    ]


def _light_p95_us(rates: dict[str, float]) -> int:
    runs = [Shared(rates, seed).run() for seed in _SEEDS]
    return p95([us for run in runs for us in run.first_token_us["light"]])


def p95(values: list[int]) -> int:
    """Return the value that 95 of 100 do not exceed."""
    return sorted(values)[len(values) * 95 // 100]


@dataclass
class Shared:
    """One replica and the tenants that send to it, each at its rate a second.

    Attributes:
        used: what each has used so far, in cost units, counted as the tokens come.
        first_token_us: of each of its requests, from the arrival on.
    """

    rates: dict[str, float]
    seed: int = 1
    used: dict[str, int] = field(default_factory=dict[str, int])
    first_token_us: dict[str, list[int]] = field(default_factory=dict[str, list[int]])

    def run(self) -> "Shared":
        """Let 60 s pass."""
        self._policy = Policy(replica_lost_ms=86_400_000, queued_requests_max=1_000_000)
        self._state = State()
        self._events: list[tuple[int, int, Fact, str]] = []
        self._pushed = 0
        self._output: dict[str, int] = {}
        self._arrived_us: dict[str, int] = {}
        self._begin()
        for tenant, rate in self.rates.items():
            self.used[tenant], self.first_token_us[tenant] = 0, []
            # Each tenant has its own stream of chance: it sends the same, alone or not.
            self._send_all(tenant, rate, random.Random(f"{self.seed} {tenant}"))  # noqa: S311 - a repeatable load, not a secret
        while self._events and self._events[0][0] < _SECONDS * SECOND_US:
            at_us, _, fact, _ = heappop(self._events)
            self._tell(fact, at_us)
        return self

    def _begin(self) -> None:
        self._tell(f.OwnerTookOver(at_us=0, cell=0, cells=1, epoch=1, owner="bench"), 0)
        self._tell(f.PolicyActivated(at_us=0, policy=self._policy, who="bench", why="bench"), 0)
        profile = Profile(
            model="m",
            layers=30,
            kv_heads=3,
            head_size=64,
            kv_dtype_bytes=4,
            max_sequence_tokens=8192,
        )
        self._tell(f.ProfileSet(at_us=0, profile=profile), 0)
        self._tell(
            f.ReplicaReady(
                at_us=0,
                model="m",
                slot=0,
                incarnation="L1",
                engine="simulated",
                dtype="float32",
                device="cpu",
                kv_pool_bytes=1 << 30,
                kv_blocks=1 << 16,
                block_tokens=16,
                max_batch=_SLOTS,
                max_sequence_tokens=8192,
                weights_bytes=1 << 28,
            ),
            0,
        )

    def _send_all(self, tenant: str, rate: float, draw: random.Random) -> None:
        at_us, number = 0.0, 0
        while at_us < _SECONDS * SECOND_US:
            at_us += draw.expovariate(rate) * SECOND_US
            number += 1
            request_id = f"{tenant}-{number}"
            self._output[request_id] = draw.randint(*_OUTPUT)
            self._arrived_us[request_id] = round(at_us)
            fact = f.RequestArrived(
                at_us=round(at_us),
                id=request_id,
                model="m",
                tenant=tenant,
                arrived_us=round(at_us),
                offset=number,
                prompt_tokens=draw.randint(*_PROMPT),
                # Nobody knows how much it will be; the most is asked for.
                max_output_tokens=_OUTPUT[1],
                body_digest="0123456789abcdef",
                body_bytes=900,
            )
            self._at(round(at_us), fact, request_id)

    def _at(self, at_us: int, fact: Fact, request_id: str) -> None:
        heappush(self._events, (at_us, self._pushed, fact, request_id))
        self._pushed += 1

    def _tell(self, fact: Fact, at_us: int) -> None:
        for decision in step(governing(self._state, fact), self._state, fact):
            if isinstance(decision, RequestDispatched):
                self._runs(decision, at_us)

    def _runs(self, decision: RequestDispatched, at_us: int) -> None:
        output = self._output[decision.id]
        prefill_us = decision.prompt_tokens * _PREFILL_US
        end_us = at_us + prefill_us + output * _TOKEN_US
        first_us = at_us + prefill_us + _TOKEN_US - self._arrived_us[decision.id]
        self.first_token_us[decision.tenant].append(first_us)
        if end_us < _SECONDS * SECOND_US:
            self.used[decision.tenant] += decision.prompt_tokens + 4 * output
        usage = f.Usage(
            prompt_tokens=decision.prompt_tokens,
            output_tokens=output,
            queued_us=0,
            prefill_us=prefill_us,
            decode_us=output * _TOKEN_US,
            first_token_us=prefill_us + _TOKEN_US,
        )
        done = f.WorkDone(
            id=decision.id,
            attempt=decision.attempt,
            finish_reason="stop",
            usage=usage,
            output_digest="0123456789abcdef",
        )
        fact = f.WorkFinished(
            at_us=end_us, model="m", slot=0, incarnation="L1", offset=1, items=(done,)
        )
        self._at(end_us, fact, decision.id)
