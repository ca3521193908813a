"""A tile kernel as a function of the host device: arguments from bytes, blocks in batches, small steps."""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from cuda_async.driver import FunctionInfo, HostLaunch, ParameterInfo, ParameterKind

from ..dtypes import DType, bfloat16, int32
from ..ir import Function, MmaOp, MmaScaledOp, Op, PointerType, TileType, Value, scalar, walk
from ._machine import STEP_S, Array, Machine

__all__ = ["TileHostFunction", "parameter_layout"]

_BATCH_ELEMENTS = 1 << 15
"""Elements of the largest tile times the blocks of a batch: what NumPy does in well under a step."""
_BATCH_PRODUCTS = 1 << 21
"""Multiplications of a batch's matrix products."""
_MAX_BATCH = 256
_MOST_PICKED = 64
"""Batches that a launch on a seeded device is cut into at most."""
_MOST_SIDE_BY_SIDE = 4
"""Batches of it that may be next."""

_FORMATS = {
    "bool": "B",
    "i8": "b",
    "i16": "h",
    "i32": "i",
    "i64": "q",
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "f16": "e",
    "bf16": "H",
    "f32": "f",
    "f64": "d",
}
"""How an argument of each element type is packed; a bfloat16 goes as its bits."""


def _format(kind: TileType) -> str:
    return "Q" if isinstance(kind.dtype, PointerType) else _FORMATS[kind.dtype.short]


def parameter_layout(function: Function) -> tuple[ParameterInfo, ...]:
    """Where each entry parameter lies in the argument block: in order, each aligned to its size."""
    offset = 0
    found = []
    for value in function.body.arguments:
        assert isinstance(value.type, TileType)
        size = struct.calcsize(_format(value.type))
        offset = -(-offset // size) * size
        is_float = isinstance(value.type.dtype, DType) and value.type.dtype.is_float
        found.append(
            ParameterInfo(
                name=value.name,
                offset_bytes=offset,
                size_bytes=size,
                alignment_bytes=size,
                kind=ParameterKind.FLOAT if is_float else ParameterKind.INTEGER,
            )
        )
        offset += size
    return tuple(found)


class TileHostFunction:
    """A tile kernel that the host device can run.

    Attributes:
        function: the kernel in the IR.
        info: name, parameters and limits; one thread per block.
    """

    def __init__(self, function: Function) -> None:
        self.function = function
        self.info = FunctionInfo(
            name=function.name,
            parameters=parameter_layout(function),
            max_threads_per_block=1,
        )
        self._batch = _batch_size(function)
        self._constants: dict[Op, Array] = {}

    def start(self, launch: HostLaunch) -> Iterator[None]:
        """Run the launch in small steps; see `HostFunction`."""
        arguments = self._unpack(launch.arguments)
        return self._steps(arguments, launch.grid, launch.memory, launch.pick)

    def _unpack(self, data: bytes) -> list[Array]:
        values: list[Array] = []
        for value, place in zip(self.function.body.arguments, self.info.parameters, strict=True):
            kind = value.type
            assert isinstance(kind, TileType)
            code = _format(kind)
            (number,) = struct.unpack_from(f"<{code}", data, place.offset_bytes)
            if isinstance(kind.dtype, PointerType):
                values.append(np.array([number], np.int64))
            elif kind.dtype is bfloat16:
                values.append(np.array([number], np.uint16).view(bfloat16.dtype))
            else:
                values.append(np.array([number], kind.dtype.dtype))
        return values

    def _steps(
        self,
        arguments: Sequence[Array],
        grid: tuple[int, int, int],
        memory: object,
        pick: Callable[[int], int] | None,
    ) -> Iterator[None]:
        block_ids = tuple([Value(scalar(int32)) for _ in range(3)])
        assert len(block_ids) == 3
        machine = Machine(self.function, memory, grid, block_ids, self._constants)
        # a device that checks is told what each block touches
        if getattr(memory, "checker", None) is not None:
            machine.watch = memory.checker.watch_tiles(memory, grid)  # type: ignore[attr-defined]  # known by methods
        run = self._batches(machine, arguments, pick)
        while True:
            machine.deadline = time.perf_counter() + STEP_S if pick is None else math.inf
            # the state of errors belongs to the thread, not to the launch: set for each step
            with np.errstate(all="ignore"):
                if next(run, _DONE) is _DONE:
                    return
            yield

    def _batches(
        self, machine: Machine, arguments: Sequence[Array], pick: Callable[[int], int] | None
    ) -> Iterator[None]:
        """All blocks, x fastest; or as picked among the few that come next, and a step for each."""
        columns, rows, layers = machine.grid
        total = columns * rows * layers
        size = self._batch if pick is None else min(self._batch, -(-total // _MOST_PICKED))
        waiting = list(range(0, total, size))
        waiting.reverse()
        while waiting:
            chosen = 0 if pick is None else pick(min(len(waiting), _MOST_SIDE_BY_SIDE))
            first = waiting.pop(-1 - chosen)
            flat = np.arange(first, min(first + size, total))
            ids = [flat % columns, flat // columns % rows, flat // (columns * rows)]
            yield from machine.run(arguments, [a.astype(np.int32) for a in ids])
            if pick is not None or machine.over():
                yield


_DONE = object()


def _batch_size(function: Function) -> int:
    largest, products = 1, 1
    for op in walk(function.body):
        for value in (*op.operands, *op.results):
            if isinstance(value.type, TileType):
                largest = max(largest, value.type.size)
        if isinstance(op, MmaOp | MmaScaledOp):
            assert isinstance(op.lhs.type, TileType)
            assert isinstance(op.acc.type, TileType)
            products = max(products, op.acc.type.size * op.lhs.type.shape[-1])
    return max(1, min(_MAX_BATCH, _BATCH_ELEMENTS // largest, _BATCH_PRODUCTS // products))
