"""A plan as a program, with its model."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import numpy as np

import cuda_async as ca
from cuda_async.ops._copies import ToHost

from ._kernels import Kernels
from ._plan import CELLS, STREAMS, VIEWS, Node, Plan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["check_nothing_left", "program"]

SIZE = 24


class Planned(Exception):
    """What a callback raises because the plan says so."""


class Cell:
    """A tensor that everybody uses, and what it holds once all that is enqueued is done."""

    def __init__(self, tensor: ca.Tensor, values: np.ndarray[Any, Any]) -> None:
        self.tensor = tensor
        self.values = values


class Read(ToHost):
    """`to_host`, and what must come: what the model holds when the copy is enqueued."""

    def __init__(self, tensor: ca.Tensor, expected: Callable[[], np.ndarray[Any, Any]]) -> None:
        super().__init__(tensor)
        self._expected = expected
        self.array: Any = None
        self.expected: Any = None

    def execute(self, ctx: ca.ExecutionContext) -> np.ndarray[Any, Any]:
        self.expected = self._expected().copy()
        self.array = super().execute(ctx)
        return self.array

    def check(self) -> None:
        """The device is past it."""
        if self.array is not None:
            np.testing.assert_array_equal(self.array, self.expected)


class Shared:
    """A shared operation that yields a tensor nobody writes, and what that holds once it is enqueued."""

    def __init__(self, op: ca.DeviceOp[ca.Tensor], note: dict[str, Any]) -> None:
        self.op = op.shared()
        self.note = note


class World:
    """One run of a plan on a device."""

    def __init__(self, device: ca.Device, kernels: Kernels) -> None:
        self.device = device
        self.kernels = kernels
        self.cells: list[Cell] = []
        self.streams: list[ca.Stream] = []
        self.shared: list[Shared] = []
        self.graphs: list[tuple[ca.CudaGraph[Any], list[Callable[[], object]], list[ca.Tensor]]] = []
        self.reads: list[Read] = []

    # ---------------------------------------------------------------------------- operations

    def leaf(self, node: Node) -> tuple[ca.DeviceOp[Any], Callable[[], object] | None]:
        """The operation, and its effect on the model, to be had at the moment it is enqueued."""
        name, number, *more = node
        cell = self.cells[number]
        tensor, kernels = cell.tensor, self.kernels
        if name == "fill":
            view, value = slice(*VIEWS[more[0]]), float(more[1])
            return ca.fill(tensor[view], value), lambda: cell.values.__setitem__(view, value)
        if name == "affine":
            a, b = map(float, more)
            return kernels.in_place(tensor, a, b), lambda: cell.values.__setitem__(..., a * cell.values + b)
        if name == "into":
            source, a, b = self.cells[more[0]], float(more[1]), float(more[2])
            op = kernels.into(tensor, source.tensor, a, b)
            return op, lambda: cell.values.__setitem__(..., a * source.values + b)
        if name == "copy":
            view, source, other = slice(*VIEWS[more[0]]), self.cells[more[1]], slice(*VIEWS[more[2]])
            op = ca.memcpy(tensor[view], source.tensor[other])
            return op, lambda: cell.values.__setitem__(view, source.values[other].copy())
        if name == "upload":
            view = slice(*VIEWS[more[0]])
            array = np.arange(len(cell.values[view]), dtype="f4") + more[1]
            return ca.memcpy(tensor[view], array), lambda: cell.values.__setitem__(view, array)
        if name in ("read", "look"):
            view = slice(*VIEWS[more[0]])
            read = Read(tensor[view], lambda: cell.values[view])
            self.reads.append(read)
            if name == "read":
                return read, None
            return read.map(lambda _: read.check()), None  # the chain stops until the array is there
        if name == "cast":
            values: list[np.ndarray[Any, Any]] = []
            op = tensor.astype("i4").inspect(lambda _: values.append(cell.values.copy()))
            last = op.then(lambda t: t.astype("f4")).then(lambda t: ca.memcpy(tensor, t))
            return last, lambda: cell.values.__setitem__(..., values[-1])
        assert name == "scratch"
        held: list[np.ndarray[Any, Any]] = []
        made = ca.empty(SIZE).then(lambda t: kernels.into(t, tensor, 1.0, float(more[0])))
        made = made.inspect(lambda _: held.append(cell.values + float(more[0])))
        return (
            made.then(lambda t: ca.memcpy(tensor, t)),
            lambda: cell.values.__setitem__(..., held[-1]),
        )

    def tree(self, node: Node) -> ca.DeviceOp[Any]:
        name, *more = node
        if name == "zip":
            return ca.zip(*map(self.tree, more[0]))
        if name == "collect":
            return ca.collect(map(self.tree, more[0]))
        if name == "parallel":
            return ca.parallel(*map(self.tree, more[0]))
        if name == "chain":
            first, *rest = map(self.tree, more[0])
            for op in rest:
                first = first.then(lambda _, op=op: op)
            return first
        if name == "on":
            return self.tree(more[1]).schedule(ca.SingleStream(self.streams[more[0]]))
        if name == "shared":
            shared = self.tree(more[0]).shared()
            return ca.zip(shared, shared)
        op, effect = self.leaf(node)
        return op if effect is None else op.inspect(lambda _: effect())

    # ---------------------------------------------------------------------------- tasks

    async def checked(self, node: Node, run: Callable[[ca.DeviceOp[Any]], Awaitable[object]]) -> None:
        """Run it; what it read is right once it is awaited."""
        first = len(self.reads)
        op = self.tree(node)
        reads = self.reads[first:]
        await run(op)
        for read in reads:
            read.check()

    async def task(self, actions: tuple[Node, ...]) -> None:
        futures: list[ca.DeviceFuture[Any]] = []
        for action in actions:
            await self.action(action, futures)
        await self.join(futures)

    async def join(self, futures: list[ca.DeviceFuture[Any]]) -> None:
        while futures:
            await futures.pop(0)

    async def action(self, action: Node, futures: list[ca.DeviceFuture[Any]]) -> None:
        name, *more = action
        match name:
            case "run":
                await self.checked(more[0], _run)
            case "start":
                futures.append(self.tree(more[0]).start())
            case "join":
                await self.join(futures)
            case "cancel":
                await self.checked(more[0], _Cancelled(more[1]))
            case "give up":
                future = self.tree(more[0]).start()
                if not future.cancel():
                    await future
            case "timeout":
                await self.checked(more[0], _timed_out)
            case "thread":
                op = self.tree(more[0])
                await asyncio.to_thread(op.sync)
            case "raise":
                try:
                    await self.tree(more[0]).then(_raise)
                except Planned:
                    pass
                else:
                    raise AssertionError("the error of a callback was lost")
            case "share":
                self.share(more[0], float(more[1]))
            case "use":
                await self.use(more[1])
            case "graph":
                await self.capture(more[0], more[1])
            case "replay":
                await self.replay(more[1])
            case "replace":
                await self.replace(more[0], float(more[1]))
            case "free":
                await self.scrap()
            case "device":
                self.device.collect()
                await asyncio.sleep(0)
            case _:
                raise AssertionError(name)

    def share(self, number: int, b: float) -> None:
        cell, kernels, note = self.cells[number], self.kernels, {}
        op = ca.empty(SIZE).then(lambda t: kernels.into(t, cell.tensor, 1.0, b))
        op = op.inspect(lambda _: note.update(values=cell.values + b))
        self.shared.append(Shared(op, note))

    async def use(self, number: int) -> None:
        if not self.shared:
            return
        shared = self.shared[number % len(self.shared)]
        read: list[Read] = []

        def begin(tensor: ca.Tensor) -> Read:
            read.append(Read(tensor, lambda: shared.note["values"]))
            return read[0]

        await shared.op.then(begin)
        read[0].check()
        if number == 3:
            self.shared = [other for other in self.shared if other is not shared]

    async def capture(self, leaves: tuple[Node, ...], shape: int) -> None:
        parts = [self.leaf(leaf) for leaf in leaves]
        tensors = [cell.tensor for cell in self.cells]  # which the effects stand for
        ops = [op for op, _ in parts]
        effects = [effect for _, effect in parts if effect is not None]
        graph = await (ca.parallel(*ops) if shape else ca.collect(ops)).graph()
        self.graphs.append((graph, effects, tensors))

    async def replay(self, number: int) -> None:
        if not self.graphs:
            return
        graph, effects, _ = self.graphs[number % len(self.graphs)]
        await graph.launch().inspect(lambda _: [effect() for effect in effects])
        if number == 3:
            self.graphs = [entry for entry in self.graphs if entry[0] is not graph]

    async def replace(self, number: int, value: float) -> None:
        """Another tensor takes a cell's place; the old one goes when the last operation on it lets go."""
        tensor = await ca.full(SIZE, value)
        self.cells[number] = Cell(tensor, np.full(SIZE, value, np.float32))

    async def scrap(self) -> None:
        """Memory that goes while it is in use, and the next that may get its place."""
        kernels = self.kernels
        await ca.full(SIZE, 1.0).then(lambda t: kernels.in_place(t, 2.0, 0.0))
        read = Read(await ca.full(SIZE, 7.0), lambda: np.full(SIZE, 7, np.float32))
        self.reads.append(read)
        await read

    async def finish(self) -> None:
        """Everything is done, everything read was right, nothing is left."""
        final = [Read(cell.tensor, lambda cell=cell: cell.values) for cell in self.cells]
        await ca.collect(final)
        await ca.drain()
        for read in (*self.reads, *final):
            read.check()
        for stream in self.streams:
            await stream.aclose()


