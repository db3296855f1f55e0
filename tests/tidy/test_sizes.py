"""The limits of size: a module is read in one sitting, a function on one page."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
MODULES = sorted(
    path
    for folder in ("schemas", "services", "streams", "tests")
    for path in (ROOT / folder).rglob("*.py")
)


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_a_module_is_short_says_what_it_is_for_and_has_short_functions(path: Path) -> None:
    text = path.read_text()
    lines = len(text.splitlines())
    assert lines <= MODULE_LINES_MAX, f"{_name(path)} has {lines} lines: split it"
    tree = ast.parse(text)
    assert ast.get_docstring(tree), f"{_name(path)} does not say what it is for"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= FUNCTION_LINES_MAX, f"{_name(path)}: {node.name} has {length} lines"


def test_there_are_modules_to_look_at() -> None:
    assert len(MODULES) > 50
