"""Names and cells: the hash is Kafka's own, so clients that key by model reach the owning cell."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from schemas.ids import ModelName, cell_of, model_name_fault, murmur2, replica_name


@pytest.mark.parametrize(
    ("data", "signed"),
    [
        # The known values of Kafka's own tests, as signed 32-bit integers.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
        (b"", 275646681),
    ],
)
def test_murmur2_is_kafkas(data: bytes, signed: int) -> None:
    value = murmur2(data)
    assert (value - 2**32 if value >= 2**31 else value) == signed


@given(st.binary(max_size=64))
def test_murmur2_is_an_unsigned_32_bit_number(data: bytes) -> None:
    assert 0 <= murmur2(data) < 2**32


@given(st.text(max_size=32), st.integers(1, 64))
def test_a_model_belongs_to_one_of_the_cells(model: str, cells: int) -> None:
    assert 0 <= cell_of(model, cells) < cells
    assert cell_of(model, 1) == 0


def test_a_cell_is_the_positive_hash_modulo_the_cells() -> None:
    # (-790332482 & 0x7fffffff) = 1357151166; 1357151166 mod 10 = 6
    assert cell_of("foobar", 10) == 6


def test_models_spread_over_the_cells() -> None:
    assert {cell_of(f"model-{number}", 4) for number in range(40)} == {0, 1, 2, 3}


def test_a_replica_is_named_by_model_and_slot() -> None:
    assert replica_name("smollm2-135m", 3) == "smollm2-135m/3"


@pytest.mark.parametrize("name", ["smollm2-135m", "a", "A.b_c-9", "x" * 128])
def test_a_plain_name_can_be_a_models(name: str) -> None:
    assert model_name_fault(name) is None
    assert TypeAdapter(ModelName).validate_python(name) == name


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a\n", "é", "x" * 129])
def test_any_other_name_is_refused_in_a_sentence(name: str) -> None:
    told = model_name_fault(name)
    assert told is not None
    assert told.startswith(f"{name!r} is no model's name")
