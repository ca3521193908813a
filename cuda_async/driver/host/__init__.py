"""The simulated device: runs the same programs where there is no GPU.

`_memory.py` is its address space.
"""

from ._memory import HostMemory

__all__ = ["HostMemory"]
