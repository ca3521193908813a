"""Kernels as users hold them: specialise, compile, cache, launch.

`_kernel.py` is `@tk.kernel` and the way from a call to code; `_specialize.py` says what of the arguments is
compiled in; `_obtain.py` gets the code in the cheapest way (`_compiled.py`: made ahead of time; `_recall.py`:
remembered in the disk cache; `_compile.py`: compiled now); `_launch.py` is the operation; `_inspect.py` looks at
what was compiled. Front end, passes, interpreter and assembler are imported when the first kernel is compiled,
and the names below that few use, when they are used.
"""

from typing import TYPE_CHECKING

from ._ahead import export_compiled, load_compiled, meta, warm_up
from ._by_target import ByTarget
from ._kernel import Kernel, kernel
from ._launch import CompileOp, KernelLaunch
from ._options import KernelOptions

if TYPE_CHECKING:
    from ._check_report import CheckReport
    from ._compiled import CompiledKernels, CompiledVariant
    from ._inspect import Report, Resources
    from ._meta import Meta, MetaMapped, MetaMut, MetaPartition
    from ._timings import CompileTimings
    from ._warm_up import WarmUp

_HOME_OF = {
    "CheckReport": "_check_report",
    "CompiledKernels": "_compiled",
    "CompiledVariant": "_compiled",
    "CompileTimings": "_timings",
    "Meta": "_meta",
    "MetaMapped": "_meta",
    "MetaMut": "_meta",
    "MetaPartition": "_meta",
    "Report": "_inspect",
    "Resources": "_inspect",
    "WarmUp": "_warm_up",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if (home := _HOME_OF.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "ByTarget",
    "CheckReport",
    "CompileOp",
    "CompileTimings",
    "CompiledKernels",
    "CompiledVariant",
    "Kernel",
    "KernelLaunch",
    "KernelOptions",
    "Meta",
    "MetaMapped",
    "MetaMut",
    "MetaPartition",
    "Report",
    "Resources",
    "WarmUp",
    "export_compiled",
    "kernel",
    "load_compiled",
    "meta",
    "warm_up",
]