async def _run(op: ca.DeviceOp[Any]) -> None:
    await op


async def _timed_out(op: ca.DeviceOp[Any]) -> None:
    try:
        async with asyncio.timeout(1.0):
            await op
    except TimeoutError:
        await ca.drain()


class _Cancelled:
    """Runs it in a task that is cancelled after so many turns of the loop."""

    def __init__(self, turns: int) -> None:
        self._turns = turns

    async def __call__(self, op: ca.DeviceOp[Any]) -> None:
        task = asyncio.create_task(_run(op))
        del op
        for _ in range(self._turns):
            await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            await ca.drain()


def _raise(_: object) -> ca.DeviceOp[Any]:
    raise Planned


def program(plan: Plan, make_kernels: Callable[[], Kernels] = Kernels) -> Callable[[ca.Device], Any]:
    """The plan as a coroutine function of a device."""

    async def run(device: ca.Device) -> None:
        before = device.memory_stats().used_bytes
        await _one_run(plan, device, make_kernels())
        await check_nothing_left(device, before)

    return run


async def _one_run(plan: Plan, device: ca.Device, kernels: Kernels) -> None:
    world = World(device, kernels)
    for number in range(CELLS):
        values = np.arange(SIZE, dtype=np.float32) % (number + 2)
        world.cells.append(Cell(await ca.from_host(values), values.copy()))
    world.streams += [device.create_stream() for _ in range(STREAMS)]
    async with asyncio.TaskGroup() as group:
        for actions in plan.tasks:
            group.create_task(world.task(actions))
    await world.finish()


async def check_nothing_left(device: ca.Device, before: int = 0) -> None:
    """Whatever happened, once it is over nothing holds memory any more, but for so many bytes from before."""
    await asyncio.sleep(0)  # a task's step keeps what it was last woken with, such as an error and its frames
    await ca.drain()
    if device.memory_stats().used_bytes != before:
        gc.collect()  # errors and tasks make cycles
        await ca.drain()
    assert device.memory_stats().used_bytes == before, device.memory_stats()
    left = sum(len(stream._retained) + len(stream._pending) for stream in device._streams)
    assert left == 0, f"{left} things are retained for work that is done"
