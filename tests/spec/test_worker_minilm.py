"""The sentence encoder in torch, held to vectors worked out without it.

The reference numbers come from a forward pass in numpy and float64 with a WordPiece of its own,
written from the model's published description; the first two texts and their first three numbers
are those that the model's page prints.
"""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from services.worker.minilm_tokenizer import (
    MiniLMFilesError,
    count_text_tokens,
    model_file,
    text_ids,
)

if TYPE_CHECKING:
    from services.worker.minilm import MiniLM

# Text, its ids, the first six and the last three of its 384 numbers, and the sum of them all.
REFERENCE: list[tuple[str, list[int], list[float], list[float], float]] = [
    (
        "This is an example sentence",
        [101, 2023, 2003, 2019, 2742, 6251, 102],
        [0.067657, 0.063496, 0.048713, 0.079305, 0.037448, 0.002653],
        [0.038071, 0.059965, -0.042229],
        0.271751,
    ),
    (
        "Each sentence is converted",
        [101, 2169, 6251, 2003, 4991, 102],
        [0.086439, 0.102763, 0.005395, 0.002044, -0.009963, 0.025386],
        [0.070285, 0.074931, -0.084177],
        -0.004967,
    ),
    (
        "A queue grows when work arrives faster than it leaves.",
        [101, 1037, 24240, 7502, 2043, 2147, 8480, 5514, 2084, 2009, 3727, 1012, 102],
        [-0.048786, -0.02147, -0.030703, 0.066147, 0.029937, -0.052644],
        [0.010411, 0.069148, 0.081066],
        0.334556,
    ),
    (
        "What is a queue?",
        [101, 2054, 2003, 1037, 24240, 1029, 102],
        [-0.077128, -0.015862, -0.083551, 0.036645, -0.059777, -0.029776],
        [0.019217, 0.038449, 0.029298],
        -0.232457,
    ),
]


@functools.cache
def model() -> "MiniLM":
    from services.worker.minilm import MiniLM  # noqa: PLC0415 - torch

    return MiniLM("cpu")


def vectors(texts: Sequence[str]) -> list[list[float]]:
    return model().vectors([model().ids(text) for text in texts]).tolist()


@pytest.mark.parametrize("reference", REFERENCE, ids=[item[0][:16] for item in REFERENCE])
def test_a_text_has_the_ids_that_wordpiece_gives_it(
    reference: tuple[str, list[int], list[float], list[float], float],
) -> None:
    text, ids, *_ = reference
    assert text_ids(text) == ids
    assert count_text_tokens(text, 256) == len(ids)


def test_accents_and_capitals_are_folded_and_each_ideograph_stands_alone() -> None:
    assert text_ids("Naïve") == text_ids("naive")
    assert text_ids("日本") == text_ids("日 本")
    assert len(text_ids("日本")) == 4


def test_an_empty_piece_of_unicode_is_two_marks() -> None:
    assert text_ids(" ") == [101, 102]
    assert count_text_tokens(" ", 256) == 2


def test_a_word_of_over_a_hundred_characters_is_one_unknown_token() -> None:
    assert text_ids("a" * 101) == [101, 100, 102]
    assert count_text_tokens("a" * 60_000, 256) == 3


@pytest.mark.parametrize("words", [1, 250, 1000, 5000])
def test_a_long_text_is_counted_exactly_up_to_the_limit_and_above_it_beyond(words: int) -> None:
    text = "unaffable größe, " * words
    whole = len(text_ids(text))
    assert count_text_tokens(text, 10**9) == whole
    counted = count_text_tokens(text, 256)
    assert counted == whole if whole <= 256 else 256 < counted <= whole


def test_a_file_that_is_not_installed_is_told_with_what_to_do() -> None:
    with pytest.raises(MiniLMFilesError, match="make setup"):
        model_file("nothing.bin")


@pytest.mark.torch
def test_vectors_are_those_of_the_reference() -> None:
    got = vectors([item[0] for item in REFERENCE])
    for vector, (_, _, first, last, total) in zip(got, REFERENCE, strict=True):
        assert vector[:6] == pytest.approx(first, abs=2e-6)
        assert vector[-3:] == pytest.approx(last, abs=2e-6)
        assert sum(vector) == pytest.approx(total, abs=2e-5)
        assert sum(number * number for number in vector) == pytest.approx(1, abs=1e-6)
    queue = sum(a * b for a, b in zip(got[2], got[3], strict=True))
    other = sum(a * b for a, b in zip(got[0], got[3], strict=True))
    assert queue == pytest.approx(0.671892, abs=2e-6)
    assert other == pytest.approx(0.153551, abs=2e-6)


@pytest.mark.torch
def test_a_vector_does_not_depend_on_what_else_is_in_its_batch() -> None:
    long_text = "A queue grows when work arrives faster than it leaves. " * 15
    together = vectors([REFERENCE[0][0], long_text, REFERENCE[3][0]])
    for text, vector in zip((REFERENCE[0][0], long_text, REFERENCE[3][0]), together, strict=True):
        assert vector == pytest.approx(vectors([text])[0], abs=1e-6)
