"""From the IR to Tile IR bytecode, operation by operation.

`_lowerer.py` holds the state and control flow; each family of operations has a file of handlers.
"""

from . import _combine, _debug, _memory, _pointers, _reduce, _scan, _values  # noqa: F401 - importing registers handlers
from ._lower import ENTRY_HINTS, lower
from ._lowerer import HANDLERS
from ._support import check_target, refusals

__all__ = ["ENTRY_HINTS", "HANDLERS", "check_target", "lower", "refusals"]
