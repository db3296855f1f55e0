"""The cores and the language import only what cannot tell two runs apart.

Live scheduling, recovery, replay and simulation are the same code: it gives the same decisions in
each only if nothing in it asks the clock, chance, the machine or the event loop.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Parts of the standard library that compute from their arguments alone.
PURE = frozenset(
    {
        "base64",
        "bisect",
        "collections",
        "collections.abc",
        "dataclasses",
        "difflib",
        "enum",
        "functools",
        "hashlib",
        "heapq",
        "itertools",
        "json",
        "math",
        "operator",
        "re",
        "tomllib",
        "types",
        "typing",
        "zlib",
    }
)
# The language may also validate; it still asks nothing of the world.
MAY_IMPORT = {
    "services/scheduler": PURE | {"schemas", "services.scheduler"},
    "services/planner": PURE | {"schemas", "services.planner"},
    "schemas": PURE | {"schemas", "pydantic", "pydantic_core"},
}
# Generates files from the schemas when it is run as a program; no core imports it.
PROGRAMS = frozenset({"schemas/export.py"})
# What a module can reach without an import of its own.
IMPURE_CALLS = frozenset(
    {"open", "input", "print", "exec", "eval", "compile", "__import__", "id", "hash", "globals"}
)
WHY = (
    "the cores must decide the same in every run: time comes as a fact's at_us, chance as a digest"
    " of an id, and everything else through the shell"
)


def modules(folder: str) -> list[Path]:
    found = sorted((ROOT / folder).rglob("*.py"))
    return [path for path in found if path.relative_to(ROOT).as_posix() not in PROGRAMS]


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or "."


def allowed(name: str, may_import: frozenset[str]) -> bool:
    parts = name.split(".")
    stems = {".".join(parts[: end + 1]) for end in range(len(parts))}
    # "collections" alone does not open what lies below it.
    return name in may_import or bool(stems & (may_import - PURE))


def faults(source: str, may_import: frozenset[str]) -> list[str]:
    """Return one sentence for each thing in `source` that a pure module must not do."""
    tree = ast.parse(source)
    found = [
        f"line {line} imports {name}: {WHY}"
        for line, name in imports(tree)
        if not allowed(name, may_import)
    ]
    found += [
        f"line {node.lineno} calls {node.func.id}: {WHY}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in IMPURE_CALLS
    ]
    return found


@pytest.mark.parametrize("folder", sorted(MAY_IMPORT))
def test_a_pure_folder_imports_only_what_is_pure(folder: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {fault}"
        for path in modules(folder)
        for fault in faults(path.read_text(encoding="utf-8"), frozenset(MAY_IMPORT[folder]))
    ]
    assert not wrong, "\n".join(wrong)


def test_the_scheduler_is_looked_at() -> None:
    names = {path.name for path in modules("services/scheduler")}
    assert {"decide.py", "evolve.py", "step.py"} <= names


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from time import monotonic",
        "import random",
        "import uuid",
        "import os.path",
        "import asyncio",
        "import logging",
        "import datetime",
        "from datetime import datetime",
        "def late():\n    import secrets",
        "from streams import owner",
        "from services.worker import plan",
        "from . import state",
        "import collections.impure",
        "open('x')",
        "order = hash('x')",
    ],
)
def test_what_is_not_pure_is_found(source: str) -> None:
    (fault,) = faults(source, frozenset(MAY_IMPORT["services/scheduler"]))
    assert "the cores must decide the same in every run" in fault


@pytest.mark.parametrize(
    "source",
    ["from schemas import facts", "import schemas.facts", "from heapq import heappush", "x = 1"],
)
def test_what_is_pure_is_let_through(source: str) -> None:
    assert not faults(source, frozenset(MAY_IMPORT["services/scheduler"]))
