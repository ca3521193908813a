"""Exploring schedules: what is found, what is counted, what replays."""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest

import cuda_async as ca
from cuda_async.driver.host import Footprint
from cuda_async.driver.host._settings import host_check
from cuda_async.errors import CheckError, MemoryFault
from cuda_async.graph import _recorder
from cuda_async.testing import checked_device, explore, format_trace, parse_trace, replay, seeded_device
from cuda_async.testing._loop import ExploringLoop

races_on_purpose = pytest.mark.skipif(bool(host_check()), reason="the checking mode would find the race")


def fills(streams, per_stream, *, same):
    """A program that fills memory from several streams without ordering them; and what its memory held at the end."""
    ends = []

    def program(device):
        driver = device.driver
        handles = [driver.stream_create() for _ in range(streams)]
        memory = driver.memory_alloc_async(8 * streams, handles[0])
        driver.stream_synchronize(handles[0])
        for i, handle in enumerate(handles):
            for j in range(per_stream):
                address = memory if same else memory + 8 * i
                driver.fill_async(address, bytes([1 + i * per_stream + j] * 8), 1, handle)
        driver.synchronize()
        ends.append(driver.memory.view(memory, 1)[0])
        driver.memory_free_async(memory, handles[0])

    return program, ends


@races_on_purpose
@pytest.mark.parametrize(("streams", "per_stream"), [(2, 1), (2, 3), (3, 2)])
def test_exhaustive_search_counts_orders_of_conflicting_work(streams, per_stream):
    """The interleavings of equal sequences: a multinomial coefficient."""
    program, ends = fills(streams, per_stream, same=True)
    found = explore(program, exhaustive=True)
    assert found.complete
    assert found.distinct == math.factorial(streams * per_stream) // math.factorial(per_stream) ** streams
    assert len(set(ends)) == streams


def test_exhaustive_search_does_not_permute_independent_work():
    program, _ = fills(3, 3, same=False)
    found = explore(program, exhaustive=True)
    assert found.complete
    assert found.distinct == 1


@races_on_purpose
def test_leaving_orders_out_loses_no_outcome(monkeypatch):
    """The same outcomes as from all interleavings there are, in fewer runs."""
    outcomes = set()

    def program(device):
        driver = device.driver
        first, second = (driver.stream_create() for _ in range(2))
        a = driver.memory_alloc_async(3, first)
        driver.fill_async(a, b"\1", 3, first)
        driver.stream_synchronize(first)
        driver.fill_async(a, b"\2", 1, first)
        driver.copy_device_to_device_async(a + 1, a, 1, first)
        driver.copy_device_to_device_async(a + 2, a + 1, 1, second)
        driver.fill_async(a, b"\4", 1, second)
        driver.synchronize()
        outcomes.add(tuple(driver.memory.view(a, 3).tolist()))

    reduced = explore(program, exhaustive=True)
    few = set(outcomes)
    outcomes.clear()
    monkeypatch.setattr(Footprint, "meets", lambda one, other: True)
    everything = explore(program, exhaustive=True)
    assert reduced.complete
    assert everything.complete
    assert few == outcomes
    assert len(few) > 2
    assert reduced.runs < everything.runs / 3


@races_on_purpose
def test_seeds_reach_every_order_of_conflicting_work():
    program, ends = fills(2, 3, same=True)
    found = explore(program, seeds=400)
    assert found.runs == 400
    assert set(ends) == {3, 6}
    assert found.distinct > 20  # orders, and when the device went on while the program enqueued


class Unordered(ca.DeviceOp):
    """Reads a tensor without telling that it does."""

    def __init__(self, tensor):
        self.tensor = tensor

    def execute(self, ctx):
        result = ctx.empty(self.tensor.shape, "float32")
        address = ctx.write(result)
        ctx.driver.copy_device_to_device_async(
            address, self.tensor._address, self.tensor.nbytes, ctx.stream.handle
        )
        return result


