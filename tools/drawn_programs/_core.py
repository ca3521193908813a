"""The core programs: one small program for each thing that can go wrong between streams, tasks and memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np

import cuda_async as ca

from ._kernels import Kernels
from ._program import check_nothing_left

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CORE"]

N = 8


def same(array: np.ndarray[Any, Any], value: object) -> None:
    np.testing.assert_array_equal(array, np.broadcast_to(np.asarray(value, array.dtype), array.shape))


async def writers_and_readers(device: ca.Device) -> None:
    """A write waits for the reads before it on other streams, and they for the write before them."""
    on = [ca.SingleStream(device.create_stream()) for _ in range(4)]
    kernels = Kernels()
    x = await ca.full(N, 1.0)
    await kernels.in_place(x, 1.0, 0.0)  # which loads it
    kernels.in_place(x, 2.0, 0.0).start(on[0])
    copies = [ca.copy(x).start(on[i]) for i in (1, 2, 3)]
    ca.fill(x, 5.0).start(on[0])
    for copied in copies:
        same(await (await copied).to_host(), 2)
    same(await x.to_host(), 5)


async def back_and_forth(device: ca.Device) -> None:
    """One stream writes and another reads, again and again: each read waits for its own write."""
    first, second = (ca.SingleStream(device.create_stream()) for _ in range(2))
    x = await ca.zeros(N)
    copies = []
    for value in range(3):
        ca.fill(x, float(value)).start(first)
        copies.append(ca.copy(x).start(second))
    for value, copied in enumerate(copies):
        same(await (await copied).to_host(), value)


async def memory_freed_in_use(device: ca.Device) -> None:
    """Dropped while another stream reads it; the next allocation gets its place."""
    first, second = (ca.SingleStream(device.create_stream()) for _ in range(2))
    kernels = Kernels()
    x = await ca.full(N, 3.0).schedule(first)
    y = await ca.zeros(N).schedule(second)
    await kernels.into(y, x, 1.0, 0.0)  # which loads it
    future = kernels.into(y, x, 1.0, 1.0).start(second)
    del x
    other = await ca.full(N, 7.0).schedule(first)
    await future
    del future
    same(await y.to_host(), 4)
    same(await other.to_host(), 7)


async def source_array_changed_after_upload(device: ca.Device) -> None:
    """What was awaited was read: the next round may write over the array and its staging."""
    array = np.zeros(N, "f4")
    kept = []
    for value in range(2):
        array[:] = value
        kept.append(await ca.from_host(array))
    side_by_side = [ca.from_host(np.full(N, value, "f4")).start() for value in range(2, 5)]
    kept += [await future for future in side_by_side]
    target = await ca.empty(N)
    for value in (8, 9):
        array[:] = value
        ca.memcpy(target, array).start()
        await asyncio.sleep(0)
    for value, tensor in enumerate(kept):
        same(await tensor.to_host(), value)
    same(await target.to_host(), 9)


async def staging_of_cancelled_copies(device: ca.Device) -> None:
    """A cancelled download still writes its staging; nobody may have it before."""

    async def download() -> None:
        await ca.full(N, 4.0).to_host()

    await asyncio.gather(download(), download())  # which makes staging
    tasks = [asyncio.create_task(download()) for _ in range(2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    del task, tasks  # and with them their frames, which hold the arrays
    await asyncio.sleep(0)
    arrays = await ca.collect(ca.from_host(np.full(N, value, "f4")).to_host() for value in range(3))
    for value, array in enumerate(arrays):
        same(array, value)


async def branches(device: ca.Device) -> None:
    """`parallel` starts behind what came before, and the chain goes on behind all of it."""
    kernels = Kernels()
    x = await ca.full(N, 1.0)
    op = kernels.in_place(x, 3.0, 0.0).then(
        lambda x: ca.parallel(
            ca.copy(x), x.to_host(), ca.copy(x).then(lambda t: kernels.in_place(t, 2.0, 0.0))
        )
    )
    copied, array, doubled = await op
    same(array, 3)
    same(await copied.to_host(), 3)
    same(await doubled.to_host(), 6)


async def shared_by_tasks(device: ca.Device) -> None:
    """Runs once, whoever comes first and whoever goes away."""
    runs = []
    kernels = Kernels()
    shared = (
        ca.full(N, 2.0)
        .inspect(lambda _: runs.append(1))
        .then(lambda t: kernels.in_place(t, 2.0, 1.0))
        .shared()
    )

    async def consume() -> None:
        same(await shared.then(ca.copy).to_host(), 5)

    tasks = [asyncio.create_task(consume()) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks[1:]:
        task.result()
    assert runs == [1]


async def futures(device: ca.Device) -> None:
    """Awaited twice, cancelled early, dropped."""
    future = ca.full(N, 1.0).to_host().map(lambda array: array + 1).start()
    early = ca.full(N, 2.0).astype("i4").to_host().start()
    early.cancel()
    ca.full(N, 3.0).start()
    same(await future, 2)
    same(await future, 2)
    try:
        same(await early, 2)
    except ca.OperationCancelledError:
        pass


async def graphs(device: ca.Device) -> None:
    """Launches on several streams are ordered by what their nodes use."""
    kernels = Kernels()
    x, y = await ca.zeros(N), await ca.zeros(N)
    graph = await ca.zip(kernels.in_place(x, 1.0, 1.0), ca.memcpy(y, x)).graph()
    streams = [ca.SingleStream(device.create_stream()) for _ in range(2)]
    launches = [graph.launch().start(streams[i % 2]) for i in range(3)]
    reading = ca.copy(y).start()
    launches.append(graph.launch().start(streams[1]))
    await asyncio.gather(*map(_wait, launches))
    same(await (await reading).to_host(), 3)
    same(await x.to_host(), 4)
    same(await y.to_host(), 4)


async def events_between_streams(device: ca.Device) -> None:
    """What is ordered by hand, by events."""
    first, second = device.create_stream(), device.create_stream()
    x = await ca.zeros(N)
    ca.fill(x, 1.0).start(ca.SingleStream(first))
    event = first.record()
    second.wait(event)
    copied = ca.copy(x).start(ca.SingleStream(second))
    await event
    assert event.is_done
    same(await (await copied).to_host(), 1)
    await first.aclose()
    await second.aclose()


async def borrowed_in_parts(device: ca.Device) -> None:
    """Tensors over parts of one array are ordered as one, those too that others join, and that were freed in use."""
    on = [ca.SingleStream(device.create_stream()) for _ in range(2)]
    array = np.zeros(N, "f4")
    low, part, high = (ca.from_dlpack(array[first:last]) for first, last in ((0, 5), (1, 3), (7, 8)))
    bridge = ca.from_dlpack(array[4:])
    ca.fill(low, 1.0).start(on[0])
    ca.fill(part, 2.0).start(on[1])
    ca.fill(high, 3.0).start(on[0])
    ca.fill(bridge, 4.0).start(on[1])
    bridge.free()
    again = ca.from_dlpack(array[5:7])
    await ca.fill(again, 5.0).schedule(on[0])
    device.synchronize()
    assert array.tolist() == [1, 2, 2, 1, 4, 5, 5, 4]


async def look_and_go_on(device: ca.Device) -> None:
    """A callback that looks at host data waits for it, and the chain goes on."""
    kernels = Kernels()
    x = await ca.full(N, 1.0)
    seen = []
    op = kernels.in_place(x, 2.0, 0.0).then(lambda x: x.to_host()).map(lambda a: seen.append(float(a.sum())))
    await op.then(lambda _: ca.fill(x, seen[0]))
    same(await x.to_host(), 2 * N)


async def out_of_memory(device: ca.Device) -> None:
    """A limit that holds, and memory that is reused between streams where there is little."""
    device.memory_limit = 4 * N * 4
    on = [ca.SingleStream(device.create_stream()) for _ in range(2)]
    for turn in range(4):
        x = await ca.full(2 * N, float(turn)).schedule(on[turn % 2])
        y = ca.copy(x).start(on[1 - turn % 2])
        del x
        same(await (await y).to_host(), turn)
        del y
        try:
            await ca.full(5 * N, 0.0)
        except ca.OutOfMemoryError:
            continue
        raise AssertionError("the limit did not hold")


async def errors_and_what_follows(device: ca.Device) -> None:
    """The first error stops a chain, and only that chain."""
    x = await ca.full(N, 1.0)

    def fails(_: object) -> Any:
        raise KeyError("planned")

    results = await asyncio.gather(
        _wait(ca.fill(x, 2.0).then(fails)),
        _wait(ca.zip(ca.full(N, 1.0), ca.full(N, 2.0).then(fails))),
        _wait(ca.copy(x).to_host()),
        return_exceptions=True,
    )
    assert [type(result) for result in results[:2]] == [KeyError, KeyError]
    same(results[2], 2)


async def deadlines(device: ca.Device) -> None:
    """A timeout stops the waiting, and nothing else."""
    kernels = Kernels()
    x = await ca.full(N, 1.0)
    enqueued = []
    for _ in range(3):
        try:
            async with asyncio.timeout(1):
                await kernels.in_place(x, 2.0, 0.0).inspect(enqueued.append).then(lambda x: x.to_host())
        except TimeoutError:
            pass
    same(await x.to_host(), 2 ** len(enqueued))


async def work_of_other_libraries(device: ca.Device) -> None:
    """Calls in stream order, between our operations."""
    x = await ca.full(N, 1.0)
    stream = ca.SingleStream(device.create_stream())
    seen: list[float] = []
    memory: Any = device.driver
    await ca.foreign(lambda _: None)  # which makes the calls ready
    call = ca.foreign(
        lambda _: seen.append(memory.memory.view(x._address, 4).view("f4")[0].item()), reads=[x]
    ).start(stream)
    ca.fill(x, 2.0).start()
    await call
    assert seen == [1.0]
    same(await x.to_host(), 2)


def blocking(device: ca.Device) -> None:
    """Without a loop."""
    streams = [device.create_stream() for _ in range(2)]
    x = ca.full(N, 1.0).sync_on(streams[0])
    future = ca.copy(x).start(ca.SingleStream(streams[1]))
    ca.fill(x, 2.0).sync_on(streams[0])
    same(future.sync().to_host().sync(), 1)
    same(ca.copy(x).astype("i4").to_host().sync(), 2)
    del x, future
    ca.drain().sync()
    for stream in streams:
        stream.close()


async def _wait(awaitable: Any) -> Any:
    return await awaitable


def _clean(program: Callable[[ca.Device], Any]) -> Callable[[ca.Device], Any]:
    """With a look at the end whether anything is left."""

    async def run(device: ca.Device) -> None:
        await program(device)
        device.memory_limit = None
        await check_nothing_left(device)

    run.__qualname__ = program.__qualname__
    return run


CORE: tuple[Callable[[ca.Device], Any], ...] = (
    *map(
        _clean,
        (
            writers_and_readers,
            back_and_forth,
            memory_freed_in_use,
            source_array_changed_after_upload,
            staging_of_cancelled_copies,
            branches,
            shared_by_tasks,
            futures,
            graphs,
            events_between_streams,
            borrowed_in_parts,
            look_and_go_on,
            out_of_memory,
            errors_and_what_follows,
            deadlines,
            work_of_other_libraries,
        ),
    ),
    blocking,
)
