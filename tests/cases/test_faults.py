"""Kernels that break the device, and launches that are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import anyio
import numpy as np
import pytest

import cuda_async as ca

pytestmark = pytest.mark.anyio


# ------------------------------------------------- Case C16: a kernel that breaks the device


@pytest.mark.gpu
async def test_kernel_that_breaks_a_cuda_device(kernels_can_be_compiled, anyio_backend):
    """Case C16, in a process of its own: everything fails within 2 s and says why; the host device works on."""
    library, options = anyio_backend
    script = Path(__file__).with_name("lost_device.py")
    arguments = [
        sys.executable,
        "-W",
        "error",
        str(script),
        library,
        "uvloop" if options.get("use_uvloop") else "",
    ]
    done = await anyio.to_thread.run_sync(
        lambda: subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["healthy before"]
    assert found["pending states before"] == ["submitted"] * 5
    fault = found["fault"]
    assert fault["type"] == "DeviceLostError"
    assert "cuda:0 is lost" in fault["message"]
    assert "wild_write" in fault["message"]
    assert "wild_write" in fault["kernels"]
    assert fault["seconds"] < 2
    for error in [*found["pending"], *found["new"], found["new sync"]]:
        assert error["type"] == "DeviceLostError", error
        assert "is lost" in error["message"]
        assert error["cause"] is not None
        assert error["seconds"] < 2
    assert found["healthy after"] is False
    assert found["host"] == 8.0


@pytest.mark.parametrize("address", [0, 8, 0x10, 0x7FFF_FFFF_0000, 2**47, 2**62])
async def test_same_kernel_on_the_host_device(device, kernels, latch, memory_is_back, address):
    """Case C16: the host device names the kernel and the address too, and goes on; other streams are not touched."""
    if device.kind != "host":
        pytest.skip("a CUDA device would be lost: that runs in a process of its own")
    gate = latch()
    streams = [device.create_stream() for _ in range(6)]
    others = [
        gate.hold().then(lambda _: ca.full(4, 1.0).to_host()).start(ca.SingleStream(stream))
        for stream in streams[:5]
    ]
    with pytest.raises(ca.errors.MemoryFault, match=r"write of 4 bytes.*kernel wild_write") as info:
        await kernels.wild_write.launch(1, 1, address, 1).schedule(ca.SingleStream(streams[5]))
    assert info.value.address == address
    assert info.value.kernel == "wild_write"
    del info
    assert device.is_healthy
    gate.open()
    for other in others:
        assert (await other == 1.0).all()
    assert (await ca.full(4, 2.0).to_host().schedule(ca.SingleStream(streams[5])) == 2.0).all()
    for stream in streams:
        await stream.aclose()


async def test_fault_stops_what_depends_on_it(device, kernels):
    """Case C16 on the host device: later work of the same submission, and who waits for it, gets the error."""
    if device.kind != "host":
        pytest.skip("a CUDA device would be lost")
    tensor = await ca.full(8, 3.0, "int32")

    def then_fill(_):
        return kernels.fill_int.launch(1, 8, ca.mut(tensor), 8, 9)

    with pytest.raises(ca.errors.MemoryFault, match="wild_write"):
        await kernels.wild_write.launch(1, 1, 8, 1).then(then_fill)
    assert (await tensor.to_host() == 3).all()


# ---------------------------------------------------- Case C17: a launch the driver refuses


def bad_launches(limits):
    """(what, block, shared bytes, expected in the message: what was asked for, what is allowed)."""
    threads, optin = limits.max_threads_per_block, limits.max_shared_bytes_per_block_optin
    z = limits.max_block[2]
    return {
        "2048 threads": (2048, 0, "2048", str(threads)),
        "one thread too many": (threads + 1, 0, str(threads + 1), str(threads)),
        "64 x 64 threads": ((64, 64), 0, "4096", str(threads)),
        "long z": ((1, 1, z + 1), 0, str(z + 1), str(z)),
        "no thread": (0, 0, "0", "1"),
        "a negative block": ((32, -1), 0, "-1", "1"),
        "shared": (32, optin + 1, str(optin + 1), str(optin)),
        "much shared": (32, 1 << 30, str(1 << 30), str(optin)),
        "negative shared": (32, -4, "-4", "negative"),
    }


async def refused(device, how, function, block, arguments, shared):
    if how == "launch":
        await function.launch(1, block, *arguments, shared_mem_bytes=shared)
    else:
        function.bind(1, block, *arguments, shared_mem_bytes=shared, device=device)


@pytest.mark.parametrize("what", bad_launches(ca.Device("host:0").limits))
@pytest.mark.parametrize("how", ["launch", "bind"])
async def test_refused_launch(device, kernels, what, how):
    """Case C17: the error has the asked and the allowed value; the output is untouched; the next launch works."""
    block, shared, asked, allowed = bad_launches(device.limits)[what]
    out = await ca.full(64, -1, "int32")
    arguments = (ca.mut(out), 64, 5)
    with pytest.raises(ca.LaunchError, match=f"fill_int.*{asked}.*{allowed}"):
        await refused(device, how, kernels.fill_int, block, arguments, shared)
    assert (await out.to_host() == -1).all()
    await kernels.fill_int.launch(1, 64, *arguments)
    assert (await out.to_host() == 5).all()


async def test_largest_launches_work(device, kernels):
    """Case C17, the other side: exactly the limits are allowed."""
    limits = device.limits
    out = await ca.full(limits.max_threads_per_block, -1, "int32")
    await kernels.fill_int.launch(1, limits.max_threads_per_block, ca.mut(out), out.size, 5)
    assert (await out.to_host() == 5).all()
    optin = limits.max_shared_bytes_per_block_optin
    await kernels.fill_int.launch(1, 32, ca.mut(out), 32, 6, shared_mem_bytes=optin)
    assert (await out.to_host())[:32].tolist() == [6] * 32


async def test_refused_launch_in_the_middle_of_a_chain(device, kernels):
    """Case C17: what came before is done, what comes after is not."""
    out = await ca.full(64, -1, "int32")
    later = []
    with pytest.raises(ca.LaunchError, match="2048"):
        await (
            kernels.fill_int.launch(1, 64, ca.mut(out), 64, 1)
            .then(lambda _: kernels.fill_int.launch(1, 2048, ca.mut(out), 64, 2))
            .inspect(later.append)
        )
    assert later == []
    assert (await out.to_host() == np.int32(1)).all()
