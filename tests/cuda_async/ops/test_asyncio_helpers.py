"""Operations, futures and events inside the helpers of asyncio, anyio and trio."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import sys

import anyio
import pytest

import cuda_async as ca

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request):
    """These are asyncio's."""
    if request.param:
        pytest.importorskip("uvloop")
    return "asyncio", {"use_uvloop": request.param}


def full(number):
    return ca.full(3, number, "int32").to_host().map(lambda a: a.tolist())


async def test_gather(device):
    assert await asyncio.gather(*(full(i) for i in range(20))) == [[i] * 3 for i in range(20)]
    assert await asyncio.gather(full(1), full(2).start(), full(3).shared()) == [[1] * 3, [2] * 3, [3] * 3]
    results = await asyncio.gather(full(1), ca.value(1).map(lambda _: 1 / 0), return_exceptions=True)
    assert results[0] == [1] * 3
    assert isinstance(results[1], ZeroDivisionError)


async def test_wait_for_and_shield(device):
    assert await asyncio.wait_for(full(4), 5) == [4] * 3
    assert await asyncio.wait_for(full(4).start(), 5) == [4] * 3
    assert await asyncio.shield(full(5)) == [5] * 3
    assert await asyncio.ensure_future(full(6)) == [6] * 3


async def test_as_completed_and_wait(device):
    results = [await one for one in asyncio.as_completed([full(i) for i in range(5)])]
    assert sorted(results) == [[i] * 3 for i in range(5)]
    done, pending = await asyncio.wait([asyncio.ensure_future(full(i)) for i in range(5)])
    assert len(done) == 5
    assert not pending


async def test_task_group(device):
    async def one(i):
        return await full(i)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(i)) for i in range(10)]
    assert [task.result() for task in tasks] == [[i] * 3 for i in range(10)]


async def test_error_in_a_task_group_cancels_the_rest(stepped):
    async def one(op):
        await op

    async def several():
        async with asyncio.TaskGroup() as group:
            group.create_task(one(ca.zeros(3)))  # never done: the device is not advanced
            group.create_task(one(ca.value(1).map(lambda _: 1 / 0)))

    with pytest.raises(ExceptionGroup) as info:
        await several()
    assert isinstance(info.value.exceptions[0], ZeroDivisionError)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="new in Python 3.12")
async def test_eager_tasks(device):
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    loop.set_task_factory(asyncio.eager_task_factory)
    try:

        async def one(i):
            return await full(i)

        assert await asyncio.gather(*(asyncio.create_task(one(i)) for i in range(10))) == [
            [i] * 3 for i in range(10)
        ]
    finally:
        loop.set_task_factory(before)


async def test_from_a_thread_into_the_loop(device):
    """`run_coroutine_threadsafe`, and operations in an executor's threads."""
    loop = asyncio.get_running_loop()

    async def one(i):
        return await full(i)

    def in_thread():
        return [asyncio.run_coroutine_threadsafe(one(i), loop).result(10) for i in range(5)]

    assert await asyncio.to_thread(in_thread) == [[i] * 3 for i in range(5)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda i: full(i).sync(), range(20))) == [[i] * 3 for i in range(20)]


async def test_awaitables_are_recognised(device):
    stream = device.create_stream()
    for thing in (full(1), full(1).shared(), full(1).start(), stream.record(), ca.drain()):
        assert inspect.isawaitable(thing)
        assert await asyncio.wait_for(thing, 5) in ([1] * 3, None)
    await stream.aclose()


async def test_debug_mode(device):
    """The loop's slow-callback and thread checks find nothing."""
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    try:
        for i in range(20):
            assert await full(i) == [i] * 3
            with anyio.move_on_after(0.0005):
                await full(i)
    finally:
        loop.set_debug(False)


async def test_async_comprehension_and_generator(device):
    async def numbers():
        for i in range(5):
            yield await full(i)

    assert [x async for x in numbers()] == [[i] * 3 for i in range(5)]
    assert [await full(i) for i in range(3)] == [[i] * 3 for i in range(3)]
    agen = numbers()
    await anext(agen)
    await agen.aclose()
