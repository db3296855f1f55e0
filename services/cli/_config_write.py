"""The commands of `headway config` that change the policy: set, unset, rollback, apply.

Each writes one new version, says what became of it, and ends with 0 only when it is in force, or
will be as soon as a cell runs.
"""

import getpass
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click

from schemas.policy import TIERS, Policy
from schemas.policy_history import Change, Version, changes
from services.cli import _config_edit as edit
from services.cli import _config_text as text
from services.cli import _endpoints, _output
from streams.policies import Became, Standing, read_standing, set_policy

WAIT_S = 10.0
WORDS_MAX = {"--who": 128, "--why": 1_000}

Command = Callable[..., Any]


def scope_options(function: Command) -> Command:
    """Add --model, --tier and --tenant."""
    for option in (
        click.option("--tenant", metavar="X", help="For this tenant alone."),
        click.option("--tier", type=click.Choice(TIERS), help="For this tier alone."),
        click.option("--model", metavar="M", help="For this model alone."),
    ):
        function = option(function)
    return function


def _write_options(function: Command) -> Command:
    for option in (
        _output.json_option,
        _endpoints.state_option,
        click.option(
            "--wait-s",
            type=click.FloatRange(min=0),
            default=WAIT_S,
            show_default=True,
            help="How long to wait for the cells to take it.",
        ),
        click.option("--who", metavar="NAME", help="Who changes it; your login name if left out."),
        click.option("--why", metavar="TEXT", required=True, help="Why; it stays on record."),
    ):
        function = option(function)
    return function


class Operator:
    """Who changes the policy, why, where, and how it is told.

    Raises:
        click.UsageError: the name or the reason is no line of text.
        click.ClickException: there is no deployment.
    """

    def __init__(
        self, *, why: str, who: str | None, state_dir: str | None, wait_s: float, as_json: bool
    ) -> None:
        self.why = _line("--why", why)
        self.who = _line("--who", _login() if who is None else who)
        self.bootstrap = _endpoints.kafka(state_dir)
        self.wait_s = wait_s
        self.as_json = as_json

    def standing(self) -> Standing:
        """Return what is in force now."""
        return _output.run(read_standing(self.bootstrap))

    def change(self, changed: Callable[[Policy], dict[str, Any]]) -> None:
        """Write the policy of the plain values that `changed` makes of the one in force.

        Raises:
            click.ClickException: they are no policy, another one came first, or the cells did not
                take it.
        """
        standing = self.standing()
        active = standing.history.active.policy
        self.write(standing, edit.checked(changed(active), 1), active.version)

    def write(self, standing: Standing, policy: Policy, based_on: int) -> None:
        """Write a policy, unless it changes nothing, and say what became of it.

        Raises:
            click.ClickException: another one came first, or the cells did not take it.
        """
        active = standing.history.active.policy
        policy = replace(policy, version=standing.next_version)
        told = changes(active, policy)
        if not told and policy.version == active.version + 1:
            self._unchanged(active)
            return
        became = _output.run(
            set_policy(
                self.bootstrap,
                policy,
                based_on=based_on,
                who=self.who,
                why=self.why,
                wait_s=self.wait_s,
            )
        )
        if self.as_json:
            _output.print_json(_became_json(became, told))
        fault = _fault(became)
        if fault is not None:
            raise click.ClickException(fault)
        if not self.as_json:
            click.echo(_success(became))
            for change in told:
                click.echo(f"    {text.change_text(change)}")

    def _unchanged(self, active: Policy) -> None:
        if self.as_json:
            _output.print_json({"version": active.version, "changes": [], "in_force": True})
        else:
            click.echo(f"nothing changes: version {active.version} says so already")


def _login() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError) as error:
        raise click.ClickException("your login name is not known: say --who you are") from error


def _line(option: str, words: str) -> str:
    words = words.strip()
    if not words:
        raise click.UsageError(f"{option} is empty: say it in a few words, it stays on record")
    if len(words) > WORDS_MAX[option] or not words.isprintable():
        raise click.UsageError(
            f"{option} should be one line of at most {WORDS_MAX[option]} characters, without"
            " control characters"
        )
    return words


def _success(became: Became) -> str:
    if became.no_cell_up:
        return (
            f"version {became.version} is on record, and comes into force as soon as a cell runs:"
            " none is up now"
        )
    cells = "its cell" if became.cells == 1 else f"all {became.cells} cells"
    return f"version {became.version} is in force in {cells}, after {became.waited_s:.2f} s"


