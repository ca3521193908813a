"""Drawn programs, some of whose work fails on the device: who gets a value, and who gets which failure.

Several tasks run trees of operations on a few streams, beside shared operations that all of them use, while operations
stand still for preparations and host data. An operation whose work failed gives no value, one whose work was fine
gives its own, and a failure that is told is one of the operation's. Nothing is left of memory afterwards.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import random

import pytest

import cuda_async as ca
from cuda_async.errors import KernelError
from cuda_async.testing import explore


class Prepared(ca.DeviceOp):
    """Is prepared first, which lets others come."""

    def __init__(self, value):
        self.value = value

    def prepare(self, ctx):
        pass

    def execute(self, ctx):
        return self.value


class InTurn:
    def __init__(self, streams):
        self.streams = itertools.cycle(streams)

    def next_stream(self):
        return next(self.streams)


def failing(tag):
    def fail(_):
        raise ValueError(f"<{tag}>")

    return fail


class Drawn:
    """Operations, each with the value that it gives and the failures that its work has."""

    def __init__(self, chance, streams):
        self.chance = chance
        self.streams = streams
        self.tags = itertools.count()
        self.shared = []

    def leaf(self):
        number = self.chance.randrange(100)
        kinds = [
            "value",
            "device",
            "late",
            "fail",
            "fail on the way",
            "prepared",
            "context",
            "shared",
            "shared",
        ]
        kind = self.chance.choice(kinds if self.shared else kinds[:-2])
        if kind == "value":
            return ca.value(number), number, set()
        if kind == "device":
            copied = ca.full(4, float(number)).then(ca.copy).then(lambda x: x.to_host())
            return copied.map(lambda array: int(array[0])), number, set()
        if kind == "late":
            return ca.full(4, 1.0).map(lambda _: number), number, set()
        if kind == "prepared":
            return ca.full(4, 1.0).then(lambda _: Prepared(number)), number, set()
        if kind == "context":
            return ca.with_context(lambda ctx: ca.full(4, 1.0).map(lambda _: number)), number, set()
        if kind == "shared":
            op, value, tags = self.chance.choice(self.shared)
            return op.map(lambda given: given), value, tags
        tag = next(self.tags)
        op = ca.zeros(2).then(
            lambda x: ca.foreign(failing(tag), writes=[x]).then(lambda made: made[0].to_host())
        )
        if kind == "fail":
            op = ca.zeros(2).then(lambda x: ca.foreign(failing(tag), writes=[x]))
        return op.map(lambda _: number), number, {tag}

    def tree(self, depth):
        if depth == 0 or self.chance.random() < 0.2:
            return self.leaf()
        kind = self.chance.choice(["then", "then", "zip", "parallel", "parallel", "schedule", "shared"])
        if kind in ("then", "zip", "parallel"):
            parts = [
                self.tree(depth - 1) for _ in range(2 if kind == "then" else self.chance.randrange(1, 4))
            ]
            ops, values, tags = zip(*parts, strict=True)
            if kind == "then":
                op = ops[0].then(lambda x: ops[1].map(lambda y: (x, y)))
            else:
                op = (ca.zip if kind == "zip" else ca.parallel)(*ops)
            return op, values, set().union(*tags)
        op, value, tags = self.tree(depth - 1)
        if kind == "schedule":
            return op.schedule(ca.SingleStream(self.chance.choice(self.streams))), value, tags
        twice = op.shared()
        return ca.zip(twice, twice).first(), value, tags


def program(number):
    async def main(device):
        chance = random.Random(number)
        await ca.foreign(lambda _: None)
        streams = [device.create_stream() for _ in range(chance.randrange(1, 4))]
        drawn = Drawn(chance, streams)

        async def outcome(awaitable, value, tags):
            told = ""
            try:
                given = await awaitable
            except KernelError as error:
                told = str(error)
            if told:
                assert any(f"<{tag}>" in told for tag in tags), f"{told} is not one of {tags}"
            else:
                assert (given, tags) == (value, set())

        async def run(how, op, value, tags):
            if how == "future":
                future = op.start(ca.SingleStream(chance.choice(streams)))
                await asyncio.gather(outcome(future, value, tags), outcome(future, value, tags))
            elif how == "shared":
                op = op.shared()
                uses = (op, op.schedule(ca.SingleStream(chance.choice(streams))), ca.parallel(op).first())
                await asyncio.gather(*(outcome(use, value, tags) for use in uses))
            else:
                await outcome(op, value, tags)

        with ca.use_policy(InTurn(streams)):
            for _ in range(chance.randrange(3)):
                op, value, tags = drawn.tree(2)
                drawn.shared.append((op.shared(), value, tags))
            jobs = [(chance.choice(["await", "future", "shared"]), *drawn.tree(3)) for _ in range(3)]
            await asyncio.gather(*(run(*job) for job in jobs))
            for found in drawn.shared:
                await outcome(*found)
        drawn.shared.clear()
        jobs = op = found = None
        gc.collect()
        await ca.drain()
        gc.collect()
        assert device.memory_stats().used_bytes == 0

    main.__qualname__ = f"program({number})"
    return main


@pytest.mark.parametrize("number", range(100))
def test_failures_are_told_to_whose_they_are(number):
    explore(program(number), seeds=3)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 8100, 100))
def test_failures_of_many_programs_are_told_to_whose_they_are(first):
    for number in range(first, first + 100):
        explore(program(number), seeds=4)
