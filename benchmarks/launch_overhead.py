"""Host cost per kernel of a chain of small launches, beside a C program and other Python libraries.

One round is 100 launches of `axpy_f32` (128 threads, about 2 us of work, so the host is what limits), its
scalar argument changing from launch to launch, and one wait for the end. Everything is timed: building the
operations, checking, enqueueing, waiting. The C program (launch_overhead.c) does the same with
`cuLaunchKernel` and `cuStreamSynchronize`; the table gives microseconds per launch and the ratio to it.

    python benchmarks/launch_overhead.py [--launches 100] [--repetitions 300] [--out FILE.json]
    python benchmarks/launch_overhead.py --device host:0      # only ours: the simulated device

Everything runs on one core, the quietest (`--any-core` lets it wander). Rows of libraries that are not installed
say so.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from _axpy import CUDA_SOURCE, ELEMENTS, PTX_FILE, Axpy
from _harness import (
    Quantiles,
    Unavailable,
    machine,
    measure,
    pin_to_quiet_core,
    print_table,
    run_c_program,
    write_results,
)

import cuda_async as ca

if TYPE_CHECKING:
    from collections.abc import Callable


# ----------------------------------------------------------------------------------- peers


def cuda_bindings(launches: int, repetitions: int) -> Quantiles:
    """`cuda.bindings` with an argument block that is packed in place: the least Python can do."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise Unavailable("cuda-bindings is not installed") from error

    def check(result: tuple[Any, ...]) -> Any:
        if result[0] != driver.CUresult.CUDA_SUCCESS:
            raise Unavailable(f"cuda.bindings: {result[0]}")
        return result[1] if len(result) == 2 else result[1:]

    check(driver.cuInit(0))
    context = check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(0))))
    check(driver.cuCtxSetCurrent(context))
    module = check(driver.cuModuleLoadData(PTX_FILE.read_bytes() + b"\0"))
    function = check(driver.cuModuleGetFunction(module, b"axpy_f32"))
    stream = check(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
    x, y = (check(driver.cuMemAlloc(4 * ELEMENTS)) for _ in range(2))
    for address in (x, y):
        check(driver.cuMemsetD32(address, 0, ELEMENTS))
    check(driver.cuCtxSynchronize())

    block = (ctypes.c_ubyte * 24)()
    base = ctypes.addressof(block)
    struct.pack_into("=IfQQ", block, 0, ELEMENTS, 0.0, int(x), int(y))
    pointers = (ctypes.c_void_p * 4)(base, base + 4, base + 8, base + 16)
    arguments = ctypes.addressof(pointers)
    launch, pack = driver.cuLaunchKernel, struct.Struct("=f").pack_into
    success = driver.CUresult.CUDA_SUCCESS

    def round_() -> None:
        for i in range(launches):
            pack(block, 4, float(i))
            if launch(function, 1, 1, 1, ELEMENTS, 1, 1, 0, stream, arguments, 0)[0] != success:
                raise RuntimeError("cuLaunchKernel failed")
        check(driver.cuStreamSynchronize(stream))

    return measure(round_, repetitions)


def cupy_raw_kernel(launches: int, repetitions: int) -> Quantiles:
    try:
        import cupy
    except ImportError as error:
        raise Unavailable("cupy is not installed") from error
    kernel = cupy.RawKernel(CUDA_SOURCE.read_text(), "axpy_f32")
    stream = cupy.cuda.Stream(non_blocking=True)
    x, y = cupy.zeros(ELEMENTS, cupy.float32), cupy.zeros(ELEMENTS, cupy.float32)
    n, float32 = np.uint32(ELEMENTS), np.float32
    cupy.cuda.Device().synchronize()

    def round_() -> None:
        with stream:
            for i in range(launches):
                kernel((1,), (ELEMENTS,), (n, float32(i), x, y))
        stream.synchronize()

    return measure(round_, repetitions)


def torch_add(launches: int, repetitions: int) -> Quantiles:
    """The same arithmetic by torch's own kernel: `torch.add(y, x, alpha=a, out=y)`."""
    try:
        import torch
    except ImportError as error:
        raise Unavailable("torch is not installed") from error
    if not torch.cuda.is_available():
        raise Unavailable("torch finds no CUDA device")
    stream = torch.cuda.Stream()
    x, y = torch.zeros(ELEMENTS, device="cuda"), torch.zeros(ELEMENTS, device="cuda")
    torch.cuda.synchronize()

    def round_() -> None:
        with torch.cuda.stream(stream):
            for i in range(launches):
                torch.add(y, x, alpha=float(i), out=y)
        stream.synchronize()

    return measure(round_, repetitions)


def triton_kernel(launches: int, repetitions: int) -> Quantiles:
    try:
        import torch
        import triton
        from _triton_axpy import axpy
    except ImportError as error:
        raise Unavailable(f"{error.name} is not installed") from error
    if not torch.cuda.is_available():
        raise Unavailable("torch finds no CUDA device")
    del triton
    stream = torch.cuda.Stream()
    x, y = torch.zeros(ELEMENTS, device="cuda"), torch.zeros(ELEMENTS, device="cuda")
    torch.cuda.synchronize()

    def round_() -> None:
        with torch.cuda.stream(stream):
            for i in range(launches):
                axpy[(1,)](ELEMENTS, float(i) + 0.5, x, y, block=ELEMENTS)
        stream.synchronize()

    return measure(round_, repetitions)


# ------------------------------------------------------------------------------------ main


BASELINE = "C, cuLaunchKernel loop"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default=None, help="cuda:0 (default where there is one) or host:0")
    parser.add_argument("--launches", type=int, default=100, help="launches in a chain")
    parser.add_argument("--repetitions", type=int, default=300, help="chains timed of each, in all")
    parser.add_argument("--rounds", type=int, default=15, help="turns that the repetitions are split into")
    parser.add_argument("--out", type=Path, default=None, help="write the numbers here as JSON")
    parser.add_argument("--any-core", action="store_true", help="do not stay on one quiet core")
    options = parser.parse_args()
    launches, repetitions = options.launches, options.repetitions
    device = options.device or str(ca.current_device())
    on_gpu = device.startswith("cuda")
    core = pin_to_quiet_core() if on_gpu and not options.any_core else None

    rounds = max(1, min(options.rounds, repetitions // 10))
    share = repetitions // rounds
    ours = Axpy(device)
    contestants: dict[str, Callable[[], Quantiles]] = {}
    if on_gpu:
        contestants[BASELINE] = lambda: run_c_program(launches, share)["chain_sync"]
    for loop in ("uvloop", "asyncio"):
        for kind, make in (("fresh ops", ours.chain), ("pre-bound", ours.bound_chain)):
            contestants[f"cuda_async, {kind} ({loop})"] = lambda loop=loop, make=make: ours.awaited(
                lambda: make(launches), loop, share
            )
    contestants["cuda_async, fresh ops (sync)"] = lambda: ours.blocking(lambda: ours.chain(launches), share)
    if on_gpu:
        contestants["cuda.bindings, packed block"] = lambda: cuda_bindings(launches, share)
        contestants["CuPy RawKernel"] = lambda: cupy_raw_kernel(launches, share)
        contestants["torch.add"] = lambda: torch_add(launches, share)
        contestants["Triton"] = lambda: triton_kernel(launches, share)

    # Shared machines change pace from second to second: all take turns, and a ratio is of one turn's medians.
    results: dict[str, list[Quantiles]] = {name: [] for name in contestants}
    missing: dict[str, str] = {}
    for _ in range(rounds):
        for name, measure_one in contestants.items():
            if name not in missing:
                try:
                    results[name].append(measure_one())
                except Unavailable as error:
                    missing[name] = str(error)

    baseline = results.get(BASELINE, [])
    rows: list[tuple[object, ...]] = []
    summary: dict[str, object] = {}
    for name, turns in results.items():
        if name in missing:
            rows.append((name, "-", "-", missing[name]))
            summary[name] = missing[name]
            continue
        typical = statistics.median(t["median_us"] for t in turns)
        ratios = [t["median_us"] / base["median_us"] for t, base in zip(turns, baseline)]
        ratio = statistics.median(ratios) if ratios else "-"
        rows.append((name, typical / launches, ratio, f"{typical:.0f} us a chain"))
        summary[name] = {"median_us": typical, "ratio_to_c": ratio, "turns": turns}
    about = machine(ours.device)
    if not about["compiled launch"]:
        print("launches run in Python here: python -m cuda_async.native compiles them")
    print_table(
        f"{launches} launches and one wait, {rounds} turns of {share}, medians, on {about['device']}",
        ("", "us/launch", "ratio to C", ""),
        rows,
    )
    write_results(
        options.out,
        {
            "machine": about,
            "core": core,
            "launches": launches,
            "repetitions": share,
            "rounds": rounds,
            "results": summary,
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
