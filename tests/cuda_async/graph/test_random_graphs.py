"""Random operations give in a graph what they give without one, launch after launch."""

from __future__ import annotations

import random

import numpy as np
import pytest

import cuda_async as ca
from cuda_async.testing import explore

pytestmark = pytest.mark.anyio

SIZE = 64


class Program:
    """A random tree of operations over four tensors; the same seed makes the same tree over any four."""

    def __init__(self, seed, kernels, tensors, counter):
        self.choice = random.Random(seed)
        self.kernels = kernels
        self.tensors = tensors
        self.counter = counter

    def whole(self):
        """Branches, which are where order is easily lost."""
        return ca.parallel(*(self.build() for _ in range(3)))

    def build(self, depth=3):
        kind = self.choice.randrange(9 if depth else 5)
        source, target = self.choice.choice(self.tensors), self.choice.choice(self.tensors)
        a, b = self.choice.choice([0.5, 1.0, -1.0]), float(self.choice.randrange(4))
        if kind == 0:
            return self.kernels.scale(target, a, b)
        if kind == 1:
            return ca.memcpy(target[1:], source[:-1])
        if kind == 2:
            return ca.fill(target[::3], b)
        if kind == 3:
            return self.kernels.scaled(source, a, b).then(lambda t: ca.memcpy(target, t))
        if kind == 4:
            return source.astype("i4").then(lambda t: t.astype("f4")).then(lambda t: ca.memcpy(target, t))
        parts = [self.build(depth - 1) for _ in range(self.choice.randrange(1, 4))]
        if kind == 5:
            return ca.zip(*parts)
        if kind == 6:
            return ca.parallel(*parts)
        if kind == 7:
            first, *rest = parts
            for part in rest:
                first = first.then(lambda _, part=part: part)
            return first
        body = ca.collect(parts)
        flag = self.counter[self.choice.randrange(2)]
        return ca.if_else(flag, lambda: body, lambda: self.kernels.scale(target, 1.0, 1.0))


def shuffled(nodes, chance):
    """The nodes in another order that keeps what they depend on: whoever needs more has to depend on it."""
    waiting, order, done = list(nodes), [], set()
    while waiting:
        ready = [node for node in waiting if all(d in done for d in node.dependencies)]
        node = ready[-1] if chance.random() < 0.7 else chance.choice(ready)
        waiting.remove(node)
        order.append(node)
        done.add(node)
    return order


@pytest.mark.parametrize("seed", range(25))
async def test_graph_does_what_operations_do(device, kernels, seed):
    await compare(device, kernels, seed)


@pytest.mark.parametrize("seed", range(100, 104))
def test_graph_does_what_operations_do_in_any_order(kernels, seed):
    explore(lambda device: compare(device, kernels, seed), seeds=4)


async def compare(device, kernels, seed):
    arrays = [np.random.default_rng(i).integers(-3, 4, SIZE).astype("f4") for i in range(4)]
    alone, recorded = [[await ca.from_host(array) for array in arrays] for _ in range(2)]
    flags = [await ca.full(1, i, "int32") for i in range(2)]
    graph = await Program(seed, kernels, recorded, flags).whole().graph()
    streams = [device.create_stream() for _ in range(2)]
    for i in range(4):
        if i >= 2:
            graph._nodes = shuffled(graph._nodes, random.Random(seed + i))
            graph._instantiate()
        await Program(seed, kernels, alone, flags).whole()
        await graph.launch().schedule(ca.SingleStream(streams[i % 2]))
        for one, other in zip(alone, recorded):
            np.testing.assert_array_equal(await one.to_host(), await other.to_host())
