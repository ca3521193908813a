"""From Python to the IR: a kernel's syntax tree is run once, on values that are IR, Python objects or both.

What is known at compile time (constants, shapes, element types, helper functions) is a Python object and
is computed; tiles and scalars are IR values and operations on them are added. `if` and loops on known
conditions are taken or unrolled, the others become operations of the IR. `_translator.py` says which file
does what; `_promotion.py`, `_branches.py` and `_carried.py` hold the rules.
"""

from ._captures import Capture
from ._checks import CoversGrid, Fits, LaunchCheck, NotZero
from ._program import Program, translate
from ._source import FunctionSource, source_of
from ._specs import ConstantSpec, ParameterSpec, PartitionSpec, ScalarSpec, TensorSpec

__all__ = [
    "Capture",
    "ConstantSpec",
    "CoversGrid",
    "Fits",
    "FunctionSource",
    "LaunchCheck",
    "NotZero",
    "ParameterSpec",
    "PartitionSpec",
    "Program",
    "ScalarSpec",
    "TensorSpec",
    "source_of",
    "translate",
]
