"""A library of tile kernels: elementwise, normalisation, matrix products.

Kernels are ordinary `@tk.kernel` functions; each file has one family.
"""

from ._elementwise import add, saxpy
from ._matmul import matmul
from ._normalise import rms_norm, row_softmax

__all__ = ["add", "matmul", "rms_norm", "row_softmax", "saxpy"]
