"""Kernels as operations: arguments, specialisation, caching, options, errors."""

import enum
import functools
import subprocess
import sys
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk
from tilekern.jit import KernelOptions
from tilekern.kernels.raw import add, matmul, rms_norm, row_softmax, saxpy


@tk.kernel
def scale(out: tk.Tile1D, x: tk.Tensor1D, a: float = 2.0):
    out.store(tk.load_like(x, out) * a)


@tk.kernel
def loose(out, x, n, flag: bool, BLOCK: tk.Constant[int]):
    t = tk.load(x, out.index, BLOCK)
    out.store(t * n if flag else t)


def vector(n=100, dtype="f4"):
    return ca.from_host(np.arange(n, dtype=dtype)).sync()


# ------------------------------------------------------------------ what comes back


def test_call_yields_its_arguments_in_order(device):
    x, out, part = vector(), vector(), vector().partition(16)
    assert scale(part, x, 3.0).sync() == (part, x, 3.0)

    @tk.kernel
    def store(out, n):
        tk.store(out, 0, n)

    assert store(ca.mut(out), 7).grid(1).sync() == (out, 7)


def test_building_touches_nothing(device):
    before = device.memory_stats().used_bytes
    op = scale(ca.empty((100,), "f4").partition(16), ca.zeros((100,), "f4"))
    assert device.memory_stats().used_bytes == before
    assert op.first().unpartition().to_host().sync().tolist() == [0.0] * 100


def test_operations_stand_for_their_outputs(device):
    out = scale(ca.empty((8,), "f4").partition(4), ca.ones((8,), "f4"), 5.0).first().unpartition().to_host()
    assert out.sync().tolist() == [5.0] * 8


def test_chain_of_kernels(device):
    op = scale(ca.empty((8,), "f4").partition(4), ca.ones((8,), "f4"))
    op = op.first().unpartition().then(lambda t: scale(ca.empty((8,), "f4").partition(8), t, 10.0))
    assert op.first().unpartition().to_host().sync().tolist() == [20.0] * 8


def test_launch_is_used_once(device):
    op = scale(vector().partition(16), vector())
    op.sync()
    with pytest.raises(ca.ConsumedError):
        op.sync()


def test_keyword_and_default_arguments(device):
    x = vector(8)
    out = scale(x=x, out=ca.empty((8,), "f4").partition(8)).first().unpartition().to_host().sync()
    assert np.array_equal(out, 2 * np.arange(8))
    out = scale(ca.empty((8,), "f4").partition(8), x, a=0.5).first().unpartition().to_host().sync()
    assert np.array_equal(out, np.arange(8) / 2)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "scale takes 3 arguments \\(out, x, a\\), got no out"),
        ((1, 2, 3, 4), {}, "scale takes 3 arguments, got 4"),
        ((1, 2), {"out": 3}, "scale got out twice"),
        ((1, 2), {"b": 3}, "scale has no parameter b"),
    ],
)
def test_wrong_number_of_arguments(args, kwargs, message):
    with pytest.raises(tk.KernelArgumentError, match=message):
        scale(*args, **kwargs)


