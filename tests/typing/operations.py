"""Typing examples that only the type checker runs (`make lint`): result types follow the combinators."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import cuda_async as ca


async def sources(array: NDArray[np.float32], tensor: ca.Tensor) -> None:
    assert_type(await ca.value(7), int)
    assert_type(await ca.empty((2, 3)), ca.Tensor)
    assert_type(await ca.from_host(array), ca.Tensor)
    assert_type(await ca.to_host(tensor), NDArray[Any])
    assert_type(await tensor.to_host(), NDArray[Any])
    assert_type(await ca.memcpy(tensor, array), ca.Tensor)
    assert_type(await tensor.astype(ca.float16), ca.Tensor)


async def chains() -> None:
    assert_type(await ca.value(7).then(lambda n: ca.empty((n,))), ca.Tensor)
    assert_type(await ca.empty((2,)).map(lambda t: t.shape), tuple[int, ...])
    assert_type(await ca.empty((2,)).inspect(print), ca.Tensor)
    assert_type(await ca.empty((2,)).to_host(), NDArray[Any])
    assert_type(await ca.empty((2,)).partition((1,)), ca.Partition)
    assert_type(await ca.empty((2,)).partition((1,)).unpartition(), ca.Tensor)
    assert_type(
        await ca.value(7).then_with_context(lambda ctx, n: ca.value((ctx.device, n))), tuple[ca.Device, int]
    )
    assert_type(await ca.with_context(lambda ctx: ca.value(ctx.stream)), ca.Stream)


async def several() -> None:
    number, text = ca.value(7), ca.value("seven")
    pair = ca.zip(number, text)
    assert_type(pair, ca.DeviceOp[tuple[int, str]])
    left, right = pair.unzip()
    assert_type(left, ca.DeviceOp[int])
    assert_type(right, ca.DeviceOp[str])
    assert_type(await ca.zip(ca.value(1), ca.value("a"), ca.value(2.0)), tuple[int, str, float])
    assert_type(await ca.zip(ca.value(1), ca.value("a")).first(), int)
    assert_type(await ca.zip(ca.value(1), ca.value("a")).last(), str)
    assert_type(await ca.parallel(ca.value(1), ca.value("a")), tuple[int, str])
    assert_type(await ca.collect([ca.value(1), ca.value(2)]), list[int])


async def running(tensor: ca.Tensor, stream: ca.Stream) -> None:
    assert_type(ca.value(7).sync(), int)
    assert_type(ca.value(7).sync_on(stream), int)
    future = ca.value(7).start()
    assert_type(future, ca.DeviceFuture[int])
    assert_type(await future, int)
    assert_type(future.result(), int)
    assert_type(await ca.value(7).schedule(ca.SingleStream()), int)


async def sharing() -> None:
    shared = ca.value(7).shared()
    assert_type(shared, ca.SharedOp[int])
    assert_type(await shared, int)
    assert_type(await shared.unwrap_shared(), int)
    assert_type(await ca.shared("x"), str)


class Doubled(ca.DeviceOp[ca.Tensor]):
    """An operation of a user's own keeps its result type through composition."""

    def __init__(self, tensor: ca.Tensor) -> None:
        self.tensor = tensor

    def execute(self, ctx: ca.ExecutionContext) -> ca.Tensor:
        assert_type(ctx.read(self.tensor), int)
        return ctx.empty(self.tensor.shape, self.tensor.dtype)


async def subclasses(tensor: ca.Tensor) -> None:
    assert_type(await Doubled(tensor), ca.Tensor)
    assert_type(await Doubled(tensor).then(Doubled).to_host(), NDArray[Any])


class Fixed:
    """A policy of a user's own fits the protocol."""

    def __init__(self, stream: ca.Stream) -> None:
        self.stream = stream

    def next_stream(self) -> ca.Stream:
        return self.stream


def policies(stream: ca.Stream) -> ca.SchedulingPolicy:
    return Fixed(stream)


async def mistakes(tensor: ca.Tensor) -> None:
    """What the checker must refuse: an ignore that is not needed is itself an error."""
    ca.value(7).then(lambda n: n + 1)  # type: ignore[arg-type, return-value]
    ca.value(7).unpartition()  # type: ignore[misc]
    for _ in ca.value(7):  # type: ignore[misc]
        pass
    ca.mut(ca.empty((2,)))  # type: ignore[arg-type]
