"""The compiled launch beside the Python that it stands in for: the same bytes, outputs and errors, and nothing kept."""

from __future__ import annotations

import copy
import ctypes
import gc
import inspect
import os
import pickle
import shutil
import struct
import subprocess
import sys
import sysconfig
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cuda_async as ca
from cuda_async.driver import FunctionInfo, HostImage, ParameterInfo, ParameterKind
from cuda_async.native import __main__ as native_main
from cuda_async.native import native
from cuda_async.native._load import is_switched_off
from cuda_async.ops._context import ExecutionContext, context_on
from cuda_async.ops._written import _native_launch, _write_launch

ROOT = Path(__file__).resolve().parents[3]
needs_native = pytest.mark.skipif(native is None, reason="the compiled module is not built, or left out")

SIZES = {"ptr": 8, "bool": 1, "f16": 2, "f32": 4, "f64": 8}
SIZES.update({f"{sign}{bits}": bits // 8 for sign in "iu" for bits in (8, 16, 32, 64)})


class Nothing:
    """A kernel of the host device that looks at nothing."""

    def __init__(self, info):
        self.info = info

    def start(self, launch):
        yield


def kernel_of(types, *, gap=0):
    """A kernel with parameters of these types, each aligned to its size, and `gap` more bytes between two."""
    parameters, at = [], 0
    for i, name in enumerate(types):
        size = SIZES[name]
        at += -at % size
        parameters.append(
            ParameterInfo(name=f"p{i}", offset_bytes=at, size_bytes=size, kind=ParameterKind.UNKNOWN)
        )
        at += size + gap
    info = FunctionInfo(name="nothing", parameters=tuple(parameters), max_threads_per_block=64)
    image = HostImage(functions={"nothing": Nothing(info)}, name="nothing")
    return ca.Module.from_host_image(image).function("nothing", signature=tuple(types))


def both_ways(function, device, args):
    """(compiled, Python) launch functions for arguments of these types; compiled is None where there is none."""
    loaded = function.load(device)
    types = tuple(map(type, args))
    plan = loaded.plan(types)
    names = {
        "launch_anew": lambda *_: "anew",
        "launch_with_care": lambda *_: "with care",
        "own_device": device,
        "loaded": loaded,
        "driver": loaded.driver,
        "block": loaded.block,
        "order_read": lambda *_: None,
        "order_write": lambda *_: None,
        "check_aliases": lambda *_: None,
        "pack_errors": (struct.error, OverflowError),
    }
    return loaded, _native_launch(plan, types, names), _write_launch(plan, types, dict(names), is_quick=True)


NUMBERS = {
    "bool": st.one_of(st.booleans(), st.integers(-1, 2)),
    "f16": st.one_of(
        st.floats(width=16), st.floats(), st.sampled_from([65504.0, 65519.99, 65520.0, -65520.0, 1e-8])
    ),
    "f32": st.one_of(
        st.floats(width=32),
        st.floats(),
        st.sampled_from([3.4028234663852886e38, 3.4028235677973366e38, 1e-46]),
    ),
    "f64": st.floats(),
}
for sign in "iu":
    for bits in (8, 16, 32, 64):
        ends = [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, 2**bits - 1, 0, 2**63, 2**64, -(2**63)]
        NUMBERS[f"{sign}{bits}"] = st.one_of(
            st.integers(-(2**70), 2**70),
            st.builds(lambda end, by: end + by, st.sampled_from(ends), st.integers(-2, 2)),
        )


@needs_native
@given(data=st.data())
@settings(max_examples=400, deadline=None)
def test_numbers_are_packed_as_by_the_python_function(data):
    device = ca.Device("host:0")
    types = data.draw(st.lists(st.sampled_from(sorted(NUMBERS)), min_size=1, max_size=5))
    args = tuple(data.draw(NUMBERS[name], label=name) for name in types)
    function = kernel_of(types, gap=data.draw(st.sampled_from([0, 8])))
    loaded, compiled, python = both_ways(function, device, args)
    assert compiled is not None
    loaded.checked = loaded.check_config((1, 1, 0))
    ctx = context_on(device.policy.next_stream())
    found = []
    for launch in (python, compiled):
        loaded.block.buffer[:] = bytes(len(loaded.block.buffer))
        try:
            outputs = launch(args, ctx, (1, 1, 0))
        except OverflowError:
            outputs = "with care"  # the careful function raises the same
        found.append(outputs)
        if outputs != "with care":
            assert all(a is b for a, b in zip(outputs, args))
            found.append(bytes(loaded.block))
    assert found[: len(found) // 2] == found[len(found) // 2 :]


@needs_native
def test_what_the_compiled_one_leaves_to_python(host):
    function = kernel_of(["ptr", "ptr", "i32"])
    x, y = ca.zeros(4).sync(), ca.zeros(4).sync()
    args = (ca.read(x), ca.mut(y), 3)
    loaded, launch, _ = both_ways(function, host, args)
    loaded.checked = loaded.check_config((1, 1, 0))
    ctx = context_on(host.policy.next_stream())
    config = (1, 1, 0)
    assert launch(args, ctx, config) == (x, y, 3)
    assert launch(args, ctx, (2, 1, 0)) == "anew"
    assert launch(args[:2], ctx, config) == "anew"
    assert launch((*args[:2], True), ctx, config) == "anew"
    assert launch((ca.mut(x), ca.mut(y), 3), ctx, config) == "anew"
    assert launch((x, *args[1:]), ctx, config) == "anew"
    assert launch(list(args), ctx, config) == "anew"
    assert launch(args, None, config) == "anew"
    other = object.__new__(ExecutionContext)
    assert launch(args, other, config) == "anew"
    assert launch((*args[:2], 2**31), ctx, config) == "with care"
    assert launch((ca.read(x), ca.mut(x), 3), ctx, config) == "with care"
    assert launch((ca.Read(), ca.mut(x), 3), ctx, config) == "with care"
    lent = ca.zeros(4).sync()
    array = np.from_dlpack(lent)
    assert launch((ca.read(lent), ca.mut(y), 3), ctx, config) == "with care"
    del array
    freed = ca.zeros(4).sync()
    freed.free()
    assert launch((ca.read(freed), ca.mut(y), 3), ctx, config) == "with care"
    closed = host.create_stream()
    ctx = context_on(closed)
    closed.close()
    assert launch(args, ctx, config) == "with care"
    for wrong in ((), (args,), (args, ctx), (args, ctx, config, 1)):
        with pytest.raises(TypeError, match="takes \\(args, ctx, config\\)"):
            launch(*wrong)
    with pytest.raises(TypeError, match="takes \\(args, ctx, config\\)"):
        launch(args, ctx, config=config)


@needs_native
@pytest.mark.parametrize("args", [(1.0, np.float32(2)), (np.int32(1), 2.0), (1, ctypes.c_float(1)), (1, 1)])
def test_other_types_have_no_compiled_launch(args):
    _, compiled, _ = both_ways(kernel_of(["f32", "f32"]), ca.Device("host:0"), (2.0, 1.0))
    assert compiled is not None
    if isinstance(args[0], float):
        _, compiled, _ = both_ways(kernel_of(["f32", "f32"]), ca.Device("host:0"), args)
    else:
        _, compiled, _ = both_ways(kernel_of(["i32", "f32"]), ca.Device("host:0"), args)
    assert compiled is None


@needs_native
@pytest.mark.parametrize("count", [31, 32, 33])
def test_many_arguments(host, count):
    function = kernel_of(["i32"] * count)
    args = tuple(range(count))
    _, compiled, _ = both_ways(function, host, args)
    assert (compiled is not None) == (count <= native.MAX_ARGUMENTS)
    assert function.launch(1, 1, *args).sync() == args
    assert function.launch(1, 1, *args).sync() == args


@needs_native
def test_launches_keep_nothing(host):
    """References to all that a launch touches stand at the same number after thousands, refused ones among them."""
    function = kernel_of(["ptr", "ptr", "i32"])
    x, y = ca.zeros(4).sync(), ca.zeros(4).sync()
    bound = function.bind(1, 1, ca.read(x), ca.mut(y), 5, device=host)
    stream = host.create_stream()
    loaded = function.load(host)
    big = 10**6

    def some():
        for _ in range(50):
            chain = function.launch(1, 1, ca.read(x), ca.mut(y), big).then(lambda _: bound.launch())
            chain.then(lambda out: function.launch(1, 1, ca.read(out[0]), ca.mut(out[1]), big)).sync_on(
                stream
            )
            with pytest.raises(OverflowError):
                function.launch(1, 1, ca.read(x), ca.mut(y), 2**40).sync_on(stream)
            with pytest.raises(ca.AliasError):
                function.launch(1, 1, ca.read(x), ca.mut(x), 1).sync_on(stream)
            with pytest.raises(TypeError):
                ca.read(3)
        gc.collect()

    watched = [
        x,
        y,
        x._buffer,
        y._buffer,
        x._buffer.usage,
        stream,
        loaded,
        function,
        bound,
        loaded.block,
        big,
        host,
    ]
    watched += [
        ca.Read,
        ca.Mut,
        type(chain_of(function, x, y)),
        type(function.launch(1, 1)),
        stream._launch_key,
    ]
    some()
    before = [sys.getrefcount(thing) for thing in watched]
    for _ in range(10):
        some()
    after = [sys.getrefcount(thing) for thing in watched]
    assert [b - a for a, b in zip(before, after)] == [0] * len(watched)


def chain_of(function, x, y):
    return function.launch(1, 1, ca.read(x), ca.mut(y), 1).then(lambda _: ca.value(1))


@needs_native
def test_cycles_are_collected(host):
    function = kernel_of(["ptr", "i32"])
    x = ca.zeros(4).sync()
    bound = function.bind(1, 1, ca.mut(x), 1, device=host)
    for _ in range(2):
        function.launch(1, 1, ca.mut(x), 1).sync()
        bound.launch().sync()
    loaded = weakref.ref(function.load(host))
    tensor = weakref.ref(x)
    del function, bound, x
    for _ in range(3):
        ca.zeros(1).sync()
        gc.collect()
    assert loaded() is None
    assert tensor() is None


@needs_native
def test_enqueue_calls_with_its_pointers():
    calls = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    def entry(*pointers):
        calls.append(pointers)
        return 700 if len(calls) == 2 else 0

    kept = object()
    before = sys.getrefcount(kept)
    enqueue = native.Enqueue(ctypes.cast(entry, ctypes.c_void_p).value, 16, 2**63, 0, kept)
    assert (enqueue(), enqueue()) == (0, 700)
    assert calls == [(16, 2**63, None, None)] * 2
    assert sys.getrefcount(kept) == before + 1
    with pytest.raises(TypeError, match="takes no arguments"):
        enqueue(1)
    with pytest.raises(TypeError, match="takes no arguments"):
        enqueue(a=1)
    del enqueue
    assert sys.getrefcount(kept) == before


@needs_native
def test_what_is_put_in_for_functions_looks_like_them():
    for made, name, parameters in (
        (ca.read, "read", ["tensor"]),
        (ca.mut, "mut", ["tensor"]),
        (ca.DeviceOp.then, "DeviceOp.then", ["self", "f"]),
        (ca.Function.launch, "Function.launch", None),
    ):
        assert type(made).__name__ == "Maker"
        assert made.__qualname__ == name
        assert made.__doc__ == made.__wrapped__.__doc__
        assert parameters is None or list(inspect.signature(made).parameters) == parameters
        assert copy.deepcopy(made) is made
    assert pickle.loads(pickle.dumps(ca.read)) is ca.read
    x = ca.zeros(2).sync()
    assert ca.read(tensor=x).tensor is x
    with pytest.raises(TypeError, match="takes a Tensor, got int"):
        ca.read(1)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        ca.read()
    with pytest.raises(TypeError, match="takes 1 positional argument"):
        ca.mut(x, x)


@needs_native
def test_then_through_what_is_put_in():
    function = kernel_of(["i32"])
    function.launch(1, 1, 1).sync()
    op = function.launch(1, 1, 1)
    chain = op.then(f=lambda _: ca.value(4)).then(lambda v: ca.value(v + 1))
    for used in (op, op):
        with pytest.raises(ca.ConsumedError):
            used.then(lambda _: ca.value(1))
    assert chain.sync() == 5
    with pytest.raises(ca.ConsumedError):
        chain.then(lambda _: ca.value(1))
    with pytest.raises(TypeError, match="takes a function, got int"):
        function.launch(1, 1, 1).then(1)
    then = function.launch(1, 1, 1).then
    assert then(lambda _: ca.value(2)).sync() == 2

    class Mine(ca.DeviceOp[int]):
        def execute(self, ctx):
            return 3

        def then(self, f):
            return super().then(lambda v: f(v + 1))

    assert Mine().then(lambda v: ca.value(v)).sync() == 4


@needs_native
@pytest.mark.parametrize(
    ("step", "kind"),
    [
        ((int, 2, 8, -1, 0, 1, 0.0), ValueError),
        ((int, 2, 3, 0, 0, 1, 0.0), ValueError),
        ((int, 2, 8, 4, 0, 1, 0.0), ValueError),
        ((float, 2, 8, 0, 0, 1, 0.0), ValueError),
        ((int, 3, 8, 0, 0, 1, 0.0), ValueError),
        ((int, 9, 8, 0, 0, 1, 0.0), ValueError),
        ((ca.Mut, 0, 8, 0, 0, 0, 0.0), ValueError),
        ((ca.Read, 0, 4, 0, 0, 0, 0.0), ValueError),
        ((int, 2), TypeError),
        ((3, 2, 8, 0, 0, 1, 0.0), TypeError),
    ],
)
def test_steps_that_it_cannot_do_are_refused(step, kind):
    with pytest.raises(kind):
        native.QuickLaunch(None, None, None, None, None, None, bytearray(8), (step,))


@needs_native
def test_classes_without_the_slots_are_refused():
    with pytest.raises(AttributeError, match="tensor"):
        native.Maker(native.MAKES_OPERAND, ca.read, int, ca.Tensor)
    with pytest.raises(TypeError, match="is no slot"):
        native.Maker(native.MAKES_OPERAND, ca.read, type("C", (), {"tensor": 1}), ca.Tensor)
    with pytest.raises(ValueError, match="no such kind"):
        native.Maker(7, ca.read, ca.Read)
    with pytest.raises(ValueError, match="wrong number"):
        native.Maker(native.MAKES_OPERAND, ca.read, ca.Read)


@needs_native
def test_nobody_sees_a_tuple_that_is_being_filled():
    """The garbage collector shows tuples to whoever asks for its objects."""
    function = kernel_of(["i32", "i32"])
    function.launch(1, 1, 1, 2).sync()

    def look(*_):
        for found in gc.get_objects(generation=0):
            if type(found) is tuple:
                list(found)

    before = gc.get_threshold()
    gc.callbacks.append(lambda phase, info: look() if phase == "start" else None)
    gc.set_threshold(1, 1000, 1000)
    try:
        for i in range(200):
            function.launch(1, 1, i, 2)
            with pytest.raises(OverflowError):
                function.launch(1, 1, i, 2**40).sync()
    finally:
        gc.set_threshold(*before)
        gc.callbacks.pop()
    loaded, launch, _ = both_ways(function, ca.Device("host:0"), (1, 2))
    seen = []
    refused = native.QuickLaunch(
        loaded,
        loaded.device,
        None,
        lambda *_: seen.append(look()),
        None,
        None,
        loaded.block.buffer,
        tuple((int, native.INTEGER, 4, 4 * i, 0, 9, 0.0) for i in range(2)),
    )
    loaded.checked = loaded.check_config((1, 1, 0))
    refused((1, 99), context_on(loaded.device.policy.next_stream()), (1, 1, 0))
    assert seen == [None]
    assert launch is not None


@needs_native
def test_weak_references():
    for made in (ca.read, ca.mut, ca.DeviceOp.then, ca.Function.launch):
        assert weakref.ref(made)() is made
    op = ca.ones(2)
    assert weakref.WeakMethod(op.then)().__self__ is op


@needs_native
def test_a_package_that_is_imported_once_more():
    """The compiled module knows the last one's classes; the other goes on in Python."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", TWICE], env=environment, check=True, cwd=ROOT, timeout=60)


TWICE = """
import sys
from tests.cuda_async.native import test_native as first
import cuda_async as ca
f = first.kernel_of(["ptr", "i32"])
x = ca.zeros(4).sync()
f.launch(1, 1, ca.mut(x), 1).sync()
for name in [n for n in sys.modules if n.partition(".")[0] == "cuda_async" and not n.endswith("._native")]:
    del sys.modules[name]
import cuda_async as again
assert again is not ca
y = again.zeros(4).sync()
for _ in range(2):
    assert f.launch(1, 1, ca.mut(x), 1).sync() == (x, 1)
    g = first.kernel_of(["ptr", "i32"])
    assert g.launch(1, 1, ca.mut(x), 1).sync() == (x, 1)
    assert g.bind(1, 1, ca.mut(x), 1, device=ca.Device("host:0")).launch().sync() == (x, 1)
"""


SCRIPT = """
import numpy as np, cuda_async as ca
from cuda_async.native import native
from cuda_async.ops._module import Function
x = ca.full(4, 2.0).sync()
print(native is None, type(Function.launch).__name__, ca.copy(x).to_host().sync().tolist())
"""


def test_left_out_by_the_environment():
    environment = {**os.environ, "CUDA_ASYNC_NATIVE": "0", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert ran.stdout.split(maxsplit=2) == ["True", "function", "[2.0, 2.0, 2.0, 2.0]\n"]


@pytest.mark.parametrize("text", ["0", "off", "False", " no "])
def test_switched_off_compiles_nothing_anew(monkeypatch, capsys, text):
    monkeypatch.setenv("CUDA_ASYNC_NATIVE", text)
    monkeypatch.setattr(native_main, "find_compiled", lambda: "a module")
    monkeypatch.setattr(native_main, "compile_it", lambda: pytest.fail("compiled again"))
    assert native_main.main() == 0
    assert capsys.readouterr().out == f"launches run in Python: switched off by CUDA_ASYNC_NATIVE={text}\n"


@pytest.mark.parametrize("text", ["2", "never"])
def test_switch_that_says_neither(monkeypatch, text):
    monkeypatch.setenv("CUDA_ASYNC_NATIVE", text)
    with pytest.raises(ca.ContextError, match=f"CUDA_ASYNC_NATIVE is '{text}'; give 1 or 0"):
        is_switched_off()
    for on in ("", "1", "on", "TRUE"):
        monkeypatch.setenv("CUDA_ASYNC_NATIVE", on)
        assert not is_switched_off()


def run_in_copy(folder, environment):
    command = [sys.executable, "-m", "cuda_async.native"]
    given = {**os.environ, "PYTHONPATH": str(folder), "CUDA_ASYNC_NATIVE": "1", **environment}
    return subprocess.run(command, env=given, capture_output=True, text=True, cwd=folder, timeout=120)


def copy_of_the_package(folder, *, is_checkout=True):
    shutil.copytree(
        ROOT / "cuda_async", folder / "cuda_async", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    if is_checkout:
        shutil.copy(ROOT / "pyproject.toml", folder)


def test_an_installed_package_is_left_as_it_is(tmp_path):
    copy_of_the_package(tmp_path, is_checkout=False)
    ran = run_in_copy(tmp_path, {})
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == "launches run in Python: the package was installed where there was no C compiler\n"
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_checkout_compiles_its_own(tmp_path):
    copy_of_the_package(tmp_path)
    first, second = (run_in_copy(tmp_path, {}) for _ in range(2))
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        assert (first.returncode, first.stderr) == (1, "this Python has no GIL: launches run in Python\n")
        return
    if "Python.h" in first.stderr:
        pytest.skip("no headers of this Python")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr
    assert first.stdout.startswith("compiled ")
    assert second.stdout.startswith(f"launches are compiled: {tmp_path}")


@pytest.mark.skipif(bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="is said to have no GIL")
def test_a_compiler_that_refuses_is_heard(tmp_path):
    copy_of_the_package(tmp_path)
    (tmp_path / "cuda_async" / "native" / "_native.c").write_text("#error as planned\n")
    ran = run_in_copy(tmp_path, {})
    assert ran.returncode == 1
    assert "as planned" in ran.stderr or "no C compiler" in ran.stderr
    assert ran.stderr.endswith("launches run in Python\n")
