"""Tile IR bytecode: a builder and writer, a reader, and NVIDIA's assembler.

`ModuleWriter` (see `_writer.py` for an example) builds a module out of `types` and the operations of
`_op_table.py` and writes it in any bytecode version from 13.1 to 13.5; `decode_module` and `print_module`
go the other way. `find_toolchain`, `assemble`, `verify` and `disassemble` run NVIDIA's tools. Nothing here
knows tilekern's own IR or any device.

Names are imported on first use: a kernel that comes out of a cache needs `find_toolchain` alone, for the
cache's key, and not the 30 classes of the writer.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import errors, types
    from ._architectures import ARCHITECTURES
    from ._assembler import DEFAULT_TIMEOUT_S, TIMEOUT_VARIABLE, Assembly, assemble, disassemble, verify
    from ._attributes import (
        ENTRY_HINTS,
        MEMORY_HINTS,
        VIEW_HINTS,
        Attribute,
        BoolAttribute,
        Bounded,
        DivBy,
        FloatAttribute,
        Hints,
        IntegerAttribute,
        SameElements,
    )
    from ._build_control import Body
    from ._constants import element_bits, encode_elements
    from ._debug import SourceLocation
    from ._decoder import decode_module
    from ._disassemble_cubin import NVDISASM_VARIABLE, disassemble_cubin
    from ._encoder import encode_module
    from ._enums import (
        AtomicMode,
        ComparisonOrdering,
        ComparisonPredicate,
        IntegerOverflow,
        MemoryOrdering,
        MemoryScope,
        MultimemReduction,
        PaddingValue,
        PointerKind,
        RoundingMode,
        Signedness,
    )
    from ._module import Block, Function, Module, Operation, Region, Value
    from ._printer import print_module
    from ._remarks import Remark
    from ._support import refused_atomic_add, refused_operation, refused_operations, refused_type
    from ._toolchain import Toolchain, find_toolchain, tileiras_version
    from ._version import DEFAULT_VERSION, SUPPORTED_VERSIONS, Version
    from ._writer import FunctionBuilder, ModuleWriter

_HOMES = {
    "_architectures": "ARCHITECTURES",
    "_assembler": "Assembly DEFAULT_TIMEOUT_S TIMEOUT_VARIABLE assemble disassemble verify",
    "_attributes": "Attribute BoolAttribute Bounded DivBy FloatAttribute Hints IntegerAttribute SameElements "
    "ENTRY_HINTS MEMORY_HINTS VIEW_HINTS",
    "_build_control": "Body",
    "_constants": "element_bits encode_elements",
    "_debug": "SourceLocation",
    "_decoder": "decode_module",
    "_disassemble_cubin": "NVDISASM_VARIABLE disassemble_cubin",
    "_encoder": "encode_module",
    "_enums": "AtomicMode ComparisonOrdering ComparisonPredicate IntegerOverflow MemoryOrdering MemoryScope "
    "MultimemReduction PaddingValue PointerKind RoundingMode Signedness",
    "_module": "Block Function Module Operation Region Value",
    "_printer": "print_module",
    "_remarks": "Remark",
    "_support": "refused_atomic_add refused_operation refused_operations refused_type",
    "_toolchain": "Toolchain find_toolchain tileiras_version",
    "_version": "DEFAULT_VERSION SUPPORTED_VERSIONS Version",
    "_writer": "FunctionBuilder ModuleWriter",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in ("errors", "types"):
        return import_module(f".{name}", __name__)
    if (home := _HOME_OF.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "ARCHITECTURES",
    "DEFAULT_TIMEOUT_S",
    "DEFAULT_VERSION",
    "ENTRY_HINTS",
    "MEMORY_HINTS",
    "NVDISASM_VARIABLE",
    "SUPPORTED_VERSIONS",
    "TIMEOUT_VARIABLE",
    "VIEW_HINTS",
    "Assembly",
    "AtomicMode",
    "Attribute",
    "Block",
    "Body",
    "BoolAttribute",
    "Bounded",
    "ComparisonOrdering",
    "ComparisonPredicate",
    "DivBy",
    "FloatAttribute",
    "Function",
    "FunctionBuilder",
    "Hints",
    "IntegerAttribute",
    "IntegerOverflow",
    "MemoryOrdering",
    "MemoryScope",
    "Module",
    "ModuleWriter",
    "MultimemReduction",
    "Operation",
    "PaddingValue",
    "PointerKind",
    "Region",
    "Remark",
    "RoundingMode",
    "SameElements",
    "Signedness",
    "SourceLocation",
    "Toolchain",
    "Value",
    "Version",
    "assemble",
    "decode_module",
    "disassemble",
    "disassemble_cubin",
    "element_bits",
    "encode_elements",
    "encode_module",
    "errors",
    "find_toolchain",
    "print_module",
    "refused_atomic_add",
    "refused_operation",
    "refused_operations",
    "refused_type",
    "tileiras_version",
    "types",
    "verify",
]
