"""Compiling before it matters, as users call it: what few programs need is imported when they do.

`_meta.py` holds the stand-ins for tensors, `_warm_up.py` compiles side by side, `_export.py` writes folders of
kernels and `_compiled.py` reads them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import DTypeLike

    from ..dtypes import DType
    from ._compiled import CompiledKernels
    from ._launch import CompileOp
    from ._meta import Meta
    from ._warm_up import WarmUp

__all__ = ["export_compiled", "load_compiled", "meta", "warm_up"]


def export_compiled(
    folder: str | os.PathLike[str], operations: Sequence[CompileOp], *, arch: str | Sequence[str]
) -> list[Path]:
    """Compile variants for architectures and write them to a folder for `load_compiled`; gives the cubins' paths.

    Needs the assembler, but no GPU. Slow: not for an event loop's thread. What an earlier export left in the
    folder is replaced.

    Args:
        operations: made by `kernel.compile(...)`; they are consumed.
        arch: targets, such as "sm_90" or ["sm_80", "sm_90"].
    Raises:
        KernelError: a kernel is wrong. tileir.errors.AssemblerError: the assembler did not make a cubin.
        CompiledKernelError: an argument that cannot be written down, such as a constant of a class of yours.
        OSError: the folder cannot be written.
    """
    from ._export import export

    return export(folder, operations, arch)


def load_compiled(folder: str | os.PathLike[str], *, only: bool = False) -> CompiledKernels:
    """Use the kernels of a folder that `export_compiled` or `tilekern compile` wrote, in the whole process.

    Reads and checks all files now. A launch on a GPU that a variant serves needs no assembler. Others are
    compiled as always.

    Args:
        only: refuse them instead, with an error that says why no variant fits.
    Raises:
        CompiledKernelError: no such folder, a damaged manifest or file, or one of a format this version does
            not know.
    """
    from ._compiled import load

    return load(folder, only)


def meta(
    shape: Sequence[int] | int,
    dtype: DType | DTypeLike,
    strides: Sequence[int] | None = None,
    *,
    alignment: int = 256,
) -> Meta:
    """A tensor without memory, to compile kernels for.

    Args:
        strides: in elements; row-major without gaps if left out.
        alignment: bytes the address is a multiple of; 256 as allocated, less for some views.
    """
    from ._meta import make_meta

    return make_meta(shape, dtype, strides, alignment)


def warm_up(
    operations: Sequence[CompileOp],
    *,
    progress: bool | Callable[[int, int, str], object] | None = None,
    threads: int | None = None,
) -> WarmUp:
    """An operation that compiles many variants side by side, each once: `await tk.warm_up([k.compile(...), ...])`.

    It yields the timings of those that were compiled, in the order given; variants that this process had
    already are not among them. All are tried, also after one has failed.

    Args:
        operations: made by `kernel.compile(...)`; they are consumed.
        progress: True draws a line on stderr, or prints one for each variant where stderr is no terminal;
            False says nothing; if not given, it is drawn on a terminal and nothing is said elsewhere. A
            function is called as `progress(done, total, kernel name)`, on one of the threads that compile.
        threads: that compile at once; the number of processors, at most 16, if not given. The assembler is a
            process of its own, so they do run side by side.
    Raises:
        ExceptionGroup: when it runs, with the error of every variant that did not compile.
    """
    from ._warm_up import make_warm_up

    return make_warm_up(operations, progress, threads)
