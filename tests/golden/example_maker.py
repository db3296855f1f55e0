"""Brings the examples that follow from others up to date: `python -m tests.golden.example_maker`.

For a message that has not landed yet, after the Policy gained a key: the policy's example and every
digest that names it, the chain of the ledger's example, and the list of sums. It never invents one.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from schemas import codec
from schemas.policy import Policy, policy_digest

EXAMPLES = Path(__file__).parents[2] / "schemas" / "examples"
CHAIN_BEFORE = "5f0c3d9be1a72846"


def _read(kind: str) -> dict[str, Any]:
    return json.loads((EXAMPLES / f"{kind}.json").read_bytes())


def _write(kind: str, raw: bytes) -> None:
    (EXAMPLES / f"{kind}.json").write_bytes(raw + b"\n")


def _compact(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def make() -> None:
    """Write the examples anew that hold the policy, its digest, a chain or a sum."""
    adapter = TypeAdapter(Policy)
    policy = adapter.validate_json(_compact(_read("policy.v1")))
    _write("policy.v1", adapter.dump_json(policy))
    activated = _read("policy-activated.v1")
    activated["policy"] = _read("policy.v1")
    _write("policy-activated.v1", _compact(activated))
    was_set = _read("policy-set.v1")
    asked = adapter.validate_json(_compact(was_set["policy"]))
    was_set["policy"] = json.loads(adapter.dump_json(asked))
    was_set["digest"] = policy_digest(asked)
    _write("policy-set.v1", _compact(was_set))
    result = _read("result.v1")
    result["policy_digest"] = policy_digest(policy)
    _write("result.v1", _compact(result))
    entry = _read("ledger-entry.v1")
    entry["policy_digest"] = policy_digest(policy)
    line = codec.decode_line(_compact(entry))
    _write("ledger-entry.v1", codec.encode_entry(line.entry, CHAIN_BEFORE)[0])
    sums = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(EXAMPLES.glob("*.json"))
    ]
    (EXAMPLES / "LANDED.sha256").write_text("".join(sums), encoding="ascii")


if __name__ == "__main__":
    make()