async def reads_too_early(device):
    first, second = device.create_stream(), device.create_stream()
    tensor = await ca.zeros(4)
    filled = ca.fill(tensor, 1.0).start(ca.SingleStream(first))
    result = await Unordered(tensor).to_host().schedule(ca.SingleStream(second))
    assert result.tolist() == [1, 1, 1, 1]
    await filled


async def reads_in_time(device):
    first, second = device.create_stream(), device.create_stream()
    tensor = await ca.zeros(4)
    filled = ca.fill(tensor, 1.0).start(ca.SingleStream(first))
    result = await ca.copy(tensor).to_host().schedule(ca.SingleStream(second))
    assert result.tolist() == [1, 1, 1, 1]
    await filled


@races_on_purpose
@pytest.mark.parametrize("how", [{"seeds": 100}, {"exhaustive": True, "limit": 2000}], ids=["seeds", "all"])
def test_missing_wait_is_found_and_replays(how):
    with pytest.raises(AssertionError) as caught:
        explore(reads_too_early, **how)
    (note,) = [note for note in caught.value.__notes__ if note.startswith("in run")]
    assert "reads_too_early; again: explore(..." in note
    failure = explore(reads_too_early, **how, raising=False).failure
    assert isinstance(failure.error, AssertionError)
    assert format_trace(failure.trace) in note
    for trace in (failure.trace, format_trace(failure.trace)):
        with pytest.raises(AssertionError):
            replay(reads_too_early, trace)
    if failure.seed is not None:
        again = explore(reads_too_early, seeds=[failure.seed], raising=False).failure
        assert again.trace == failure.trace
        assert f"seed {failure.seed}, run 1: AssertionError" in str(again)


@pytest.mark.parametrize("how", [{"seeds": 30}, {"exhaustive": True}], ids=["seeds", "all"])
@pytest.mark.parametrize("more", [{}, {"memory_bytes": 1 << 20}], ids=["", "memory"])
def test_what_only_the_checking_mode_finds_replays_as_the_note_says(how, more):
    with pytest.raises(CheckError) as caught:
        explore(fills(2, 1, same=True)[0], check=True, **how, **more)
    (note,) = [note for note in caught.value.__notes__ if note.startswith("in run")]
    for call in note.partition("again: ")[2].split(", or "):
        with pytest.raises(CheckError):
            eval(call.replace("...", "program"), {**globals(), "program": fills(2, 1, same=True)[0]})
    assert note.count("check=True") == 2
    assert note.count("memory_bytes=1048576") == (2 if more else 0)


def test_no_schedule_of_ordered_work_fails():
    assert explore(reads_in_time, seeds=100).failure is None
    found = explore(reads_in_time, exhaustive=True, limit=3000)
    assert found.complete
    assert found.distinct > 1


def test_replaying_gives_the_same_trace():
    traces = []

    async def program(device):
        op = ca.parallel(ca.full(3, 1.0).astype("i4").to_host(), ca.from_host(np.ones(5)).to_host())
        await asyncio.gather(op, ca.zeros(2).to_host())
        traces.append(list(device.driver.engine.order.trace))

    explore(program, seeds=[7])
    assert replay(program, traces[0])[: len(traces[0])] == tuple(traces[0])
    assert traces[0] == traces[1]
    assert traces[0]


def test_trace_of_another_program_is_refused():
    failure = explore(reads_too_early, seeds=100, raising=False).failure
    with pytest.raises(ca.SchedulingError, match="departed from the recorded trace at decision"):
        replay(fills(2, 1, same=True)[0], [6] * len(failure.trace))


@races_on_purpose
def test_program_that_depends_on_more_cannot_be_searched():
    runs = []

    def program(device):
        runs.append(1)
        fills(2, 1 + len(runs) % 2, same=True)[0](device)

    with pytest.raises(ca.SchedulingError, match="depends on more than the schedule"):
        explore(program, exhaustive=True)


@pytest.mark.parametrize("blocking", [False, True])
def test_lost_wakeup_is_an_error_and_no_hang(blocking):
    async def waits(device):
        await ca.zeros(3)
        await asyncio.get_running_loop().create_future()

    def blocks(device):
        driver = device.driver
        stream = driver.stream_create()
        controls = driver.engine
        controls.wait_enqueued(driver._streams[stream], 1, None)

    with pytest.raises(ca.SchedulingError, match="waits for something that can never come"):
        explore(blocks if blocking else waits, seeds=1)


