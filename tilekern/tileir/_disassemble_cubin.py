"""Machine code as text, by whichever of NVIDIA's two disassemblers is there."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from ._process import run_tool
from .errors import CompilerFailedError, CompilerNotFoundError

__all__ = ["NVDISASM_VARIABLE", "disassemble_cubin"]

NVDISASM_VARIABLE = "TILEKERN_NVDISASM"
"""Environment variable: path of `nvdisasm` or `cuobjdump`, where they are not beside the assembler or on PATH."""

_TIMEOUT_S = 120.0


def disassemble_cubin(cubin: bytes, *, kernel: str = "") -> str:
    """The machine code (SASS) of a cubin.

    Raises:
        CompilerNotFoundError: neither `nvdisasm` nor `cuobjdump` is there; says what to install.
        CompilerFailedError: it could not read the cubin.
    """
    tool = _find(kernel)
    options = ["--dump-sass"] if os.path.basename(tool).startswith("cuobjdump") else ["--print-code"]
    with tempfile.TemporaryDirectory(prefix="tilekern-", ignore_cleanup_errors=True) as folder:
        Path(folder, "module.cubin").write_bytes(cubin)
        try:
            finished = run_tool([tool, *options, "module.cubin"], Path(folder), _TIMEOUT_S)
        except OSError as error:
            raise CompilerNotFoundError(f"{tool} cannot be started: {error}", kernel=kernel) from error
    if finished.exit_code != 0:
        raise CompilerFailedError(
            f"{tool} gave up with exit code {finished.exit_code}",
            kernel=kernel,
            exit_code=finished.exit_code,
            log=finished.stderr,
        )
    return finished.stdout


def _find(kernel: str) -> str:
    from ._toolchain import find_toolchain

    named = os.environ.get(NVDISASM_VARIABLE)
    if named:
        if not os.path.isfile(named):
            raise CompilerNotFoundError(f"{NVDISASM_VARIABLE} is {named!r}, which is no file", kernel=kernel)
        return named
    try:
        beside: str | None = os.path.dirname(find_toolchain().assembler)
    except CompilerNotFoundError:
        beside = None
    for name in ("nvdisasm", "cuobjdump"):
        found = (beside and shutil.which(name, path=beside)) or shutil.which(name)
        if found:
            return found
    raise CompilerNotFoundError(
        "neither nvdisasm nor cuobjdump was found beside the assembler or on PATH; they come with NVIDIA's CUDA "
        f"toolkit (package cuda-nvdisasm-13-x or cuda-cuobjdump-13-x); or name one in {NVDISASM_VARIABLE}. "
        "kernel.ptx() needs neither",
        kernel=kernel,
    )
