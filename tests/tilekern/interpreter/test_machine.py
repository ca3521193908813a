"""The interpreter as the host device runs it: small steps, arguments from bytes; and passes keep the meaning."""

import struct
import time

import numpy as np
import pytest
from ir_samples import SAMPLES, function

import cuda_async as ca
import tilekern as tk
from cuda_async.driver import HostFunction, HostImage, HostLaunch
from tilekern import ir, passes
from tilekern.errors import KernelAssertionError, KernelIndexError
from tilekern.frontend import translate
from tilekern.interpreter import TileHostFunction, parameter_layout
from tilekern.jit._specialize import specialize


def launch_ir(made, grid, *args):
    """Launch a function of the IR as a raw kernel of the host device."""
    host = TileHostFunction(made)
    module = ca.Module.from_host_image(HostImage(functions={made.name: host}))
    module.function(made.name).launch(grid, 1, *args).sync()


def test_is_a_host_function():
    made = TileHostFunction(
        ir.parse("func @f(%x: ptr<f32>, %b: bool, %n: i64, %h: bf16, %s: f64) {\n  return\n}")
    )
    assert isinstance(made, HostFunction)
    assert made.info.name == "f"
    assert [(p.name, p.offset_bytes, p.size_bytes) for p in made.info.parameters] == [
        ("x", 0, 8),
        ("b", 8, 1),
        ("n", 16, 8),
        ("h", 24, 2),
        ("s", 32, 8),
    ]
    assert parameter_layout(made.function) == made.info.parameters


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(text, id=f"{name}-{i}")
        for name, texts in SAMPLES.items()
        for i, text in enumerate(texts)
        if not name.startswith("assume") and "mulhi" not in name
    ],
)
def test_every_sample_runs(text, host):
    """All operations run without an error; their values are tested where their meaning is."""
    made = function(text)
    x, words = ca.zeros((64, 64), "f4").sync(), ca.zeros((64, 64), "i4").sync()
    launch_ir(made, (2, 1, 1), ca.mut(x), 64, 64, 1.0, ca.mut(words))


# ------------------------------------------------------------------ steps


@tk.kernel
def busy(out: tk.Tile2D, x: tk.Tensor2D, n: int):
    t = tk.load_like(x, out)
    for _ in range(n):
        t = tk.tanh(t) * 0.5 + 0.25
    out.store(t)


def program(kernel, *args):
    return translate(kernel.source, specialize(kernel.name, kernel.parameters, args, 16))


def test_steps_are_short(host):
    shape = (512, 512)
    x, out = ca.zeros(shape, "f4").sync(), ca.zeros(shape, "f4").sync()
    made = program(busy, out.partition((16, 64)), x, 50).function
    values = (out._address, 512, 512, 512, x._address, 512, 512, 512, 50)
    block = struct.pack("<Qiii4xQiiii", *values)
    launch = HostLaunch(
        grid=(32, 8, 1), block=(1, 1, 1), shared_bytes=0, arguments=block, memory=host.driver.memory
    )
    times = []
    steps = TileHostFunction(made).start(launch)
    while True:
        start = time.thread_time()
        if next(steps, "over") == "over":
            break
        times.append(time.thread_time() - start)
    assert len(times) > 20
    assert np.median(times) < 0.003
    expected = 0.0
    for _ in range(50):
        expected = np.tanh(expected) * 0.5 + 0.25
    assert np.allclose(out.to_host().sync(), expected)


def test_error_state_of_numpy_is_left_alone(host):
    made = ir.parse(
        "func @f(%x: ptr<f32>) {\n  %a = constant value=0.0 : tile<4xf32>\n  %b = div %a, %a : tile<4xf32>\n"
        "  %c = constant value=1000.0 : tile<4xf32>\n  %d = exp %c : tile<4xf32>\n  return\n}"
    )
    with np.errstate(all="raise"):
        launch_ir(made, 1, ca.mut(ca.zeros((4,), "f4").sync()))
        with pytest.raises(FloatingPointError):
            np.float32(1) / np.float32(0)


def test_a_failing_operation_names_the_users_line(host):
    @tk.kernel
    def fails(out, x, places):
        i = tk.load(places, 0, 1).item()
        tk.store(out, 0, tk.load(x, i, 4))

    places = ca.full((1,), 3, "i4")
    with pytest.raises(KernelIndexError, match=r"tk\.load\(x, i, 4\)"):
        fails(ca.mut(ca.zeros((4,), "f4").sync()), ca.zeros((4,), "f4"), places).grid(1).sync()

    @tk.kernel
    def asserts(out, n):
        assert n > 3, "n is large"
        tk.store(out, 0, 1)

    asserts(ca.mut(ca.zeros((4,), "f4").sync()), 4).grid(1).sync()
    with pytest.raises(KernelAssertionError, match="n is large"):
        asserts(ca.mut(ca.zeros((4,), "f4").sync()), 3).grid(1).sync()


def test_tensor_larger_than_its_memory_is_a_fault(host):
    made = ir.parse(
        "func @f(%x: ptr<f32>) {\n  %t = make_tensor %x, [], [] : tensor<1073741824xf32, [1]>\n"
        "  %v = make_view %t : view<4, tensor<1073741824xf32, [1]>>\n  %z = constant value=0 : i32\n"
        "  %a, %b = load %v, [%z], _ : tile<4xf32>, token\n  return\n}"
    )
    with pytest.raises(ca.CudaAsyncError, match="4294967296 bytes"):
        launch_ir(made, 1, ca.read(ca.zeros((4,), "f4").sync()))


# ------------------------------------------------------------------ passes keep the meaning


@tk.kernel
def mixture(out: tk.Tile1D, x: tk.Tensor1D, n: int, a: float):
    t = tk.load_like(x, out)
    total = tk.zeros((8,), tk.float32)
    count = 0
    for i in range(n):
        if (i % 3 == 1 and count < 5) or i == 6:
            continue
        count += 1
        total = total + t * i + (a if i > 2 else 1.0)
        out.store(total)
        total = out.load() + 0
    k = n
    while k > 1:
        k = k // 2 if k % 2 == 0 else 3 * k + 1
        count += 1
        if count > 60:
            break
    out.store(total * count + tk.sum(t) * 0 + 1 * 1)


ORDERS = {
    "none": (),
    "pipeline": passes.PIPELINE,
    "all": passes.PIPELINE + passes.order(),
    "order alone": passes.order(),
    "backwards": tuple(reversed(passes.PIPELINE)),
    "twice": passes.PIPELINE * 2,
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("n", [0, 1, 7, 12])
def test_passes_keep_what_a_kernel_computes(order, n, host):
    x = ca.from_host(np.arange(32, dtype="f4")).sync()

    def result(chosen):
        out = ca.zeros((32,), "f4").sync()
        made = program(mixture, out.partition(8), x, n, 0.25).function
        passes.run_passes(made, chosen)
        launch_ir(made, 4, ca.mut(out), 32, ca.read(x), 32, n, 0.25)
        return out.to_host().sync()

    assert np.array_equal(result(ORDERS[order]), result(()))
