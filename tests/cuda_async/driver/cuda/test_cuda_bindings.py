"""The CUDA driver on the real `cuda.bindings`, over a libcuda that simulates (`fake_libcuda.c`).

That checks what a stand-in in Python cannot: that the bindings take our arguments, in the versions installed
here. It needs a C compiler and NVIDIA's header cuda.h, and is skipped without.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cuda_async.driver.cuda import cuda_include_paths

SOURCE = Path(__file__).with_name("fake_libcuda.c")

SCRIPT = r"""
import ctypes, struct
import numpy as np
from cuda_async.driver._arguments import ArgumentBlock
from cuda_async.driver.cuda import borrow_context, cuda_device_count, cuda_unavailable_reason, open_cuda_driver
from cuda_async.driver.graph import (
    ChildNode, ConditionalNode, ConditionKind, ConvertNode, CopyNode, EmptyNode, FillNode, ForeignNode, KernelNode,
    StridedCopyNode)
from cuda_async.errors import CaptureError, CompileError, DeviceLostError, DriverError, OutOfMemoryError

library = ctypes.CDLL("libcuda.so.1")
library.fake_last_launch.restype = ctypes.POINTER(ctypes.c_ulonglong * 16)
PTX = b".version 8.0\n.target sm_80\n.visible .entry scale(.param .u64 x, .param .u32 n, .param .f32 f) { ret; }\n"

def raises(kind, text, call):
    try: call()
    except kind as error: assert text in str(error), error
    else: raise AssertionError(f"no {kind.__name__}")

assert (cuda_device_count(), cuda_unavailable_reason()) == (1, None)
driver = open_cuda_driver(0)
properties = driver.properties
assert (properties.name, properties.compute_capability, properties.driver_version) == ("Fake", (9, 0), (13, 0))
assert properties.uuid == "GPU-00112233-4455-6677-8899-aabbccddeeff"
assert properties.total_memory_bytes == 80 << 30 and properties.limits.stream_priorities == (0, -5)
assert borrow_context(0x1000) is driver and borrow_context(0x5000) is not driver

stream, event = driver.stream_create(-1), driver.event_create()
start, end = driver.event_create(timing=True), driver.event_create(timing=True)
driver.bind()
for recorded in (event, start, end): driver.event_record(recorded, stream)
driver.stream_wait_event(stream, event)
driver.event_synchronize(event)
assert driver.event_query(event) and driver.stream_query(stream)
assert driver.event_elapsed_ms(start, end) == 0.5
raises(DriverError, "timing=True", lambda: driver.event_elapsed_ms(start, event))
driver.event_destroy(event)

pinned = driver.pinned_alloc(1 << 16)
host = np.frombuffer((ctypes.c_ubyte * (1 << 16)).from_address(pinned), "u1")
first, second = (driver.memory_alloc_async(1 << 16, stream) for _ in range(2))
assert driver.pool_statistics().used_bytes == 1 << 17
data = np.arange(1 << 16).astype("u1")
host[:] = data
driver.copy_host_to_device_async(first, pinned, 1 << 16, stream)
driver.copy_device_to_device_async(second, first, 1 << 16, stream)
host[:] = 0
driver.copy_device_to_host_async(pinned, second, 1 << 16, stream)
assert (host == data).all()
driver.copy_strided_async(first, (2048, 1), second, (4096, 1), (8, 2000), 1, stream)
driver.copy_device_to_host_async(pinned, first, 8 * 2048, stream)
assert (host[: 8 * 2048].reshape(8, 2048)[:, :2000] == data[: 8 * 4096].reshape(8, 4096)[:, :2000]).all()
for pattern in (b"a", b"ab", b"abcd", b"abcdabcd"):
    driver.fill_async(first, pattern, 100, stream)
    assert ctypes.string_at(first, 100 * len(pattern)) == pattern * 100
raises(OutOfMemoryError, f"{1 << 40} bytes do not fit", lambda: driver.memory_alloc_async(1 << 40, stream))
driver.pool_trim()
driver.pool_set_release_threshold(0)

module = driver.module_load(PTX, "scale.ptx")
assert driver.module_function_names(module) == ["scale"]
assert driver.module_global(module, "table") == (0xABC00, 64)
raises(LookupError, "missing", lambda: driver.module_function(module, "missing"))
raises(LookupError, "missing", lambda: driver.module_global(module, "missing"))
function = driver.module_function(module, "scale")
info = driver.function_info(function)
assert [(p.name, p.offset_bytes, p.kind.value) for p in info.parameters] == [
    ("x", 0, "integer"), ("n", 8, "integer"), ("f", 12, "float")]
