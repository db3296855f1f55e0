"""What a person changes in a policy: values as they are typed, overrides set and taken away.

Works on plain values; touches no bus. What is wrong ends in one sentence with the key, the bound
and the reason.
"""

import tomllib
from pathlib import Path
from typing import Any

import click

from schemas.policy import Policy
from schemas.policy_check import Fault, faults, policy_of, policy_values, unknown
from schemas.policy_form import Form, read
from schemas.policy_keys import KEYS, NONE, NOT_KEYS, Key
from schemas.policy_pairs import contradictions
from services.cli._config_text import Place, place_text

# A policy longer than this is longer than a record of the bus may be.
FILE_BYTES_MAX = 1024 * 1024


def pairs_of(settings: tuple[str, ...], place: Place) -> dict[str, Any]:
    """Return the values that KEY=VALUE arguments give, for a place or for everything.

    Raises:
        click.UsageError: one has no such form, its key is not known, or it does not take the value.
    """
    values: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise click.UsageError(f"{setting!r} is not KEY=VALUE, such as attempts_max=4")
        key = key_of(name.strip())
        if key.name in values:
            raise click.UsageError(f"{key.name} is given twice")
        values[key.name] = _value(key, text.strip())
    # What no state of the deployment could make right is told before it is asked for.
    found = list(faults(with_values(Policy(), place, values)))
    if found:
        raise click.UsageError(f"nothing was changed: {sentences(found)}")
    return values


def key_of(name: str) -> Key:
    """Return the key of that name.

    Raises:
        click.UsageError: there is none.
    """
    if name in NOT_KEYS:
        raise click.UsageError(f"{name} is no key: Headway keeps it itself")
    if name not in KEYS:
        raise click.UsageError(f"{name!r}: {unknown(name)}")
    return KEYS[name]


def _value(key: Key, text: str) -> Any:
    """Return what a typed value means; what it does not mean is left a text, and refused as one."""
    if key.nullable and text == NONE:
        return None
    if key.textual and not text.startswith(('"', "'")):
        return text
    if key.schema.get("type") == "array" and not text.startswith("["):
        text = f"[{text}]"
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def with_values(policy: Policy, place: Place, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the policy's plain values with these set, for a place or for everything."""
    values = policy_values(policy)
    if not any(place):
        return values | settings
    model, tier, tenant = place
    overrides = _elsewhere(values, place, set(settings))
    overrides += [
        {"model": model, "tier": tier, "tenant": tenant, "key": key, "value": value}
        for key, value in settings.items()
    ]
    return values | {"overrides": overrides}


def without(policy: Policy, place: Place, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the policy's plain values without these overrides, or with these keys' defaults.

    Raises:
        click.UsageError: there is no such key.
        click.ClickException: there is no such override.
    """
    values = policy_values(policy)
    keys = [key_of(name) for name in names]
    if not any(place):
        defaults = policy_values(Policy())
        return values | {key.name: defaults[key.name] for key in keys}
    for key in keys:
        if len(_elsewhere(values, place, {key.name})) == len(values["overrides"]):
            raise click.ClickException(
                f"there is no override of {key.name}{place_text(place)}; `headway config show`"
                " lists those that there are"
            )
    return values | {"overrides": _elsewhere(values, place, {key.name for key in keys})}


def _elsewhere(values: dict[str, Any], place: Place, names: set[str]) -> list[dict[str, Any]]:
    return [
        one
        for one in values["overrides"]
        if one["key"] not in names or (one["model"], one["tier"], one["tenant"]) != place
    ]


def checked(values: dict[str, Any], version: int) -> Policy:
    """Return the policy of these values.

    Raises:
        click.ClickException: with everything that is wrong with them, or contradicts.
    """
    found = list(faults(values))
    if not found:
        policy = policy_of(values | {"version": version})
        found = list(contradictions(policy))
        if not found:
            return policy
    raise click.ClickException(f"nothing was changed: {sentences(found)}")


def sentences(found: list[Fault]) -> str:
    """Return the faults, a line each if there are several."""
    told = [fault.sentence() for fault in found]
    return told[0] if len(told) == 1 else "\n".join(["", *(f"  {line}" for line in told)])


def read_file(path: str) -> Form:
    """Return what a policy file says, `-` being the standard input.

    Raises:
        click.ClickException: it cannot be read, or is no text.
    """
    try:
        if path == "-":
            raw = click.get_binary_stream("stdin").read(FILE_BYTES_MAX + 1)
        else:
            with Path(path).open("rb") as file:
                raw = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be read: {error.strerror}") from error
    if len(raw) > FILE_BYTES_MAX:
        raise click.ClickException(f"{path} is longer than {FILE_BYTES_MAX} bytes: no policy is")
    try:
        return read(raw.decode())
    except UnicodeDecodeError as error:
        raise click.ClickException(
            f"{path} is no text in UTF-8: byte {error.start} is {raw[error.start]:#x}"
        ) from error


def file_lines(path: str, form: Form) -> list[str]:
    """Return a line for each fault of a file, with where it stands."""
    return [
        f"{path}, line {line}: {fault.sentence()}" if line else f"{path}: {fault.sentence()}"
        for line, fault in form.faults
    ]


def policy_of_file(path: str) -> tuple[Policy, int | None]:
    """Return the policy that a file says, and the version that it was written from.

    Raises:
        click.ClickException: with everything that is wrong, each with its line.
    """
    form = read_file(path)
    if form.policy is None:
        raise click.ClickException("\n".join(["", *file_lines(path, form)]).lstrip("\n"))
    return form.policy, form.based_on