# ------------------------------------------------------------------ arguments that do not fit


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda x: scale(x, x), tk.KernelArgumentError, "out is declared tk.Tile1D, one tile for each block"),
        (
            lambda x: scale(x.partition(16), x.partition(16)),
            tk.KernelArgumentError,
            "x is declared tk.Tensor1D, got a partition",
        ),
        (
            lambda x: scale(x.reshape(10, 10).partition((2, 2)), x),
            tk.KernelArgumentError,
            "out is declared tk.Tile1D, got a tensor of shape \\(10, 10\\)",
        ),
        (
            lambda x: scale(x.partition(16), np.zeros(100, "f4")),
            tk.KernelArgumentError,
            "got a NumPy array; bring it over with from_host",
        ),
        (lambda x: scale(x.partition(16), 3), tk.KernelArgumentError, "x is declared tk.Tensor1D, got int 3"),
        (
            lambda x: scale(x.partition(16), vector(), "2"),
            tk.KernelArgumentError,
            "a is declared float, got str '2'",
        ),
        (
            lambda x: scale(x.partition(16), vector(), vector()),
            tk.KernelArgumentError,
            "a is declared float, a number; got a tensor",
        ),
        (
            lambda x: loose(x.partition(16), vector(), 1, 1, 16),
            tk.KernelArgumentError,
            "flag is declared bool, got int 1",
        ),
        (
            lambda x: scale.ir(x.partition(16), ca.ones(64), 2.0),
            tk.KernelArgumentError,
            "an operation, which has not run; give the tensor it yields, or tk.meta",
        ),
        (
            lambda x: scale(x.partition(16), ca.ones(64).start(), 2.0),
            tk.KernelArgumentError,
            "a DeviceFuture; await it, or give its operation",
        ),
        (
            lambda x: loose(x.partition(16), vector(), 1j, True, 16),
            tk.KernelArgumentError,
            "n takes tensors and numbers, got complex 1j",
        ),
        (
            lambda x: loose(x.partition(16), vector(), 1, True, [16]),
            tk.KernelArgumentError,
            "BLOCK is a constant and must be hashable, got list",
        ),
        (
            lambda x: loose(x.partition(16), vector(), 1, True, vector()),
            tk.KernelArgumentError,
            "BLOCK is a compile-time constant, got a tensor",
        ),
        (
            lambda x: loose(x.partition(16), vector(), 2**64, True, 16),
            OverflowError,
            "n is 18446744073709551616, which does not fit int32 or int64",
        ),
        (lambda x: scale(x.partition(16), x), ca.AliasError, "the same memory is exclusive"),
        (
            lambda x: scale(x.partition(16), vector()[::-1]),
            tk.KernelArgumentError,
            "x has a negative stride along axis 0",
        ),
    ],
)
def test_argument_is_refused_before_anything_runs(make, error, message, device):
    x = vector()
    with pytest.raises(error, match=message):
        make(x).sync()
    assert np.array_equal(x.to_host().sync(), np.arange(100))


def test_complex_tensor_is_refused(host):
    with pytest.raises(TypeError, match="'c8' is not a supported element type"):
        scale.ir(tk.meta(8, "c8").partition(8), tk.meta(8, "f4"))


@pytest.mark.parametrize(
    ("shape", "dtype", "error", "message"),
    [
        ((4, -1), "f4", ValueError, "shape axis 1 is -1"),
        (4.5, "f4", TypeError, "got 4.5"),
        ((2, 4.0), "f4", TypeError, "shape axis 1 is 4.0"),
        (4, "q9", TypeError, "'q9' is not a supported element type"),
        (4, None, TypeError, "None is not a supported element type"),
    ],
)
def test_stand_in_for_no_tensor(shape, dtype, error, message):
    with pytest.raises(error, match=message):
        tk.meta(shape, dtype)


def test_tensor_of_another_device(host):
    other = ca.Device("host:1") if len(ca.devices()) > 1 else None
    if other is None:
        pytest.skip("one device")


# ------------------------------------------------------------------ scalars


@tk.kernel
def keep(out, n):
    out.store(n)


@pytest.mark.parametrize("value", [7, -1, 2**31 - 1, -(2**31), 2**31, 2**40, -(2**40), 2**63 - 1])
def test_untyped_int_is_exact(value, device):
    out = keep(ca.zeros((1,), "i8").partition(1), value).first().unpartition().to_host().sync()
    assert out.tolist() == [value]


