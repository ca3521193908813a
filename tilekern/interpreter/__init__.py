"""The IR run by NumPy: what the language means, and how the host device runs tile kernels.

`_machine.py` holds the theory and the control flow, `_numeric.py` the rounding; each family of operations
has a file of handlers. `TileHostFunction` is a kernel for the host device.
"""

from . import _constants, _elementwise, _memory, _reduce, _shape  # noqa: F401 - importing registers handlers
from ._host_function import TileHostFunction, parameter_layout
from ._machine import HANDLERS

__all__ = ["HANDLERS", "TileHostFunction", "parameter_layout"]
