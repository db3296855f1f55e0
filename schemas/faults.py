"""What is wrong with a field, in one sentence for whoever wrote the message. Pure; names no topic.

The validator's own words speak of types of its language and of "input"; these name the field, what
it should be, and, where it is short, what it was. Nothing that was given is quoted at length: it
may be a prompt, or hostile. What the validator can say and has no words here keeps its own.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic_core import ErrorDetails

GIVEN_CHARS_MAX = 40
# The first step of a path, where it is only the kind by which a message was told from others.
_KIND = re.compile(r"^[a-z][a-z-]*\.v\d+$")
# How the validator's sentences start; the field's name takes the place.
_SUBJECT = re.compile(r"^(Input|String|Tuple|Dictionary) ")
_NAME_PATTERN = "^[A-Za-z0-9._-]+$"

# Stands for an input that was not kept.
_UNTOLD = object()

_Context = Mapping[str, Any]


def sentence(fault: ErrorDetails, owner: str = "") -> str:
    """Return what is wrong with one field.

    Args:
        fault: as pydantic tells it, best with its input.
        owner: what the fields belong to, such as `cancel.v1`; empty when it is not known.
    """
    kind, context, given = fault["type"], fault.get("ctx", {}), fault.get("input", _UNTOLD)
    if kind == "value_error":
        return fault["msg"].removeprefix("Value error, ")
    path = fault["loc"]
    if path and _KIND.match(str(path[0])):
        path = path[1:]
    name = _name(path)
    if kind == "missing":
        return f"{name} is required"
    if kind == "extra_forbidden":
        inner = f"the object {_name(path[:-1])}" if len(path) > 1 else owner or "this message"
        return f"{name} is not a field of {inner}"
    return f"{name} {_rule(kind, context, given) or _SUBJECT.sub('', fault['msg'])}"


def _rule(kind: str, context: _Context, given: Any) -> str:
    """Return the rule that is broken, to stand behind the field's name; "" if it has no words."""
    if kind in _TYPES:
        return f"should be {_TYPES[kind]}{_not(given)}"
    rule = _RULES.get(kind)
    return rule(context, given) if rule is not None else ""


def _name(path: Sequence[int | str]) -> str:
    if not path:
        return "the message"
    if path[-1] == "[key]":
        return f"a name in {_name(path[:-2])}"
    return ".".join(str(step) for step in path)


def _not(given: Any) -> str:
    """Return `, not X` for what was given, as JSON writes it; nothing for a long text."""
    match given:
        case dict():
            return ", not an object"
        case list() | tuple():
            return ", not a list"
        case str() if len(given) > GIVEN_CHARS_MAX:
            return f", not a string of {len(given)} characters"
        case str() | bool() | int() | float() | None:
            text = json.dumps(given, ensure_ascii=False)
            return f", not {text}" if len(text) <= GIVEN_CHARS_MAX + 2 else ""
        case _:
            return ""


def _one_of(context: _Context, given: Any) -> str:
    return f"should be {context['expected']}{_not(given)}"


def _whole(_context: _Context, given: Any) -> str:
    how = ", written without a decimal point" if isinstance(given, float) else ""
    return f"should be a whole number{how}{_not(given)}"


def _at_least(context: _Context, given: Any) -> str:
    return f"should be at least {_number(context['ge'])}{_not(given)}"


def _at_most(context: _Context, given: Any) -> str:
    return f"should be at most {_number(context['le'])}{_not(given)}"


def _number(bound: float) -> str:
    return f"{bound:g}" if isinstance(bound, float) else str(bound)


def _short(context: _Context, _given: Any) -> str:
    chars = context["min_length"]
    return "should not be empty" if chars == 1 else f"should have at least {chars} characters"


def _long(context: _Context, given: Any) -> str:
    length = f", not {len(given)}" if isinstance(given, str) else ""
    return f"should have at most {context['max_length']} characters{length}"


def _few(context: _Context, _given: Any) -> str:
    items = context["min_length"]
    return "should not be empty" if items == 1 else f"should have at least {items} items"


def _many(context: _Context, _given: Any) -> str:
    return f"should have at most {context['max_length']} items"


def _pattern(context: _Context, given: Any) -> str:
    pattern = context["pattern"]
    if pattern == _NAME_PATTERN:
        return f"should hold only A-Z, a-z, 0-9 and . _ -{_not(given)}"
    return f"should match {pattern}{_not(given)}"


def _unknown_kind(context: _Context, _given: Any) -> str:
    return f"should be of a kind that is known here{_not(context['tag'])}"


def _not_json(context: _Context, _given: Any) -> str:
    return f"is not JSON: {context['error']}"


def _no_kind(_context: _Context, _given: Any) -> str:
    return "has no kind"


_TYPES = {
    "string_type": "a string",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "dict_type": "an object",
    "model_type": "an object",
    "dataclass_type": "an object",
    "list_type": "a list",
    "tuple_type": "a list",
}
_RULES: dict[str, Callable[[_Context, Any], str]] = {
    "literal_error": _one_of,
    "int_type": _whole,
    "int_parsing": _whole,
    "int_from_float": _whole,
    "greater_than_equal": _at_least,
    "less_than_equal": _at_most,
    "string_too_short": _short,
    "string_too_long": _long,
    "string_pattern_mismatch": _pattern,
    "too_short": _few,
    "too_long": _many,
    "json_invalid": _not_json,
    "union_tag_invalid": _unknown_kind,
    "union_tag_not_found": _no_kind,
}
