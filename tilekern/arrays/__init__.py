"""Arrays made and converted by tile kernels: lazy operations, as `cuda_async.zeros` is one.

`_creation.py` and `_random.py` are what users call; the kernels are in `_kernels.py` and `_philox.py`, which are
imported when the first of them runs. Results are the same on every device and do not depend on tile sizes;
where functions such as the logarithm are in it, up to the accuracy that their docstrings state.
"""

from ._creation import arange, convert, eye, linspace
from ._random import rand, randn

__all__ = ["arange", "convert", "eye", "linspace", "rand", "randn"]
