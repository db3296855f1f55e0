"""`headway config` without a deployment: files, keys, and what is wrong with what is typed."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click import ClickException
from click.testing import CliRunner, Result

from schemas.policy import Override, Policy
from schemas.policy_form import read, write
from schemas.policy_history import History, changes, record_of
from schemas.policy_keys import KEYS
from services import cli
from services.cli import _config_edit as edit
from services.cli import _config_text as text
from services.cli._config_write import _fault  # pyright: ignore[reportPrivateUsage] - its words
from streams.policies import Became, InForce, Standing

NOWHERE = (None, None, None)
WHY = ("--why", "to see")


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let no command find a deployment of this machine."""
    for name in [name for name in os.environ if name.startswith("HEADWAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HEADWAY_STATE", str(tmp_path / "state"))
    return iter(())


def call(*arguments: str, given: str | bytes | None = None) -> Result:
    return CliRunner().invoke(cli.Commands("headway"), ["config", *arguments], input=given)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["set", "attempts_max=0"], "attempts_max cannot be 0: it is below 1; it takes a whole"),
        (["set", "attempts_max=four"], 'attempts_max cannot be "four": it is a text; it takes'),
        (["set", "attempts_max="], 'attempts_max cannot be "": it is a text; it takes'),
        (["set", "attempt_max=4"], "there is no such key; did you mean attempts_max?"),
        (["set", "attempts_max"], "'attempts_max' is not KEY=VALUE, such as attempts_max=4"),
        (["set", "attempts_max=4", "attempts_max=5"], "attempts_max is given twice"),
        (["set", "version=4"], "version is no key: Headway keeps it itself"),
        (["set", "retry_backoff_ms=100,0"], "its value 2 is below 1; it takes a list of 1 to 100"),
        (["set", "starvation_cap_ms=5", "--tenant", "acme"], "it cannot differ by tenant, only by"),
        (["set", "replica_lost_ms=5", "--model", "m"], "it holds for the whole deployment"),
        (["set", "attempts_max=4", "--tier", "gold"], "'gold' is not one of"),
        (["set", "attempts_max=4", "--model", "two words"], "it is no name of a model"),
        (["unset", "attempt_max"], "there is no such key; did you mean attempts_max?"),
        (["get", "attempt_max"], "there is no such key; did you mean attempts_max?"),
        (["keys", "attempt_max"], "there is no such key; did you mean attempts_max?"),
    ],
)
def test_what_is_typed_wrong_is_told_without_asking_the_deployment(
    arguments: list[str], sentence: str
) -> None:
    got = call(*arguments, *(WHY if arguments[0] in {"set", "unset"} else ()))
    assert got.exit_code == 2, "as every wrong command line"
    assert sentence in got.output
    assert "Traceback" not in got.output


def test_a_change_without_a_reason_is_refused() -> None:
    assert call("set", "attempts_max=4", "--why", " ").exit_code == 2
    assert "Missing option '--why'" in call("set", "attempts_max=4").output
    assert (
        "--why is empty: say it in a few words"
        in call("set", "attempts_max=4", "--why", " ").output
    )
    assert "--who should be one line" in call("set", "name=a", *WHY, "--who", "a\nb").output


def test_every_fault_of_a_file_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('attempts_max = 0\n\n[[override]]\ntier = "gold"\nattempts_max = 4\nx = 1\n')
    got = call("validate", str(file))
    assert got.exit_code == 1
    assert f"{file} is no policy, it has 3 faults" in got.output
    assert f"{file}, line 1: attempts_max cannot be 0: it is below 1; it takes" in got.output
    assert f'{file}, line 4: tier cannot be "gold": there is no such tier' in got.output
    assert f'{file}, line 6: "x": there is no such key' in got.output
    told = json.loads(call("validate", str(file), "--json").stdout)
    assert (told["valid"], [one["line"] for one in told["faults"]]) == (False, [1, 4, 6])
    applied = call("apply", str(file), *WHY)
    assert applied.exit_code == 1
    assert f"{file}, line 1: attempts_max cannot be 0" in applied.output


