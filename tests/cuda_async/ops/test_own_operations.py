"""Operations that users write: what `execute` and `prepare` may do, and what they are told when it is wrong."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import numpy as np
import pytest

import cuda_async as ca

SAXPY = Path(__file__).resolve().parents[3] / "examples" / "simt" / "saxpy.ptx"
N = 300


def saxpy():
    return ca.Module.from_file(SAXPY).function("saxpy_f32")


class AddScaled(ca.DeviceOp):
    """`a * x + y`; `grid` and `values(ctx, self, out)` as a test wants them."""

    def __init__(self, function, x, y, grid=2, block=256, values=None):
        self.function, self.x, self.y = function, x, y
        self.grid, self.block, self.values = grid, block, values

    def needs_prepare(self, ctx):
        return not self.function.is_loaded(ctx.device)

    def prepare(self, ctx):
        self.function.load(ctx.device)

    def execute(self, ctx):
        out = ctx.empty(self.x.shape, ca.float32)
        make = self.values or (lambda ctx, x, y, out: (N, 2.0, ctx.read(x), ctx.read(y), ctx.write(out)))
        self.function.enqueue(ctx, self.grid, self.block, make(ctx, self.x, self.y, out))
        return out


class Unprepared(AddScaled):
    def needs_prepare(self, ctx):
        return False


@pytest.fixture
def xy(device):
    return ca.zip(ca.from_host(np.arange(N, dtype=np.float32)), ca.ones(N)).sync()


@pytest.mark.parametrize(
    ("grid", "block"),
    [(2, 256), ((2,), (256,)), ([3, 1], [128, 2]), ((2, 1, 1), (256, 1, 1)), (np.int64(2), np.int32(256))],
)
def test_grids_take_every_form_that_launch_takes(xy, grid, block):
    """The kernel looks at axis x only, so a block with rows does its work twice."""
    x, y = xy
    result = AddScaled(saxpy(), x, y, grid, block).to_host().sync()
    assert result.tolist() == [2.0 * i + 1.0 for i in range(N)]


@pytest.mark.parametrize("form", [tuple, list, iter], ids=lambda form: form.__name__)
def test_values_in_any_form(xy, form):
    def values(ctx, x, y, out):
        return form([N, 2.0, ctx.read(x), ctx.read(y), ctx.write(out)])

    result = AddScaled(saxpy(), *xy, values=values).to_host().sync()
    assert result.tolist() == [2.0 * i + 1.0 for i in range(N)]


@pytest.mark.parametrize("grid", [2.0, "2", None, (2, 1.5)])
def test_grid_that_is_no_integer_is_refused(xy, grid):
    with pytest.raises(TypeError, match="grid"):
        AddScaled(saxpy(), *xy, grid).sync()


def test_is_loaded_follows_load(device):
    function = saxpy()
    assert not function.is_loaded(device)
    function.load(device)
    assert function.is_loaded(device)
    assert not function.is_loaded(ca.Device("host:99"))


def test_kernel_that_is_not_loaded_is_a_launch_error(xy):
    with pytest.raises(
        ca.LaunchError, match=r"saxpy_f32 is not loaded on .*call function\.load\(ctx\.device\)"
    ):
        Unprepared(saxpy(), *xy).sync()


@pytest.mark.parametrize(("wrap", "name"), [(ca.read, "Read"), (ca.mut, "Mut"), (lambda t: t, "Tensor")])
def test_tensors_among_values_are_refused(xy, wrap, name):
    def values(ctx, x, y, out):
        return (N, 2.0, ctx.read(x), wrap(y), ctx.write(out))

    function = saxpy()
    with pytest.raises(
        TypeError, match=rf"value 3 is a {name}.*pass ctx\.read\(tensor\).*ctx\.write\(tensor\)"
    ):
        AddScaled(function, *xy, values=values).sync()
    x, y = xy
    function.launch(2, 256, N, 2.0, ca.read(x), ca.read(y), ca.mut(ca.empty(N).sync())).sync()
    with pytest.raises(TypeError, match="value 3 is a"):  # also when launches have such arguments
        AddScaled(function, *xy, values=values).sync()


@pytest.mark.parametrize("method", ["execute", "prepare", "needs_prepare"])
def test_async_methods_are_refused_with_the_class(method):
    async def coroutine(self, ctx):
        return None

    with pytest.raises(TypeError, match=rf"Wrong\.{method} is an async function"):
        type("Wrong", (ca.DeviceOp,), {method: coroutine})

    async def async_generator(self, ctx):
        yield

    with pytest.raises(TypeError, match=rf"Wrong\.{method} is an async function"):
        type("Wrong", (ca.DeviceOp,), {method: async_generator})

    def generator(self, ctx):
        yield

    with pytest.raises(TypeError, match=rf"Wrong\.{method} has a yield in it"):
        type("Wrong", (ca.DeviceOp,), {method: generator})


async def coroutine():
    return 1


@pytest.mark.parametrize(
    ("make", "what"),
    [(lambda: ca.empty(3), r"an operation \(Empty\)"), (coroutine, "a coroutine")],
    ids=["operation", "coroutine"],
)
def test_execute_that_returns_what_never_runs_is_refused(device, make, what):
    class Wrong(ca.DeviceOp):
        def execute(self, ctx):
            return make()

    with pytest.raises(TypeError, match=rf"Wrong\.execute\(ctx\) returned {what}, which would never run"):
        Wrong().sync()


def test_value_may_yield_an_operation(device):
    op = ca.empty(3)
    assert ca.value(op).sync() is op


# ------------------------------------------------------------------------------------ messages


async def async_callback(_):
    return None


async def async_generator_callback(_):
    yield


def generator_callback(_):
    yield


@pytest.mark.parametrize("method", ["then", "map", "inspect"])
def test_callbacks_cannot_be_async(device, method):
    for callback in (async_callback, async_generator_callback):
        with pytest.raises(
            TypeError, match=f"{callback.__name__} is an async function, and callbacks cannot"
        ):
            getattr(ca.value(1), method)(callback).sync()


@pytest.mark.parametrize("callback", [generator_callback, lambda _: ca.zeros(3), lambda _: ca.shared(1)])
def test_inspect_drops_nothing_that_would_run(device, callback):
    with pytest.raises(TypeError, match=r"\.inspect\(\) only looks, but .* would never run"):
        ca.value(1).inspect(callback).sync()


def test_inspect_may_return_what_is_no_work(device):
    run = ca.value(2)
    run.sync()
    for result in (None, 3, [1], run):
        assert ca.value(1).inspect(lambda _, result=result: result).sync() == 1


def test_partition_to_host_says_unpartition(device):
    partition = ca.zeros(8).sync().partition(4)
    for attempt in (
        lambda: ca.to_host(partition),
        lambda: ca.zeros(8).partition(4).to_host().sync(),
        lambda: ca.copy(partition.map(1, 2)),
    ):
        with pytest.raises(TypeError, match=r"Partition; get the tensor back with \.unpartition\(\)"):
            attempt()


@pytest.mark.parametrize("path", ["a/path.ptx", "kernels.cu", "KERNELS.PTX"])
def test_path_given_as_ptx_is_recognised(path):
    with pytest.raises(ca.CompileError, match=r"is it a path\? use Module\.from_file\(\)"):
        ca.Module.from_ptx(path)
    with pytest.raises(TypeError, match=r"use Module\.from_file\(\)"):
        ca.Module.from_ptx(Path(path))
    with pytest.raises(ca.CompileError, match=r"is no CUDA C\+\+; is it a path\? use Module\.from_file\(\)"):
        ca.Module.from_cuda_source(path)


def test_ptx_given_as_cuda_source_is_recognised():
    with pytest.raises(ca.CompileError, match=r"this is PTX, not CUDA C\+\+; use Module\.from_ptx\(\)"):
        ca.Module.from_cuda_source("// by hand\n.version 8.0\n.target sm_80\n")
    for source in (
        'extern "C" __global__ void f() {} // of f.cu',
        "KERNEL(f, {\n.version = 8,\n.target = 1})\n",
    ):
        assert ca.Module.from_cuda_source(source).name == "source.cu"


def test_alias_error_names_the_arguments(device):
    x, y = ca.zip(ca.ones(N), ca.ones(N)).sync()
    function = saxpy()
    named = r"argument 3 \(saxpy_f32_param_3: .*\), Tensor"
    with pytest.raises(ca.AliasError, match=rf"argument 4 \(.*\), Tensor.* and {named}"):
        function.launch(2, 256, N, 2.0, ca.read(x), ca.read(y), ca.mut(y)).sync()
    with pytest.raises(ca.AliasError, match=r"argument 4 \(.*\), Tensor.* and uses\[0\], Tensor"):
        function.launch(2, 256, N, 2.0, ca.read(x), ca.read(x), ca.mut(y), uses=[ca.read(y)]).sync()


def test_tensor_has_no_truth_value(device):
    tensor = ca.zeros(1).sync()
    with pytest.raises(TypeError, match="no truth value"):
        bool(tensor)
    assert tensor == tensor
    assert tensor != ca.zeros(1).sync()


def test_launches_with_another_grid_from_another_thread(device, monkeypatch):
    """While one thread waits for the device's lock, another launches the same kernel with another grid, every time."""
    function = saxpy()
    memory = ca.zeros(2 * N).sync()  # of two views of one allocation: the launch takes the careful way
    x = ca.from_host(np.arange(N, dtype=np.float32)).sync()
    elsewhere = ca.empty(N).sync()

    def launch(grid, block, out):
        function.launch(grid, block, N, 2.0, ca.read(x), ca.read(memory[:N]), ca.mut(out)).sync()

    launch(2, 256, memory[N:])
    launch(3, 128, elsewhere)
    lock, here, waits = device._lock, threading.get_ident(), []

    class AfterTheOther:
        def __enter__(self):
            if threading.get_ident() == here:
                waits.append(1)
                assert len(waits) < 100
                other = threading.Thread(target=launch, args=(3, 128, elsewhere))
                other.start()
                other.join()
            lock.acquire()

        acquire = __enter__

        def __exit__(self, *_):
            lock.release()

        release = __exit__

    ca.fill(memory, 1.0).sync()
    with monkeypatch.context() as patch:
        patch.setattr(device, "_lock", AfterTheOther())
        for _ in range(3):
            launch(2, 256, memory[N:])
    assert len(waits) >= 3
    for out in (memory[N:], elsewhere):
        assert out.to_host().sync().tolist() == [2.0 * i + 1.0 for i in range(N)]


