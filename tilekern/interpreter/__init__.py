"""The IR run by NumPy: what the language means, and how the host device runs tile kernels.

`_machine.py` holds the theory and the control flow, `_numeric.py` the rounding; each family of operations
has a file of handlers. `TileHostFunction` is a kernel for the host device.
"""

from . import (  # noqa: F401 - importing registers handlers
    _atomics,
    _combine,
    _constants,
    _debug,
    _elementwise,
    _memory,
    _pointers,
    _reduce,
    _shape,
)
from ._host_function import TileHostFunction, parameter_layout
from ._machine import HANDLERS

__all__ = ["HANDLERS", "TileHostFunction", "parameter_layout"]
