"""One task of the soak: draws programs, runs each in one of many ways, and compares every value with NumPy's."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
from _soak_programs import Common, Drawing, Planned, Program

import cuda_async as ca

if TYPE_CHECKING:
    from _soak_programs import Arrays

TENSORS = 4
SIZES = (96, 1000, 5000)
MAX_PROBLEMS = 20


@dataclass
class Tally:
    """What all threads count and find; every method is called from any of them."""

    counts: Counter[str] = field(default_factory=Counter)
    cancels: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    on_wrong_value: Callable[[], None] = lambda: None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, name: str, number: int = 1) -> None:
        with self.lock:
            self.counts[name] += number

    def cancel(self, point: str) -> None:
        with self.lock:
            self.cancels[point] += 1

    def problem(self, text: str) -> None:
        with self.lock:
            self.counts["problems"] += 1
            if len(self.problems) < MAX_PROBLEMS:
                self.problems.append(text)


class Exchange:
    """Tensors that go from one task to another, of any thread: whoever takes one frees it, or hands it on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, list[tuple[ca.Tensor, np.ndarray[Any, Any]]]] = {size: [] for size in SIZES}

    def swap(
        self, size: int, tensor: ca.Tensor, array: np.ndarray[Any, Any]
    ) -> tuple[ca.Tensor, np.ndarray[Any, Any]] | None:
        """Give a tensor with its values away, for one that another gave, if there are some."""
        with self._lock:
            waiting = self._waiting[size]
            waiting.append((tensor, array))
            return waiting.pop(0) if len(waiting) > 4 else None

    def clear(self) -> None:
        with self._lock:
            for waiting in self._waiting.values():
                waiting.clear()


