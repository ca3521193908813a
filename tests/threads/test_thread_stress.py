"""Many threads at what they share, started at once and switched as often as Python can: gates, caches, pools, trackers.

Nothing here waits for time to pass. Each test says what must hold whatever the order; the long forms repeat it.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading

import numpy as np
import pytest

import cuda_async as ca
from cuda_async.driver.host import HostDriver
from cuda_async.memory import PinnedPool
from cuda_async.scheduling import _device
from tilekern.jit._disk_cache import DiskCache
from tilekern.jit._single_flight import SingleFlight

THREADS = 8
ROUNDS = pytest.mark.parametrize("rounds", [6, pytest.param(300, marks=pytest.mark.slow)])


@pytest.fixture(autouse=True)
def switched_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def private(monkeypatch):
    """A host device of the test's own, not opened yet, with freed memory overwritten."""
    driver = HostDriver(poison=True)
    device = ca.Device._make("host", 0, driver)
    monkeypatch.setattr(_device, "_default", device)
    yield device
    driver.close()


def together(work, threads=THREADS):
    """Call `work(number)` in threads that start at once; what they returned. Their errors come out here."""
    start = threading.Barrier(threads)
    results, errors = [None] * threads, []

    def run(number):
        try:
            start.wait()
            results[number] = work(number)
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(120)
    assert not any(thread.is_alive() for thread in running), "stuck"
    if errors:
        raise errors[0]
    return results


def on_a_loop(make):
    """Run an async function on a loop of this thread."""
    return asyncio.run(make())


@ROUNDS
def test_shared_operation_runs_once(device, rounds):
    """From threads and from tasks on their loops, with consumers on streams of their own."""
    for _ in range(rounds):
        ran = []
        source = ca.full(64, 7.0).map(lambda t, ran=ran: ran.append(t) or t).shared()

        def use(number, source=source):
            if number % 2:
                return source.to_host().sync()

            async def main():
                copies = await asyncio.gather(
                    *(ca.zip(source.then(ca.copy)).first().to_host() for _ in range(3))
                )
                return copies[0]

            return on_a_loop(main)

        assert all((array == 7).all() for array in together(use))
        assert len(ran) == 1


@ROUNDS
def test_future_has_one_outcome(device, rounds):
    """Awaited, polled and cancelled from all threads at once."""
    for i in range(rounds):
        tensor = ca.zeros(64).sync()
        op = (
            ca.value(None).then(lambda _, t=tensor: ca.fill(t, 1.0)).then(lambda _, t=tensor: ca.fill(t, 2.0))
        )
        future = op.start()

        def look(number, future=future, i=i):
            if number == i % THREADS:
                return future.cancel()
            try:
                future.sync()
            except ca.OperationCancelledError:
                return "cancelled"
            return future.state

        outcomes = together(look)
        cancelled = outcomes.pop(i % THREADS)
        assert set(outcomes) == {"cancelled" if cancelled else "done"}
        if not cancelled:
            assert (tensor.to_host().sync() == 2).all()


@ROUNDS
def test_first_use_of_a_device(monkeypatch, rounds):
    """Opening it, its policy, its streams and its staging memory are made once."""
    for _ in range(rounds):
        driver = HostDriver()
        device = ca.Device._make("host", 0, driver)
        monkeypatch.setattr(_device, "_default", device)

        def use(number, device=device):
            array = np.full(100, number, np.float32)
            assert (ca.from_host(array).to_host().sync() == number).all()
            return device.pinned, device.policy

        assert len(set(together(use))) == 1
        streams = {id(stream) for stream in device._streams}
        for _ in range(8):
            streams.add(id(device.policy.next_stream()))
        assert len(streams) <= 6  # four of the policy, and those for freeing and exchange
        driver.close()


@ROUNDS
def test_policies_make_their_streams_once(private, rounds):
    for _ in range(rounds):
        priorities = ca.PriorityStreams(2, device=private)
        least, turns = ca.LeastLoaded(3, device=private), ca.StreamPoolRoundRobin(3, device=private)

        def use(_, priorities=priorities, least=least, turns=turns):
            found = [priorities.high().next_stream() for _ in range(6)]
            return found, [least.next_stream() for _ in range(6)], [turns.next_stream() for _ in range(6)]

        for streams, most in zip(zip(*together(use)), (2, 3, 3)):
            assert len({id(s) for own in streams for s in own}) <= most
        for stream in [s for s in private._streams if s is not private._reclaim]:
            stream.close()


@ROUNDS
def test_policies_are_of_a_thread_and_task(device, rounds):
    """Work goes to the stream of the policy that is current where it is started, whatever others have set."""

    def use(number):
        stream = device.create_stream()
        other = device.create_stream()

        async def task(chosen):
            with ca.use_policy(ca.SingleStream(chosen)):
                for _ in range(rounds):
                    used = await ca.with_context(lambda ctx: ca.value(ctx.stream))
                    assert used is chosen
                    await asyncio.sleep(0)

        async def main():
            await asyncio.gather(task(stream), task(other))
            await stream.aclose()
            await other.aclose()

        on_a_loop(main)

    together(use)