assert info.registers == 17
raises(CompileError, "at line 3: bogus;", lambda: driver.module_load(PTX.replace(b".vis", b"bogus;\n.vis"), "bad"))
driver.function_allow_shared_bytes(function, 70000)

block = ArgumentBlock(info.parameters)
struct.pack_into("<Q", block.buffer, 0, 0x123456789)
launched = library.fake_last_launch().contents
driver.launch(function, (7, 6, 5), (4, 3, 2), 48, stream, block)
assert list(launched)[:8] == [7, 6, 5, 4, 3, 2, 48, 0x123456789]
driver.launch(function, (1, 1, 1), (1, 1, 1), 0, stream, ArgumentBlock(()))
assert launched[7] == 0
bound = driver.bind_launch(function, (5, 1, 2), (32, 1, 3), 16, stream, block)
assert bound() == 0 and list(launched)[:8] == [5, 1, 2, 32, 1, 3, 16, 0x123456789]
struct.pack_into("<Q", block.buffer, 0, 0x12345678A)
assert bound() == 0 and launched[7] == 0x12345678A
struct.pack_into("<Q", block.buffer, 0, 0x123456789)
kept = driver.bind_launch(function, (3, 3, 3), (2, 2, 2), 5, stream, block.copy())
others = [driver.bind_launch(function, (9, 9, 9), (8, 8, 8), 7, stream, block.copy()) for _ in range(99)]
assert kept() == 0 and list(launched)[:8] == [3, 3, 3, 2, 2, 2, 5, 0x12345678A - 1]
library.fake_fail(b"cuLaunchKernelEx", 1)
raises(DriverError, "cuLaunchKernelEx", lambda: driver.launch_failed(bound()))
library.fake_fail(b"cuLaunchKernelEx", 99999)
raises(DriverError, "99999", lambda: driver.launch_failed(bound()))
driver.bind_launch(function, (1, 1, 1), (1, 1, 1), 0, stream, ArgumentBlock(()))()
assert launched[7] == 0
driver.launch_with_attributes(
    function, (8, 1, 1), (64, 1, 1), 16, stream, block, cluster=(2, 1, 1), cooperative=True)
assert list(launched)[:10] == [8, 1, 1, 64, 1, 1, 16, 0x123456789, 211, 1]
driver.launch_with_attributes(
    function, (16, 1, 1), (64, 1, 1), 0, stream, block, cluster=(16, 1, 1), cooperative=False)
assert list(launched)[8:10] == [1611, 0]
driver.fill_async(first, b"abcdefgh", 1000, stream)  # by a kernel
assert list(launched)[:4] == [4, 1, 1, 256] and launched[7] == first
driver.convert_async(first, np.dtype("f4"), second, np.dtype("f2"), 100, stream)

kernel = KernelNode(name="scale", function=function, grid=(3, 2, 1), block=(32, 1, 1), shared_bytes=8,
                    arguments=block.copy(), cluster=(2, 1, 1), cooperative=True)
host[:] = 5
upload = CopyNode(dependencies=(kernel,), dst=first, src=pinned, size_bytes=64, from_host=True)
fills = [FillNode(dependencies=(upload,), dst=second + 256 * i, pattern=p, count=16)
         for i, p in enumerate((b"a", b"ab", b"abcd", b"abcdabcd", b"abcdefgh"))]
rows = StridedCopyNode(dependencies=tuple(fills), dst=first + 8192, dst_strides_bytes=(2048, 1), src=second,
                       src_strides_bytes=(4096, 1), shape=(4, 2000), itemsize=1)
scattered = StridedCopyNode(dependencies=(rows,), dst=first, dst_strides_bytes=(3,), src=second,
                            src_strides_bytes=(5,), shape=(9,), itemsize=1)
convert = ConvertNode(dependencies=(rows,), dst=first, dst_dtype=np.dtype("f4"), src=second, src_dtype=np.dtype("f2"),
                      count=8)
joined = EmptyNode(dependencies=(scattered, convert))
child = ChildNode(dependencies=(joined,), nodes=[CopyNode(dst=first + 128, src=first, size_bytes=32)])
pair = [FillNode(dst=first + 512, pattern=b"x", count=1), FillNode(dst=first + 513, pattern=b"y", count=1)]
two = ChildNode(dependencies=(child,), nodes=pair)
driver.capture_begin(stream)
assert driver.capture_end(stream) is None
driver.capture_begin(stream)
library.fake_enqueue(ctypes.c_ulonglong(first + 1024), 7)
captured = driver.capture_end(stream)
foreign = ForeignNode(dependencies=(two,), captured=captured)
either = ConditionalNode(dependencies=(foreign,), kind=ConditionKind.IF, predicate=first, itemsize=4,
                         bodies=([pair[0]], []))