class Task:
    """A task's tensors, the values they must have, and its source of chance."""

    def __init__(
        self,
        name: str,
        seed: str,
        device: ca.Device,
        common: Common,
        exchange: Exchange,
        tally: Tally,
        is_over: Callable[[], bool],
    ) -> None:
        self.name = name
        self.chance = random.Random(seed)
        self.device = device
        self.common = common
        self.exchange = exchange
        self.tally = tally
        self.is_over = is_over
        self.size = self.chance.choice(SIZES)
        self.draw = Drawing(self.chance, common, self.size)
        self.tensors: list[ca.Tensor] = []
        self.arrays: Arrays = []
        self.streams: list[ca.Stream] = []
        self.latest: Program | None = None

    async def run(self) -> None:
        """Programs until the time is over."""
        with ca.use_device(self.device):
            await self.start_afresh()
            self.streams = [self.device.create_stream() for _ in range(2)]
            ways = [
                self.awaited,
                self.awaited,
                self.as_future,
                self.on_own_stream,
                self.with_policy,
                self.in_worker_thread,
                self.cancelled,
                self.cancelled,
                self.cancelled,
                self.future_cancelled,
                self.failing,
                self.recorded,
                self.recorded,
                self.capture_cancelled,
                self.forgotten,
            ]
            while not self.is_over():
                way = self.chance.choice(ways)
                program = self.latest = Program(self.draw.branches(TENSORS))
                try:
                    await way(program)
                except Exception as error:
                    self.tally.problem(f"{self.name}: {way.__name__}: {error!r} from {program}")
                    await self.start_afresh()
                self.tally.add("programs")
                await self.now_and_then()
            await self.check("the end")
            for stream in self.streams:
                await stream.aclose()

    async def start_afresh(self) -> None:
        """New tensors: what is dropped here may still be in use, and is overwritten when it is freed."""
        make = np.random.default_rng(self.chance.randrange(2**32))
        self.arrays = [make.integers(-(2**31), 2**31, self.size, np.int32) for _ in range(TENSORS)]
        self.tensors = list(await ca.collect([ca.from_host(array) for array in self.arrays]))

    async def now_and_then(self) -> None:
        number = self.chance.randrange(20)
        if number < 10:
            await self.check("a program")
        elif number < 12:
            await self.start_afresh()
        elif number < 14:
            i = self.chance.randrange(TENSORS)
            others = self.exchange.swap(self.size, self.tensors[i], self.arrays[i])
            if others is None:
                await self.start_afresh()
            else:
                self.tensors[i], self.arrays[i] = others
                self.tally.add("handed over")
                await self.check("taking over another's tensor")

    # -- looking

    async def values(self) -> Arrays:
        found: Arrays = await ca.collect([tensor.to_host() for tensor in self.tensors])
        self.tally.add("values", sum(array.size for array in found))
        return found

    async def check(self, after: str) -> None:
        found = await self.values()
        for i, (array, expected) in enumerate(zip(found, self.arrays)):
            wrong = np.flatnonzero(array != expected)
            if len(wrong):
                first = int(wrong[0])
                self.tally.problem(
                    f"{self.name}: tensor {i} of {self.size} at {self.tensors[i]._address:#x} has {len(wrong)} wrong "
                    f"values after {after}, the first at {first}: {array[first]}, expected {expected[first]}; the "
                    f"program before: {self.latest}"
                )
                self.tally.on_wrong_value()
                self.arrays[i] = array

    async def check_stopped(self, program: Program, why: str) -> None:
        """The program was stopped on the way: its branches are each at a step, and go on from there."""
        found = await self.values()
        problem = program.stopped(self.arrays, found)
        if problem is not None:
            self.tally.problem(f"{self.name}: {why}: {problem}: {program}")
        self.arrays = found

    def done(self, program: Program, times: int = 1) -> None:
        self.arrays = program.finished(self.arrays, times)
        self.tally.add("operations", program.length * times)

    def operation(self, program: Program) -> ca.DeviceOp[Any]:
        return program.operation(self.tensors, self.chance.random() < 0.6)

    # -- ways to run a program

    async def awaited(self, program: Program) -> None:
        await self.operation(program)
        self.done(program)

    async def as_future(self, program: Program) -> None:
        future = self.operation(program).start()
        for _ in range(self.chance.randrange(5)):
            await anyio.lowlevel.checkpoint()
        await future
        await future
        self.done(program)

    async def on_own_stream(self, program: Program) -> None:
        await self.operation(program).start(ca.SingleStream(self.chance.choice(self.streams)))
        self.done(program)

    async def with_policy(self, program: Program) -> None:
        policy = self.chance.choice([*self.common.policies, ca.SingleStream(self.streams[0])])
        with ca.use_policy(policy):
            await self.operation(program)
        self.done(program)

    async def in_worker_thread(self, program: Program) -> None:
        await anyio.to_thread.run_sync(self.operation(program).sync)
        self.done(program)

    async def failing(self, program: Program) -> None:
        branch = self.chance.randrange(len(program.branches))
        step = self.chance.randrange(len(program.branches[branch]))
        program = Program(program.branches, raise_in=(branch, step))
        try:
            await self.operation(program)
        except Planned:
            self.tally.add("errors of callbacks")
        else:
            self.tally.problem(f"{self.name}: the error of step {step} was lost: {program}")
        await self.check_stopped(program, "an error in a callback")

    async def forgotten(self, program: Program) -> None:
        """Nobody looks at the result, or holds the tensors: what is in flight keeps its memory."""
        copies = await ca.collect([ca.copy(tensor) for tensor in self.tensors])
        program.operation(copies, side_by_side=True).start()
        self.tally.add("forgotten")

    # -- cancelled

    def point_of(self, program: Program) -> str:
        came_to = sum(program.reached)
        if came_to == 0:
            return "before the first step"
        return "between steps" if came_to < program.length else "between the last step and the end"

    async def until_cancelled(self, awaitable: Any, turns: int) -> bool:
        """Await it, and cancel that after some turns of the loop; whether it was cancelled."""

        async def cancel(scope: anyio.CancelScope) -> None:
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            scope.cancel()

        caught = False
        async with anyio.create_task_group() as group:
            with anyio.CancelScope() as scope:
                group.start_soon(cancel, scope)
                await awaitable
            caught = scope.cancelled_caught
        return caught

    async def cancelled(self, program: Program) -> None:
        op = self.operation(program)
        awaitable = op.start() if self.chance.random() < 0.3 else op
        is_future = isinstance(awaitable, ca.DeviceFuture)
        if not await self.until_cancelled(awaitable, self.chance.choice([0, 1, 2, 3, 5, 9, 20])):
            self.tally.cancel("too late")
            self.done(program)
            return
        self.tally.cancel(("await of a future, " if is_future else "") + self.point_of(program))
        if is_future:  # stops the waiting only
            await awaitable
            self.done(program)
            await self.check("a cancelled await of a future")
        else:
            await self.check_stopped(program, "a cancelled await")

    async def future_cancelled(self, program: Program) -> None:
        future = self.operation(program).start()
        for _ in range(self.chance.choice([0, 0, 1, 3])):
            await anyio.lowlevel.checkpoint()
        if not future.cancel():
            self.tally.cancel("future, refused: all is enqueued")
            await future
            self.done(program)
            return
        self.tally.cancel("future, " + self.point_of(program))
        try:
            await future
        except ca.OperationCancelledError:
            pass
        else:
            self.tally.problem(f"{self.name}: a cancelled future has a result: {program}")
        await ca.drain()  # a worker thread may be at a step
        await self.check_stopped(program, "a cancelled future")

    # -- graphs

    async def recorded(self, program: Program) -> None:
        """Capture it, which runs nothing, and launch that some times."""
        graph = await self.operation(program).graph()
        self.tally.add("captures")
        if self.chance.random() < 0.3:
            await self.check("a capture")
        async with graph:
            for _ in range(self.chance.randrange(1, 5)):
                how = self.chance.randrange(4)
                if how == 0:
                    await graph.launch()
                elif how == 1:
                    await graph.launch().start(ca.SingleStream(self.chance.choice(self.streams)))
                elif how == 2:
                    await anyio.to_thread.run_sync(graph.launch().sync)
                else:
                    await self.launch_cancelled(graph, program)
                    continue
                self.tally.add("replays")
                self.done(program)

    async def launch_cancelled(self, graph: ca.CudaGraph[Any], program: Program) -> None:
        """A launch is one step: all of it runs, or nothing."""
        before = graph.launches
        if await self.until_cancelled(graph.launch(), self.chance.randrange(6)):
            launched = graph.launches > before
            self.tally.cancel(f"launch of a graph, {'in flight' if launched else 'before it'}")
        else:
            launched = True
            self.tally.cancel("too late")
        if launched:
            self.tally.add("replays")
            self.done(program)
        await self.check("a cancelled launch of a graph")

    async def capture_cancelled(self, program: Program) -> None:
        if await self.until_cancelled(self.operation(program).graph(), self.chance.randrange(4)):
            self.tally.cancel("capture")
        else:
            self.tally.add("captures")
            self.tally.cancel("too late")
        await self.check("a capture")
