"""The arrows of the package point one way: a room imports only from the rooms listed above it."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import depict

PACKAGE = Path(depict.__file__).parent
# From the ground up. A name is a file or a folder of src/depict.
ROOMS = [
    "errors",
    "io",
    "devices",
    "coding_rate",
    "operators",
    "inference",
    "data",
    "decoders",
    "costs",
    "config",
    "encoder",
    "model",
    "runs",
    "viz",
    "evaluation",
    "training",
    "segment",
    "analysis",
    "studies",
    "interchange",
    "commands",
    "cli",
]


def modules() -> dict[str, ast.Module]:
    """Every module by its dotted name, parsed."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = ("depict", *path.relative_to(PACKAGE).with_suffix("").parts)
        found[".".join(part for part in parts if part != "__init__")] = ast.parse(path.read_text())
    return found


def typing_only(tree: ast.Module) -> set[ast.AST]:
    """The nodes under `if TYPE_CHECKING`, which are never imported."""
    guarded = [n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    return {node for block in guarded for node in ast.walk(block)}


def imports(tree: ast.Module, known: set[str]) -> set[str]:
    """The modules of depict that a module imports, at its top or inside its functions."""
    found, skipped = set(), typing_only(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node not in skipped:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in names}
    return {name for name in found if name.startswith("depict.")}


def room(module: str) -> str:
    return module.split(".")[1]


def test_every_file_and_folder_of_the_package_has_its_place_in_the_order():
    names = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert names - {"__init__"} == set(ROOMS)


def test_a_room_imports_only_from_rooms_below_it():
    parsed = modules()
    upward = [
        f"{module} imports {target}"
        for module, tree in parsed.items()
        if module != "depict"
        for target in imports(tree, set(parsed))
        if ROOMS.index(room(target)) > ROOMS.index(room(module))
    ]
    assert upward == []


def test_no_modules_import_each_other_in_a_circle():
    parsed = modules()
    TopologicalSorter({module: imports(tree, set(parsed)) - {module} for module, tree in parsed.items()}).prepare()
