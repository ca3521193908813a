"""One graph per bucket."""

from __future__ import annotations

import threading

import anyio
import numpy as np
import pytest

import cuda_async as ca

pytestmark = pytest.mark.anyio


async def test_sizes_share_a_buckets_graph(device, kernels):
    built = []

    def build(size):
        built.append(size)
        return ca.graph_input("x", (size,)).then(lambda x: kernels.scaled(x, 2.0, 1.0))

    cache = ca.GraphCache(build, buckets=(4, 1, 8))
    assert [cache.bucket(n) for n in (1, 2, 4, 5)] == [1, 4, 4, 8]
    for n in (3, 4, 2, 7):
        graph = await cache.get(n)
        x = np.zeros(cache.bucket(n), "f4")
        x[:n] = np.arange(n)
        assert (await graph.replay(x=x).to_host())[:n].tolist() == [2.0 * i + 1 for i in range(n)]
    assert built == [4, 8]
    assert repr(cache) == "<GraphCache: 2 of at most 16 graphs, buckets [1, 4, 8]>"
    with pytest.raises(ValueError, match="beyond the largest bucket, 8"):
        cache.get(9)
    with pytest.raises(ValueError, match="sizes from 0 on, got -1"):
        cache.get(-1)
    for key in ("3", 3.0, None, (3,)):
        with pytest.raises(TypeError, match="a cache with buckets takes sizes as keys, got"):
            cache.get(key)
    for buckets in ("48", (4.0, 8.0), (None,)):
        with pytest.raises(TypeError, match="buckets are sizes"):
            ca.GraphCache(build, buckets=buckets)


async def test_waiters_share_one_capture(device):
    built = []
    graphs = []
    cache = ca.GraphCache(lambda key: built.append(key) or ca.ones(key))

    async def ask():
        graphs.append(await cache.get((2, 3)))

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(ask)
    assert built == [(2, 3)]
    assert len(set(map(id, graphs))) == 1
    assert (2, 3) in cache


async def test_failed_capture_is_tried_anew(device):
    attempts = []

    def build(key):
        attempts.append(key)
        return ca.ones(key).then(lambda t: ca.value(t) if len(attempts) > 1 else 1 / 0)

    cache = ca.GraphCache(build)
    with pytest.raises(ZeroDivisionError):
        await cache.get(3)
    assert (await (await cache.get(3)).launch().to_host()).tolist() == [1.0] * 3
    assert attempts == [3, 3]


async def test_least_recently_used_graph_goes(device):
    cache = ca.GraphCache(ca.ones, max_graphs=2)
    one = await cache.get(1)
    await cache.get(2)
    await cache.get(1)
    await cache.get(3)
    assert [n in cache for n in (1, 2, 3)] == [True, False, True]
    cache.clear()
    assert len(cache) == 0
    assert (await one.launch().to_host()).tolist() == [1.0]