@pytest.mark.parametrize(
    "value",
    [
        *(
            np.int8(-3),
            np.uint8(250),
            np.int16(-300),
            np.uint16(65535),
            np.uint32(4000000000),
            np.int64(2**40),
        ),
        *(np.uint64(2**63 + 1), np.float16(0.1), np.float32(0.1), np.float64(0.1), ml_dtypes.bfloat16(0.1)),
        *(np.bool_(True), True, 2**63 + 1),
    ],
    ids=lambda v: type(v).__name__,
)
def test_typed_scalar_arrives_bit_for_bit(value, device):
    dtype = np.asarray(value).dtype
    out = keep(ca.zeros((1,), dtype).partition(1), value).first().unpartition().to_host().sync()
    assert out.tobytes() == np.asarray(value).tobytes()


class Choice(enum.IntEnum):
    SMALL = 3
    LARGE = 2**40


def test_int_subclasses_are_ints(device):
    for value in (Choice.SMALL, Choice.LARGE):
        out = keep(ca.zeros((1,), "i8").partition(1), value).first().unpartition().to_host().sync()
        assert out.tolist() == [int(value)]


def test_names_of_all_alphabets(device):
    @tk.kernel
    def größe(out, länge):
        zwölf = out.load() + länge
        out.store(zwölf)

    out = größe(ca.zeros((1,), "i4").partition(1), 12).first().unpartition().to_host().sync()
    assert out.tolist() == [12]
    assert größe.ir(tk.meta(1, "i4").partition(1), 1).startswith("func @kernel(%out: ptr<i32>")


def test_python_float_is_float32(device):
    out = keep(ca.zeros((1,), "f4").partition(1), 0.1).first().unpartition().to_host().sync()
    assert out[0] == np.float32(0.1)


class Whole(int):
    """An int by another name."""


@pytest.mark.parametrize("number", [3, True, Whole(3), np.int8(3), np.uint64(3), np.bool_(True)], ids=repr)
def test_whole_number_for_a_float_takes_the_tiles_type(number, device):
    """As a Python float does: no step in float64."""
    out = scale(ca.zeros((4,), "f4").partition(4), vector(4), number).first().unpartition().to_host().sync()
    assert out.tolist() == [float(number) * i for i in range(4)]


@tk.kernel
def typed(out: tk.Tile1D, a: tk.uint8, b: tk.float64, c: tk.bfloat16, d: tk.int64):
    out.store(a.astype(tk.float64) + b + c.astype(tk.float64) + d.astype(tk.float64))


def test_declared_scalar_types(device):
    out = typed(ca.zeros((1,), "f8").partition(1), 200, 0.1, 1.5, 3).first().unpartition().to_host().sync()
    assert out[0] == 200 + 0.1 + 1.5 + 3
    for bad in ((256, 0.1, 1.5, 3), (-1, 0.1, 1.5, 3), (1, 0.1, 1.5, 2**63)):
        with pytest.raises(OverflowError, match="which does not fit"):
            typed(ca.zeros((1,), "f8").partition(1), *bad).sync()


def test_shared_call_of_operations_runs_after_a_recording_that_failed(device):
    op = scale(ca.empty(4).partition(4), ca.full(4, 3.0), 2.0).first().shared()
    with pytest.raises(ZeroDivisionError):
        op.then(lambda _: 1 / 0).graph().sync()
    op.graph().sync().close()
    assert op.sync().unpartition().to_host().sync().tolist() == [6.0] * 4


# ------------------------------------------------------------------ grids


def test_grid_comes_from_the_partition(device):
    @tk.kernel
    def count(out):
        out.store(tk.num_blocks(0) * 100 + tk.num_blocks(1))

    out = count(ca.zeros((7, 9), "i4").partition((2, 4))).first().unpartition().to_host().sync()
    assert set(out.flat) == {403}