@pytest.mark.anyio
async def test_inside_an_event_loop_is_refused():
    with pytest.raises(RuntimeError, match="call this outside of event loops"):
        explore(reads_in_time, seeds=1)
    with pytest.raises(RuntimeError, match="call this outside of event loops"):
        replay(reads_in_time, "h")


@pytest.mark.parametrize(
    ("use", "name", "why"),
    [
        (lambda: asyncio.open_connection("localhost", 1), "create_connection", "no sockets, pipes"),
        (lambda: asyncio.start_server(print, "localhost", 0), "create_server", "no sockets, pipes"),
        (lambda: asyncio.create_subprocess_exec("true"), "subprocess_exec", "signals or subprocesses"),
        (lambda: asyncio.get_running_loop().add_signal_handler(2, print), "add_signal_handler", "signals"),
        (lambda: asyncio.get_running_loop().add_reader(0, print), "add_reader", "a stand-in for that part"),
        (lambda: asyncio.get_running_loop().stop(), "stop", "the program only runs on it"),
        (lambda: asyncio.get_running_loop().set_debug(True), "set_debug", "the program only runs on it"),
    ],
)
def test_what_the_loop_does_not_have_it_refuses_in_words(use, name, why):
    async def program(device):
        await use()

    with pytest.raises(NotImplementedError, match=rf"explored cannot use loop\.{name}\(\): .*{why}"):
        explore(program, seeds=1)


def test_every_method_of_an_event_loop_works_or_is_refused_in_words():
    for name in vars(asyncio.AbstractEventLoop):
        assert name in vars(ExploringLoop) or name.startswith("_"), name


def test_time_passes_when_the_schedule_says_so():
    outcomes = set()

    async def program(device):
        try:
            async with asyncio.timeout(3600):
                await ca.full(8, 2.0).to_host()
        except TimeoutError:
            outcomes.add("late")
        else:
            outcomes.add("in time")

    explore(program, seeds=60)
    assert outcomes == {"late", "in time"}


def test_threads_of_asyncio_run_as_host_work():
    async def program(device):
        assert await asyncio.to_thread(lambda: ca.ones(3).to_host().sync().sum()) == 3
        await ca.drain()

    explore(program, seeds=30)


def test_error_in_a_callback_of_the_loop_comes_out():
    async def program(device):
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await ca.zeros(3)

    with pytest.raises(ZeroDivisionError):
        explore(program, seeds=1)


def test_failure_that_nobody_was_told_of_comes_out():
    async def program(device):
        stream = device.create_stream()
        device.driver.fill_async(8, b"\0", 1, stream.handle)
        stream._dirty = True

    with pytest.raises(MemoryFault, match="null pointer"):
        explore(program, seeds=1)


def test_device_of_the_process_is_back_afterwards():
    before = ca.current_device()
    explore(reads_in_time, seeds=1)
    assert ca.current_device() is before
    assert ca.Device("host:0") is ca.Device("host:0")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"seeds": 0}, ValueError, "seeds is 0; give a number of seeds from 1"),
        ({"seeds": -1}, ValueError, "seeds is -1; give a number"),
        ({"seeds": []}, ValueError, "has run nothing: the seeds are empty"),
        ({"seeds": iter(())}, ValueError, "has run nothing: the seeds are empty"),
        ({"seeds": "a"}, TypeError, "a number of seeds, or an iterable of them, got 'a'"),
        ({"seeds": 1.5}, TypeError, r"a number of seeds, or an iterable of them, got 1\.5"),
        ({"seeds": None}, TypeError, "a number of seeds, or an iterable of them, got None"),
        ({"seeds": ["a"]}, TypeError, "a seed is a whole number from 0, got 'a'"),
        ({"seeds": [-1]}, ValueError, "a seed is a whole number from 0, got -1"),
        ({"exhaustive": True, "limit": 0}, ValueError, "limit is 0; give a number of runs from 1"),
        ({"limit": -3}, ValueError, "limit is -3"),
    ],
)
def test_runs_that_cannot_be_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        explore(reads_in_time, **arguments)