def test_values_of_a_file_that_contradict_each_other_are_told_with_their_lines(
    tmp_path: Path,
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(
        'window_max_ms = 120\n\n[[override]]\nmodel = "m"\nwindow_ms = 90\nwindow_min_ms = 95\n'
    )
    got = call("validate", str(file))
    assert got.exit_code == 1
    assert (
        f"{file}, line 1: window_ms cannot be 150: it is above window_max_ms, which is 120: a"
        " window is tuned between window_min_ms and window_max_ms; set both"
    ) in got.output
    assert (
        f"{file}, line 5: window_min_ms for model m cannot be 95: it is above window_ms, which is"
        " 90 there"
    ) in got.output


def test_a_change_that_contradicts_what_is_in_force_is_refused_and_both_together_are_not() -> None:
    alone = edit.with_values(Policy(), NOWHERE, {"window_ms": 500})
    with pytest.raises(ClickException, match="window_ms cannot be 500: it is above window_max_ms"):
        edit.checked(alone, 1)
    both = edit.pairs_of(("window_ms=500", "window_max_ms=500"), NOWHERE)
    assert edit.checked(edit.with_values(Policy(), NOWHERE, both), 1).window_ms == 500
    # What is typed is not held against the built-in values: others may be in force.
    assert edit.pairs_of(("window_ms=500",), NOWHERE) == {"window_ms": 500}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (b"\xff", "- is no text in UTF-8: byte 0 is 0xff"),
        (b"x" * (1024 * 1024 + 1), "- is longer than 1048576 bytes: no policy is"),
        (b"a = ", "-: the file: it is no TOML"),
    ],
)
def test_a_file_that_is_no_policy_at_all_is_told_in_words(given: bytes, sentence: str) -> None:
    got = call("validate", "-", given=given)
    assert got.exit_code == 1
    assert sentence in got.output


def test_a_file_that_is_not_there_is_named() -> None:
    assert "nope.toml cannot be read: No such file" in call("validate", "nope.toml").output
    assert "'nope.toml' is no version, no file" in call("diff", "nope.toml", "default").output


def test_the_template_is_the_built_in_policy() -> None:
    got = call("template")
    assert got.exit_code == 0
    assert read(got.output).policy == Policy()
    assert call("validate", "-", given=got.output).output == (
        "- is a policy; it differs from the default in 0 keys\n"
    )
    assert json.loads(call("template", "--json").stdout)["attempts_max"] == Policy().attempts_max


def test_two_files_are_compared_without_a_deployment(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    override = Override(tier="batch", key="starvation_cap_ms", value=30_000)
    file.write_text(write(Policy(attempts_max=9, overrides=(override,))))
    assert call("diff", "default", str(file)).output.splitlines() == [
        f"attempts_max: {Policy().attempts_max} → 9 attempts",
        "starvation_cap_ms for tier batch: not set → 30000 ms",
    ]
    assert call("diff", "default", "default").output == "nothing differs\n"


def test_every_key_is_explained() -> None:
    got = call("keys")
    told = json.loads(call("keys", "--json").stdout)
    assert [one["key"] for one in told] == list(KEYS)
    for one in told:
        assert one["key"] in got.output
        assert "" not in {one["text"], one["takes"], one["origin"]}
    assert "May differ by model, tier, tenant" in call("keys", "attempts_max").output


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("attempts_max=4", 4),
        ("queued_requests_max=5_000", 5_000),
        ("retry_backoff_ms=100,200", [100, 200]),
        ("retry_backoff_ms=[100, 200]", [100, 200]),
        ("name=night shift", "night shift"),
        ('name="night"', "night"),
        ("default_tier=batch", "batch"),
        ("name=a=b", "a=b"),
    ],
)
def test_a_typed_value_means_what_its_key_takes(typed: str, value: Any) -> None:
    assert list(edit.pairs_of((typed,), NOWHERE).values()) == [value]


