"""How a request ends, and why, in codes for programs. Pure; used by decisions and by the bus."""

from typing import Literal

Outcome = Literal["completed", "rejected", "expired", "failed", "cancelled"]

Reason = Literal[
    "stop",
    "length",
    "embedded",
    "unknown-model",
    "wrong-kind",
    "bad-field",
    "over-context",
    "over-pool",
    "queue-full",
    "quota-queued-requests",
    "quota-queued-tokens",
    "quota-tokens-per-minute",
    "deadline",
    "deadline-hopeless",
    "attempts-exhausted",
    "worker-error",
    "cancel-asked",
]
