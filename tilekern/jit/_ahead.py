"""Compiling ahead of time, as users call it. `_export.py` writes folders of kernels, `_compiled.py` reads them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from ._compiled import CompiledKernels
    from ._launch import CompileOp

__all__ = ["export_compiled", "load_compiled"]


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
