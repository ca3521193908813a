"""Modules of a host device: PTX, which is interpreted, and `HostImage`, which is Python objects already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ...errors import CompileError
from .._protocol import HostFunction, HostImage
from ._limits import LIMITS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .._protocol import FunctionHandle
    from ._memory import HostMemory

__all__ = ["Function", "Module", "load_image"]

_FORMATS = (
    (b"\x7fELF", "a cubin"),
    (b"\x50\xed\x55\xba", "a fatbin"),
    (b"\xb1\x43\x62\x46", "a fatbin"),
    (b"\x7fTileIR", "Tile IR bytecode"),
    (b"BC\xc0\xde", "LLVM or NVVM bitcode"),
)
"""How images begin that are not PTX."""


class Loaded(Protocol):
    """What loading a parsed PTX module gives."""

    @property
    def functions(self) -> Mapping[str, HostFunction]: ...
    @property
    def globals(self) -> Mapping[str, tuple[int, int]]: ...
    def unload(self) -> None: ...


class Function:
    """A kernel with what was set for it.

    Attributes:
        shared_bytes: shared memory a launch may use, static and dynamic.
        prepare: works out once what `start` needs (PTX is translated); raises `CompileError` for what is unsupported.
    """

    __slots__ = ("function", "info", "prepare", "shared_bytes")

    def __init__(self, function: HostFunction) -> None:
        self.function = function
        self.prepare: Callable[[], object] = getattr(function, "prepare", _nothing)
        self.info = function.info
        self.shared_bytes = max(LIMITS.max_shared_bytes_per_block, self.info.static_shared_bytes)


class Module:
    """A loaded module."""

    __slots__ = ("functions", "globals", "handles", "loaded", "name")

    def __init__(
        self, name: str, functions: Mapping[str, HostFunction], loaded: Loaded | None = None
    ) -> None:
        self.name = name
        self.functions = functions
        self.globals: Mapping[str, tuple[int, int]] = loaded.globals if loaded is not None else {}
        self.loaded = loaded
        self.handles: dict[str, FunctionHandle] = {}

    def unload(self) -> None:
        if self.loaded is not None:
            self.loaded.unload()


def load_image(image: bytes | str | HostImage, name: str, memory: HostMemory) -> Module:
    """Load PTX text or a `HostImage`.

    Raises:
        CompileError: anything else, or PTX with an error; the message names the line.
    """
    if isinstance(image, HostImage):
        return Module(name or image.name, image.functions)
    what = name or "the image"
    if isinstance(image, str):
        text = image
    else:
        image = bytes(image)
        for magic, form in _FORMATS:
            if image.startswith(magic):
                raise CompileError(
                    f"{what} is {form}; the host device runs PTX only: compile to PTX (nvcc -ptx, or NVRTC from "
                    "CUDA C++ source), or use a CUDA device"
                )
        try:
            text = image.decode("utf-8").rstrip("\0")
        except UnicodeDecodeError as error:
            raise CompileError(
                f"{what} is neither PTX text nor anything else known ({len(image)} bytes, not UTF-8 at byte "
                f"{error.start}); the host device runs PTX only: compile to PTX, for instance with nvcc -ptx"
            ) from None
    if not text.strip():
        raise CompileError(
            f"{what} is empty; give the text of a PTX module, for instance what nvcc -ptx writes"
        )
    from .ptx import parse_module

    loaded: Loaded = parse_module(text, name or "ptx module").load(memory)
    return Module(name or "ptx module", loaded.functions, loaded)


def _nothing() -> None:
    """Most kernels need no preparation."""