def test_an_override_is_set_again_in_its_place_and_taken_away() -> None:
    place = (None, None, "acme")
    other = Override(tenant="other", key="attempts_max", value=9)
    first = edit.checked(
        edit.with_values(Policy(overrides=(other,)), place, {"attempts_max": 4}), 2
    )
    again = edit.checked(edit.with_values(first, place, {"attempts_max": 5}), 3)
    assert again.overrides == (other, Override(tenant="acme", key="attempts_max", value=5))
    gone = edit.checked(edit.without(again, place, ("attempts_max",)), 4)
    assert gone.overrides == (other,)
    with pytest.raises(Exception, match="there is no override of attempts_max for tenant acme"):
        edit.without(gone, place, ("attempts_max",))
    default = edit.checked(edit.without(Policy(attempts_max=9), NOWHERE, ("attempts_max",)), 2)
    assert default == Policy(version=2)


def a_history() -> History:
    made = History()
    for offset, (number, who) in enumerate(((2, "ann"), (2, "bob"), (3, "ann"))):
        policy = Policy(version=number, attempts_max=number + 2)
        key, raw = record_of(policy, based_on=1, at_us=1_000_000, who=who, why="to see")
        made.add(offset, key, raw)
    return made


def test_a_history_tells_who_when_why_and_what() -> None:
    lines = text.history_lines(a_history())
    assert lines[0].startswith('policy "default", version 3 (')
    assert lines[1:4] == [
        "    set by ann on 1970-01-01 00:00:01 UTC: to see",
        "    made from version 1",
        "    attempts_max: 4 → 5 attempts",
    ]
    assert lines[-1] == "    the built-in default of a new deployment"
    assert text.refused_lines(a_history())[0] == (
        "refused: the record of bob (to see) at offset 1 of headway.config"
    )


@pytest.mark.parametrize(
    ("versions", "sentence"),
    [
        ([3, 3], "in force in all 2 cells"),
        ([3], "in force in cell 0"),
        ([None, None], "no cell has decided anything yet"),
        ([3, None], "in force in cell 0; 1 have decided nothing yet"),
        ([3, 2], "not in force everywhere: cell 1 under version 2 (d); a cell that runs takes"),
        ([4, 3], "cell 0 under version 4 (d); the record of that version is gone"),
    ],
)
def test_where_the_policy_is_in_force_is_told(versions: list[int | None], sentence: str) -> None:
    cells = [InForce(cell, version, "d") for cell, version in enumerate(versions)]
    standing = Standing(a_history(), cells)
    assert sentence in text.cells_text(standing)
    assert standing.next_version == max(3, *(version or 0 for version in versions)) + 1


def test_who_lost_a_race_is_told_to_whom_and_what_to_do() -> None:
    winner = a_history().version(2)
    lost = _fault(Became(offset=1, version=2, cells=2, lost_to=winner))
    assert str(lost).startswith("ann set version 2 at the same moment, and came first (to see)")
    assert "`headway config diff 1 2`" in str(lost)
    silent = _fault(Became(offset=1, version=2, cells=3, activated={1: 5}, waited_s=10))
    assert "cells 0, 2 of 3 did not take it within 10.0 s" in str(silent)
    refused = _fault(Became(offset=1, version=2, cells=3, refused="cell 0 says: no"))
    assert str(refused) == "version 2 was refused and nothing of it was taken: cell 0 says: no"
    assert _fault(Became(offset=1, version=2, cells=1, activated={0: 5})) is None
    assert _fault(Became(offset=1, version=2, cells=1, no_cell_up=True)) is None


def test_a_change_to_and_from_nothing_is_told() -> None:
    override = Override(model="m", tier="batch", key="starvation_cap_ms", value=9)
    before, after = Policy(overrides=(override,)), Policy()
    assert [text.change_text(one) for one in changes(before, after)] == [
        "starvation_cap_ms for model m, tier batch: 9 → not set"
    ]
