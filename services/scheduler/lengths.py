"""How long the outputs of a model were, so as to tell how long the next will be. Pure integers.

A histogram per tenant and one per model, over buckets that grow with the length: exact below 16
tokens, then eight to each doubling, so a length is told at most an eighth too high. Memory is
bounded: so many buckets, so many tenants; and at `samples_max` all counts are halved, so that what
was seen long ago fades. Only evolve adds to it; what is predicted is read by decide.
"""

from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

_EXACT_TOKENS = 16
_PER_DOUBLING_BITS = 3
_TOKENS_MAX = (1 << 20) - 1


class Expected(NamedTuple):
    """An output length that holds the asked share of those seen, and of how many it was taken."""

    tokens: int
    samples: int


@dataclass(slots=True)
class Histogram:
    """Counts by bucket; `total` is their sum."""

    counts: list[int] = field(default_factory=list[int])
    total: int = 0

    def add(self, tokens: int, samples_max: int) -> None:
        """Count one output."""
        bucket = bucket_of(tokens)
        self.counts.extend([0] * (bucket + 1 - len(self.counts)))
        self.counts[bucket] += 1
        self.total += 1
        if self.total >= samples_max:
            self.counts = [count >> 1 for count in self.counts]
            self.total = sum(self.counts)

    def expected(self, pct: int, *, beyond: int, samples_min: int) -> Expected | None:
        """Return the length that `pct` % of the outputs longer than `beyond` tokens keep to.

        None when fewer than `samples_min` of them were seen.
        """
        start = bucket_of(beyond) + 1 if beyond else 0
        up_to = list(accumulate(self.counts[start:]))
        samples = up_to[-1] if up_to else 0
        if samples < samples_min:
            return None
        wanted = -(-samples * pct // 100)
        return Expected(longest_of(start + bisect_left(up_to, wanted)), samples)


@dataclass(slots=True)
class Lengths:
    """The outputs of one model: of all, and of the tenants heard last, the longest silent first."""

    overall: Histogram = field(default_factory=Histogram)
    tenants: "OrderedDict[str, Histogram]" = field(default_factory=OrderedDict[str, Histogram])

    def add(self, tenant: str, tokens: int, *, samples_max: int, tenants_max: int) -> None:
        """Count one whole output."""
        self.overall.add(tokens, samples_max)
        own = self.tenants.get(tenant)
        if own is None:
            own = self.tenants[tenant] = Histogram()
        own.add(tokens, samples_max)
        self.tenants.move_to_end(tenant)
        while len(self.tenants) > tenants_max:
            self.tenants.popitem(last=False)

    def expected(self, tenant: str, pct: int, *, beyond: int, samples_min: int) -> Expected | None:
        """As Histogram.expected: of the tenant's outputs, else of the model's, else None."""
        own = self.tenants.get(tenant)
        found = own and own.expected(pct, beyond=beyond, samples_min=samples_min)
        return found or self.overall.expected(pct, beyond=beyond, samples_min=samples_min)


def bucket_of(tokens: int) -> int:
    """Return the bucket that counts outputs of so many tokens."""
    tokens = min(tokens, _TOKENS_MAX)
    if tokens < _EXACT_TOKENS:
        return tokens
    octave = tokens.bit_length() - _EXACT_TOKENS.bit_length()
    step = tokens >> (octave + 1)
    return _EXACT_TOKENS + (octave << _PER_DOUBLING_BITS) + step - (1 << _PER_DOUBLING_BITS)


def longest_of(bucket: int) -> int:
    """Return the most tokens that a bucket counts."""
    if bucket < _EXACT_TOKENS:
        return bucket
    octave, step = divmod(bucket - _EXACT_TOKENS, 1 << _PER_DOUBLING_BITS)
    return ((step + (1 << _PER_DOUBLING_BITS) + 1) << (octave + 1)) - 1