@ROUNDS
def test_graphs_are_captured_once_and_called_from_all(device, rounds):
    for _ in range(rounds):
        built = []

        def build(size, built=built):
            built.append(size)
            return ca.graph_input("x", (size,)).then(ca.copy)

        cache = ca.GraphCache(build, buckets=[16, 64])

        def use(number, cache=cache):
            for i in range(3):
                value = float(number * 10 + i)
                graph = cache.get(16 if number % 2 else 40).sync()
                result = graph(x=value).sync().to_host().sync()
                assert (result == value).all()

        together(use)
        assert sorted(built) == [16, 64]


@ROUNDS
def test_memory_limit_holds(private, rounds):
    """Never more is live than the limit, whoever asks; and all of it comes back."""
    private.open()
    limit = private.memory_limit = 40_000
    refused = []

    def use(number):
        chance = random.Random(number)
        for _ in range(rounds * 4):
            try:
                tensors = [ca.full(chance.randrange(1, 1500), float(number)).sync() for _ in range(3)]
            except ca.OutOfMemoryError as error:
                refused.append(error)
                continue
            assert private._used <= limit
            for tensor in tensors:
                assert (tensor.to_host().sync() == number).all()
            del tensor, tensors

    together(use)
    refused.clear()
    ca.drain().sync()
    assert private.memory_stats().used_bytes == 0


@ROUNDS
def test_staging_blocks_have_one_user(private, rounds):
    """No block is with two threads, and all come back."""
    pool = PinnedPool(private.open().driver)
    lock, held = threading.Lock(), set()

    def use(number):
        chance = random.Random(number)
        for _ in range(rounds * 20):
            block = pool.take(chance.choice([1, 5000, 70_000]))
            place = block.address
            with lock:
                assert place not in held
                held.add(place)
            block.array((8,), np.dtype(np.int64))[:] = number
            assert (block.array((8,), np.dtype(np.int64)) == number).all()
            with lock:
                held.remove(place)
            del block

    together(use)
    pool.trim()
    assert pool.reserved_bytes == 0


@ROUNDS
def test_values_are_made_once(rounds):
    """Of a key that many ask for; a failure is not kept."""
    for _ in range(rounds):
        flights = SingleFlight()
        made, failed = [], []

        def use(number, flights=flights, made=made, failed=failed):
            def make(key):
                made.append(key)
                if key == 0 and not failed:
                    failed.append(key)
                    raise ValueError("the first one fails")
                return key * 10

            found = []
            for key in (number % 3, 0, 1, 2):
                try:
                    found.append(flights.get(key, lambda key=key: make(key)) == key * 10)
                except ValueError:
                    found.append(True)
            return all(found)

        assert all(together(use))
        assert sorted(made) == [0, 0, 1, 2]


@ROUNDS
def test_disk_cache_from_threads(tmp_path, rounds):
    """Small enough that entries are evicted all the time: a value is the right one or none."""
    cache = DiskCache(tmp_path, max_bytes=4000)

    def use(number):
        chance = random.Random(number)
        for _ in range(rounds * 4):
            key = chance.randrange(20)
            found = cache.get(str(key).encode())
            assert found in (None, bytes([key]) * 300)
            cache.put(str(key).encode(), bytes([key]) * 300)
        return cache.info().failures

    assert together(use) == [0] * THREADS
    assert cache.info().damaged == 0


@ROUNDS
def test_many_loops_poll_one_device(device, rounds):
    """Who polls is counted; when nobody does, nobody is counted."""

    def use(number):
        async def one():
            for _ in range(rounds):
                assert (await ca.full(10, float(number)).to_host() == number).all()

        async def main():
            await asyncio.gather(*(one() for _ in range(4)))

        on_a_loop(main)

    together(use)
    assert not device._pollers


@ROUNDS
def test_tensors_dropped_by_other_threads(device, rounds):
    """Made here, used on one stream, dropped there: memory comes back when the device is past it, and not before."""
    common = [[] for _ in range(THREADS)]

    def use(number):
        chance = random.Random(number)
        for i in range(rounds * 4):
            tensor = ca.full(200, float(i)).sync()
            other = ca.copy(tensor).start()
            common[chance.randrange(THREADS)].append((tensor, i))
            try:
                found, value = common[number].pop()
            except IndexError:
                continue
            assert (found.to_host().sync() == value).all()
            del found, tensor
            assert (other.sync().to_host().sync() == i).all()

    before = device.memory_stats().used_bytes
    together(use)
    common.clear()
    ca.drain().sync()
    assert device.memory_stats().used_bytes == before
