"""Typing examples that only the type checker runs (`make lint`): result types follow the combinators."""

from __future__ import annotations

from typing import Any, TypeVar, assert_type

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
    assert_type(await ca.zip(), tuple[()])
    assert_type(await ca.zip(ca.value(1)), tuple[int])
    assert_type(await ca.zip(ca.value(1), ca.value("a"), ca.value(2.0)), tuple[int, str, float])
    assert_type(await ca.parallel(ca.value(1), ca.value("a")), tuple[int, str])
    assert_type(await ca.collect([ca.value(1), ca.value(2)]), list[int])


Eight = tuple[int, str, float, bytes, bool, complex, list[int], ca.Tensor]


async def eight(
    a: ca.DeviceOp[int], b: ca.DeviceOp[str], c: ca.DeviceOp[float], d: ca.DeviceOp[bytes]
) -> None:
    e, f, g, h = ca.value(True), ca.value(1j), ca.value([1]), ca.empty(3)
    assert_type(await ca.zip(a, b, c, d), tuple[int, str, float, bytes])
    assert_type(await ca.zip(a, b, c, d, e), tuple[int, str, float, bytes, bool])
    assert_type(await ca.zip(a, b, c, d, e, f), tuple[int, str, float, bytes, bool, complex])
    assert_type(await ca.zip(a, b, c, d, e, f, g), tuple[int, str, float, bytes, bool, complex, list[int]])
    assert_type(await ca.zip(a, b, c, d, e, f, g, h), Eight)
    assert_type(await ca.parallel(a, b, c, d, e, f, g, h), Eight)
    assert_type(await ca.zip(a, b, c, d, e, f, g, h, a), tuple[Any, ...])


async def components(
    eight: ca.DeviceOp[Eight],
    many: ca.DeviceOp[tuple[int, ...]],
    unknown: ca.DeviceOp[tuple[Any, ...]],
    n: int,
) -> None:
    assert_type(eight.first(), ca.DeviceOp[int])
    assert_type(eight.last(), ca.DeviceOp[ca.Tensor])
    assert_type(eight[0], ca.DeviceOp[int])
    assert_type(eight[1], ca.DeviceOp[str])
    assert_type(eight[2], ca.DeviceOp[float])
    assert_type(eight[-1], ca.DeviceOp[ca.Tensor])
    assert_type(eight[n], ca.DeviceOp[Any])
    assert_type(await eight.last().to_host(), NDArray[Any])
    parts = eight.unzip()
    assert_type(parts[3], ca.DeviceOp[bytes])
    assert_type(parts[7], ca.DeviceOp[ca.Tensor])
    assert_type(many.first(), ca.DeviceOp[int])
    assert_type(many.unzip(3), tuple[ca.DeviceOp[int], ...])
    assert_type(unknown.first(), ca.DeviceOp[Any])
    x, y = unknown.unzip(2)
    assert_type(y, ca.DeviceOp[Any])
    assert_type(ca.zip(x, many).unzip(), tuple[ca.DeviceOp[Any], ca.DeviceOp[tuple[int, ...]]])
    assert_type(ca.empty((4, 4))[:, 1], ca.DeviceOp[ca.Tensor])


async def launches(function: ca.Function, tensor: ca.Tensor, device: ca.Device) -> None:
    launch = function.launch((1, 2), 32, ca.read(tensor), ca.mut(tensor), 3)
    assert_type(await launch, tuple[Any, ...])
    assert_type(await function.launch(1, 1, ca.mut(tensor)).first().to_host(), NDArray[Any])
    assert_type(await function.launch(1, 1).then(lambda args: ca.fill(args[0], 1)), ca.Tensor)
    bound = function.bind(1, 1, ca.mut(tensor), device=device)
    assert_type(bound, ca.BoundLaunch)
    assert_type(await bound.launch(), tuple[Any, ...])


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


class Sized(ca.DeviceOp[tuple[ca.Tensor, int]]):
    """Its components keep their types too."""

    def execute(self, ctx: ca.ExecutionContext) -> tuple[ca.Tensor, int]:
        assert_type(ctx.device, ca.Device)
        assert_type(ctx.stream, ca.Stream)
        return ctx.empty(3, ca.float32), 3


