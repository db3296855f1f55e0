"""SmolLM2's weights: read from the GGUF file, dequantised, fused for fewer and larger products.

Reads one file, which it does not change. Q4_1 and Q8_0 are unpacked here, in a tenth of the time
that the library `gguf` takes; every other type goes through that library.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from services.worker.gguf_file import GgufError, GgufHeader, TensorPlace, read_header


@dataclass(frozen=True, slots=True)
class Shape:
    """The model's dimensions. `heads` share `kv_heads` in equal groups."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    vocabulary: int
    context: int
    rope_base: float
    norm_epsilon: float

    @property
    def group(self) -> int:
        """Query heads per key and value head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True, slots=True)
class Layer:
    """One transformer layer; matrices are [outputs, inputs].

    `qkv` holds the rows of all query heads, then key heads, then value heads; `gate_up` those of
    the gate, then of the up projection. The RMS norms' weights are multiplied into the columns of
    the matrix behind them, and the attention's 1 / sqrt(head size) into the query rows (a power of
    two for this model, so exact). Query and key rows stay in GGUF's order: pairs to be rotated
    together are neighbours.
    """

    qkv: torch.Tensor
    output: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True)
class Weights:
    """All of the model. `embedding` [vocabulary, width] is also the output head."""

    shape: Shape
    embedding: torch.Tensor
    layers: tuple[Layer, ...]
    final_norm: torch.Tensor

    @property
    def bytes(self) -> int:
        """What the weights take in memory."""
        tensors = [self.embedding, self.final_norm]
        for layer in self.layers:
            tensors += [layer.qkv, layer.output, layer.gate_up, layer.down]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _shape(metadata: dict[str, Any]) -> Shape:
    if metadata.get("general.architecture") != "llama":
        raise GgufError(
            f"The model file has the architecture {metadata.get('general.architecture')!r};"
            " 'llama' is implemented."
        )
    width, heads = metadata["llama.embedding_length"], metadata["llama.attention.head_count"]
    return Shape(
        layers=metadata["llama.block_count"],
        width=width,
        heads=heads,
        kv_heads=metadata["llama.attention.head_count_kv"],
        head_size=width // heads,
        ffn=metadata["llama.feed_forward_length"],
        vocabulary=metadata["llama.vocab_size"],
        context=metadata["llama.context_length"],
        rope_base=metadata["llama.rope.freq_base"],
        norm_epsilon=metadata["llama.attention.layer_norm_rms_epsilon"],
    )


def unpack(raw: np.ndarray[Any, np.dtype[np.uint8]], place: TensorPlace) -> torch.Tensor:
    """One tensor of the file as float32, [rows, columns] or [columns].

    `raw` is the whole file's bytes. Formats: ggml's block_q4_1 (scale, minimum, 16 bytes whose low
    nibbles come first) and block_q8_0 (scale, 32 signed bytes), scales in float16.
    """
    kind = GGMLQuantizationType(place.ggml_type)
    rows = place.shape[::-1]
    block, block_bytes = GGML_QUANT_SIZES[kind]
    count = math.prod(rows)
    data = raw[place.offset : place.offset + count // block * block_bytes]
    if kind is GGMLQuantizationType.Q4_1:
        blocks = torch.from_numpy(data.reshape(-1, block_bytes).copy())
        scale, least = blocks[:, :4].contiguous().view(torch.float16).float().unbind(1)
        packed = blocks[:, 4:]
        nibbles = torch.cat((packed & 15, packed >> 4), dim=1).float()
        return torch.addcmul(least[:, None], nibbles, scale[:, None]).view(rows)
    if kind is GGMLQuantizationType.Q8_0:
        blocks = torch.from_numpy(data.reshape(-1, block_bytes).copy())
        scale = blocks[:, :2].contiguous().view(torch.float16).float()
        return (blocks[:, 2:].contiguous().view(torch.int8).float() * scale).view(rows)
    if kind is GGMLQuantizationType.F32:
        return torch.from_numpy(data.copy()).view(torch.float32).view(rows)
    stored = data.reshape(*rows[:-1], rows[-1] // block * block_bytes)
    return torch.from_numpy(np.ascontiguousarray(dequantize(stored, kind), np.float32))


def load_weights(path: Path, dtype: torch.dtype, device: torch.device) -> Weights:
    """Read and fuse all weights; about 1 s.

    Raises:
        GgufError: When the file is not a GGUF file of this architecture, or lacks a tensor.
    """
    header = read_header(path)
    shape = _shape(header.metadata)
    raw = np.memmap(path, dtype=np.uint8, mode="r")
    try:
        return _fuse(shape, header, raw, dtype=dtype, device=device)
    except KeyError as error:
        raise GgufError(f"The model file {path} lacks the tensor {error}.") from error


def _fuse(
    shape: Shape,
    header: GgufHeader,
    raw: np.ndarray[Any, np.dtype[np.uint8]],
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> Weights:
    def tensor(name: str) -> torch.Tensor:
        return unpack(raw, header.tensors[f"{name}.weight"])

    def placed(value: torch.Tensor) -> torch.Tensor:
        return value.to(device=device, dtype=dtype).contiguous()

    layers: list[Layer] = []
    for number in range(shape.layers):
        block = f"blk.{number}"
        q = tensor(f"{block}.attn_q") * shape.head_size**-0.5
        qkv = torch.cat((q, tensor(f"{block}.attn_k"), tensor(f"{block}.attn_v")))
        gate_up = torch.cat((tensor(f"{block}.ffn_gate"), tensor(f"{block}.ffn_up")))
        layers.append(
            Layer(
                qkv=placed(qkv * tensor(f"{block}.attn_norm")),
                output=placed(tensor(f"{block}.attn_output")),
                gate_up=placed(gate_up * tensor(f"{block}.ffn_norm")),
                down=placed(tensor(f"{block}.ffn_down")),
            )
        )
    embedding = placed(tensor("token_embd"))
    return Weights(shape, embedding, tuple(layers), placed(tensor("output_norm")))
