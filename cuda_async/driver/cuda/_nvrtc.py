"""CUDA C++ to PTX or cubin with NVRTC, through `cuda.bindings.nvrtc` alone: it needs no driver and no GPU.

A driver refuses PTX newer than itself (r580 takes PTX 9.0; NVRTC 13.5 writes 9.5), so a CUDA device is given
a cubin for its own architecture. The host device is given PTX.

NVRTC knows no include path: the headers of the toolkit (`cuda_fp16.h`, `cooperative_groups.h` and so on)
are looked for in the wheels beside this package and in an installed toolkit, and added at the end.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...errors import CompileError, ContextError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "CompiledSource",
    "compile_cuda_program",
    "compile_cuda_source",
    "cuda_include_paths",
    "nvrtc_supported_architectures",
    "nvrtc_version",
]

INSTALL = (
    'pip install "cuda-bindings>=13" "nvidia-cuda-nvrtc>=13" "nvidia-cuda-runtime>=13" "nvidia-cuda-crt>=13"'
)
COMPILATION_FAILED = 6  # NVRTC_ERROR_COMPILATION
INVALID_OPTION = 5  # NVRTC_ERROR_INVALID_OPTION

_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)([af]?)")
_CHOOSES_ARCHITECTURE = re.compile(r"--?(gpu-architecture|gpu-arch|arch)\b")


@dataclass(frozen=True, kw_only=True)
class CompiledSource:
    """What NVRTC made of a source."""

    image: bytes
    """PTX text (without the trailing NUL) or a cubin."""
    log: str = ""
    """Warnings and remarks."""
    lowered_names: Mapping[str, str] = field(default_factory=dict)
    """For each name expression asked for, the name of the kernel in the module."""


def compile_cuda_source(
    source: str,
    name: str,
    *,
    arch: str,
    output: Literal["ptx", "cubin"],
    options: Sequence[str] = (),
    include_paths: Sequence[str | os.PathLike[str]] = (),
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """`compile_cuda_program`, when only the image is wanted."""
    return compile_cuda_program(
        source,
        name,
        arch=arch,
        output=output,
        options=options,
        include_paths=include_paths,
        headers=headers,
    ).image


def compile_cuda_program(
    source: str,
    name: str,
    *,
    arch: str,
    output: Literal["ptx", "cubin"],
    options: Sequence[str] = (),
    include_paths: Sequence[str | os.PathLike[str]] = (),
    headers: Mapping[str, str] | None = None,
    name_expressions: Sequence[str] = (),
) -> CompiledSource:
    """Compile CUDA C++. Slow (0.1 s and more), so not for an event loop's thread.

    Args:
        source: the text.
        name: what compiler messages call it, such as `"scale.cu"`.
        arch: `"sm_90"`, `"sm_90a"` or, for PTX, also `"compute_90"`.
        output: `"ptx"`, or `"cubin"` for exactly the architecture.
        options: more NVRTC options, one string each; not the architecture.
        include_paths: folders searched before the toolkit's headers, which are found by themselves.
        headers: texts by the name that `#include` gives them.
        name_expressions: C++ expressions that name kernels, such as `"scale<float>"`; the result says what
            they are called in the module.

    Raises:
        CompileError: NVRTC refused the source or an option; with its log.
        ContextError: NVRTC is not installed.
        ValueError: bad `arch`, `output` or `options`.
    """
    nvrtc = _nvrtc()
    architecture = _check_architecture(nvrtc, arch, output)
    for option in options:
        if _CHOOSES_ARCHITECTURE.match(option):
            raise ValueError(f"{name}: the option {option!r} chooses an architecture; give it as arch=")
    flags = [f"--gpu-architecture={architecture}", *options]
    flags += [f"--include-path={os.fspath(path)}" for path in (*include_paths, *cuda_include_paths())]
    names, texts = list(headers or {}), list((headers or {}).values())
    program = _check(
        nvrtc,
        "nvrtcCreateProgram",
        source.encode(),
        name.encode(),
        len(names),
        [text.encode() for text in texts],
        [header.encode() for header in names],
    )
    try:
        for expression in name_expressions:
            _check(nvrtc, "nvrtcAddNameExpression", program, expression.encode())
        code = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])[0]
        log = _text(nvrtc, program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")
        if code:
            raise _compile_error(nvrtc, code, name, architecture, log, options)
        lowered = {
            expression: _check(nvrtc, "nvrtcGetLoweredName", program, expression.encode()).decode()
            for expression in name_expressions
        }
        sort = "PTX" if output == "ptx" else "CUBIN"
        image = _bytes(nvrtc, program, f"nvrtcGet{sort}Size", f"nvrtcGet{sort}")
        if output == "ptx":
            image = image.rstrip(b"\0")
        return CompiledSource(image=image, log=log, lowered_names=lowered)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def nvrtc_version() -> tuple[int, int]:
    """(major, minor) of the NVRTC that is used.

    Raises:
        ContextError: NVRTC is not installed.
    """
    major, minor = _check(_nvrtc(), "nvrtcVersion")
    return int(major), int(minor)


def nvrtc_supported_architectures() -> tuple[int, ...]:
    """The SM numbers NVRTC compiles for, such as `(75, 80, ..., 120)`.

    Raises:
        ContextError: NVRTC is not installed.
    """
    return tuple(int(n) for n in _check(_nvrtc(), "nvrtcGetSupportedArchs"))


@cache
def cuda_include_paths() -> tuple[str, ...]:
    """Folders with the toolkit's headers, and those of its C++ library (CCCL, which cooperative_groups.h
    needs): of the wheels where they are installed, else of a toolkit.
    """
    roots = _header_roots()
    toolkit = next((root for root in roots if (root / "cuda_fp16.h").is_file()), None)
    library = next((root / "cccl" for root in roots if (root / "cccl" / "nv" / "target").is_file()), None)
    return tuple(str(path) for path in (toolkit, library) if path is not None)


def _header_roots() -> list[Path]:
    """Where the headers may be, best first: they should be of NVRTC's own version."""
    roots: list[Path] = []
    try:
        wheels = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        wheels = None
    for place in (wheels.submodule_search_locations or ()) if wheels is not None else ():
        roots += [Path(place) / "cu13" / "include", Path(place) / "cuda_runtime" / "include"]
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            roots.append(Path(os.environ[variable]) / "include")
    compiler = shutil.which("nvcc")
    if compiler is not None:
        roots.append(Path(compiler).resolve().parent.parent / "include")
    roots.append(Path("/usr/local/cuda/include"))
    return roots