@pytest.mark.parametrize(
    ("grid", "error", "message"),
    [
        ((4.0,), TypeError, "must hold integers"),
        ((1, 1, 1, 1), ca.LaunchError, "has 4 axes"),
        ((-1,), ca.LaunchError, "grid axis x is -1"),
        ((2**24,), ca.LaunchError, "grid axis x is 16777216, the limit is 16777215"),
    ],
)
def test_bad_grid(grid, error, message, device):
    with pytest.raises(error, match=message):
        keep_nothing(vector()).grid(grid).sync()


@tk.kernel
def keep_nothing(x):
    tk.load(x, 0, 1)


def test_grids_that_do_nothing_or_are_numpy_ints(device):
    keep_nothing(vector()).grid(np.int64(2)).sync()
    keep_nothing(vector()).grid((0, 5)).sync()


def test_grid_must_be_known_and_agree(device):
    with pytest.raises(ca.LaunchError, match=r"the grid is not known; give one with \.grid"):
        keep_nothing(vector()).sync()
    with pytest.raises(ca.LaunchError, match="the grid given is 3 x 1 x 1, but out has 7 x 1 x 1 tiles"):
        scale(vector().partition(16), vector()).grid(3).sync()

    @tk.kernel
    def two(a: tk.Tile1D, b: tk.Tile1D):
        a.store(b.load())

    with pytest.raises(ca.LaunchError, match="the grid of a is 7 x 1 x 1, but b has 4 x 1 x 1 tiles"):
        two(vector().partition(16), vector().partition(32)).sync()


def test_prefix_partition_leaves_the_rest(device):
    out = vector()
    scale(out.partition_prefix(16), vector()).grid(2).sync()
    expected = np.concatenate([2 * np.arange(32), np.arange(32, 100)])
    assert np.array_equal(out.to_host().sync(), expected)
    with pytest.raises(ca.LaunchError, match="more than the 7 x 1 x 1 tiles of out"):
        scale(out.partition_prefix(16), vector()).grid(8).sync()


def test_input_too_small_for_the_grid(device):
    scale(vector(100).partition(16), vector(97)).sync()
    with pytest.raises(
        ca.LaunchError, match="load of x: its tile index along axis 0 goes from 0 to 6, and there are 6 tiles"
    ):
        scale(vector(100).partition(16), vector(96)).sync()


def test_empty_tensors(device):
    scale(ca.zeros((0,), "f4").partition(16), ca.zeros((0,), "f4")).sync()


# ------------------------------------------------------------------ caching


def without_disk_cache(monkeypatch):
    """What is remembered there is not compiled."""
    from tilekern.jit import _kernel

    monkeypatch.setenv("TILEKERN_CACHE_DIR", "off")
    monkeypatch.setattr(_kernel, "_disk_cache", None)


def count_compilations(monkeypatch):
    from tilekern.jit import _compile

    calls = []
    without_disk_cache(monkeypatch)
    original = _compile.build_program

    def counted(source, specs, options, **more):
        calls.append(specs)
        return original(source, specs, options, **more)

    monkeypatch.setattr(_compile, "build_program", counted)
    return calls


def fresh_kernel():
    @tk.kernel
    def fresh(out: tk.Tile1D, x: tk.Tensor1D, a: float, n: tk.Constant[int]):
        out.store(tk.load_like(x, out) * a + n)

    return fresh


def test_what_is_compiled_again_and_what_is_not(device, monkeypatch):
    calls = count_compilations(monkeypatch)
    kernel = fresh_kernel()

    def call(n=64, tile=16, constant=1, dtype="f4", a=1.0, offset=0, **options):
        x = vector(n + offset, dtype)[offset:]
        kernel(ca.empty((n,), dtype).partition(tile), x, a, constant).with_options(**options).sync()
        return len(calls)

    assert call() == 1
    assert call(n=128) == 1  # another size
    assert call(a=7.0) == 1  # another scalar
    assert call(constant=2) == 2
    assert call(constant=True) == 3  # 1 and True are different constants
    assert call(tile=32) == 4
    assert call(dtype="f8") == 5
    assert call(n=101) == 6  # an extent that is no multiple of 16
    assert call(n=99) == 6
    assert call(offset=1) == 7  # an address that is no multiple of 16
    assert call(occupancy=2) == 8
    assert call(occupancy=2, n=128) == 8
    assert call(max_divisibility=1, n=99) == 9
    assert call(max_divisibility=1, n=64) == 9  # one variant serves both
    assert call() == 9


