"""Every command has help with an example, a --json option, and errors in words."""

import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from services import cli
from services.embedded.ports import free_port
from tests.spec.replay_ledger import begun, chained, with_decisions
from tests.spec.scheduler_story import arrived, ready

# Parts of a deployment: they run until they are stopped and answer nobody.
PROCESSES = {"cell", "worker", "recorder", "signals"}


def command_of(name: str) -> click.Command:
    group = cli.Commands()
    found = group.get_command(click.Context(group), name)
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let no command find a deployment of this machine."""
    for name in [name for name in os.environ if name.startswith("HEADWAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HEADWAY_STATE", str(tmp_path / "state"))
    return iter(())


def call(name: str, *arguments: str) -> Result:
    return CliRunner().invoke(command_of(name), list(arguments))


def whole(name: str) -> list[tuple[str, ...]]:
    """Return the words of a command, or of each command in a group of that name."""
    found = command_of(name)
    if isinstance(found, click.Group):
        return [(name, part) for part in found.commands]
    return [(name,)]


# What a person can call, as words: `submit`, `config set`.
CALLED = [words for name in cli.COMMANDS for words in whole(name)]


def called(words: tuple[str, ...]) -> click.Command:
    found = command_of(words[0])
    return found.commands[words[1]] if isinstance(found, click.Group) else found


@pytest.mark.parametrize("words", [*CALLED, ("config",)], ids=" ".join)
def test_every_command_has_help_with_an_example(words: tuple[str, ...]) -> None:
    got = call(*words, "--help")
    assert got.exit_code == 0
    assert "Example" in got.output
    assert f"headway {' '.join(words)}" in got.output
    assert called(words).help if words in CALLED else command_of(*words).help


@pytest.mark.parametrize("words", [one for one in CALLED if one[0] not in PROCESSES], ids=" ".join)
def test_every_command_that_answers_has_json(words: tuple[str, ...]) -> None:
    options = [option for param in called(words).params for option in param.opts]
    assert "--json" in options


@pytest.mark.parametrize("words", CALLED, ids=" ".join)
def test_every_option_says_what_it_is_for(words: tuple[str, ...]) -> None:
    bare = [
        param.name
        for param in called(words).params
        if isinstance(param, click.Option) and not param.help
    ]
    assert not bare


@pytest.mark.parametrize(
    "arguments",
    [
        ("submit", "hello"),
        ("cancel", "a"),
        ("explain", "a"),
        ("replay", "--verify"),
        ("sql", "SELECT 1"),
        ("config", "show"),
        ("config", "set", "attempts_max=4", "--why", "to see"),
    ],
)
def test_without_a_deployment_a_command_says_how_to_get_one(arguments: tuple[str, ...]) -> None:
    got = call(*arguments)
    assert got.exit_code == 1
    assert "headway up" in got.output
    assert "Traceback" not in got.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["submit", "--chat", "no-such-file.json"], "no-such-file.json cannot be read"),
        (["replay", "--file", "no-such-file"], "no-such-file cannot be read"),
        (["demo", "--trace", "no-such-file"], "no-such-file"),
    ],
)
def test_what_could_not_be_done_ends_with_1_and_a_sentence(
    arguments: list[str], sentence: str
) -> None:
    got = call(*arguments)
    assert got.exit_code == 1
    assert sentence in got.output
    assert got.output.count(arguments[-1]) == 1, "it is named once"
    assert "Traceback" not in got.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["submit"], "give a prompt"),
        (["submit", "x", "--message", "user:y"], "either prompt or messages; there are both"),
        (["submit", "--message", "nobody:y"], "'nobody' is not a role"),
        (["submit", "x", "--metadata", "nothing"], "'nothing' is not KEY=VALUE"),
        (["submit", "x", "--max-output-tokens", "0"], "max_output_tokens"),
        (["submit", "x", "--deadline-ms", "-5"], "deadline_ms should be at least 0, not -5"),
        (["submit", "x", "--temperature", "9"], "temperature"),
        (["submit", "x", "--model", "two words"], "model"),
        (["submit", "x", "--tier", "urgent"], "'urgent' is not one of"),
        (["replay", "--from", "file"], "--from file needs --file"),
        (["replay", "--verify", "--export", "x"], "--export stands alone"),
        (["replay", "--export", "x", "--from", "clickhouse"], "without --from"),
        (["sql", "SELECT 1", "--json", "--csv"], "not both"),
        (["sql", "SELECT 1", "--ready", "audit"], "not both"),
        (["sql", "--ready", "nope"], "'nope' is not one of"),
        (["sql", "--ready", "request_story"], "request_story needs --param id="),
        (["sql", "SELECT 1", "--param", "id"], "'id' is not NAME=VALUE"),
        (["sql", "--jsn"], "No such option: --jsn"),
        (["submit", "x", "--id", ""], "id"),
        (["cancel", ""], "the cancel is not acceptable: id"),
        (["cancel", "x" * 257], "the cancel is not acceptable: id"),
        (["up", "--workers", "-1"], "--workers"),
        (["topics", "--schema", "nope"], "no message kind is named 'nope'"),
        (["bench", "nope"], "'nope' is not one of 'core'"),
        (["explain"], "Missing argument 'ID'"),
        (["replay", "--cell", "-1"], "--cell"),
        (["demo", "--speed", "0"], "--speed"),
        (["doctor", "now"], "unexpected extra argument"),
        (["worker", "--model", "m"], "Missing option '--slot'"),
        (["worker", "--slot", "0"], "Missing option '--model'"),
        (["worker", "--host", "model=m"], "--host model=m: Missing option '--slot'"),
        (["worker", "--host", "model=m,slot=x"], "Invalid value for '--slot'"),
        (["worker", "--host", "model=m,slot=0,max-batch=0"], "Invalid value for '--max-batch'"),
        (["worker", "--host", "model=m,slot=0,threads=1"], "No such option: --threads"),
        (["worker", "--host", "m"], "--host m: No such option: --m"),
        (["worker", "--host", "model=a b,slot=0"], "'a b' is no model's name"),
        (["worker", "--model", "", "--slot", "0"], "'' is no model's name"),
        (["worker", *("--host", "model=m,slot=0") * 2], "m/0 is named twice"),
        (
            ["worker", "--model", "m", "--slot", "0", "--host", "model=n,slot=0"],
            "give --model and --slot, or --host for each model, not both",
        ),
        (
            ["worker", *(word for n in range(5) for word in ("--host", f"model=m,slot={n}"))],
            "5 models are to be hosted, and a device takes 4 at most",
        ),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_a_sentence(
    arguments: list[str], sentence: str
) -> None:
    got = call(*arguments)
    assert got.exit_code == 2
    assert sentence in got.output
    assert "Traceback" not in got.output


def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_KAFKA", "no-port")
    got = call("submit", "hello")
    assert got.exit_code == 1
    assert "HEADWAY_KAFKA" in got.output


@pytest.mark.parametrize(
    "arguments",
    [("submit", "hello"), ("cancel", "a"), ("explain", "a"), ("replay",), ("up",)],
)
def test_a_kafka_that_is_not_there_is_named(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("HEADWAY_KAFKA", nobody)
    got = call(*arguments)
    assert got.exit_code == 1
    assert f"no Kafka answers at {nobody}, which HEADWAY_KAFKA names" in got.output


def test_a_clickhouse_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("HEADWAY_CLICKHOUSE", nobody)
    got = call("sql", "-- a query may begin with a comment\nSELECT 1")
    assert got.exit_code == 1
    assert f"no ClickHouse answers at {nobody}, which HEADWAY_CLICKHOUSE names" in got.output


def test_topics_lists_every_topic_and_its_schemas() -> None:
    listed = call("topics")
    assert listed.exit_code == 0
    assert "headway.requests" in listed.output
    assert "inference-request.v1" in listed.output
    schema = call("topics", "--schema", "inference-request.v1")
    assert '"title": "inference-request.v1"' in schema.output


def test_a_sound_ledger_file_verifies(tmp_path: Path) -> None:
    path = tmp_path / "ledger.ndjson"
    path.write_bytes(b"\n".join(begun(ready(at=1), arrived("a", at=2)).lines()) + b"\n")
    got = call("replay", "--verify", "--file", str(path))
    assert got.exit_code == 0, got.output
    assert "0 mismatches" in got.output


def test_an_altered_ledger_file_fails_and_names_the_seq(tmp_path: Path) -> None:
    made = begun(ready(at=1), arrived("a", at=2))
    lines = chained(made.lines(), 4, with_decisions(made.entries[4], made.entries[4].decisions[0]))
    path = tmp_path / "ledger.ndjson"
    path.write_bytes(b"\n".join(lines))
    got = call("replay", "--verify", "--file", str(path))
    assert got.exit_code == 1
    assert "cell 0, seq 4, decision 1" in got.output
    assert "not recorded" in got.output


def test_a_file_that_is_no_ledger_is_named(tmp_path: Path) -> None:
    path = tmp_path / "other.txt"
    path.write_text("hello\n")
    got = call("replay", "--file", str(path))
    assert got.exit_code == 1
    assert "line 1 of" in got.output


@pytest.mark.parametrize("name", ["cell", "worker", "recorder", "signals"])
def test_a_part_says_which_setting_is_wrong(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_KAFKA", "nonsense")
    got = call(name, *(("--model", "m", "--slot", "0") if name == "worker" else ()))
    assert got.exit_code == 1
    assert "HEADWAY_KAFKA holds 'nonsense'" in got.output
