"""Names in the package say one thing each."""

import ast
from collections import Counter
from pathlib import Path

import kernelseed

ROOT = Path(kernelseed.__file__).parent
FILES = [path for path in ROOT.rglob("*.py") if not path.stem.startswith("__")]
SUBPACKAGES = [path.parent for path in ROOT.rglob("__init__.py") if path.parent != ROOT]


def test_no_two_modules_share_a_name():
    names = Counter([path.stem for path in FILES] + [folder.name for folder in SUBPACKAGES])
    shared = [name for name, count in names.items() if count > 1]
    assert not shared, shared


def test_no_function_has_the_name_of_a_module():
    """`from kernelseed import x` gives the one or the other, and a reader can't tell which."""
    modules = {path.stem for path in FILES} | {folder.name for folder in SUBPACKAGES}
    found = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in ROOT.rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in modules
    ]
    assert not found, found
