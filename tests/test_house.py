"""Names in the package say one thing each."""

import ast
import re
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


CONTRIBUTING = (ROOT.parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
HOUSE = re.search(r"## The house\n(?s:.*?)\n\n((?:    .+\n)+)", CONTRIBUTING)
FLOORS = [line[4:20].replace(" ", "").split(",") for line in HOUSE[1].splitlines()]
"""The rooms of each floor, the highest first, as CONTRIBUTING.md draws them."""


def stairs():
    """Every import between rooms: the file, its room, the room that it enters, and how deep."""
    for path in ROOT.rglob("*.py"):
        place = path.relative_to(ROOT).with_suffix("").parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                entered = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                rooms = node.module == "kernelseed"
                entered = [f"kernelseed.{a.name}" for a in node.names] if rooms else [node.module]
            else:
                continue
            for target in entered:
                package, *inside = target.split(".")
                if package == "kernelseed" and inside and inside != ["__version__"]:
                    yield path.relative_to(ROOT), place[0], inside[0], len(inside)


def test_the_drawing_has_every_room():
    drawn = sorted(room for floor in FLOORS for room in floor)
    rooms = {path.name for path in SUBPACKAGES if path.parent == ROOT} | {f.stem for f in FILES if f.parent == ROOT}
    assert drawn == sorted(rooms)


def test_imports_go_down_and_through_the_front_door():
    level = {room: number for number, floor in enumerate(FLOORS) for room in floor}
    outside = [(file, room, other, depth) for file, room, other, depth in stairs() if room in level and room != other]
    assert len(outside) > 100
    upwards = [f"{file} -> {other}" for file, room, other, _ in outside if level[other] <= level[room]]
    assert not upwards, upwards
    past_the_door = [f"{file} -> {other}" for file, _, other, depth in outside if depth > 1]
    assert not past_the_door, past_the_door
