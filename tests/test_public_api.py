"""The public surface: what `__all__` says is what there is, importable, documented and annotated."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import types
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGES = ("cuda_async", "tilekern")


def public_modules() -> list[str]:
    """Every module of both packages without an underscore in its dotted name."""
    names = []
    for package_name in PACKAGES:
        package = importlib.import_module(package_name)
        names.append(package_name)
        names.extend(
            info.name
            for info in pkgutil.walk_packages(package.__path__, f"{package_name}.")
            if not any(piece.startswith("_") for piece in info.name.split("."))
        )
    return names


MODULES = public_modules()


def is_ours(node: ast.ImportFrom) -> bool:
    """True for imports from our own packages."""
    return bool(node.level) or str(node.module).split(".")[0] in PACKAGES


def names_bound(module: types.ModuleType) -> set[str]:
    """Public names the module's source defines at its top level; a package's also those it re-exports.

    A module that is public itself (`errors.py`) imports what it needs from its neighbours without offering it.
    """
    assert module.__file__ is not None
    path = Path(module.__file__)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.ImportFrom) and path.name == "__init__.py" and is_ours(node):
            names.update(alias.asname or alias.name for alias in node.names)
    return {name for name in names if not name.startswith("_")}


# (module, name) of every public name
EXPORTED = [
    pytest.param(importlib.import_module(module), name, id=f"{module}.{name}")
    for module in MODULES
    for name in getattr(importlib.import_module(module), "__all__", ())
]


@pytest.mark.parametrize("name", MODULES)
def test_module_has_docstring(name: str) -> None:
    assert importlib.import_module(name).__doc__


@pytest.mark.parametrize("name", MODULES)
def test_all_is_what_is_defined(name: str) -> None:
    module = importlib.import_module(name)
    assert hasattr(module, "__all__"), f"{name} has no __all__"
    assert len(set(module.__all__)) == len(module.__all__), "a name stands twice in __all__"
    assert names_bound(module) <= set(module.__all__), "public names that __all__ does not list"


def without_self(function: object) -> inspect.Signature:
    """The signature of a function, or of a class's own `__init__`, less the first `self`."""
    signature = inspect.signature(function)  # type: ignore[arg-type]
    parameters = list(signature.parameters.values())
    if parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    return signature.replace(parameters=parameters)


def missing_annotations(name: str, function: object, *, returns: bool = True) -> list[str]:
    signature = without_self(function)
    missing = [
        f"{name}({p.name})" for p in signature.parameters.values() if p.annotation is inspect.Parameter.empty
    ]
    if returns and signature.return_annotation is inspect.Signature.empty:
        missing.append(f"{name} -> ?")
    return missing


def own_members(cls: type) -> Iterator[tuple[str, object]]:
    """Public functions and properties a class of ours defines itself."""
    for name, member in vars(cls).items():
        if name.startswith("_"):
            continue
        if isinstance(member, staticmethod | classmethod):
            yield name, member.__func__
        elif isinstance(member, types.FunctionType):
            yield name, member
        elif isinstance(member, property) and member.fget is not None:
            yield name, member.fget


@pytest.mark.parametrize(("module", "name"), EXPORTED)
def test_exported_name_is_documented_and_annotated(module: types.ModuleType, name: str) -> None:
    value = getattr(module, name)
    ours = getattr(value, "__module__", "").split(".")[0] in PACKAGES
    if inspect.isclass(value) and ours:
        generated = f"{value.__name__}("  # what @dataclass writes where there is no docstring
        assert value.__doc__, f"{name} has no docstring"
        assert not value.__doc__.startswith(generated), f"{name} has no docstring"
        init = vars(value).get("__init__")  # a Protocol's is typing's own
        if isinstance(init, types.FunctionType) and init.__module__.split(".")[0] in PACKAGES:
            assert not missing_annotations(name, init, returns=False)
        for member_name, member in own_members(value):
            assert not missing_annotations(f"{name}.{member_name}", member)
    elif isinstance(value, types.FunctionType):
        assert value.__doc__, f"{name} has no docstring"
        assert not missing_annotations(name, value)
    elif isinstance(value, types.ModuleType):
        assert value.__doc__, f"{name} has no docstring"


@pytest.mark.parametrize("package_name", PACKAGES)
def test_methods_of_the_front_door_are_documented(package_name: str) -> None:
    """What users call, `cuda_async.X.method`, has a docstring, its own or that of the base it overrides."""
    package = importlib.import_module(package_name)
    missing = []
    for name in package.__all__:
        value = getattr(package, name)
        if not inspect.isclass(value):
            continue
        for member_name, _ in own_members(value):
            if not inspect.getdoc(getattr(value, member_name)):
                missing.append(f"{name}.{member_name}")
    assert not missing


@pytest.mark.parametrize("package_name", PACKAGES)
def test_package_is_marked_as_typed(package_name: str) -> None:
    package = importlib.import_module(package_name)
    assert (Path(package.__path__[0]) / "py.typed").is_file()
