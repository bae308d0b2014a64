"""Imports point one way: a layer of the package imports only from the layers listed before it."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import depict

PACKAGE = Path(depict.__file__).parent
HOMES = {f"depict.{name}": home for name, home in depict._HOMES.items()}
"""Where the names that are imported from `depict` itself come from."""
# From the lowest layer to the highest. A name is a file or a folder of src/depict.
LAYERS = [
    "terminal",
    "errors",
    "io",
    "devices",
    "coding_rate",
    "gram",
    "operators",
    "inference",
    "data",
    "viz",
    "prediction",
    "decoders",
    "costs",
    "encoders",
    "neck",
    "config",
    "model",
    "runs",
    "calibration",
    "evaluation",
    "training",
    "segment",
    "analysis",
    "studies",
    "interchange",
    "web",
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
        match node:
            case _ if node in skipped:
                continue
            case ast.ImportFrom(module=str(module), names=names):
                dotted = [f"{module}.{alias.name}" for alias in names]
                found |= {HOMES.get(name, name if name in known else module) for name in dotted}
            case ast.Import(names=names):
                found |= {alias.name for alias in names}
            case ast.Attribute(value=ast.Name(id="depict"), attr=name) if f"depict.{name}" in HOMES:
                found.add(HOMES[f"depict.{name}"])
    return {name for name in found if name.startswith("depict.")}


def test_imports_are_found_in_every_form():
    text = """
import depict
import depict.training.loop
from depict import load, errors
from depict.io import files
if TYPE_CHECKING:
    from depict.web import app
def later():
    from depict.model import SegmentationModel
    return depict.create_decoder
"""
    known = {"depict.errors", "depict.io.files"}
    expected = {"depict.training.loop", "depict.runs", "depict.model", "depict.decoders", *known}
    assert imports(ast.parse(text), known) == expected


def layer(module: str) -> str:
    return module.split(".")[1]


def test_every_file_and_folder_of_the_package_is_in_the_list_of_layers():
    names = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert names - {"__init__"} == set(LAYERS)


def test_a_layer_imports_only_from_lower_layers():
    parsed = modules()
    upward = [
        f"{module} imports {target}"
        for module, tree in parsed.items()
        if module != "depict"
        for target in imports(tree, set(parsed))
        if LAYERS.index(layer(target)) > LAYERS.index(layer(module))
    ]
    assert upward == []


def test_no_modules_import_each_other_in_a_circle():
    parsed = modules()
    TopologicalSorter({module: imports(tree, set(parsed)) - {module} for module, tree in parsed.items()}).prepare()
