"""all-MiniLM-L6-v2 in torch: a batch of token ids in, a unit vector for each row out.

BERT's encoder with 6 layers, width 384, 12 heads, post-layer norms and the exact GELU, as its
config.json says; then, as its model card says, the mean over the tokens of the last layer (padding
left out), scaled to length 1. Float32, so a vector depends on what else is in its batch by rounding
only (below 1e-6).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch.nn import functional

from services.worker.minilm_tokenizer import model_file, text_ids
from services.worker.safetensors_file import SafetensorsError, read_float32

LAYERS: Final = 6
WIDTH: Final = 384
HEADS: Final = 12
FFN: Final = 1536
CONTEXT: Final = 256
NORM_EPSILON: Final = 1e-12


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer; matrices are [outputs, inputs]. `qkv` has the rows of Q, then K, then V."""

    qkv: torch.Tensor
    qkv_bias: torch.Tensor
    output: torch.Tensor
    output_bias: torch.Tensor
    norm: tuple[torch.Tensor, torch.Tensor]
    up: torch.Tensor
    up_bias: torch.Tensor
    down: torch.Tensor
    down_bias: torch.Tensor
    ffn_norm: tuple[torch.Tensor, torch.Tensor]


def activation_bytes_per_token() -> int:
    """Return the memory that a pass needs for each padded token, at most.

    Float32: the layer's input, its sum and its norm, Q, K and V, the FFN before and after the GELU,
    and a row of scores for each head and each token of the longest text.
    """
    return 4 * (3 * WIDTH + 3 * WIDTH + 2 * FFN + 2 * HEADS * CONTEXT)


class MiniLM:
    """The encoder of services/worker/oneshot.py over the installed model.

    Args:
        device: "cpu", "cuda", ...; None takes CUDA when there is one.

    Raises:
        MiniLMFilesError, SafetensorsError: its files are missing, or are not this model.
    """

    dimension = WIDTH

    def __init__(self, device: str | None = None) -> None:
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        path = model_file("model.safetensors")
        tensors = {name: tensor.to(self.device) for name, tensor in read_float32(path).items()}
        try:
            self._words = tensors["embeddings.word_embeddings.weight"]
            # One text at a time, so its type is always the first.
            types = tensors["embeddings.token_type_embeddings.weight"]
            self._places = tensors["embeddings.position_embeddings.weight"] + types[0]
            self._norm = _norm(tensors, "embeddings")
            self._layers = [_layer(tensors, f"encoder.layer.{at}") for at in range(LAYERS)]
        except KeyError as error:
            raise SafetensorsError(f"{path} has no tensor {error}") from error
        self.weights_bytes = sum(tensor.nbytes for tensor in tensors.values())

    def ids(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        return text_ids(text)

    def encode(self, rows: Sequence[Sequence[int]]) -> list[bytes]:
        """Return for each row of token ids its vector, as little-endian float32."""
        vectors = self.vectors(rows).cpu().numpy().astype("<f4")
        return [vector.tobytes() for vector in vectors]

    @torch.inference_mode()
    def vectors(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return the unit vectors of the rows: [rows, 384]."""
        longest = max(len(row) for row in rows)
        ids = torch.zeros((len(rows), longest), dtype=torch.long)
        mask = torch.zeros((len(rows), longest), dtype=torch.bool)
        for at, row in enumerate(rows):
            ids[at, : len(row)] = torch.tensor(row)
            mask[at, : len(row)] = True
        ids, mask = ids.to(self.device), mask.to(self.device)
        hidden = self._words[ids] + self._places[:longest]
        hidden = functional.layer_norm(hidden, (WIDTH,), *self._norm, eps=NORM_EPSILON)
        # Rows of one length need no mask, and the attention is faster without.
        attended = None if bool(mask.all()) else mask[:, None, None, :]
        for layer in self._layers:
            hidden = _run(layer, hidden, attended)
        kept = mask[:, :, None]
        mean = (hidden * kept).sum(dim=1) / kept.sum(dim=1)
        return functional.normalize(mean, dim=1)


def _run(layer: _Layer, hidden: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    rows, tokens, _ = hidden.shape
    qkv = functional.linear(hidden, layer.qkv, layer.qkv_bias)
    query, key, value = qkv.view(rows, tokens, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
    mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    mixed = mixed.transpose(1, 2).reshape(rows, tokens, WIDTH)
    hidden = functional.layer_norm(
        hidden + functional.linear(mixed, layer.output, layer.output_bias),
        (WIDTH,),
        *layer.norm,
        eps=NORM_EPSILON,
    )
    wide = functional.gelu(functional.linear(hidden, layer.up, layer.up_bias))
    return functional.layer_norm(
        hidden + functional.linear(wide, layer.down, layer.down_bias),
        (WIDTH,),
        *layer.ffn_norm,
        eps=NORM_EPSILON,
    )


def _norm(tensors: dict[str, torch.Tensor], name: str) -> tuple[torch.Tensor, torch.Tensor]:
    return tensors[f"{name}.LayerNorm.weight"], tensors[f"{name}.LayerNorm.bias"]


def _layer(tensors: dict[str, torch.Tensor], name: str) -> _Layer:
    parts = [f"{name}.attention.self.{part}" for part in ("query", "key", "value")]
    return _Layer(
        qkv=torch.cat([tensors[f"{part}.weight"] for part in parts]),
        qkv_bias=torch.cat([tensors[f"{part}.bias"] for part in parts]),
        output=tensors[f"{name}.attention.output.dense.weight"],
        output_bias=tensors[f"{name}.attention.output.dense.bias"],
        norm=_norm(tensors, f"{name}.attention.output"),
        up=tensors[f"{name}.intermediate.dense.weight"],
        up_bias=tensors[f"{name}.intermediate.dense.bias"],
        down=tensors[f"{name}.output.dense.weight"],
        down_bias=tensors[f"{name}.output.dense.bias"],
        ffn_norm=_norm(tensors, f"{name}.output"),
    )
