"""Random launches of graphs within graphs, some of which fail while others are in flight, against a model: the value of
a shared operation is that of the first run that did not fail, as long as nothing has run or may have run behind it, and
cannot be used else.
"""

from __future__ import annotations

import random
import threading

import pytest

import cuda_async as ca
from cuda_async.errors import CudaAsyncError, KernelError, NotFilledYetError, StaleOutputError
from cuda_async.graph import _memory

PARTS, WHOLES, BATCHES = 3, 5, 8


class Graph:
    """A graph, and how often each part runs in a launch of it."""

    def __init__(self, graph, counts):
        self.graph = graph
        self.counts = counts


class Launches:
    """One random program. Wholes end with host work that waits for the latch, and fails where that is planned."""

    def __init__(self, seed, device):
        self.chance = random.Random(seed)
        self.latch = threading.Event()
        self.plans = {}
        self.touched = ca.zeros(1).sync()
        self.sources = [ca.zeros(1).sync() for _ in range(PARTS)]
        self.shared = [ca.copy(source).shared() for source in self.sources]
        self.graphs = []
        for i, shared in enumerate(self.shared):
            counts = [int(i == j) for j in range(PARTS)]
            self.graphs.append(Graph(shared.map(lambda _: None).graph().sync(), counts))
        for number in range(WHOLES):
            chosen = self.chance.choices(self.graphs, k=self.chance.randrange(1, 4))
            counts = [sum(each) for each in zip(*(part.counts for part in chosen))]
            ops = [part.graph.launch() for part in chosen]
            op = ca.zip(*ops, ca.foreign(self.work(number), reads=[self.touched])).map(lambda _: None)
            self.graphs.append(Graph(op.graph().sync(), counts))
        self.streams = [ca.SingleStream(device.create_stream()) for _ in range(2)]
        self.runs = [
            [] for _ in range(PARTS)
        ]  # (what it read, whether it did not fail, how often), one for each launch

    def work(self, number):
        def do(_):
            assert self.latch.wait(60)
            if number in self.failing:
                raise ValueError("as planned")

        return do

    def batch(self, value):
        """Up to three launches in flight at once."""
        for source in self.sources:
            ca.fill(source, value).sync()
        self.latch.clear()
        self.failing = {number for number in range(WHOLES) if self.chance.random() < 0.3}
        chosen = self.chance.choices(self.graphs, k=self.chance.randrange(1, 4))
        futures = [graph.graph.launch().start(self.chance.choice(self.streams)) for graph in chosen]
        while any(future.state == "enqueueing" for future in futures):
            threading.Event().wait(1e-3)
        self.latch.set()
        for graph, future in zip(chosen, futures):
            try:
                future.sync()
                is_good = True
            except CudaAsyncError:
                is_good = False
            for runs, count in zip(self.runs, graph.counts):
                if count:
                    runs.append((value, is_good, count))

    def check(self):
        for shared, runs in zip(self.shared, self.runs):
            good = [run for run in runs if run[1]]
            if good and good[0] is runs[-1] and good[0][2] == 1:
                assert shared.sync().to_host().sync()[0] == good[0][0]
            else:
                with pytest.raises(StaleOutputError if good else NotFilledYetError):
                    shared.sync().to_host().sync()


@pytest.mark.parametrize("seed", range(60))
def test_first_runs(host, seed):
    launches = Launches(seed, host)
    launches.check()
    for number in range(BATCHES):
        launches.batch(float(number + 1))
        launches.check()
    assert any(launches.runs)


def test_many_launches_in_flight_of_which_the_last_is_the_first_that_does_not_fail(host):
    source, latch, failing = ca.zeros(1).sync(), threading.Event(), [True] * 20
    shared = ca.copy(source).shared()

    def work(_):
        assert latch.wait(60)
        if failing and failing.pop():
            raise ValueError("as planned")

    graph = shared.then(lambda _: ca.foreign(work, reads=[source])).map(lambda _: None).graph().sync()
    stream = host.create_stream()
    futures = []
    for _ in range(21):  # each in a number of its own
        futures.append(graph.launch().start(ca.SingleStream(stream)))
        while futures[-1].state == "enqueueing":
            threading.Event().wait(1e-3)
        stream.record()
    latch.set()
    for future in futures[:-1]:
        with pytest.raises(CudaAsyncError, match="as planned"):
            future.sync()
    futures[-1].sync()
    assert shared.sync().to_host().sync()[0] == 0.0
    graph.launch().sync()
    with pytest.raises(StaleOutputError):
        shared.sync().to_host().sync()
    assert len(graph._state.runs) == 1


@pytest.mark.parametrize("knows", ["nothing", "later work", "an event behind it"])
@pytest.mark.parametrize("what", ["output", "shared"])
def test_who_reads_twice_behind_a_launch_that_nobody_awaits_and_that_fails(host, what, knows):
    """The first read fails by it; from then on it is known that the launch has not filled its memory.

    Also where the stream that reads has waited for what came behind that launch.
    """
    source, failing, other = ca.ones(1).sync(), [], ca.zeros(1).sync()

    def work(_):
        if failing:
            raise ValueError("as planned")

    shared = ca.copy(source).shared()
    op = ca.foreign(work, writes=[source]).then(lambda _: shared)
    graph = op.graph().sync()
    if what == "output":
        graph.launch().sync()
    failing.append(True)
    launches, stream = host.create_stream(), host.create_stream()
    future = graph.launch().start(ca.SingleStream(launches))
    while future.state == "enqueueing":
        threading.Event().wait(1e-3)
    launches.record()
    reads = ca.SingleStream(stream)
    if knows == "later work":
        ca.fill(other, 7.0).schedule(ca.SingleStream(launches)).start()
        assert other.to_host().schedule(reads).sync()[0] == 7.0
    elif knows == "an event behind it":
        ca.fill(other, 7.0).schedule(ca.SingleStream(launches)).start()
        stream.wait(launches.record())
    tensor = graph.take_output()
    with pytest.raises(KernelError, match="as planned"):
        tensor.to_host().schedule(reads).sync()
    with pytest.raises(StaleOutputError, match="failed"):
        tensor.to_host().schedule(reads).sync()
    if what == "shared":
        with pytest.raises(NotFilledYetError, match="as planned"):
            shared.sync()
    with pytest.raises(KernelError):
        future.sync()


def test_what_is_remembered_of_launches_is_bounded(host):
    """Also while the first one is not known to be over, since nobody asks for it."""
    source = ca.zeros(4).sync()
    part = ca.copy(source).graph().sync()
    whole = part.launch().map(lambda _: None).graph().sync()
    forgotten, stream = (ca.SingleStream(host.create_stream()) for _ in range(2))
    whole.launch().start(forgotten)
    for _ in range(50):
        part.launch().start(stream)
        whole.launch().start(stream)
    ca.drain().sync()
    for graph in (part, whole):
        graph.launch().schedule(stream).sync()
        graph.launch().schedule(stream).sync()
        assert len(graph._state.runs) == 1
        assert len(graph._state.looked_back_at) <= 2 * _memory.CANDIDATES
