"""The KV arithmetic on numbers that are known, from the profile to what a replica admits."""

from dataclasses import replace

from schemas.profile import Profile, kv_bytes_per_token
from services.worker.blocks import BlockPool
from services.worker.engine import BLOCK_TOKENS
from tests.spec.scheduler_story import arrived, given, ready

# Llama-2-7B in 16 bits: 32 layers, a width of 4,096 (32 heads of 128), all of them KV heads.
LLAMA_2_7B = Profile(
    model="m",
    layers=32,
    kv_heads=32,
    head_size=128,
    kv_dtype_bytes=2,
    max_sequence_tokens=2048,
)
SEQUENCE_TOKENS = 2048


def test_sixteen_sequences_of_2048_tokens_take_17_2_gb() -> None:
    whole = kv_bytes_per_token(LLAMA_2_7B) * 16 * SEQUENCE_TOKENS
    assert whole == 2 * 32 * 4096 * 16 * 2048 * 2 == 17_179_869_184


def test_one_sequence_of_2048_tokens_takes_1074_mb() -> None:
    assert round(kv_bytes_per_token(LLAMA_2_7B) * SEQUENCE_TOKENS / 10**6) == 1074


def test_54_sequences_fit_beside_14_gb_of_weights_and_8_gb_of_reserve_on_an_80_gb_card() -> None:
    pool_bytes = (80 - 14 - 8) * 10**9
    pool = BlockPool[str](pool_bytes, kv_bytes_per_token(LLAMA_2_7B), BLOCK_TOKENS)
    assert pool.blocks * BLOCK_TOKENS // SEQUENCE_TOKENS == 54
    story = given(
        ready(blocks=pool.blocks, batch=256),
        *[arrived(f"r{n}", prompt=1024, output=1024) for n in range(60)],
        profile=replace(LLAMA_2_7B, max_sequence_tokens=SEQUENCE_TOKENS),
    )
    replica = story.state.models["m"].replicas[0]
    assert len(replica.running) == 54
    assert replica.blocks_used == 54 * 128 <= pool.blocks