turns = FillNode(dst=first, pattern=b"z", count=1)
loop = ConditionalNode(dependencies=(either,), kind=ConditionKind.WHILE, predicate=first, itemsize=8,
                       bodies=([turns, FillNode(dependencies=(turns,), dst=first, pattern=b"w", count=1)],))
last = KernelNode(dependencies=(loop,), name="scale", function=function, grid=(5, 1, 1), block=(64, 1, 1),
                  shared_bytes=0, arguments=block.copy())
early = KernelNode(dependencies=(last,), name="scale", function=function, grid=(5, 1, 1), block=(64, 1, 1),
                   shared_bytes=0, arguments=block.copy(), programmatic=True)
nodes = [kernel, upload, *fills, rows, scattered, convert, joined, child, two, foreign, either, loop, last, early]
graph = driver.graph_create(nodes)
assert list(launched)[8:10] == [211, 1]
driver.bind()
driver.graph_launch(graph, stream)
assert list(launched)[:8] == [5, 1, 1, 64, 1, 1, 0, 0x123456789]
assert ctypes.string_at(first + 128, 32) == b"\5" * 32 == ctypes.string_at(first, 32)
assert ctypes.string_at(first + 512, 2) == b"xy" and ctypes.string_at(first + 1024, 16) == b"\7" * 16
for i, pattern in enumerate((b"a", b"ab", b"abcd", b"abcdabcd")):
    assert ctypes.string_at(second + 256 * i, 16 * len(pattern)) == pattern * 16
assert ctypes.string_at(first + 8192 + 2048, 2000) == ctypes.string_at(second + 4096, 2000)
struct.pack_into("<Q", last.arguments.buffer, 0, 42)
last.grid = (9, 1, 1)
struct.pack_into("<Q", early.arguments.buffer, 0, 42)
early.grid = (9, 1, 1)
upload.size_bytes = 16
fills[0].pattern = b"q"
assert all(driver.graph_update(graph, node) for node in (last, early, upload, fills[0]))
assert not any(driver.graph_update(graph, node) for node in (fills[4], pair[0], turns, loop))
driver.graph_launch(graph, stream)
assert launched[0] == 9 and launched[7] == 42 and ctypes.string_at(second, 16) == b"q" * 16
library.fake_fail(b"cuGraphInstantiateWithFlags", 1)
live = library.fake_live_graphs()
raises(DriverError, "cuGraphInstantiate", lambda: driver.graph_create(nodes))
assert library.fake_live_graphs() == live
for call in ("cuGraphUpload", "cuEventCreate", "cuEventRecord"):
    library.fake_fail(call.encode(), 1)
    raises(DriverError, call, lambda: driver.graph_create(nodes))
    assert library.fake_live_graphs() == live
library.fake_fail(b"cuStreamEndCapture", 901)
driver.capture_begin(stream)
raises(CaptureError, "could not be captured", lambda: driver.capture_end(stream))
driver.graph_destroy(graph)
driver.graph_destroy(captured)
assert library.fake_live_graphs() == 0

# uploads that take long: launches in any stream come behind them, and so does what is destroyed without one
library.fake_hold_uploads(1)
graphs = [driver.graph_create(pair[:1]) for _ in range(4)]
another = driver.stream_create()
driver.bind()
for of_two in (stream, another): driver.graph_launch(graphs[0], of_two)
library.fake_fail(b"cuGraphLaunch", 1)
raises(DriverError, "cuGraphLaunch", lambda: driver.graph_launch(graphs[3], another))
driver.graph_launch(graphs[3], another)
for destroyed, left in ((1, 4), (0, 3), (2, 3)):
    driver.graph_destroy(graphs[destroyed])
    assert library.fake_live_graphs() == left
library.fake_hold_uploads(0)
driver.graph_destroy(graphs[3])
assert library.fake_live_graphs() == 0
library.fake_hold_uploads(1)
other = borrow_context(0x5000)
other.graph_destroy(other.graph_create([EmptyNode()]))
assert library.fake_live_graphs() == 1
library.fake_hold_uploads(0)
other.close()
assert library.fake_live_graphs() == 0
raises(DriverError, "graph", lambda: driver.graph_launch(graph, stream))

