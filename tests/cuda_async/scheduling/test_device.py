"""Devices: naming, opening, defaults, health, and what a process without a GPU says."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading

import pytest

import cuda_async as ca
from cuda_async.driver import cuda
from cuda_async.driver.cuda import cuda_device_count
from cuda_async.driver.host import HostDriver
from cuda_async.scheduling import _device, _opening, call_behind_opening


def run(code, **environment):
    env = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120)


def test_one_object_per_name():
    assert ca.Device("host:0") is ca.Device("host")
    assert pickle.loads(pickle.dumps(ca.Device("host:0"))) is ca.Device("host:0")
    assert str(ca.Device("cuda:3")) == "cuda:3"


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "host:-1", "", 3])
def test_bad_names_are_refused(name):
    with pytest.raises(ValueError, match='"cuda:N" or "host:N"'):
        ca.Device(name)


def test_naming_a_device_does_not_open_it():
    assert not ca.Device("host:7").is_open


def test_missing_host_device_says_how_to_get_more():
    with pytest.raises(ca.ContextError, match="CUDA_ASYNC_HOST_DEVICES"):
        ca.Device("host:7").open()


@pytest.mark.skipif(cuda_device_count() > 0, reason="this machine has a CUDA device")
def test_missing_gpu_says_what_is_missing():
    with pytest.raises(ca.ContextError, match=r"cuda:0|CUDA|NVIDIA"):
        ca.Device("cuda:0").open()
    with ca.use_device("cuda:0"), pytest.raises(ca.ContextError):
        ca.zeros(3).sync()


def test_calls_behind_opening(monkeypatch):
    """Once, on the thread that opens a CUDA device; one that fails is none of the opener's business."""
    opened, calls = [], []
    monkeypatch.setattr(cuda, "open_cuda_driver", lambda ordinal: opened.append(ordinal) or HostDriver())
    monkeypatch.setattr(_opening, "behind_opening", [])
    call_behind_opening(lambda: calls.append(1 // 0))
    call_behind_opening(lambda: calls.append((threading.get_ident(), device.is_open)))
    device = ca.Device._make("cuda", 5, None)
    for _ in range(2):
        assert device.open() is device
    assert opened == [5]
    assert calls == [(threading.get_ident(), True)]
    device.driver.close()


def test_facts(device):
    assert device.name
    assert len(device.compute_capability) == 2
    assert device.limits.max_threads_per_block >= 1024
    assert device.is_healthy
    assert device in ca.devices()


def test_several_host_devices():
    code = """
import cuda_async as ca
print([str(d) for d in ca.devices() if d.kind == "host"])
with ca.use_device("host:1"):
    t = ca.full(4, 2.0).sync()
print(t.device, t.to_host().sync().sum())
"""
    done = run(code, CUDA_ASYNC_HOST_DEVICES="2", CUDA_ASYNC_DRIVER="host")
    assert done.stdout.split("\n")[:2] == ["['host:0', 'host:1']", "host:1 8.0"], done.stderr


def test_driver_variable_is_checked():
    done = run("import cuda_async as ca; ca.current_device()", CUDA_ASYNC_DRIVER="opencl")
    assert "CUDA_ASYNC_DRIVER is 'opencl'; expected auto, cuda or host" in done.stderr


@pytest.mark.parametrize("text", ["soon", "-1", "inf"])
def test_poll_variable_is_checked(text):
    done = run(
        "import cuda_async as ca; ca.zeros(4).sync()", CUDA_ASYNC_POLL_US=text, CUDA_ASYNC_DRIVER="host"
    )
    assert f"ContextError: CUDA_ASYNC_POLL_US is {text!r}; write a number of microseconds" in done.stderr


def test_use_device_nests_and_restores(host):
    other = ca.Device._make("host", 5, host.driver)
    with ca.use_device(other):
        assert ca.current_device() is other
        with ca.use_device("host:0"):
            assert ca.current_device() is host
        assert ca.current_device() is other
    assert ca.current_device() is host


def test_memory_comes_back(device):
    device.synchronize()
    before = device.memory_stats().used_bytes
    tensor = ca.zeros(1 << 20).sync()
    assert device.memory_stats().used_bytes == before + (4 << 20)
    assert device.memory_stats().reserved_bytes >= 4 << 20
    del tensor
    assert device.memory_stats().used_bytes == before


def test_limit_must_be_sensible(device):
    with pytest.raises(ValueError, match="number of bytes or None"):
        device.memory_limit = -1
    for wrong in (True, 1.5, "1"):
        with pytest.raises(TypeError, match="number of bytes or None"):
            device.memory_limit = wrong


def test_lost_device_fails_everything_with_its_cause(stepped):
    future = ca.zeros(4).start()
    tensor_op = ca.ones(4)
    stepped.driver.fail_device(RuntimeError("unplugged"))
    with pytest.raises(ca.DeviceLostError, match="is lost") as info:
        future.sync()
    assert info.value.__cause__ is not None
    assert str(info.value).startswith("host:0 is lost: unplugged. Nothing more can run on it")
    assert not stepped.is_healthy
    with pytest.raises(ca.DeviceLostError, match="is lost"):
        tensor_op.sync()
    with pytest.raises(ca.DeviceLostError):
        stepped.create_stream()
    assert stepped.memory_stats().reserved_bytes == 0


def test_opening_a_lost_gpu_again(monkeypatch):
    """CUDA's context is lost for the process, so another object for the device is lost from the beginning."""
    lost = HostDriver()
    lost.fail_device(RuntimeError("unplugged"))
    monkeypatch.setattr(lost, "bind", lost.event_create)  # a simulated device takes calls of this kind still
    monkeypatch.setattr(cuda, "open_cuda_driver", lambda ordinal: lost)
    monkeypatch.setattr(_opening, "behind_opening", [])
    device = ca.Device("cuda:6")
    try:
        for call in (device.open, device.create_stream, lambda: device.policy.next_stream()):
            with pytest.raises(ca.DeviceLostError, match="cuda:6 is lost: unplugged"):
                call()
        assert not device.is_healthy
        assert device.memory_stats().reserved_bytes == 0
        with ca.use_device(device), pytest.raises(ca.DeviceLostError, match="cuda:6 is lost"):
            ca.zeros(3).sync()
    finally:
        device.close()


@pytest.mark.parametrize(
    "call", ["memory_alloc_async", "fill_async", "event_record", "stream_wait_event", "event_create"]
)
def test_failing_driver_call_reaches_the_caller_and_nobody_else(stepped, call):
    driver = stepped.driver
    first, second = stepped.create_stream(), stepped.create_stream()
    stepped._events.clear()
    error = ca.DriverError(call, 1, "CUDA_ERROR_INVALID_VALUE", "made to fail")
    driver.fail_next(call, error)
    op = (
        ca.full(4, 1.0)
        .schedule(ca.SingleStream(first))
        .then(lambda t: ca.fill(t, 2.0).schedule(ca.SingleStream(second)))
    )
    with pytest.raises(ca.DriverError, match="made to fail"):
        op.start().result()
    driver.advance_all()
    again = ca.full(4, 3.0).start()
    driver.advance_all()
    assert again.result().shape == (4,)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() here")
def test_forked_child_is_told_about_spawn():
    """Case C38: a clear error that names spawn, in the child; the parent goes on."""
    code = """
import os, cuda_async as ca
ca.zeros(4).sync()
child = os.fork()
if child == 0:
    try:
        ca.zeros(4).sync()
    except ca.ContextError as error:
        print("spawn" in str(error), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(ca.ones(4).to_host().sync().sum())
"""
    done = run(code, CUDA_ASYNC_DRIVER="host")
    assert done.stdout.split() == ["True", "4.0"], done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() here")
def test_forked_child_names_devices():
    """Though a thread of the parent's was just doing so."""
    code = """
import os, cuda_async as ca
from cuda_async.scheduling import _device
with _device._registry_lock:
    child = os.fork()
    if child == 0:
        print(ca.Device("host:1"), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
    assert run(code).stdout.split() == ["host:1"]


def test_default_device_that_is_closed_while_it_is_looked_for(monkeypatch):
    """It does not become the default of all that follows."""

    class Closed:
        @property
        def _closed_because(self):
            assert _device._registry_lock.locked(), (
                "it may be closed between this look and what follows from it"
            )
            return "another thread did"

    closed = Closed()
    monkeypatch.setenv("CUDA_ASYNC_DRIVER", "host")
    monkeypatch.setattr(_device, "_default", None)
    with monkeypatch.context() as patch:
        patch.setattr(_device, "Device", lambda name: closed)
        assert _device.resolve_default_device() is closed
    assert _device.resolve_default_device() is ca.Device("host:0")


def test_exit_with_work_in_flight_is_clean(device):
    code = f"""
import cuda_async as ca
with ca.use_device("{device}"):
    futures = [ca.zeros(1 << 18).to_host().start() for _ in range(50)]
"""
    done = run(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_trim_gives_pinned_memory_back(device):
    device.trim()
    before = device.memory_stats().pinned_bytes
    array = ca.zeros(1 << 20).to_host().sync()
    assert device.memory_stats().pinned_bytes >= before + array.nbytes
    del array
    device.synchronize()
    device.trim()
    assert device.memory_stats().pinned_bytes <= before + (1 << 20)


def test_freeing_hands_no_failure_on(host):
    """Memory that a failed stream used is freed without failing what runs next."""
    from cuda_async.driver import FunctionInfo, HostImage

    class Fails:
        info = FunctionInfo(name="fails", parameters=(), max_threads_per_block=1)

        def start(self, launch):
            raise ValueError("on purpose")
            yield

    image = ca.Module.from_host_image(HostImage(functions={"fails": Fails()}))
    bad, good = host.create_stream(), host.create_stream()
    tensor = ca.zeros(1000).schedule(ca.SingleStream(good)).sync()
    function = image.function("fails")
    function.load(host)
    failed = function.launch(1, 1, uses=[ca.read(tensor)]).start(ca.SingleStream(bad))
    del tensor
    for _ in range(5):
        assert float(ca.ones(8).to_host().schedule(ca.SingleStream(good)).sync().sum()) == 8.0
    with pytest.raises(ca.CudaAsyncError, match="fails"):
        failed.sync()
    host.collect()
    host.synchronize()


@pytest.mark.parametrize("makes", ["graphs", "events"])
def test_what_was_dropped_goes_where_nothing_is_allocated(device, makes):
    """Graphs and events of the driver's, of a service that works in tensors made once."""
    gc.collect()  # what earlier tests left comes first
    x, stream = ca.zeros(4).sync(), device.create_stream()
    for _ in range(20):
        if makes == "graphs":
            ca.fill(x, 1.0).graph().sync().close()
        else:
            stream.record().synchronize()
    gc.collect()
    assert len(device._dropped_graphs) + len(device._dropped_events) < 5
