"""Finding NVIDIA's tile assembler and what it needs beside it.

Looked for in this order: the file or folder `TILEKERN_TILEIRAS` names; the wheel's place,
`nvidia/cu*/bin/tileiras` on the import path; `PATH`. The assembler loads libnvvm and starts ptxas from
the folder above its own (symbolic links resolved), and says only "failed to compile" if one is missing,
so both are looked for here.

A `Toolchain` is made without starting a process. Its version, bytecode versions and targets are asked
for on first use, once per binary where there is a store to keep the answers in, else once per process.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import CompilerNotFoundError

if TYPE_CHECKING:
    from ._answers import Answers, Store
    from ._version import Version

__all__ = ["INSTALL_HINT", "PACKAGES", "TILEIRAS_VARIABLE", "Toolchain", "find_toolchain", "tileiras_version"]

TILEIRAS_VARIABLE = "TILEKERN_TILEIRAS"
PACKAGES = '"nvidia-cuda-tileiras>=13.4" "nvidia-cuda-nvcc>=13.4" "nvidia-nvvm>=13.4"'
INSTALL_HINT = f"install it with: pip install {PACKAGES}"

_answers: dict[str, Answers] = {}
_answers_lock = threading.Lock()


@dataclass(frozen=True)
class Toolchain:
    """An assembler that is there, with the files it needs."""

    assembler: str
    """Path of `tileiras`, symbolic links resolved."""
    disassembler: str
    """Path of `tileirdisasm`; empty if there is none beside the assembler."""
    ptxas: str
    libnvvm: str
    fingerprint: str
    """Changes when any of these files does: for keys of caches of what it makes."""
    store: Store | None = field(default=None, compare=False, repr=False)
    """Where its answers are kept between processes."""

    @property
    def version(self) -> str:
        """Its release, such as "13.5.37"; "unknown version" if it does not say."""
        return self._asked().version

    @property
    def bytecode_versions(self) -> tuple[Version, ...]:
        """Bytecode versions it reads, in order."""
        return self._asked().bytecode_versions

    @property
    def architectures(self) -> tuple[str, ...]:
        """Targets it generates code for, such as "sm_90"; empty if it does not say."""
        return self._asked().architectures

    def _asked(self) -> Answers:
        with _answers_lock:
            known = _answers.get(self.fingerprint)
            if known is None:
                from ._answers import answers_of

                known = _answers[self.fingerprint] = answers_of(self, self.store)
            return known


def find_toolchain(store: Store | None = None) -> Toolchain:
    """The assembler to use.

    Args:
        store: keeps what the assembler says about itself between processes.
    Raises:
        CompilerNotFoundError: there is none, or libnvvm or ptxas are missing; says what to install.
    """
    assembler = _find_assembler()
    real = os.path.realpath(assembler)
    if not os.access(real, os.X_OK):
        raise CompilerNotFoundError(f"{assembler} is not an executable file")
    root = Path(real).parent.parent
    libnvvm = _first_file(root / "nvvm" / "lib64" / "libnvvm.so", root / "lib" / "libnvvm.so.4")
    if libnvvm is None:
        raise CompilerNotFoundError(
            f"{assembler} is there, but libnvvm is not: {root / 'lib' / 'libnvvm.so.4'} or "
            f"{root / 'nvvm' / 'lib64' / 'libnvvm.so'} must exist; it is in the wheel nvidia-nvvm, "
            f"{INSTALL_HINT}"
        )
    ptxas = _first_file(root / "bin" / "ptxas") or _on_path("ptxas")
    if ptxas is None:
        raise CompilerNotFoundError(
            f"{assembler} is there, but ptxas is not: neither {root / 'bin' / 'ptxas'} nor on PATH; it is in "
            f"the wheel nvidia-cuda-nvcc, {INSTALL_HINT}"
        )
    disassembler = _first_file(Path(real).with_name("tileirdisasm")) or ""
    marks = []
    for file in (real, libnvvm, ptxas):
        stat = os.stat(file)
        marks.append(f"{file} {stat.st_size} {stat.st_mtime_ns}")
    return Toolchain(real, disassembler, ptxas, libnvvm, "; ".join(marks), store)


def tileiras_version() -> str:
    """Release of the assembler that would be used, such as "13.5.37"."""
    return find_toolchain().version


def _find_assembler() -> str:
    named = os.environ.get(TILEIRAS_VARIABLE)
    if named:
        path = Path(named)
        path = path / "tileiras" if path.is_dir() else path
        if not path.is_file():
            raise CompilerNotFoundError(
                f"{TILEIRAS_VARIABLE} is {named!r}, which is neither the assembler nor a folder with it; "
                "correct or unset it"
            )
        return str(path)
    found = _in_wheel() or _on_path("tileiras")
    if found is None:
        raise CompilerNotFoundError(
            "NVIDIA's tile assembler (tileiras) was not found beside the nvidia packages of "
            f"{sys.prefix} or on PATH; {INSTALL_HINT}, or name it in {TILEIRAS_VARIABLE}"
        )
    return found


def _in_wheel() -> str | None:
    """`nvidia/cu<N>/bin/tileiras` with the largest N, without importing anything of it."""
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    found: list[tuple[int, str]] = []
    for folder in folders:
        for path in Path(folder).glob("cu*/bin/tileiras"):
            number = re.fullmatch(r"cu(\d+)", path.parent.parent.name)
            if number:
                found.append((int(number[1]), str(path)))
    return max(found, key=lambda item: item[0])[1] if found else None


def _on_path(name: str) -> str | None:
    import shutil

    return shutil.which(name)


def _first_file(*paths: Path) -> str | None:
    return next((str(path) for path in paths if path.is_file()), None)
