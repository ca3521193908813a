"""The loop of `explore`: asynchronous generators end as under `asyncio.run`."""

from __future__ import annotations

import asyncio
import contextlib
import sys

import pytest

import cuda_async as ca
from cuda_async.testing import explore


class Numbers:
    """Makes generators, and notes those whose end has begun, and those that are through with it."""

    def __init__(self):
        self.ending = 0
        self.through = asyncio.Event()

    async def __call__(self):
        try:
            while True:
                yield 1
        finally:
            self.ending += 1
            await asyncio.sleep(0)
            await ca.ones(3)
            self.through.set()


async def left_early(numbers, kept):
    async for _ in numbers():
        break
    await numbers.through.wait()


async def left_at_the_end(numbers, kept):
    async for _ in numbers():
        break


async def kept_to_the_end(numbers, kept):
    kept.append(numbers())
    await anext(kept[0])


async def kept_by_one_that_fails(numbers, kept):
    await kept_to_the_end(numbers, kept)
    raise LookupError("mine")


async def left_by_a_cancelled_task(numbers, kept):
    async def reads():
        async for _ in numbers():
            reading.set()
            await asyncio.Event().wait()

    reading = asyncio.Event()
    kept.append(asyncio.create_task(reads()))
    await reading.wait()


PROGRAMS = [left_early, left_at_the_end, kept_to_the_end, kept_by_one_that_fails, left_by_a_cancelled_task]


def ends_of(run, program):
    """How many generators have begun to end when the run is over, and whether they are through."""
    numbers, kept = Numbers(), []
    with contextlib.suppress(LookupError):
        run(lambda *_: program(numbers, kept))
    return numbers.ending, numbers.through.is_set()


@pytest.mark.parametrize("program", PROGRAMS)
def test_generators_end_as_under_asyncio(host, program):
    assert ends_of(lambda p: asyncio.run(p()), program)[0] == 1
    for seed in range(20):
        ending, is_through = ends_of(lambda p, seed=seed: explore(p, seeds=[seed]), program)
        assert ending == 1
        # What runs when the program ends is cancelled, which may come in between.
        assert is_through or program is left_at_the_end


@pytest.mark.parametrize("is_kept", [False, True])
def test_error_at_the_end_of_a_generator_comes_out(is_kept):
    async def numbers(told):
        try:
            yield 1
        finally:
            await ca.ones(3)
            told.set()
            raise LookupError("mine")

    async def program(device):
        told = asyncio.Event()
        generator = numbers(told)
        await anext(generator)
        if is_kept:
            return generator
        del generator
        await told.wait()

    with pytest.raises(LookupError, match="mine"):
        explore(program, seeds=1)


def test_hooks_of_the_thread_are_back_afterwards():
    before = sys.get_asyncgen_hooks()
    explore(lambda device: kept_to_the_end(Numbers(), []), seeds=1)
    assert sys.get_asyncgen_hooks() == before