def test_captured_values_belong_to_the_kernel(device):
    def make(n):
        @tk.kernel
        def plus(out):
            out.store(n)

        return plus

    for n in (1, 2):
        assert make(n)(ca.zeros((1,), "i4").partition(1)).first().unpartition().to_host().sync()[0] == n


def test_threads_share_one_compilation(device, monkeypatch):
    calls = count_compilations(monkeypatch)
    kernel = fresh_kernel()
    x = vector(64)
    start = threading.Barrier(8)
    results = []

    def work():
        start.wait()
        results.append(
            kernel(ca.empty((64,), "f4").partition(16), x, 2.0, 1).first().unpartition().to_host().sync()
        )

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert all(np.array_equal(r, 2 * np.arange(64) + 1) for r in results)
    assert len(results) == 8


def test_failed_compilation_may_be_tried_again(device, monkeypatch):
    from tilekern.jit import _compile

    without_disk_cache(monkeypatch)
    kernel = fresh_kernel()
    original = _compile.build_program

    def failing(*args, **more):
        monkeypatch.setattr(_compile, "build_program", original)
        raise RuntimeError("not now")

    monkeypatch.setattr(_compile, "build_program", failing)
    with pytest.raises(RuntimeError, match="not now"):
        kernel(vector(64).partition(16), vector(64), 2.0, 1).sync()
    kernel(vector(64).partition(16), vector(64), 2.0, 1).sync()


def test_compile_warms_up_without_memory(device, monkeypatch):
    calls = count_compilations(monkeypatch)
    kernel = fresh_kernel()
    assert kernel.compile(tk.meta(64, "f4").partition(16), tk.meta(64, tk.float32), 1.0, 1).sync() is None
    assert len(calls) == 1
    kernel(vector(64).partition(16), vector(64), 1.0, 1).sync()
    assert len(calls) == 1


@pytest.mark.anyio
async def test_compile_is_awaited(host):
    kernel = fresh_kernel()
    await kernel.compile(tk.meta(64, "f4").partition(16), tk.meta(64, tk.float32), 1.0, 1)
    part, _, _, _ = await kernel(ca.empty((64,), "f4").partition(16), ca.ones((64,), "f4"), 1.0, 1)
    assert set((await part.tensor.to_host()).tolist()) == {2.0}


# ------------------------------------------------------------------ bound launches


def test_bound_launch_runs_many_times(device):
    out, x = vector(64), vector(64)
    part = out.partition(16)
    bound = scale.bind(part, x, 3.0, device=device)
    for _ in range(3):
        assert bound.launch().sync() == (part, x, 3.0)
    assert np.array_equal(out.to_host().sync(), 3 * np.arange(64))


def test_bound_launch_with_mut_and_grid(device):
    out = vector(64, "i4")

    @tk.kernel
    def store(out, n: int):
        tk.store(out, tk.bid(0), n)

    bound = store.bind(ca.mut(out), 7, grid=2, device=device)
    assert bound.launch().sync() == (out, 7)
    assert out.to_host().sync().tolist() == [7, 7, *range(2, 64)]


def test_bound_launch_is_checked(device):
    with pytest.raises(ca.LaunchError, match="along axis 0 goes from 0 to 3"):
        scale.bind(vector(64).partition(16), vector(16), device=device)
    x = vector(64)
    with pytest.raises(ca.AliasError):
        scale.bind(x.partition(16), x, device=device)
    with pytest.raises(TypeError, match="device is 'host:0'; expected a Device"):
        scale.bind(vector(64).partition(16), x, device="host:0")


