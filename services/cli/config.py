"""`headway config`: every tunable number of a deployment, its history, and changing it safely."""

from pathlib import Path
from typing import Any

import click

from schemas.policy import Policy, Tier, policy_digest
from schemas.policy_form import explained, write
from schemas.policy_history import changes
from schemas.policy_keys import KEYS
from schemas.policy_scope import fitting
from services.cli import _config_edit as edit
from services.cli import _config_text as text
from services.cli import _config_write as writing
from services.cli import _endpoints, _output
from streams.policies import Standing, read_standing


@click.group(
    epilog='Example:  headway config set attempts_max=4 --tenant acme --why "their link is shaky"',
    short_help="Show and change the policy: every tunable number.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
def command() -> None:
    """Show and change the policy: every tunable number, with a history of who, when and why.

    A change comes into force within a second, without a restart; each decision names the version
    that it was made under. `headway config keys` explains every key.
    """


command.add_command(writing.set_command)
command.add_command(writing.unset_command)
command.add_command(writing.rollback_command)
command.add_command(writing.apply_command)


def _standing(state_dir: str | None) -> Standing:
    return _output.run(read_standing(_endpoints.kafka(state_dir)))


@command.command(
    "show",
    epilog="Examples:  headway config show    headway config show 7",
    short_help="Show the policy in force, or an earlier one.",
)
@click.argument("version", required=False, type=click.IntRange(min=1), metavar="[VERSION]")
@_endpoints.state_option
@_output.json_option
def _show(version: int | None, state_dir: str | None, *, as_json: bool) -> None:
    """Show the policy in force, or VERSION: every key, and every override."""
    standing = _standing(state_dir)
    active = standing.history.active
    chosen = active if version is None else writing.version_of(standing, version)
    if as_json:
        told = text.version_json(chosen, standing.history.before(chosen))
        cells = [
            {"cell": one.cell, "version": one.version, "digest": one.digest}
            for one in standing.cells
        ]
        _output.print_json(
            told
            | {"in_force": chosen is active, "cells": cells}
            | {"policy": text.policy_json(chosen.policy)}
        )
        return
    click.echo(text.policy_name(chosen.policy, chosen.digest))
    click.echo(text.origin_of(chosen))
    now = text.cells_text(standing) if chosen is active else "not in force: it was, once"
    click.echo(f"{now}\n")
    _output.console().print(text.keys_table(chosen.policy))
    for line in text.override_lines(chosen.policy):
        click.echo(line)


@command.command(
    "get",
    epilog="Example:  headway config get starvation_cap_ms --model smollm2-135m --tier batch",
    short_help="Tell the value of a key for a model, tier and tenant.",
)
@click.argument("key", metavar="KEY")
@writing.scope_options
@_endpoints.state_option
@_output.json_option
def _get(
    key: str,
    model: str | None,
    tier: Tier | None,
    tenant: str | None,
    state_dir: str | None,
    *,
    as_json: bool,
) -> None:
    """Tell the value of KEY, as it holds for a model, tier and tenant, and where it comes from."""
    chosen = edit.key_of(key)
    active = _standing(state_dir).history.active.policy
    found = [one for one in fitting(active, (model, tier, tenant)) if one.key == key]
    value = found[-1].value if found else getattr(active, key)
    place = text.place_of(found[-1]) if found else (None, None, None)
    if as_json:
        names = dict(zip(("model", "tier", "tenant"), place, strict=True))
        told = {"key": key, "value": value, "unit": chosen.unit, "version": active.version}
        _output.print_json(told | {"override": names if found else None})
        return
    origin = f"the override{text.place_text(place)}" if found else "the policy itself"
    click.echo(f"{key} = {text.value_text(key, value)}, by {origin} (version {active.version})")


@command.command(
    "diff",
    epilog="Examples:  headway config diff 7 8    headway config diff policy.toml",
    short_help="Tell what differs between two policies.",
)
@click.argument("before", metavar="A")
@click.argument("after", metavar="[B]", required=False)
@_endpoints.state_option
@_output.json_option
def _diff(before: str, after: str | None, state_dir: str | None, *, as_json: bool) -> None:
    """Tell what differs between A and B: versions, files, `default`, or `active`.

    With one version: what has changed since then. With one file: what it would change if it were
    applied. Without versions it needs no deployment.
    """
    if after is None:
        is_file = not before.isdigit() and before not in {"active", "default"}
        before, after = ("active", before) if is_file else (before, "active")
    numbered = [name for name in (before, after) if name.isdigit() or name == "active"]
    standing = _standing(state_dir) if numbered else None
    told = changes(_policy_named(before, standing), _policy_named(after, standing))
    if as_json:
        _output.print_json([text.change_json(change) for change in told])
    else:
        lines = [text.change_text(change) for change in told] or ["nothing differs"]
        click.echo("\n".join(lines))


def _policy_named(name: str, standing: Standing | None) -> Policy:
    if standing is not None and name == "active":
        return standing.history.active.policy
    if standing is not None and name.isdigit():
        return writing.version_of(standing, int(name)).policy
    if name == "default":
        return Policy()
    if not Path(name).exists() and name != "-":
        raise click.ClickException(
            f"{name!r} is no version, no file, and neither `active` nor `default`"
        )
    return edit.policy_of_file(name)[0]


@command.command(
    "history",
    epilog="Example:  headway config history --refused",
    short_help="Tell who changed what, when and why.",
)
@click.option("--refused", is_flag=True, help="Tell also what was refused, and why.")
@_endpoints.state_option
@_output.json_option
def _history(state_dir: str | None, *, refused: bool, as_json: bool) -> None:
    """Tell who changed the policy, when, why, and which keys; the newest first."""
    history = _standing(state_dir).history
    if as_json:
        pairs = zip([None, *history.versions], history.versions, strict=False)
        versions = [text.version_json(version, before) for before, version in pairs]
        told = [text.refused_json(one) for one in history.refused]
        _output.print_json({"versions": versions[::-1], "refused": told[::-1]})
        return
    click.echo("\n".join(text.history_lines(history)))
    if refused:
        click.echo("\n".join(text.refused_lines(history) or ["nothing was refused"]))
    elif history.refused:
        count = len(history.refused)
        click.echo(f"{count} records were refused; --refused tells them and why", err=True)


@command.command(
    "validate",
    epilog="Example:  headway config validate policy.toml",
    short_help="Check a policy file, and tell every fault.",
)
@click.argument("file", metavar="FILE")
@_output.json_option
def _validate(file: str, *, as_json: bool) -> None:
    """Check a policy file, and tell everything that is wrong with it, each with its line.

    Needs no deployment. Exit code 1 if anything is wrong.
    """
    form = edit.read_file(file)
    if as_json:
        told: list[dict[str, Any]] = [
            {
                "line": line,
                "key": fault.key,
                "value": fault.value,
                "reason": fault.reason,
                "takes": fault.bound,
                "sentence": fault.sentence(),
            }
            for line, fault in form.faults
        ]
        _output.print_json({"valid": form.policy is not None, "faults": told})
    elif form.policy is not None:
        told_changes = changes(Policy(), form.policy)
        click.echo(f"{file} is a policy; it differs from the default in {len(told_changes)} keys")
    if form.policy is None:
        count = len(form.faults)
        faults = "1 fault" if count == 1 else f"{count} faults"
        lines = [] if as_json else edit.file_lines(file, form)
        raise click.ClickException("\n".join([f"{file} is no policy, it has {faults}", *lines]))


@command.command(
    "export",
    epilog="Example:  headway config export > policy.toml, then headway config apply",
    short_help="Print the policy in force as a file.",
)
@click.argument("version", required=False, type=click.IntRange(min=1), metavar="[VERSION]")
@_endpoints.state_option
@_output.json_option
def _export(version: int | None, state_dir: str | None, *, as_json: bool) -> None:
    """Print the policy in force, or VERSION, as a file to change and apply."""
    standing = _standing(state_dir)
    active = standing.history.active
    chosen = active if version is None else writing.version_of(standing, version)
    if as_json:
        _output.print_json(text.policy_json(chosen.policy))
        return
    head = [
        f"Headway's {text.policy_name(chosen.policy, chosen.digest)},",
        *text.origin_of(chosen).splitlines(),
        "",
        "Check it with `headway config validate FILE`, put it in force with `headway config apply",
        'FILE --why "…"`. A key that is left out gets its default.',
    ]
    click.echo(write(chosen.policy, head, active.policy.version), nl=False)


@command.command(
    "template",
    epilog="Example:  headway config template > policy.toml",
    short_help="Print the default policy as a file.",
)
@_output.json_option
def _template(*, as_json: bool) -> None:
    """Print the built-in default as a policy file, with every key explained.

    Needs no deployment. The file's JSON Schema: `headway topics --schema policy-file`.
    """
    if as_json:
        _output.print_json(text.policy_json(Policy()))
        return
    digest = policy_digest(Policy())
    head = [
        f"Headway's built-in policy ({digest}).",
        "",
        "Check it with `headway config validate FILE`, put it in force with `headway config apply",
        'FILE --why "…"`. A key that is left out gets its default.',
    ]
    click.echo(write(Policy(), head), nl=False)


@command.command(
    "keys",
    epilog="Examples:  headway config keys    headway config keys attempts_max",
    short_help="Explain every key.",
)
@click.argument("names", nargs=-1, metavar="[KEY]...")
@_output.json_option
def _keys(names: tuple[str, ...], *, as_json: bool) -> None:
    """Explain every key, or those named: what it does, unit, range, default, origin and scope.

    Needs no deployment.
    """
    chosen = [edit.key_of(name) for name in names] or list(KEYS.values())
    if as_json:
        _output.print_json([text.key_json(key) for key in chosen])
        return
    for key in chosen:
        click.echo(click.style(key.name, bold=True))
        for line in explained(key):
            click.echo(f"    {line}")
