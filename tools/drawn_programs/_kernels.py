"""Kernels of the host device that show races: they read in one step and write in the next."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

import cuda_async as ca
from cuda_async.driver import FunctionInfo, HostImage, HostLaunch, ParameterInfo, ParameterKind
from cuda_async.driver.host._memory import memory_window  # which the checks see

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Kernels"]

_SIZES = {ParameterKind.POINTER: 8, ParameterKind.INTEGER: 4, ParameterKind.FLOAT: 4}


class _Affine:
    """`out = a * x + b` on n float32, one part per block; in place where there is no `x`."""

    def __init__(self, name: str, pointers: int) -> None:
        kinds = [ParameterKind.POINTER] * pointers
        kinds += [ParameterKind.INTEGER, ParameterKind.FLOAT, ParameterKind.FLOAT]
        parameters, offset = [], 0
        for number, kind in enumerate(kinds):
            size = _SIZES[kind]
            parameters.append(
                ParameterInfo(
                    name=f"p{number}", offset_bytes=offset, size_bytes=size, alignment_bytes=size, kind=kind
                )
            )
            offset += size
        self.info = FunctionInfo(name=name, parameters=tuple(parameters), max_threads_per_block=1024)
        self._layout = "<" + "Q" * pointers + "iff"

    def start(self, launch: HostLaunch) -> Iterator[None]:
        *pointers, n, a, b = struct.unpack_from(self._layout, launch.arguments)
        out, x = pointers[0], pointers[-1]
        memory: Any = launch.memory  # a HostMemory
        part = n // launch.grid[0]
        waiting = list(range(launch.grid[0]))
        while waiting:
            first = 4 * part * waiting.pop(launch.pick(len(waiting)) if launch.pick else 0)
            read = memory_window(memory, x + first, 4 * part, "read").view(np.float32)
            values = read * np.float32(a) + np.float32(b)
            yield
            memory_window(memory, out + first, 4 * part, "write").view(np.float32)[:] = values
            if waiting:
                yield


class Kernels:
    """Operations made of two kernels, for one run.

    Args:
        module: with `affine(x, n, a, b)` and `affine_to(y, x, n, a, b)`; by default those of the host device.
        grid, block: of a launch; at least as many threads as elements, on a GPU.
    """

    def __init__(self, module: ca.Module | None = None, grid: int = 2, block: int = 1) -> None:
        if module is None:
            kernels = {"affine": _Affine("affine", 1), "affine_to": _Affine("affine_to", 2)}
            module = ca.Module.from_host_image(HostImage(functions=kernels, name="drawn programs"))
        self._in_place = module.function("affine")
        self._to = module.function("affine_to")
        self._shape = grid, block

    def in_place(self, x: ca.Tensor, a: float, b: float) -> ca.DeviceOp[ca.Tensor]:
        """x = a * x + b."""
        return self._in_place.launch(*self._shape, ca.mut(x), x.size, a, b).first()

    def into(self, y: ca.Tensor, x: ca.Tensor, a: float, b: float) -> ca.DeviceOp[ca.Tensor]:
        """y = a * x + b, of another tensor of the same size."""
        return self._to.launch(*self._shape, ca.mut(y), ca.read(x), x.size, a, b).first()