@pytest.mark.parametrize(
    ("seed", "error"), [("a", TypeError), (None, TypeError), (1.5, TypeError), (-1, ValueError)]
)
def test_what_is_no_seed_is_refused(seed, error):
    with pytest.raises(error, match=f"a seed is a whole number from 0, got {seed!r}"):
        seeded_device(seed)


def test_seeds_of_numpy_are_numbers():
    traces = [explore(reads_in_time, seeds=seeds).digests() for seeds in ([1, 2], np.array([1, 2]))]
    assert traces[0] == traces[1]
    assert explore(reads_in_time, seeds=np.int64(2)).runs == 2


def test_an_empty_trace_replays_no_program_with_decisions():
    with pytest.raises(ValueError, match="the trace is empty, so nothing was replayed: the program had"):
        replay(reads_in_time, "")
    assert replay(lambda device: None, "") == ()


def generator(device):
    yield


async def async_generator(device):
    yield


class Awaitable:
    def __await__(self):
        yield


@pytest.mark.parametrize("run", [explore, lambda p: explore(p, exhaustive=True), lambda p: replay(p, "")])
@pytest.mark.parametrize(
    ("program", "kind"),
    [
        (generator, "generator"),
        (async_generator, "async_generator"),
        (lambda device: ca.ones(3), "Full"),
        (lambda device: ca.ones(3).start(), "DeviceFuture"),
        (lambda device: Awaitable(), "Awaitable"),
    ],
)
def test_program_that_nobody_runs_is_refused(program, kind, run):
    with pytest.raises(TypeError, match=rf"a function or coroutine function .*type '{kind}', which nobody"):
        run(program)


def test_program_may_be_any_callable_that_gives_a_coroutine():
    seen = []

    async def takes(device, number):
        seen.append(number)
        await ca.ones(3)

    explore(functools.partial(takes, number=1), seeds=2)
    explore(lambda device: takes(device, 2), seeds=1)
    assert seen == [1, 1, 2]


def test_traces_as_text():
    trace = (0, 0, 1, 2, -1, -3, 3, 4, 5, 5)
    text = format_trace(trace)
    assert text == "2h c w b0 b2 t s0 2s1"
    assert parse_trace(text) == trace
    for part in ("x3", "0h", "h0", "s", f"s{10**9}", f"{10**10}h", "9" * 5000 + "h"):
        with pytest.raises(ValueError, match=f"'{part}' is no part of a trace"):
            parse_trace(f"2h {part}")


def test_traces_longer_than_any_run_are_refused():
    for text in ("999999999h", "6000000h 6000000s0"):
        with pytest.raises(ValueError, match="no run has more than 10000000 decisions"):
            replay(reads_in_time, text)


def test_a_capture_is_not_held_up_by_time(monkeypatch):
    """However slow the machine is: the same decisions."""
    traces = []

    async def runs(device):
        x = await ca.ones(4)
        graph = await ca.copy(x).then(lambda y: ca.copy(y)).then(lambda y: ca.copy(y)).graph()
        other = ca.full(4, 2.0).to_host().start()
        assert (await (await graph.launch()).to_host()).all()
        await other
        traces.append(list(device.driver.engine.order.trace))

    def seen(*, seconds_a_look):
        clock = itertools.count(0, seconds_a_look)
        monkeypatch.setattr(_recorder, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
        traces.clear()
        explore(runs, seeds=5)
        return list(traces)

    assert seen(seconds_a_look=0) == seen(seconds_a_look=1)


@pytest.mark.parametrize("kind", ["checked", "seeded"])
def test_drain_waits_for_a_device_of_the_tests_own(kind):
    device = checked_device() if kind == "checked" else seeded_device(3)[0]

    async def main():
        x = await ca.zeros(100_000)
        filled = ca.fill(x, 3.0).start()
        await ca.drain()
        assert (np.from_dlpack(x) == 3).all()
        await filled

    with ca.use_device(device):
        asyncio.run(main())
