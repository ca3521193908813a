"""Tile IR bytecode: a builder and writer, a reader, and NVIDIA's assembler.

`ModuleWriter` (see `_writer.py` for an example) builds a module out of `types` and the operations of
`_op_table.py` and writes it in any bytecode version from 13.1 to 13.5. Nothing here knows tilekern's own
IR or any device.
"""

from . import types
from ._architectures import ARCHITECTURES
from ._assembler import DEFAULT_TIMEOUT_S, Assembly, assemble, disassemble, verify
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
from ._constants import element_bits, encode_elements
from ._debug import SourceLocation
from ._decoder import decode_module
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
from ._support import refused_operation, refused_operations, refused_type
from ._toolchain import Toolchain, find_toolchain, tileiras_version
from ._version import DEFAULT_VERSION, SUPPORTED_VERSIONS, Version
from ._writer import FunctionBuilder, ModuleWriter

__all__ = [
    "ARCHITECTURES",
    "DEFAULT_TIMEOUT_S",
    "DEFAULT_VERSION",
    "ENTRY_HINTS",
    "MEMORY_HINTS",
    "SUPPORTED_VERSIONS",
    "VIEW_HINTS",
    "Assembly",
    "AtomicMode",
    "Attribute",
    "Block",
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
    "element_bits",
    "encode_elements",
    "encode_module",
    "find_toolchain",
    "print_module",
    "refused_operation",
    "refused_operations",
    "refused_type",
    "tileiras_version",
    "types",
    "verify",
]