# ------------------------------------------------------------------ options and texts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"occupancy": 33}, "occupancy is 1 to 32, got 33"),
        ({"num_ctas": 3}, "num_ctas is one of \\(1, 2, 4, 8, 16\\), got 3"),
        ({"num_worker_warps": 5}, "num_worker_warps is one of"),
        ({"opt_level": 4}, "opt_level is 0 to 3, got 4"),
        ({"max_divisibility": 32}, "max_divisibility is one of"),
        ({"occupancy": True}, "occupancy is 1 to 32, got True"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(tk.KernelOptionError, match=message):
        KernelOptions(**options)
    with pytest.raises(tk.KernelOptionError, match=message):
        scale(1, 2, 3).with_options(**options)


def test_unknown_option_is_named():
    with pytest.raises(tk.KernelOptionError, match="there is no option warps; there are occupancy"):
        scale.with_options(warps=4)


def test_options_reach_the_bytecode():
    @tk.kernel(num_ctas=2, occupancy=1)
    def hinted(out):
        out.store(out.load())

    args = (tk.meta((64, 64), "f4").partition((8, 8)),)
    assert "num_ctas=2 occupancy=1" in hinted.ir(*args)
    text = hinted.with_options(num_worker_warps=8).tile_ir(*args)
    for hint in ("num_cta_in_cga = 2", "occupancy = 1", "num_worker_warps_per_cta = 8"):
        assert hint in text


def test_texts_of_a_kernel():
    args = (tk.meta((64, 128), "f4").partition((1, 128)), tk.meta((64, 128), "f4"))
    before, after = row_softmax.ir(*args, passes=False), row_softmax.ir(*args)
    assert before.startswith(
        "func @row_softmax(%out: ptr<f32>, %out_shape0: i32, %out_shape1: i32, %out_stride0: i32"
    )
    assert "reduce" in after
    text = row_softmax.tile_ir(*args)
    assert "entry @row_softmax" in text
    assert row_softmax.bytecode(*args)[:8] == b"\x7fTileIR\0"


def test_decorator_takes_functions_only():
    with pytest.raises(TypeError, match="a lambda has no statements"):
        tk.kernel(lambda out: None)
    with pytest.raises(TypeError, match="marks a function, got int"):
        tk.kernel(3)

    async def coroutine(out):
        pass

    with pytest.raises(TypeError, match="is a generator or coroutine"):
        tk.kernel(coroutine)


def test_annotation_that_says_nothing():
    @tk.kernel
    def odd(x: set):
        pass

    with pytest.raises(
        tk.KernelArgumentError, match=r"parameter x is annotated <class 'set'>; use tk\.Tensor"
    ):
        odd(1)


def test_kernel_looks_like_its_function():
    assert scale.__name__ == "scale"
    assert add.__doc__ == "out = x + y, of tensors of one length."
    assert repr(add) == "<tile kernel tilekern.kernels.raw._elementwise.add>"


# ------------------------------------------------------------------ sources


def test_kernel_without_source_says_what_to_do(device):
    names = {"tk": tk}
    exec("@tk.kernel\ndef hidden(out):\n    out.store(1)\n", names)
    with pytest.raises(
        tk.KernelSourceError, match="the source of hidden, defined in <string>, is not available"
    ):
        names["hidden"](ca.zeros((1,), "i4").partition(1)).sync()
    assert issubclass(tk.KernelSourceError, ca.CompileError)


def test_registered_source_works(device):
    import linecache

    text = "@tk.kernel\ndef shown(out):\n    out.store(41 + 1)\n"
    linecache.cache["<made up>"] = (len(text), None, text.splitlines(True), "<made up>")
    names = {"tk": tk}
    exec(compile(text, "<made up>", "exec"), names)
    out = names["shown"](ca.zeros((1,), "i4").partition(1)).first().unpartition().to_host().sync()
    assert out.tolist() == [42]


PROGRAM = """
import cuda_async as ca, tilekern as tk
@tk.kernel
def k(out):
    out.store(5)
try:
    print(k(ca.zeros((1,), "i4").partition(1)).first().unpartition().to_host().sync().tolist())
except tk.KernelSourceError as error:
    print("refused:", error)
print("still here")
"""


@pytest.mark.parametrize("way", ["-c", "stdin", "file", "-i"])
def test_kernels_of_all_kinds_of_programs(way, tmp_path, monkeypatch):
    """Where the source can be found it works; where not, the error says so and the program goes on."""
    monkeypatch.setenv("CUDA_ASYNC_DRIVER", "host")
    monkeypatch.setenv("PYTHONPATH", str(Path(tk.__file__).parent.parent))
    command, text = [sys.executable], None
    if way == "-c":
        command += ["-c", PROGRAM]
    elif way == "file":
        (tmp_path / "program.py").write_text(PROGRAM)
        command.append(str(tmp_path / "program.py"))
    else:
        command += ["-i"] if way == "-i" else ["-"]
        text = PROGRAM.replace("    out.store(5)\n", "    out.store(5)\n\n").replace("error)\n", "error)\n\n")
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)
    assert "still here" in done.stdout, done.stderr
    assert "[5]" in done.stdout or "refused: the source of k" in done.stdout
    if way == "file":
        assert "[5]" in done.stdout


