"""The README's commands, run as a newcomer runs them, in their order, on a real deployment."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
START_S_MAX = 150.0
COMMAND_S_MAX = 120.0


def _commands() -> list[str]:
    """Return the commands of the README's part "Go on", in their order."""
    part = (ROOT / "README.md").read_text().split("## Go on")[1].split("## For producers")[0]
    return re.findall(r"^\$ (.*)$", part, re.MULTILINE)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Give the environment of a shell beside which `headway up` runs."""
    folder = tmp_path_factory.mktemp("readme")
    environ = {
        **{key: value for key, value in os.environ.items() if not key.startswith("HEADWAY_")},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HEADWAY_STATE": str(folder / "headway-state"),
        "PWD": str(folder),
    }
    up = _commands()[0]
    assert up == "headway up --state ./headway-state"
    with (folder / "up.log").open("wb") as log:
        running = subprocess.Popen(  # noqa: S602 - the README's own words
            up, shell=True, cwd=folder, env=environ, stdout=log, stderr=log, start_new_session=True
        )
    until_s = time.monotonic() + START_S_MAX
    while not (folder / "headway-state" / "endpoints.json").exists():
        told = (folder / "up.log").read_text()
        assert running.poll() is None, f"headway up ended: {told}"
        assert time.monotonic() < until_s, f"headway up did not come up: {told}"
        time.sleep(0.5)
    yield environ
    os.killpg(running.pid, signal.SIGTERM)
    running.wait(60)


@pytest.mark.torch
@pytest.mark.timeout(600)
def test_every_command_of_the_readme_works_in_its_order(shell: dict[str, str]) -> None:
    commands = _commands()[1:]
    assert len(commands) >= 7
    for command in commands:
        done = subprocess.run(  # noqa: S602 - the README's own words
            command,
            shell=True,
            cwd=shell["PWD"],
            env=shell,
            capture_output=True,
            text=True,
            timeout=COMMAND_S_MAX,
            check=False,
        )
        assert done.returncode == 0, f"$ {command}\n{done.stdout}\n{done.stderr}"
        assert done.stdout.strip(), f"$ {command} printed nothing"


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_a_second_headway_up_on_the_same_state_says_so(shell: dict[str, str]) -> None:
    again = subprocess.run(
        ["headway", "up", "--state", shell["HEADWAY_STATE"]],
        cwd=shell["PWD"],
        env=shell,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert again.returncode == 1
    assert "runs already on" in again.stderr
