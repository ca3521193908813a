"""From Python to the IR: a kernel's syntax tree is run once, on values that are IR, Python objects or both.

What is known at compile time (constants, shapes, element types, helper functions) is a Python object and
is computed; tiles and scalars are IR values and operations on them are added. `if` and loops on known
conditions are taken or unrolled, the others become operations of the IR. `_translator.py` says which file
does what; `_promotion.py`, `_branches.py` and `_carried.py` hold the rules.

Names are imported on first use: a kernel that comes out of a cache needs specs, checks and captures alone,
and not the translator.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._captures import Capture
    from ._checks import Fits, LaunchCheck, NotZero, Requires
    from ._program import Program, translate
    from ._register import register_source
    from ._source import FunctionSource, source_of
    from ._specs import (
        ConstantSpec,
        GroupSpec,
        ParameterSpec,
        PartitionSpec,
        PointerSpec,
        ScalarSpec,
        TensorSpec,
    )

_HOMES = {
    "_captures": "Capture",
    "_checks": "Fits LaunchCheck NotZero Requires",
    "_program": "Program translate",
    "_register": "register_source",
    "_source": "FunctionSource source_of",
    "_specs": "ConstantSpec GroupSpec ParameterSpec PartitionSpec PointerSpec ScalarSpec TensorSpec",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if (home := _HOME_OF.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "Capture",
    "ConstantSpec",
    "Fits",
    "FunctionSource",
    "GroupSpec",
    "LaunchCheck",
    "NotZero",
    "ParameterSpec",
    "PartitionSpec",
    "PointerSpec",
    "Program",
    "Requires",
    "ScalarSpec",
    "TensorSpec",
    "register_source",
    "source_of",
    "translate",
]