def _fault(became: Became) -> str | None:
    """Return what went wrong, or None."""
    version = became.version
    if became.lost_to is not None:
        winner = became.lost_to
        return (
            f"{winner.who} set version {version} at the same moment, and came first"
            f" ({winner.why}); yours is not in force and nothing of it was taken. See `headway"
            f" config diff {version - 1} {version}`, then set yours again"
        )
    if became.refused is not None:
        return f"version {version} was refused and nothing of it was taken: {became.refused}"
    if became.no_cell_up or became.everywhere:
        return None
    missing = [str(cell) for cell in range(became.cells) if cell not in became.activated]
    which = f"cell {missing[0]}" if len(missing) == 1 else f"cells {', '.join(missing)}"
    return (
        f"version {version} is on record, but {which} of {became.cells} did not take it within"
        f" {became.waited_s:.1f} s; `headway doctor` tells whether they run, and `headway config"
        " show` whether it is in force by then"
    )


def _became_json(became: Became, told: list[Change]) -> dict[str, Any]:
    return {
        "version": became.version,
        "offset": became.offset,
        "changes": [text.change_json(change) for change in told],
        "in_force": became.everywhere,
        "cells": became.cells,
        "activated_at_us": {str(cell): at for cell, at in sorted(became.activated.items())},
        "no_cell_up": became.no_cell_up,
        "lost_to": became.lost_to.who if became.lost_to else None,
        "refused": became.refused,
        "waited_s": round(became.waited_s, 3),
    }


@click.command(
    "set",
    epilog='Example:  headway config set starvation_cap_ms=30000 --tier batch --why "night jobs"',
    short_help="Give keys other values, everywhere or for a model, tier or tenant.",
)
@click.argument("settings", nargs=-1, required=True, metavar="KEY=VALUE...")
@scope_options
@_write_options
def set_command(
    *,
    settings: tuple[str, ...],
    model: str | None,
    tier: str | None,
    tenant: str | None,
    **operator: Any,
) -> None:
    """Give keys other values: for everything, or for what --model, --tier and --tenant name.

    All of them come into force together, as one new version, within a second and without a restart.
    A list is written as 100,200,400. If another operator sets at the same moment, one of the two
    wins and the other is told. Exit code 0 when it is in force, or no cell is up to take it yet.
    """
    place = (model, tier, tenant)
    values = edit.pairs_of(settings, place)
    Operator(**operator).change(lambda active: edit.with_values(active, place, values))


@click.command(
    "unset",
    epilog='Example:  headway config unset starvation_cap_ms --tier batch --why "as before"',
    short_help="Take an override away, or give a key its default.",
)
@click.argument("names", nargs=-1, required=True, metavar="KEY...")
@scope_options
@_write_options
def unset_command(
    *,
    names: tuple[str, ...],
    model: str | None,
    tier: str | None,
    tenant: str | None,
    **operator: Any,
) -> None:
    """Take overrides away; without --model, --tier and --tenant, give keys their defaults."""
    for name in names:
        edit.key_of(name)
    place = (model, tier, tenant)
    Operator(**operator).change(lambda active: edit.without(active, place, names))


@click.command(
    "rollback",
    epilog='Example:  headway config rollback 7 --why "waits grew since version 8"',
    short_help="Bring back the values of an earlier version.",
)
@click.argument("version", type=click.IntRange(min=1), metavar="VERSION")
@_write_options
def rollback_command(*, version: int, **operator: Any) -> None:
    """Bring back every value of VERSION, as a new version that says what it was made from."""
    writer = Operator(**operator)
    standing = writer.standing()
    writer.write(standing, version_of(standing, version).policy, version)


def version_of(standing: Standing, version: int) -> Version:
    """Return the version of that number.

    Raises:
        click.ClickException: it never was in force.
    """
    found = standing.history.version(version)
    if found is None:
        numbers = [one.policy.version for one in standing.history.versions]
        known = ", ".join(str(number) for number in numbers[-10:])
        raise click.ClickException(
            f"no version {version} was ever in force; the last ones were {known}"
        )
    return found


@click.command(
    "apply",
    epilog='Example:  headway config apply policy.toml --why "the winter plan"',
    short_help="Put a policy file in force.",
)
@click.argument("file", metavar="FILE")
@click.option("--dry-run", is_flag=True, help="Say what would change, and change nothing.")
@_write_options
def apply_command(*, file: str, dry_run: bool, **operator: Any) -> None:
    """Put the policy of FILE (TOML; `-` for the standard input) in force, whole.

    A key that the file leaves out gets its default. If the file says `based_on`, as those of
    `headway config export` do, it is refused when another version is in force by then.
    """
    policy, based_on = edit.policy_of_file(file)
    writer = Operator(**operator)
    standing = writer.standing()
    active = standing.history.active
    if based_on not in {None, active.policy.version}:
        raise click.ClickException(
            f"{file} was written from version {based_on}, and version {active.policy.version} is in"
            f" force: {text.origin_of(active)}. See `headway config diff {based_on}`, export again,"
            " or take the line based_on out of the file to replace what is in force"
        )
    if dry_run:
        told = changes(active.policy, policy)
        if writer.as_json:
            _output.print_json([text.change_json(change) for change in told])
        else:
            lines = [text.change_text(change) for change in told] or ["nothing would change"]
            click.echo("\n".join(lines))
        return
    writer.write(standing, policy, active.policy.version)