def test_kernel_in_a_changed_file_is_not_compiled_wrongly(tmp_path, device, monkeypatch):
    file = tmp_path / "changing_kernels.py"
    file.write_text("import tilekern as tk\n@tk.kernel\ndef k(out):\n    out.store(1)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import changing_kernels

    file.write_text("# a line more\nimport tilekern as tk\n@tk.kernel\ndef k(out):\n    out.store(2)\n")
    with pytest.raises(tk.KernelSourceError, match="the file has changed since it was loaded"):
        changing_kernels.k(ca.zeros((1,), "i4").partition(1)).sync()


# ------------------------------------------------------------------ the library


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_add_and_saxpy(dtype, device):
    x, y = (np.random.default_rng(i).standard_normal(1000).astype(dtype) for i in range(2))
    out = add(ca.empty((1000,), dtype).partition(128), ca.from_host(x), ca.from_host(y))
    assert np.array_equal(out.first().unpartition().to_host().sync(), x + y)
    out = saxpy(ca.from_host(y).partition(256), 2.0, ca.from_host(x))
    assert np.array_equal(out.first().unpartition().to_host().sync(), (2 * x) + y)


@pytest.mark.parametrize(
    "dtype", [np.float16, ml_dtypes.bfloat16, np.float32], ids=lambda d: np.dtype(d).name
)
def test_row_softmax(dtype, device):
    x = (3 * np.random.default_rng(0).standard_normal((37, 10))).astype(dtype)
    out = row_softmax(ca.empty(x.shape, dtype).partition((4, 16)), ca.from_host(x))
    e = np.exp(x.astype("f8") - x.astype("f8").max(1, keepdims=True))
    expected = e / e.sum(1, keepdims=True)
    result = out.first().unpartition().to_host().sync().astype("f8")
    assert np.abs(result - expected).max() <= 2 * float(ml_dtypes.finfo(dtype).eps)


@pytest.mark.parametrize(
    "dtype", [np.float16, ml_dtypes.bfloat16, np.float32], ids=lambda d: np.dtype(d).name
)
def test_rms_norm(dtype, device):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((37, 100)).astype(dtype), rng.standard_normal(100).astype(dtype)
    out = rms_norm(ca.empty(x.shape, dtype).partition((2, 128)), ca.from_host(x), ca.from_host(w), 1e-5)
    wide = x.astype("f8")
    expected = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * w.astype("f8")
    result = out.first().unpartition().to_host().sync().astype("f8")
    assert np.abs(result - expected).max() <= 8 * float(ml_dtypes.finfo(dtype).eps)


@pytest.mark.parametrize(
    "dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64], ids=lambda d: np.dtype(d).name
)
def test_matmul(dtype, device):
    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (100, 70)).astype(dtype), rng.integers(-3, 4, (70, 50)).astype(dtype)
    out = matmul(ca.empty((100, 50), dtype).partition((32, 16)), ca.from_host(a), ca.from_host(b), 16)
    expected = (a.astype("f8") @ b.astype("f8")).astype(dtype)
    assert np.array_equal(out.first().unpartition().to_host().sync(), expected)


