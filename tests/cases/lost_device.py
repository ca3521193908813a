"""Run by `test_faults.py` in a process of its own: a kernel breaks the CUDA device; what happens then, as JSON.

Arguments: the loop's library, and "uvloop" or "".
"""

from __future__ import annotations

import json
import sys
import time

import anyio
import numpy as np

import cuda_async as ca

SOURCE = r"""
extern "C" __global__ void wild_write(long long address) { *(volatile int*)address = 1; }
extern "C" __global__ void spin(unsigned long long ns) {
    unsigned long long began, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(began));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - began < ns);
}
"""


def describe(error, began):
    return {
        "type": type(error).__name__,
        "message": str(error),
        "cause": repr(error.__cause__) if error.__cause__ is not None else None,
        "kernels": list(getattr(error, "kernels", ())),
        "seconds": time.perf_counter() - began,
    }


async def failure(awaitable):
    """The error of an await, described; what it yields otherwise."""
    began = time.perf_counter()
    try:
        with anyio.fail_after(10):
            result = await awaitable
    except Exception as error:
        return describe(error, began)
    return {"type": None, "message": repr(result)}


async def main():
    found = {}
    device = ca.Device("cuda:0")
    with ca.use_device(device):
        module = ca.Module.from_cuda_source(SOURCE)
        wild_write, spin = module.function("wild_write"), module.function("spin")
        await ca.zeros(16).to_host()
        await spin.launch(1, 1, 1)
        # Loaded beforehand: a device may wait for running kernels when it loads one.
        await anyio.to_thread.run_sync(lambda: wild_write.load(device))
        streams = [device.create_stream() for _ in range(6)]
        tensors = [await ca.zeros(16) for _ in range(5)]
        pending = [
            spin.launch(1, 1, 1_000_000_000)
            .then(lambda _, tensor=tensor: ca.fill(tensor, 1.0))
            .start(ca.SingleStream(stream))
            for tensor, stream in zip(tensors, streams)
        ]
        found["pending states before"] = [future.state for future in pending]
        found["healthy before"] = device.is_healthy
        found["fault"] = await failure(wild_write.launch(1, 1, 8).schedule(ca.SingleStream(streams[5])))
        found["pending"] = [await failure(future) for future in pending]
        found["new"] = [
            await failure(op)
            for op in (
                ca.zeros(4),
                ca.from_host(np.ones(4)),
                tensors[0].to_host(),
                ca.value(4).then(lambda n: ca.full(n, 1.0)),
            )
        ]
        began = time.perf_counter()
        try:
            ca.zeros(4).sync()
            found["new sync"] = {"type": None}
        except Exception as error:
            found["new sync"] = describe(error, began)
        found["healthy after"] = device.is_healthy
    with ca.use_device("host:0"):
        found["host"] = float((await ca.full(4, 2.0).to_host()).sum())
    await ca.drain()
    del tensors, pending
    print(json.dumps(found))


if __name__ == "__main__":
    options = {"use_uvloop": bool(sys.argv[2])} if sys.argv[1] == "asyncio" else {}
    anyio.run(main, backend=sys.argv[1], backend_options=options)