@pytest.mark.parametrize("frozen", [False, True])
def test_dataclasses(device, frozen):
    @dataclasses.dataclass(frozen=frozen)
    class Filled(ca.DeviceOp[ca.Tensor]):
        value: float

        def execute(self, ctx):
            out = ctx.empty(4, ca.float32)
            ctx.driver.fill_async(ctx.write(out), np.float32(self.value).tobytes(), 4, ctx.stream.handle)
            return out

    assert Filled(2.0).to_host().sync().tolist() == [2.0] * 4
    op = Filled(3.0)
    assert op.then(lambda x: x.to_host()).sync().tolist() == [3.0] * 4
    for again in (lambda: op.then(lambda x: ca.copy(x)), op.shared, op.sync):
        with pytest.raises(ca.ConsumedError, match="this Filled was already run"):
            again()


def test_classes_that_leave_no_place_for_notes_are_refused():
    with pytest.raises(TypeError, match=r"Slim has __slots__ alone.*leave them out, or add \"__dict__\""):
        type("Slim", (ca.DeviceOp,), {"__slots__": ("x",), "execute": lambda self, ctx: self.x})
    with pytest.raises(TypeError, match="Slim has __slots__ alone"):

        @dataclasses.dataclass(slots=True)
        class Slim(ca.DeviceOp[int]):
            x: int

    wide = type("Wide", (ca.DeviceOp,), {"__slots__": ("__dict__", "x"), "execute": lambda self, ctx: 3})
    assert wide().sync() == 3


@pytest.mark.parametrize("name", ["_consumed", "_take", "_device_hint", "_check_output"])
def test_names_of_the_base_class_are_refused(name):
    with pytest.raises(
        TypeError, match=f"Mine defines {name}, which DeviceOp uses itself; choose other names"
    ):
        type("Mine", (ca.DeviceOp,), {name: None})
    mixin = type("Mixin", (), {name: None})
    with pytest.raises(TypeError, match=f"Mine defines {name}"):
        type("Mine", (mixin, ca.DeviceOp), {})
