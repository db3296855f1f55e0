"""What the README names exists: files, commands, make targets, topics' fields."""

import json
import re
from pathlib import Path

from schemas.edge import Refused, Unreadable, read_request
from services.cli import COMMANDS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_every_linked_file_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(links) > 20
    missing = [link for link in links if not (ROOT / link).exists()]
    assert missing == []


def test_every_headway_command_that_is_shown_exists_and_every_command_is_shown() -> None:
    shown = set(re.findall(r"headway ([a-z]+)", README))
    assert shown - {"is"} <= set(COMMANDS)
    assert set(COMMANDS) - shown == set()


def test_every_make_target_that_is_shown_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = set(re.findall(r"make ([a-z]+(?:-[a-z]+)*)", README))
    assert {"demo", "test", "test-long", "check"} <= shown <= targets


def test_the_example_request_is_one_that_is_accepted() -> None:
    example = re.search(r"```json\n(.*?)```", README, re.DOTALL)
    assert example is not None
    asked = read_request(json.dumps(json.loads(example.group(1))).encode())
    assert not isinstance(asked, Refused | Unreadable)
    assert asked.id == "order-4711"