async def components_of_subclasses() -> None:
    tensor, count = Sized().unzip()
    assert_type(tensor, ca.DeviceOp[ca.Tensor])
    assert_type(count, ca.DeviceOp[int])
    assert_type(await Sized().map(lambda pair: pair[0].shape), tuple[int, ...])
    assert_type(await ca.zip(Sized(), Sized().last()), tuple[tuple[ca.Tensor, int], int])


T = TypeVar("T")


def twice(op: ca.SharedOp[T]) -> ca.DeviceOp[tuple[T, T]]:
    """Functions over operations are generic like any others."""
    return ca.zip(op, op)


async def generic_functions() -> None:
    assert_type(await twice(ca.shared(7)), tuple[int, int])
    wide: ca.DeviceOp[object] = ca.value(7)  # what yields an int yields an object
    assert_type(await wide, object)


async def events(stream: ca.Stream) -> None:
    event = stream.record()
    assert_type(event, ca.Event)
    assert_type(event.elapsed_ms(event), float)
    async with stream as same:
        assert_type(same, ca.Stream)
    with ca.use_device("host:0") as device:
        assert_type(device, ca.Device)
    await event
    await ca.drain()


async def mistakes(tensor: ca.Tensor, stream: ca.Stream) -> None:
    """What the checker must refuse: an ignore that is not needed is itself an error."""
    ca.value(7).then(lambda n: n + 1)  # type: ignore[arg-type, return-value]
    ca.value(7).then(lambda n: ca.empty(n.shape))  # type: ignore[attr-defined]
    ca.value("x").map(abs)  # type: ignore[arg-type]
    ca.value(7).unpartition()  # type: ignore[misc]
    ca.value(7).to_host()  # type: ignore[misc]
    ca.zip(ca.empty(1), ca.empty(1)).to_host()  # type: ignore[misc]
    ca.value(7).unzip()  # type: ignore[misc]
    ca.zip(ca.value(1), 2)  # type: ignore[call-overload]
    ca.collect([ca.value(1), 2])  # type: ignore[arg-type]
    ca.ones("a")  # type: ignore[arg-type]
    ca.zeros(3.0)  # type: ignore[arg-type]
    ca.full(None, 1)  # type: ignore[arg-type]
    ca.empty(3).partition("a")  # type: ignore[arg-type]
    for _ in ca.value(7):  # type: ignore[misc]
        pass
    text: str = await ca.value(7)  # type: ignore[arg-type]
    number: int = await ca.zip(ca.value(text), ca.value(2)).first()  # type: ignore[assignment]
    future: ca.DeviceFuture[str] = ca.value(number).start()  # type: ignore[assignment]
    await future
    ca.mut(ca.empty((2,)))  # type: ignore[arg-type]
    ca.value(7).schedule(stream)  # type: ignore[arg-type]
    ca.value(7).unwrap_shared()  # type: ignore[attr-defined]
    ca.from_host(tensor).sync_on(ca.SingleStream())  # type: ignore[arg-type]


class Wrong(ca.DeviceOp[int]):
    """An operation has to yield what it says."""

    def execute(self, ctx: ca.ExecutionContext) -> str:  # type: ignore[override]
        return "seven"


async def graphs(op: ca.DeviceOp[ca.Tensor], stream: ca.Stream, tensor: ca.Tensor) -> None:
    graph = await op.graph(inputs={"x": tensor})
    assert_type(graph, ca.CudaGraph[ca.Tensor])
    assert_type(await graph.launch(), ca.Tensor)
    assert_type(await graph.replay(x=1.0), ca.Tensor)
    assert_type(await graph(x=1.0), ca.Tensor)
    assert_type(graph.take_output(), ca.Tensor)
    assert_type(await ca.value(7).graph_on(stream), ca.CudaGraph[int])
    with ca.CudaGraph.scope(stream) as scope:
        assert_type(scope.record(ca.value(7)), int)
    assert_type(await ca.if_else(tensor, lambda: ca.empty(3)), None)
    assert_type(ca.graph_input("x", (3,)), ca.DeviceOp[ca.Tensor])


async def caches() -> None:
    def build(size: int) -> ca.DeviceOp[ca.Tensor]:
        return ca.graph_input("x", (size,))

    def captured(name: str) -> ca.DeviceOp[ca.CudaGraph[int]]:
        return ca.value(len(name)).graph()

    assert_type(await (await ca.GraphCache(build, buckets=(64, 256)).get(3))(x=1.0), ca.Tensor)
    assert_type(await (await ca.GraphCache(captured).get("x")).launch(), int)