async def test_what_fails_takes_no_graphs_place(device):
    built = []

    def build(n):
        built.append(n)
        return ca.ones(n).map(lambda t: t if n < 100 else 1 // 0)

    cache = ca.GraphCache(build, max_graphs=2)
    graphs = [await cache.get(n) for n in (1, 2)]
    for n in (100, 101, 102):
        with pytest.raises(ZeroDivisionError):
            await cache.get(n)
        assert (n in cache, len(cache)) == (False, 2)
    with pytest.raises(TypeError):
        await cache.get("3")
    assert [await cache.get(n) for n in (1, 2)] == graphs
    assert built == [1, 2, 100, 101, 102, "3"]


async def test_graphs_that_are_only_asked_for_are_not_kept_for_ever(device):
    cache = ca.GraphCache(ca.ones, max_graphs=3)
    one = await cache.get(1)
    asked = [cache.get(n) for n in range(2, 102)]
    assert [n for n in range(102) if n in cache] == [1, 99, 100, 101]
    for op in asked[-3:]:
        await op
    assert [n for n in range(102) if n in cache] == [99, 100, 101]
    assert (await one.launch().to_host()).tolist() == [1.0]
    assert (await (await asked[0]).launch().to_host()).tolist() == [1.0] * 2


def test_build_may_wait_for_a_graph_that_another_thread_captures(host):
    built, waits = threading.Event(), threading.Event()

    def build(n):
        if n == 2:
            waits.set()
            return ca.value(cache.get(1).sync()).then(lambda graph: graph.launch())
        return ca.ones(n).map(lambda x: built.set() or (waits.wait(10) and x))

    cache = ca.GraphCache(build, max_graphs=1)
    thread = threading.Thread(target=lambda: cache.get(1).sync())
    thread.start()
    assert built.wait(10)
    assert cache.get(2).sync().launch().to_host().sync().tolist() == [1.0]
    thread.join(10)
    assert not thread.is_alive()
    assert [n in cache for n in (1, 2)] == [False, True]


def test_graphs_that_are_there_do_not_wait_for_a_build(host):
    builds, goes_on = threading.Event(), threading.Event()

    def build(n):
        if n == 2:
            builds.set()
            assert goes_on.wait(10)
        return ca.ones(n)

    cache = ca.GraphCache(build)
    first = cache.get(1)
    thread = threading.Thread(target=lambda: cache.get(2).sync())
    thread.start()
    assert builds.wait(10)
    asked = []
    asking = threading.Thread(target=lambda: asked.append(cache.get(1)))
    asking.start()
    asking.join(5)
    goes_on.set()
    thread.join(10)
    asking.join(10)
    assert asked == [first]
    assert len(cache) == 2


async def test_any_key_is_a_key(device):
    """None, too, is not captured before it is."""
    cache = ca.GraphCache(lambda key: ca.ones(4), max_graphs=1)
    await cache.get("other")
    asked = cache.get(None)
    assert "other" in cache
    await asked
    assert [key in cache for key in ("other", None)] == [False, True]


async def test_build_may_name_inputs(device, kernels):
    x = await ca.ones(8)
    cache = ca.GraphCache(lambda a: kernels.scaled(x, a, 0.0).graph(inputs={"x": x}))
    graph = await cache.get(3.0)
    assert (await graph.replay(x=2.0).to_host())[0] == 6.0


def test_build_may_ask_for_another_graph(device):
    """Of the same cache, to make it a part of its own."""

    def build(size):
        if size == 1:
            return ca.ones(1)
        half = cache.get(size // 2).sync()
        whole = ca.full(size, float(size))
        return ca.zip(whole, half.launch()).then(
            lambda both: ca.memcpy(both[0][: size // 2], both[1]).map(lambda _: both[0])
        )

    cache = ca.GraphCache(build)
    graph = cache.get(4).sync()
    assert graph.launch().sync().to_host().sync().tolist() == [1.0, 2.0, 4.0, 4.0]
    assert [n in cache for n in (1, 2, 4)] == [True] * 3


def test_wrong_builders_are_refused(device):
    with pytest.raises(TypeError, match="expected a DeviceOp"):
        ca.GraphCache(lambda key: key).get(3)
    with pytest.raises(ValueError, match="at least 1"):
        ca.GraphCache(ca.ones, max_graphs=0)
    with pytest.raises(ValueError, match="buckets is empty"):
        ca.GraphCache(ca.ones, buckets=())


def test_graph_of_a_closed_device_is_captured_anew():
    cache = ca.GraphCache(lambda size: ca.full(size, 2.0))
    for _ in range(2):
        device = ca.Device("host:0")
        with ca.use_device(device):
            assert cache.get(3).sync().launch().to_host().sync().tolist() == [2.0] * 3
        device.close()


def test_keys_are_hashable_and_build_may_not_ask_for_its_own(device):
    with pytest.raises(TypeError, match=r"the keys of a GraphCache are hashable, .*got \[1\]"):
        ca.GraphCache(ca.value).get([1])
    cache = ca.GraphCache(lambda n: cache.get(n))
    with pytest.raises(
        ca.ReentrancyError, match=r"build\(1\) asks the cache for the graph that it is to build"
    ):
        cache.get(1)
    assert len(cache) == 0


async def test_only_what_is_captured_comes_from_build(device, kernels):
    """A graph that was made before, by an operation that yields it, would be an output of an empty one."""
    made = await ca.graph_input("x", (4,)).then(lambda x: kernels.scaled(x, 2.0, 1.0)).graph()
    cache = ca.GraphCache(lambda key: ca.value(made))
    with pytest.raises(
        TypeError, match=r"build\(1\) returned an operation that yields a graph; return what is to be"
    ):
        await cache.get(1)
    as_it_is = ca.GraphCache(lambda key: ca.graph_input("x", (key,)).graph())
    assert (await (await as_it_is.get(2))(x=3.0).to_host()).tolist() == [3.0, 3.0]

    async def late(key):
        raise AssertionError

    with pytest.raises(TypeError, match=r"build\(1\) is an async def"):
        ca.GraphCache(late).get(1)


async def test_keys_are_compared_as_a_dict_compares_them(device):
    """Those of one hash only, and with keys."""

    class Size:
        def __init__(self, size):
            self.size = size

        def __hash__(self):
            return hash(self.size)

        def __eq__(self, other):
            return self.size == other.size

    cache = ca.GraphCache(lambda key: ca.full(4, 1.0), max_graphs=2)
    for key in (Size(1), "name", Size(2), "other", Size(1)):
        graph = await cache.get(key)
        assert (await graph.launch().to_host())[0] == 1.0
    assert (len(cache), Size(1) in cache, "name" in cache) == (2, True, False)
