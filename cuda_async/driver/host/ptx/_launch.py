"""A launch: which blocks run when, in steps short enough for other streams to run in between.

Blocks run in waves of up to some thousand lanes, in the order of their numbers: more lanes per NumPy call
make the interpreter faster, until a call takes so long that a step would. Waves run one after another, which
is all that CUDA promises of the blocks of an ordinary launch. In practice all blocks of a small grid run at
once there, and programs wait for each other; so a wave whose threads do nothing but wait gets company. A
cooperative launch has all its blocks running from the start. On a seeded device the order in which blocks begin and
go on is picked one by one, and a step ends where its block does or waits: the clock decides nothing.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from ....errors import LaunchError
from ._wave import Wave

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..._protocol import HostLaunch
    from .._memory import HostMemory
    from ..check import PtxWatch
    from ._code import Code
    from ._lanes import Array
    from ._program import Program

__all__ = ["Launch"]

_STEP_SECONDS = 0.0008
"""Time after which a step ends at the next instruction."""
_LANES = 8192
_MOST_BYTES = 64 << 20
"""Memory that the registers, local or shared memory of one wave may take, before it gets fewer blocks."""
_PATIENCE = 200
"""Spins of a wave before another one joins it."""
_STEPS_ALONE = 1000
"""Steps of a wave before another one joins it in any case: it may wait in a way we do not recognize."""
_MOST_RESIDENT = 132 * 2048
"""Lanes that run side by side at most in an ordinary launch: what an H100 holds."""
_WORKSPACE_BYTES = 256
_MOST_PICKED = 64
"""Waves that a launch on a seeded device is cut into at most."""
_MOST_SIDE_BY_SIDE = 4
"""Waves of it that are under way at once, unless they wait for others."""

_numbers = itertools.count(1)


class Launch:
    """One launch of one entry.

    Attributes:
        grid, block, cluster: extents; blocks are numbered with x running fastest.
        threads_per_block, lanes_per_block: a block is padded to whole warps.
        parameters: the argument block, padded so that it can be viewed as any type.
        shared_bytes: of each block, static and dynamic.
        workspace: device memory for the grid-wide barrier of a cooperative launch; 0 without.
        watch: is told of accesses and barriers, where the device checks.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    has_clusters: bool
    blocks_per_cluster: int
    threads_per_block: int
    lanes_per_block: int
    shared_bytes: int

    def __init__(self, program: Program, launch: HostLaunch, parameter_bytes: int, name: str) -> None:
        self.program = program
        self.code: Code = program.code
        self.name = name
        self.number = next(_numbers)
        # The protocol keeps the memory's type open, as it knows no host device.
        memory: Any = launch.memory
        self.memory: HostMemory = memory
        self.grid = launch.grid
        self.block = launch.block
        self.cluster = launch.cluster or program.cluster or (1, 1, 1)
        self.blocks_per_cluster = self.cluster[0] * self.cluster[1] * self.cluster[2]
        self.has_clusters = self.blocks_per_cluster > 1
        if any(g % c for g, c in zip(self.grid, self.cluster)):
            raise LaunchError(
                f"{name}: the grid {self.grid} is not a multiple of the cluster {self.cluster}", name
            )
        self.cooperative = launch.cooperative
        self.threads_per_block = self.block[0] * self.block[1] * self.block[2]
        self.lanes_per_block = -(-self.threads_per_block // 32) * 32
        self.blocks = self.grid[0] * self.grid[1] * self.grid[2]
        self.dynamic_shared_bytes = launch.shared_bytes
        self.shared_bytes = program.shared.dynamic_offset + launch.shared_bytes
        self.parameter_bytes = parameter_bytes
        padded = -(-max(parameter_bytes, len(launch.arguments), 1) // 16) * 16
        self.parameters = np.zeros(padded, np.uint8)
        self.parameters[: len(launch.arguments)] = np.frombuffer(launch.arguments, np.uint8)
        self._parameter_values: dict[tuple[int, str], Array] = {}
        self.workspace = 0
        self._pick = launch.pick
        self.watch: PtxWatch | None = None
        if self.memory.checker is not None:
            from ..check import PtxWatch

            self.watch = PtxWatch(self.memory.checker, self)
        self._blocks_per_wave = self._choose_blocks_per_wave()
        self._upcoming = 0
        self._waves: list[Wave] = []

    def parameter(self, offset: int, dtype: np.dtype[Any]) -> Array:
        """A value of the argument block, as a register with one element."""
        key = (offset, dtype.char)
        value = self._parameter_values.get(key)
        if value is None:
            raw = self.parameters[offset : offset + dtype.itemsize].copy()
            value = self._parameter_values[key] = raw.view(dtype)
        return value

    def _choose_blocks_per_wave(self) -> int:
        lanes = _LANES
        per_lane = max(8 * self.program.register_count, self.program.local_bytes, 1)
        lanes = min(lanes, max(_MOST_BYTES // per_lane, 32))
        blocks = max(1, lanes // self.lanes_per_block)
        if self.shared_bytes:
            blocks = max(1, min(blocks, _MOST_BYTES // self.shared_bytes))
        if self._pick is not None:
            blocks = min(blocks, -(-self.blocks // _MOST_PICKED))
        cluster = self.blocks_per_cluster
        return max(1, blocks // cluster) * cluster

    def run(self) -> Iterator[None]:
        """Run it step by step."""
        if self.cooperative:
            self.workspace = self.memory.allocate(_WORKSPACE_BYTES)
            self.memory.view(self.workspace, _WORKSPACE_BYTES, "write")[:] = 0
            if self.watch is not None:
                self.watch.give(self.workspace)
        try:
            yield from self._steps()
        finally:
            if self.workspace:
                self.memory.release(self.workspace)

    def _steps(self) -> Iterator[None]:
        if self.cooperative:
            while self._upcoming < self.blocks:
                self._add_wave()
                yield
        if self._pick is not None:
            yield from self._picked_steps(self._pick)
            return
        turn = steps = 0
        patience = _PATIENCE
        while self._waves or self._upcoming < self.blocks:
            deadline = perf_counter() + _STEP_SECONDS
            while True:
                if not self._waves:
                    self._add_wave()
                turn %= len(self._waves)
                wave = self._waves[turn]
                before = wave.spins
                # NumPy's error state belongs to the thread's context: it must not leak out of a step.
                with np.errstate(all="ignore"):
                    ended = wave.step(deadline)
                if ended:
                    self._waves.remove(wave)
                    patience = _PATIENCE
                    steps = 0
                    if not self._waves and self._upcoming >= self.blocks:
                        return
                else:
                    turn += 1
                    waiting = sum(w.spins for w in self._waves)
                    if (waiting > patience or steps > _STEPS_ALONE) and self._may_add_wave():
                        self._add_wave()
                        patience = waiting + _PATIENCE
                        steps = 0
                    if wave.spins > before and len(self._waves) == 1:
                        break  # it waits for something outside
                if perf_counter() >= deadline:
                    break
            steps += 1
            yield

    def _picked_steps(self, pick: Callable[[int], int]) -> Iterator[None]:
        """Blocks side by side in the order picked: one more may begin as long as few are under way, or all wait."""
        wanted = _MOST_SIDE_BY_SIDE
        upcoming = deque(range(self._upcoming, self.blocks, self._blocks_per_wave))
        while self._waves or upcoming:
            running = len(self._waves)
            number = pick(running + max(0, min(len(upcoming), wanted - running)))
            if number >= running:
                self._upcoming = upcoming[number - running]
                del upcoming[number - running]
                self._add_wave()
                number = running
            wave = self._waves[number]
            before = wave.spins
            with np.errstate(all="ignore"):
                ended = wave.step(math.inf)
            if ended:
                self._waves.remove(wave)
            elif wave.spins > before and running < _MOST_PICKED:
                wanted += 1
            yield

    def _add_wave(self) -> None:
        count = min(self._blocks_per_wave, self.blocks - self._upcoming)
        self._waves.append(Wave(self, self._upcoming, count))
        self._upcoming += count

    def _may_add_wave(self) -> bool:
        """Whether one more wave may keep company to those that wait."""
        resident = len(self._waves) * self._blocks_per_wave * self.lanes_per_block
        return self._upcoming < self.blocks and resident < _MOST_RESIDENT
