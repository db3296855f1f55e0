"""Vectors as they come over the bus, unpacked. Pure."""

import base64
import sys
from array import array

from schemas.embeddings import Embedding


def vectors_of(embedding: Embedding) -> list[list[float]]:
    """Return the vectors as lists of `dimension` numbers, one for each text.

    Raises:
        ValueError: a vector is not what the embedding says.
    """
    vectors: list[list[float]] = []
    for text in embedding.vectors_base64:
        raw = base64.b64decode(text, validate=True)
        if len(raw) != 4 * embedding.dimension:
            raise ValueError(f"a vector has {len(raw)} bytes, not 4 × {embedding.dimension}")
        numbers = array("f", raw)
        if sys.byteorder == "big":
            numbers.byteswap()
        vectors.append(numbers.tolist())
    return vectors
