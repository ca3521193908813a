"""Kernels as users hold them: specialise, compile, cache, launch.

`_kernel.py` is `@tk.kernel` and the way from a call to code; `_specialize.py` says what of the arguments is
compiled in; `_compile.py` compiles; `_launch.py` is the operation. Front end, passes, interpreter and
assembler are imported when the first kernel is compiled.
"""

from ._inspect import Report, Resources
from ._kernel import Kernel, kernel
from ._launch import CompileOp, KernelLaunch
from ._meta import Meta, MetaMut, MetaPartition, meta
from ._options import KernelOptions
from ._timings import CompileTimings

__all__ = [
    "CompileOp",
    "CompileTimings",
    "Kernel",
    "KernelLaunch",
    "KernelOptions",
    "Meta",
    "MetaMut",
    "MetaPartition",
    "Report",
    "Resources",
    "kernel",
    "meta",
]
