"""Drawn programs on a few streams behind a gate, some of whose writes fail: who hears of it, against a model.

The model is what docs/reliability.md says. An operation waits for the last write of what it uses, and where it writes
for the last read of each stream since, as far as those are on other streams. It fails if it was planned to, or if
something fails that it waits for so. (Events that a stream waits for by itself are of what comes behind, and tell
nothing.) What it yields otherwise is right, where nothing that failed on its own stream is in it.
"""

from __future__ import annotations

import random
import threading
from pathlib import Path

import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk
from cuda_async.errors import KernelError

SAXPY = Path(__file__).resolve().parents[3] / "examples" / "simt" / "saxpy.ptx"
STREAMS = TENSORS = 3
STEPS = 24


@tk.kernel
def takes(out: tk.Tile1D, x: tk.Tensor1D):
    out.store(tk.load_like(x, out))


class Operation:
    """One that was enqueued, in a number of its own.

    Attributes:
        fails: whether it does, as the model says. value: what its result is, or None where nobody can say.
    """

    def __init__(self, stream, waits, *, is_planned, value):
        self.fails = is_planned or any(known.fails for known in waits)
        self.stream = stream
        self.value = None if self.fails else value
        self.future = None


class Program:
    def __init__(self, seed, device):
        self.chance = random.Random(seed)
        self.goes_on = threading.Event()
        self.streams = [device.create_stream() for _ in range(STREAMS)]
        self.tensors = [ca.full(4, float(i)).sync() for i in range(TENSORS)]
        self.values = [float(i) for i in range(TENSORS)]
        # Behind those of the tensors, those of the graphs' own memory.
        self.last_write = [None] * (2 * TENSORS)
        self.reads = [{} for _ in range(2 * TENSORS)]
        self.operations = []
        self.rooms = [ca.zeros(4).sync() for _ in range(STEPS + STREAMS)]
        self.saxpy = ca.Module.from_file(SAXPY).function("saxpy_f32")
        self.graphs = [ca.copy(tensor).graph().sync() for tensor in self.tensors]
        for stream in self.streams:
            on_it = ca.SingleStream(stream)
            for use in self.uses(0):
                use().schedule(on_it).sync()
        gate = device.create_stream()  # one is enough: the device has one thread
        self.streams_to_close = [*self.streams, gate]
        ca.foreign(lambda _: self.goes_on.wait(60)).start(ca.SingleStream(gate))

    def uses(self, k):
        """Reads of the tensor `k`, each of which yields its elements in a new place, or nothing."""
        x, y = self.tensors[k], self.rooms.pop()
        return [
            lambda: ca.copy(x),
            lambda: x.to_host(),
            lambda: ca.memcpy(y, x),
            lambda: takes(y.partition(4), x).first().unpartition(),
            lambda: ca.foreign(lambda _: None, reads=[x]),
            lambda: self.saxpy.launch(1, 4, 4, 0.0, ca.read(x), ca.read(x), ca.mut(y)).map(lambda _: y),
            lambda: self.graphs[k](),
        ]

    def enqueue(self, stream, op, reads, write, *, is_planned=False, value=None):
        others = [self.last_write[k] for k in {*reads, *({write} - {None})}]
        if write is not None:
            others += self.reads[write].values()
        waits = [known for known in others if known is not None and known.stream is not stream]
        made = Operation(stream, waits, is_planned=is_planned, value=value)
        future = op.start(ca.SingleStream(stream))
        while future.state == "enqueueing":
            threading.Event().wait(1e-4)
        stream.record()
        made.future = future
        for k in reads:
            self.reads[k][stream] = made
        if write is not None:
            self.last_write[write], self.reads[write] = made, {}
            if write < TENSORS:
                self.values[write] = made.value
        self.operations.append(made)

    def step(self):
        chance, stream, k = self.chance, self.chance.choice(self.streams), self.chance.randrange(TENSORS)
        kind = chance.choice(["read"] * 4 + ["write", "write", "fail", "kernel", "wait"])
        x = self.tensors[k]
        if kind == "read":
            number, uses = chance.randrange(7), self.uses(k)
            own = TENSORS + k if number == len(uses) - 1 else None  # the graph
            self.enqueue(stream, uses[number](), {k}, own, value=self.values[k])
        elif kind == "write":
            number = float(chance.randrange(10, 100))
            self.enqueue(stream, ca.fill(x, number), set(), k, value=number)
        elif kind == "fail":

            def fail(_):
                raise ValueError("as planned")

            self.enqueue(stream, ca.foreign(fail, writes=[x]), set(), k, is_planned=True)
        elif kind == "kernel":
            other = chance.choice([j for j in range(TENSORS) if j != k])
            value = self.values[other]
            op = self.saxpy.launch(
                1, 4, 4, 1.0, ca.read(self.tensors[other]), ca.read(self.tensors[other]), ca.mut(x)
            )
            self.enqueue(stream, op.map(lambda _: x), {other}, k, value=None if value is None else 2 * value)
        else:
            stream.wait(chance.choice(self.streams).record())

    def check(self):
        self.goes_on.set()
        for number, made in enumerate(self.operations):
            if made.fails:
                with pytest.raises(KernelError, match="as planned"):
                    made.future.sync()
                continue
            result = made.future.sync()
            if isinstance(result, np.ndarray) and made.value is not None:
                assert result.tolist() == [made.value] * 4, number
        for k, value in enumerate(self.values):
            if value is not None:
                assert self.tensors[k].to_host().sync().tolist() == [value] * 4


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(60))
def test_random_failures(host, seed):
    program = Program(seed, host)
    try:
        for _ in range(STEPS):
            program.step()
        assert any(made.fails for made in program.operations) or seed
        program.check()
    finally:
        program.goes_on.set()
        for stream in program.streams_to_close:
            try:
                stream.close()
            except KernelError:  # of a failure behind which nobody looked
                pass
