"""What is wrong with a field reads as a sentence to whoever wrote the message."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from schemas.faults import sentence


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    word: Literal["on", "off"] = "on"


class Sample(BaseModel):
    """A field for each kind of rule that messages have."""

    model_config = ConfigDict(extra="forbid", strict=True)

    count: Annotated[int, Field(ge=2, le=9)] = 2
    ratio: Annotated[float, Field(ge=0, le=0.5, allow_inf_nan=False)] = 0.0
    name: Annotated[str, Field(min_length=3, max_length=5)] = "abc"
    code: Annotated[str, Field(pattern="^[0-9]+$")] = "1"
    some: Annotated[list[int], Field(min_length=2, max_length=3)] = [1, 2]
    pairs: dict[Annotated[str, Field(max_length=2)], int] = {}
    inner: Inner = Inner()
    even: Annotated[int, Field(multiple_of=2)] = 2


def fault_in(adapter: TypeAdapter[Any], raw: str, *, keep: bool = True) -> str:
    with pytest.raises(ValidationError) as caught:
        adapter.validate_json(raw)
    return sentence(caught.value.errors(include_input=keep)[0], "sample.v1")


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ('{"count": 1}', "count should be at least 2, not 1"),
        ('{"count": 10}', "count should be at most 9, not 10"),
        ('{"count": 2.5}', "count should be a whole number, written without a decimal point"),
        ('{"count": []}', "count should be a whole number, not a list"),
        ('{"count": {}}', "count should be a whole number, not an object"),
        ('{"count": null}', "count should be a whole number, not null"),
        ('{"count": "two"}', 'count should be a whole number, not "two"'),
        (f'{{"count": "{"x" * 41}"}}', "count should be a whole number, not a string of 41 char"),
        (f'{{"count": {"9" * 60}}}', "count should be at most 9"),
        ('{"ratio": 0.75}', "ratio should be at most 0.5, not 0.75"),
        ('{"ratio": -1}', "ratio should be at least 0, not -1"),
        ('{"ratio": NaN}', "ratio should be a finite number"),
        ('{"name": "ab"}', "name should have at least 3 characters"),
        ('{"name": "abcdef"}', "name should have at most 5 characters, not 6"),
        ('{"code": "x"}', 'code should match ^[0-9]+$, not "x"'),
        ('{"some": [1]}', "some should have at least 2 items"),
        ('{"some": [1, 2, 3, 4]}', "some should have at most 3 items"),
        ('{"pairs": {"abc": 1}}', "a name in pairs should have at most 2 characters, not 3"),
        ('{"inner": {"word": "of"}}', "inner.word should be 'on' or 'off', not \"of\""),
        ('{"inner": {"wrod": "on"}}', "inner.wrod is not a field of the object inner"),
        ('{"inner": 1}', "inner should be an object, not 1"),
        ('{"cuont": 2}', "cuont is not a field of sample.v1"),
        ("[]", "the message should be an object, not a list"),
        ("{", "the message is not JSON: EOF while parsing an object"),
        # A rule without words of its own keeps the validator's.
        ('{"even": 3}', "even should be a multiple of 2"),
    ],
)
def test_a_fault_names_the_field_the_rule_and_what_was_given(raw: str, told: str) -> None:
    assert fault_in(TypeAdapter(Sample), raw).startswith(told)


def test_a_fault_whose_input_was_not_kept_says_the_rule_alone() -> None:
    adapter = TypeAdapter(Sample)
    assert fault_in(adapter, '{"count": 1}', keep=False) == "count should be at least 2"
    assert fault_in(adapter, '{"name": "abcdef"}', keep=False) == (
        "name should have at most 5 characters"
    )


def test_a_field_of_no_known_owner_is_not_one_of_the_message() -> None:
    with pytest.raises(ValidationError) as caught:
        Sample.model_validate_json('{"x": 1}')
    assert sentence(caught.value.errors()[0]) == "x is not a field of this message"