driver.memory_free_async(first, stream)
driver.memory_free_async(second, stream)
assert driver.pool_statistics().used_bytes == 0
driver.pinned_free(pinned)
driver.module_unload(module)
foreign = driver.stream_borrow(0x7000)
driver.stream_destroy(foreign)
driver.stream_destroy(stream)
assert driver.stream_create(-1) == stream
library.fake_fail(b"cuStreamSynchronize", 700)
raises(DeviceLostError, "CUDA_ERROR_ILLEGAL_ADDRESS (700): as the fake says", lambda: driver.stream_synchronize(stream))
raises(DeviceLostError, "cuStreamSynchronize", driver.bind)
driver.close()
print("all right")
"""


@pytest.fixture(scope="module")
def library_folder(tmp_path_factory):
    """A folder with the simulated libcuda.so.1."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    headers = [path for path in cuda_include_paths() if (Path(path) / "cuda.h").is_file()]
    if sys.platform != "linux" or compiler is None or not headers:
        pytest.skip("needs Linux, a C compiler and cuda.h (package nvidia-cuda-runtime)")
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        pytest.skip("needs the package cuda-bindings")
    folder = tmp_path_factory.mktemp("libcuda")
    command = [compiler, "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", f"-I{headers[0]}"]
    subprocess.run([*command, SOURCE, "-o", folder / "libcuda.so.1", "-ldl"], check=True, timeout=120)
    return folder


def test_driver_runs_on_the_real_bindings(library_folder):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "LD_LIBRARY_PATH": str(library_folder)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "all right\n"


GRAPHS = r"""
import asyncio, ctypes, gc
import numpy as np
import cuda_async as ca

library = ctypes.CDLL("libcuda.so.1")
PTX = ".version 8.0\n.target sm_80\n.visible .entry scale(.param .u64 x, .param .u32 n, .param .f32 f) { ret; }\n"

def raises(kind, text, call):
    try: asyncio.run(call())
    except kind as error: assert text in str(error), error
    else: raise AssertionError(f"no {kind.__name__}")

async def made():
    x, flag = await ca.zip(ca.from_host(np.arange(16, dtype="f4")), ca.zeros(1, "int32"))

    def theirs(stream):
        assert stream.__cuda_stream__()[1] == stream.handle != 0
        library.fake_enqueue(ctypes.c_ulonglong(x._address), 3)

    scale = ca.Module.from_ptx(PTX).function("scale")
    op = scale.launch(1, 16, ca.mut(x), 16, 2.0).then(lambda _: ca.copy(x))
    op = op.then(lambda y: ca.parallel(y.astype("f8"), ca.copy(y[::2]), ca.foreign(theirs, writes=[x])))
    op = op.then(lambda p: ca.if_else(flag, lambda: ca.fill(x, 1.0), lambda: ca.fill(x, 2.0)).map(lambda _: p[0]))
    return x, theirs, await op.graph(inputs={"x": x})

async def replay():
    x, theirs, graph = await made()
    assert [(n.kind, n.depends_on) for n in graph.nodes] == [
        ("kernel", ()), ("copy", (0,)), ("convert", (1,)), ("copy", (1,)), ("foreign", (1,)), ("if", (2, 3, 4))]
    await graph.replay(x=np.ones(16, "f4"))
    assert ctypes.string_at(x._address, 16) == b"\3" * 16
    graph.nodes[0].set_arguments({2: 5.0})
    graph.nodes[0].set_launch(grid=3)
    await graph(x=2.0)
    outer = await graph.launch().then(lambda _: ca.copy(x)).graph()
    await outer.launch()
    assert [n.kind for n in outer.nodes] == ["graph", "copy"]

async def fails(stop):
    x, theirs, graph = await made()
    await ca.foreign(stop(theirs), writes=[x]).graph()

def raising(theirs):
    def work(stream):
        theirs(stream)
        raise ValueError("theirs")
    return work

def invalid(theirs):
    library.fake_fail(b"cuStreamEndCapture", 901)
    return theirs

with ca.use_device("cuda:0"):
    asyncio.run(replay())
    raises(ValueError, "theirs", lambda: fails(raising))
    raises(ca.CaptureError, "could not be captured", lambda: fails(invalid))
    asyncio.run(replay())
    gc.collect()
    ca.drain().sync()
    assert library.fake_live_graphs() == 0, library.fake_live_graphs()
print("all right")
"""


def test_graphs_run_on_the_real_bindings(library_folder):
    """From the operations down; nothing of the driver's is left behind, after errors neither."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", GRAPHS],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "LD_LIBRARY_PATH": str(library_folder)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "all right\n"
