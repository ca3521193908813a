"""Imports point downwards only, as ARCHITECTURE.md draws them.

Imports that only the type checker sees (`if TYPE_CHECKING:`) are free: they tie no module to another at
run time.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent

# cuda_async, from the lowest layer to the highest. A module of a layer imports its own layer and those
# before it. The package's __init__ stands above all of them.
CUDA_ASYNC = ("errors", "_rounding", "native", "driver", "memory", "scheduling", "ops", "graph", "testing")

# tilekern: what each part may import of tilekern besides itself. What is in none of
# these (`kernels`, `arrays`, `tune`, ...) stands on the public surface of all the rest.
TILEKERN = {
    "errors": set(),
    "dtypes": set(),
    "_terms": set(),
    "ir": {"errors", "dtypes"},
    "language": {"errors", "dtypes"},
    "passes": {"errors", "dtypes", "_terms", "ir"},
    "tileir": {"errors"},
    "lowering": {"errors", "dtypes", "ir", "tileir"},
    "interpreter": {"errors", "dtypes", "ir"},
    "frontend": {"errors", "dtypes", "_terms", "ir", "language"},
    "jit": {
        *(
            "errors",
            "dtypes",
            "_terms",
            "ir",
            "language",
            "passes",
            "tileir",
            "lowering",
            "interpreter",
            "frontend",
        ),
    },
}
TILEKERN_TOP = {"__main__", "arrays", "bench", "cli", "kernels", "tune"}

# The parts of tilekern that describe and rewrite kernels know no device.
WITHOUT_DRIVER = ("dtypes", "ir", "language", "frontend", "passes", "lowering", "tileir")


class Import(NamedTuple):
    """One import statement, resolved to the full name of what it names."""

    module: str
    """The importing module, such as `cuda_async.ops._launch`."""
    target: str
    """The imported module, or name in a module."""
    function: str
    """The function the statement stands in; empty at the top of the module."""
    line: int


def module_name(path: Path) -> str:
    """The dotted name of a source file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_type_checking(test: ast.expr) -> bool:
    """True for the condition of an `if TYPE_CHECKING:` block."""
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def imports_of(path: Path) -> list[Import]:
    """Every import a file makes at run time."""
    module = module_name(path)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: list[Import] = []

    def visit(node: ast.AST, function: str) -> None:
        if isinstance(node, ast.If) and is_type_checking(node.test):
            for child in node.orelse:
                visit(child, function)
            return
        if isinstance(node, ast.Import):
            found.extend(Import(module, alias.name, function, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                parents = parents[: len(parents) - node.level + 1]
                base = ".".join([*parents, *([node.module] if node.module else [])])
            found.extend(
                Import(module, f"{base}.{alias.name}", function, node.lineno) for alias in node.names
            )
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        for child in ast.iter_child_nodes(node):
            visit(child, function)

    visit(ast.parse(path.read_text(encoding="utf-8"), str(path)), "")
    return found


def imports_of_package(name: str) -> list[Import]:
    """Every run-time import of a package's files."""
    return [found for path in sorted((ROOT / name).rglob("*.py")) for found in imports_of(path)]


def part(name: str, package: str) -> str:
    """The part of `package` a dotted name belongs to: `driver` for `cuda_async.driver.host`."""
    parts = name.split(".")
    return parts[1] if parts[0] == package and len(parts) > 1 else ""


def where(found: Import) -> str:
    return f"{found.module}:{found.line} imports {found.target}"


def reaches_up_by_design(found: Import) -> bool:
    """`DeviceOp.graph()` and `graph_on()` import the graph layer when they are called."""
    return (
        part(found.module, "cuda_async") == "ops"
        and part(found.target, "cuda_async") == "graph"
        and found.function in ("graph", "graph_on")
    )


def test_cuda_async_layers_import_downwards() -> None:
    wrong = []
    for found in imports_of_package("cuda_async"):
        here, there = part(found.module, "cuda_async"), part(found.target, "cuda_async")
        if here in CUDA_ASYNC and there in CUDA_ASYNC and not reaches_up_by_design(found):
            if CUDA_ASYNC.index(there) > CUDA_ASYNC.index(here):
                wrong.append(where(found))
        elif here and found.target == f"cuda_async.{there}" and there not in CUDA_ASYNC:
            # `from cuda_async import name`: a layer that imports the package's face imports all of it
            wrong.append(where(found))
    assert not wrong


def test_cuda_async_has_no_other_layers() -> None:
    """A new folder or module takes its place in the order above first."""
    entries = {p.stem for p in (ROOT / "cuda_async").iterdir() if p.suffix == ".py" or list(p.glob("*.py"))}
    assert entries - {"__init__"} <= set(CUDA_ASYNC)


def test_cuda_async_never_imports_tilekern() -> None:
    assert not [where(f) for f in imports_of_package("cuda_async") if f.target.split(".")[0] == "tilekern"]


def test_tilekern_parts_import_downwards() -> None:
    wrong = []
    for found in imports_of_package("tilekern"):
        here, there = part(found.module, "tilekern"), part(found.target, "tilekern")
        if here in TILEKERN and there and there != here and there not in TILEKERN[here]:
            wrong.append(where(found))
    assert not wrong


def test_tilekern_has_no_other_parts() -> None:
    entries = {p.stem for p in (ROOT / "tilekern").iterdir() if p.suffix == ".py" or list(p.glob("*.py"))}
    assert entries - {"__init__"} <= set(TILEKERN) | TILEKERN_TOP


@pytest.mark.parametrize("name", WITHOUT_DRIVER)
def test_part_of_tilekern_knows_no_device(name: str) -> None:
    """They take no driver; of cuda_async they may know the errors and how numbers are rounded."""
    wrong = []
    for found in imports_of_package("tilekern"):
        outside = found.target.split(".")[0] in ("cuda", "cuda_async")
        if (
            part(found.module, "tilekern") == name
            and outside
            and part(found.target, "cuda_async") not in ("errors", "_rounding")
        ):
            wrong.append(where(found))
    assert not wrong


def test_drivers_do_not_know_each_other() -> None:
    wrong = []
    for found in imports_of_package("cuda_async"):
        for one, other in (("host", "cuda"), ("cuda", "host")):
            if f"{found.module}.".startswith(f"cuda_async.driver.{one}.") and f"{found.target}.".startswith(
                f"cuda_async.driver.{other}."
            ):
                wrong.append(where(found))
    assert not wrong


def test_only_the_cuda_driver_and_nvrtc_import_cuda_python() -> None:
    """`cuda.core` and `cuda.bindings` are optional: they are imported in one place, on first use."""
    wrong = []
    for found in imports_of_package("cuda_async"):
        if found.target.split(".")[0] == "cuda":
            lazily = bool(found.function) or found.module.startswith("cuda_async.driver.cuda.")
            if not lazily:
                wrong.append(where(found))
    assert not wrong
