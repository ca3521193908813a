"""What the benchmarks share: medians, the C baseline, a description of the machine, tables, JSON."""

from __future__ import annotations

import asyncio
import ctypes
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cuda_async.native import native

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    import cuda_async as ca

HERE = Path(__file__).resolve().parent
PTX_FILE = HERE / "kernels" / "small.ptx"

Quantiles = dict[str, float]
"""`median_us`, `p10_us` and `p90_us` of a measurement."""


class Unavailable(Exception):
    """A measurement cannot be made on this machine; the message says why. The table shows it."""


# ------------------------------------------------------------------------------------ time


def quantiles(times_us: list[float]) -> Quantiles:
    """Median, 10th and 90th percentile, as the C program prints them."""
    ordered = sorted(times_us)
    count = len(ordered)
    return {
        "median_us": statistics.median(ordered),
        "p10_us": ordered[count // 10],
        "p90_us": ordered[count * 9 // 10],
    }


def measure(round_: Callable[[], object], repetitions: int) -> Quantiles:
    """Time `round_` in microseconds, after a warm-up of a tenth as many."""
    for _ in range(repetitions // 10 + 1):
        round_()
    times = []
    clock = time.perf_counter_ns
    for _ in range(repetitions):
        begin = clock()
        round_()
        times.append((clock() - begin) / 1e3)
    return quantiles(times)


async def measure_async(round_: Callable[[], Awaitable[object]], repetitions: int) -> Quantiles:
    """`measure` for a coroutine function, on the running loop."""
    for _ in range(repetitions // 10 + 1):
        await round_()
    times = []
    clock = time.perf_counter_ns
    for _ in range(repetitions):
        begin = clock()
        await round_()
        times.append((clock() - begin) / 1e3)
    return quantiles(times)


def pin_to_quiet_core() -> int | None:
    """Keep this process, and the programs it starts, on the core where a plain loop runs fastest; None if it cannot.

    On virtual machines the cores differ by a factor of two, by what others do on the other half of the real core, and a
    process wanders between them: then a ratio says which core each side was on. The C program starts from here, so it
    runs on the same core.
    """
    if not hasattr(os, "sched_setaffinity"):
        return None

    def pace_s(core: int) -> float:
        os.sched_setaffinity(0, {core})
        times = []
        for _ in range(15):
            begin = time.perf_counter()
            for _ in range(20_000):
                pass
            times.append(time.perf_counter() - begin)
        return statistics.median(times)

    core = min(os.sched_getaffinity(0), key=pace_s)
    os.sched_setaffinity(0, {core})
    return core


def run_on_loop(loop: str, main: Callable[[], Coroutine[object, object, object]]) -> object:
    """Run an async function to its end on `asyncio`, `uvloop` or `trio`; returns what it returns."""
    if loop == "asyncio":
        return asyncio.run(main())
    try:
        if loop == "uvloop":
            import uvloop

            return uvloop.run(main())
        import trio

        return trio.run(main)
    except ImportError as error:
        raise Unavailable(f"{loop} is not installed") from error


# ---------------------------------------------------------------------------- the C program


def _include_folder() -> Path:
    """The folder that holds cuda.h: a toolkit's, or that of NVIDIA's wheels."""
    candidates = [
        Path(os.environ[name]) / "include" for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ
    ]
    nvcc = shutil.which("nvcc")
    if nvcc is not None:
        candidates.append(Path(nvcc).resolve().parent.parent / "include")
    candidates.append(Path("/usr/local/cuda/include"))
    wheels = importlib.util.find_spec("nvidia")
    if wheels is not None:
        candidates += [
            Path(folder) / "cu13" / "include" for folder in wheels.submodule_search_locations or ()
        ]
    for candidate in candidates:
        if (candidate / "cuda.h").is_file():
            return candidate
    raise Unavailable("cuda.h was not found; set CUDA_HOME to a CUDA toolkit")


def _driver_library() -> str:
    """The path of libcuda, as the dynamic linker finds it (it need not be on gcc's path)."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise Unavailable(f"no CUDA driver: {error}") from error
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/libcuda.so" in line:
            return line.split(maxsplit=5)[5]
    raise Unavailable("libcuda.so.1 is loaded, but its path is not in /proc/self/maps")


def run_c_program(launches: int, repetitions: int) -> dict[str, Quantiles]:
    """Build launch_overhead.c and run it; returns its measurements by name."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise Unavailable("no C compiler (gcc or cc) on the path")
    include, library = _include_folder(), _driver_library()
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "launch_overhead")
        source = str(HERE / "launch_overhead.c")
        subprocess.run([compiler, "-O2", f"-I{include}", source, library, "-o", program], check=True)
        command = [program, str(PTX_FILE), str(launches), str(repetitions)]
        finished = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    results: dict[str, Quantiles] = json.loads(finished.stdout)
    return results


def load_c_library(source: Path) -> ctypes.CDLL:
    """Build a C file of this folder as a library, and load it into this process."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise Unavailable("no C compiler (gcc or cc) on the path")
    include, library = _include_folder(), _driver_library()
    with tempfile.TemporaryDirectory() as folder:
        built = str(Path(folder) / f"{source.stem}.so")
        flags = ["-O2", "-shared", "-fPIC", f"-I{include}"]
        subprocess.run([compiler, *flags, str(source), library, "-o", built], check=True)
        return ctypes.CDLL(built)


# --------------------------------------------------------------------------------- results


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def machine(device: ca.Device) -> dict[str, object]:
    """The card, the host and the versions that a number depends on."""
    packages = (
        "cuda-async",
        "cuda-core",
        "cuda-bindings",
        "numpy",
        "uvloop",
        "trio",
        "cupy-cuda13x",
        "torch",
        "triton",
    )
    return {
        "device": f"{device} ({device.name})",
        "driver": ".".join(str(number) for number in device.properties.driver_version),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "compiled launch": native is not None,
        "packages": {name: version for name in packages if (version := _version(name))},
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "command": _command(),
    }


def _command() -> str:
    """How this was called, without naming the machine's folders: the script from the root, no `--out`."""
    script, *arguments = sys.argv
    kept: list[str] = []
    for argument, before in zip(arguments, ["", *arguments]):
        if argument != "--out" and before != "--out" and not argument.startswith("--out="):
            kept.append(argument)
    return " ".join(["python", str(Path(script).resolve().relative_to(HERE.parent)), *kept])


def print_table(title: str, columns: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    """A plain table: the first column to the left, the others to the right; floats to two places."""
    text = [columns, *(tuple(f"{c:.2f}" if isinstance(c, float) else str(c) for c in row) for row in rows)]
    widths = [max(len(row[i]) for row in text) for i in range(len(columns))]
    print(f"\n{title}")
    for number, row in enumerate(text):
        cells = [cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))]
        print("  " + "  ".join(cells).rstrip())
        if number == 0:
            print("  " + "  ".join("-" * w for w in widths))


def write_results(path: Path | None, results: dict[str, object]) -> None:
    """Write `results` as JSON where a path is given."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        print(f"\nwritten to {path}")
