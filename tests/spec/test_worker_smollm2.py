"""SmolLM2's forward pass against one worked out independently, in numpy and without a cache.

The reference below reads the file with the library `gguf`, undoes the permutation of query and key
rows, rotates halves instead of neighbours, keeps the norms' weights apart and computes every
position from the start: it shares no code and no shortcut with the model under test.
"""

from collections.abc import Iterator
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize

from services.worker.blocks import BlockPool
from services.worker.gguf_file import read_header
from services.worker.paged_attention import PagedAttention, PagedKV, SequenceRows
from services.worker.plan import Bounds
from services.worker.smollm2 import SmolLM2
from services.worker.smollm2_engine import SmolLM2Config, load_model
from services.worker.tokenizer import model_file, smollm2_tokenizer
from services.worker.weights import unpack

pytestmark = pytest.mark.torch

LAYERS, WIDTH, HEADS, KV_HEADS, SIZE = 30, 576, 9, 3, 64
Array = np.ndarray[Any, np.dtype[np.floating[Any]]]


@pytest.fixture(scope="module")
def model() -> Iterator[SmolLM2]:
    with torch.inference_mode():
        yield load_model(SmolLM2Config(kv_pool_bytes=1 << 20, bounds=Bounds(1, 1)))


@pytest.fixture(scope="module")
def reference() -> dict[str, Array]:
    reader = gguf.GGUFReader(str(model_file()))
    return {
        tensor.name: dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        for tensor in reader.tensors
    }


def norm(x: Array, weight: Array) -> Array:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-5) * weight


def halves(weight: Array, heads: int) -> Array:
    """GGUF's row order (pairs are neighbours) to the original one (pairs are half a head apart)."""
    return weight.reshape(heads, SIZE // 2, 2, WIDTH).swapaxes(1, 2).reshape(heads * SIZE, WIDTH)


def rotate(x: Array) -> Array:
    """[positions, heads, size], first half against second half."""
    angles = np.outer(np.arange(len(x)), 100_000.0 ** (-np.arange(0, SIZE, 2) / SIZE))
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second = x[..., :32], x[..., 32:]
    return np.concatenate((first * cos - second * sin, second * cos + first * sin), -1)


def reference_logits(w: dict[str, Array], ids: list[int]) -> Array:
    x, length = w["token_embd.weight"][ids], len(ids)
    future = np.triu(np.full((length, length), -np.inf), 1)
    for n in range(LAYERS):
        block = {k.removeprefix(f"blk.{n}."): v for k, v in w.items() if k.startswith(f"blk.{n}.")}
        h = norm(x, block["attn_norm.weight"])
        q = rotate((h @ halves(block["attn_q.weight"], HEADS).T).reshape(length, HEADS, SIZE))
        k = rotate((h @ halves(block["attn_k.weight"], KV_HEADS).T).reshape(length, KV_HEADS, SIZE))
        v = (h @ block["attn_v.weight"].T).reshape(length, KV_HEADS, SIZE)
        heads: list[Array] = []
        for head in range(HEADS):
            scores = q[:, head] @ k[:, head // 3].T / 8 + future
            shares = np.exp(scores - scores.max(-1, keepdims=True))
            heads.append(shares / shares.sum(-1, keepdims=True) @ v[:, head // 3])
        x = x + np.concatenate(heads, -1) @ block["attn_output.weight"].T
        h = norm(x, block["ffn_norm.weight"])
        gate = h @ block["ffn_gate.weight"].T
        up = h @ block["ffn_up.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ block["ffn_down.weight"].T
    return norm(x, w["output_norm.weight"]) @ w["token_embd.weight"].T


class Runner:
    """Feeds tokens through the paged model, in pieces of any size."""

    def __init__(self, model: SmolLM2) -> None:
        self.model = model
        self.pool = BlockPool[str](8 * 16 * 46_080, 46_080, 16)
        self.kv = PagedKV(model.shape, self.pool.blocks, 16, model.dtype, model.device)
        self.stored: dict[str, int] = {}

    def feed(self, pieces: dict[str, list[int]]) -> Array:
        """One iteration; logits of all rows, sequences in the order given."""
        ids: list[int] = []
        positions: list[int] = []
        rows: list[SequenceRows] = []
        for key, piece in pieces.items():
            if not self.pool.holds(key):
                self.pool.reserve(key, 3)
            start = self.stored.get(key, 0)
            self.stored[key] = start + len(piece)
            self.pool.grow(key, self.stored[key])
            ids += piece
            positions += range(start, start + len(piece))
            rows.append(SequenceRows(self.pool.table(key), start, len(piece)))
        decode = [sequence for sequence in rows if sequence.tokens == 1]
        attention = PagedAttention(self.kv, decode, rows[len(decode) :], self.pool.assigned)
        return self.model.logits(self.model.hidden(ids, positions, attention)).numpy()


def test_the_weights_unpack_as_the_reference_library_unpacks_them(
    reference: dict[str, Array],
) -> None:
    raw = np.memmap(model_file(), dtype=np.uint8, mode="r")
    for name, place in read_header(model_file()).tensors.items():
        np.testing.assert_allclose(unpack(raw, place).numpy(), reference[name], rtol=1e-6)


def test_logits_agree_with_a_forward_pass_without_cache(
    model: SmolLM2, reference: dict[str, Array]
) -> None:
    ids = smollm2_tokenizer().prompt_ids("The capital of France is Paris, and 2 plus 2")
    ids = (ids * 2)[:21]  # more than one block
    expected = reference_logits(reference, ids)
    with torch.inference_mode():
        whole = Runner(model).feed({"a": ids})
        np.testing.assert_allclose(whole, expected, atol=2e-3)

        runner = Runner(model)
        runner.feed({"other": ids[:5]})
        mixed = [
            runner.feed({"other": [ids[5]], "a": ids[:7]})[1:],
            runner.feed({"other": ids[6:9], "a": ids[7:14]})[3:],
        ]
        for number, token in enumerate(ids[14:]):
            mixed.append(runner.feed({"a": [token], "other": [ids[9 + number]]})[:1])
    np.testing.assert_allclose(np.concatenate(mixed), expected, atol=2e-3)


def test_greedy_text_is_what_the_reference_would_write(
    model: SmolLM2, reference: dict[str, Array]
) -> None:
    ids = smollm2_tokenizer().prompt_ids("The capital of France is")
    expected = list(ids)
    for _ in range(6):
        expected.append(int(reference_logits(reference, expected)[-1].argmax()))
    with torch.inference_mode():
        runner = Runner(model)
        written = [*ids, int(runner.feed({"a": ids})[-1].argmax())]
        while len(written) < len(expected):
            written.append(int(runner.feed({"a": written[-1:]})[-1].argmax()))
    assert written == expected
    assert "Paris" in smollm2_tokenizer()._bpe.decode(written)  # pyright: ignore[reportPrivateUsage]