def test_argument_used_as_a_tile_side_is_named():
    @tk.kernel
    def kernel(out: tk.Tile1D, n: int):
        out.store(tk.zeros((n,), tk.float32))

    with pytest.raises(
        tk.KernelTypeError, match=r"n is an argument of the launch; declare it n: tk\.Constant\[int\]"
    ):
        kernel.ir(tk.meta(8, "f4").partition(4), 4)


def test_unknown_keyword_is_named_before_a_missing_argument():
    with pytest.raises(tk.KernelArgumentError, match="scale has no parameter factor; it has out, x, a"):
        scale(1, factor=3)


def test_alias_error_names_the_parameters(device):
    x = ca.ones((8,), "f4").sync()
    with pytest.raises(ca.AliasError, match=r"scale, parameters out and x: the same memory is exclusive"):
        scale(x.partition(4), x).sync()
    with pytest.raises(ca.AliasError, match=r"add, parameters out and y: "):
        add(x.partition(4), ca.ones((8,), "f4"), x).sync()


class One(enum.IntEnum):
    ONE = 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (5, One.ONE),
        (2.5, True),
        (np.float32(2.5), np.int8(3)),
        (np.uint8(200), np.float64(0.5)),
        (False, 7.0),
    ],
    ids=repr,
)
def test_numbers_of_other_types_in_turn(first, second, device):
    """Calls that differ in an argument's type only are told apart, however they alternate."""

    @tk.kernel
    def scaled(out: tk.Tile1D, x: tk.Tensor1D, a):
        out.store((tk.load_like(x, out) * a).astype(tk.float32))

    x = ca.full((8,), 3.0).sync()
    for a in (first, second, first, second, first):
        found = scaled(ca.empty((8,)).partition(8), x, a).first().unpartition().to_host().sync()
        assert found.tolist() == [3.0 * float(a)] * 8, (a, found)


def test_read_and_plain_tensors_in_turn(device):
    """`read(x)` may stand for `x` in some calls and not in others."""
    x = vector(8)
    for arg in (x, ca.read(x), x, ca.read(x), x):
        outputs = scale(ca.empty((8,)).partition(8), arg).sync()
        assert outputs[1] is x
        assert outputs[0].unpartition().to_host().sync().tolist() == [2.0 * i for i in range(8)]


def decorated(with_stars):
    """A decorator whose wrapper takes anything, or what the kernel takes."""

    def decorate(function):
        def anything(*args):
            function(*args)

        def same(out):
            function(out)

        return functools.wraps(function)(anything if with_stars else same)

    return decorate


def test_a_decorator_below_tk_kernel(device):
    @tk.kernel
    @decorated(with_stars=False)
    def k(out: tk.Tile1D):
        out.store(3.0)

    out = k(ca.empty(4, "f4").partition(4)).first().unpartition().to_host().sync()
    assert out.tolist() == [3.0] * 4

    @tk.kernel
    @decorated(with_stars=True)
    def other(out: tk.Tile1D):
        out.store(3.0)

    with pytest.raises(
        tk.KernelArgumentError, match=r"cannot take \*args, as anything does, .*directly above the def"
    ):
        other(ca.empty(4, "f4").partition(4))
