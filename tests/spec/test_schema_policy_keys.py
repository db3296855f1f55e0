"""Every key of the policy says what it is, and its bounds are told in words."""

import pytest

from schemas.policy import Policy
from schemas.policy_check import SCOPES
from schemas.policy_keys import KEYS, bound_of

WHOLE = {"type": "integer", "minimum": 1, "maximum": 86_400_000}


@pytest.mark.parametrize("name", KEYS)
def test_every_key_says_what_it_does_its_bounds_and_where_its_default_comes_from(
    name: str,
) -> None:
    key = KEYS[name]
    assert key.text.endswith(".")
    assert key.bound
    assert key.origin
    assert key.default == getattr(Policy(), name)
    assert set(key.scope) <= set(SCOPES)
    assert key.name not in SCOPES, "an override names its place and its keys in one table"
    assert key.unit or key.schema["type"] in {"string", "boolean"}


@pytest.mark.parametrize("name", [name for name, key in KEYS.items() if key.scope])
def test_a_key_that_may_be_overridden_has_a_single_value(name: str) -> None:
    assert KEYS[name].schema.get("type") != "array", "an override holds one number, switch or text"


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (WHOLE, "a whole number, 1 to 86,400,000"),
        ({"type": "integer", "minimum": 1}, "a whole number, 1 or more"),
        ({"type": "integer", "maximum": 9}, "a whole number, at most 9"),
        ({"type": "integer"}, "a whole number, any"),
        ({"type": "boolean"}, "true or false"),
        ({"type": "string", "minLength": 1, "maxLength": 9}, "a text of 1 to 9 characters"),
        ({"type": "string", "enum": ["full", "quantile"]}, "one of full, quantile"),
        ({"type": "string", "const": "full"}, "one of full"),
        ({"anyOf": [WHOLE, {"type": "null"}]}, 'a whole number, 1 to 86,400,000, or "none"'),
        (
            {"type": "array", "items": WHOLE, "minItems": 1, "maxItems": 100},
            "a list of 1 to 100 values, each a whole number, 1 to 86,400,000",
        ),
        (
            {"type": "array", "prefixItems": [WHOLE] * 4, "minItems": 4, "maxItems": 4},
            "a list of 4 values, each a whole number, 1 to 86,400,000",
        ),
    ],
)
def test_what_a_key_takes_is_said_in_words(schema: dict[str, object], words: str) -> None:
    assert bound_of(schema) == words