def _nvrtc() -> Any:
    """The module `cuda.bindings.nvrtc` (it has no type information), once its library loads."""
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise ContextError(
            f"CUDA C++ cannot be compiled: the package cuda-bindings is not installed ({error}); {INSTALL}"
        ) from error
    try:
        nvrtc.nvrtcVersion()
    except Exception as error:  # the bindings raise bare RuntimeError when they cannot load the library
        raise ContextError(
            f"CUDA C++ cannot be compiled: the NVRTC library cannot be loaded ({error}); {INSTALL}"
        ) from error
    return nvrtc


def _check(nvrtc: Any, call: str, *arguments: Any) -> Any:
    code, *values = getattr(nvrtc, call)(*arguments)
    if code:
        raise CompileError(f"{call}: {_code_text(nvrtc, code)}")
    return values[0] if len(values) == 1 else tuple(values)


def _code_text(nvrtc: Any, code: Any) -> str:
    text = nvrtc.nvrtcGetErrorString(code)[1]
    return text.decode() if isinstance(text, bytes) else str(text)


def _bytes(nvrtc: Any, program: Any, size_call: str, call: str) -> bytes:
    """What a `GetXSize` and `GetX` pair of NVRTC calls gives; NVRTC writes into the bytes object."""
    size = int(_check(nvrtc, size_call, program))
    buffer = bytearray(size)
    if size:
        _check(nvrtc, call, program, buffer)
    return bytes(buffer)


def _text(nvrtc: Any, program: Any, size_call: str, call: str) -> str:
    return _bytes(nvrtc, program, size_call, call).rstrip(b"\0").decode("utf-8", "replace").strip()


def _check_architecture(nvrtc: Any, arch: str, output: str) -> str:
    """`arch` as NVRTC wants it for `output`."""
    if output not in ("ptx", "cubin"):
        raise ValueError(f'output is {output!r}; expected "ptx" or "cubin"')
    match = _ARCHITECTURE.fullmatch(arch)
    if match is None:
        raise ValueError(f'arch is {arch!r}; expected an architecture such as "sm_90" or "compute_90"')
    supported = tuple(int(n) for n in _check(nvrtc, "nvrtcGetSupportedArchs"))
    if int(match[2]) not in supported:
        major, minor = _check(nvrtc, "nvrtcVersion")
        raise CompileError(
            f"NVRTC {major}.{minor} does not compile for {arch}; it knows "
            f"{', '.join(f'sm_{n}' for n in supported)}"
        )
    return f"{'sm' if output == 'cubin' else 'compute'}_{match[2]}{match[3]}"


def _compile_error(
    nvrtc: Any, code: Any, name: str, architecture: str, log: str, options: Sequence[str]
) -> CompileError:
    major, minor = _check(nvrtc, "nvrtcVersion")
    compiler = f"NVRTC {major}.{minor}"
    if int(code) == COMPILATION_FAILED:
        message = f"{compiler} refused {name} for {architecture}:\n{log}"
        if "could not open source file" in log or "cannot open source file" in log:
            searched = ", ".join(cuda_include_paths()) or "none were found"
            message += (
                f"\n(your own headers are given with headers= or include_paths=; folders of the toolkit's headers: "
                f"{searched}; the packages nvidia-cuda-runtime, nvidia-cuda-crt and nvidia-cuda-cccl bring them)"
            )
        return CompileError(message, log)
    if int(code) == INVALID_OPTION:
        return CompileError(
            f"{compiler} does not know an option for {name}: {' '.join(options)}\n{log}".rstrip(), log
        )
    return CompileError(f"{compiler} failed on {name}: {_code_text(nvrtc, code)}\n{log}".rstrip(), log)
