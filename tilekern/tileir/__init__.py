"""Tile IR bytecode: a builder and writer, a reader, and NVIDIA's assembler.

`ModuleWriter` (see `_writer.py` for an example) builds a module out of `types` and the operations of
`_op_table.py` and writes it in any bytecode version from 13.1 to 13.5. Nothing here knows tilekern's own
IR or any device.
"""

from . import types
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
from ._version import DEFAULT_VERSION, SUPPORTED_VERSIONS, Version
from ._writer import FunctionBuilder, ModuleWriter

__all__ = [
    "DEFAULT_VERSION",
    "ENTRY_HINTS",
    "MEMORY_HINTS",
    "SUPPORTED_VERSIONS",
    "VIEW_HINTS",
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
    "RoundingMode",
    "SameElements",
    "Signedness",
    "SourceLocation",
    "Value",
    "Version",
    "element_bits",
    "encode_elements",
    "types",
]
