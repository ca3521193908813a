"""Importing is cheap, and pulls in nothing that only some users need.

The limits are those of DESIGN: 80 ms for `cuda_async` beside NumPy's own import, 40 ms more for
`tilekern`. The best of several fresh interpreters is taken; where even the best NumPy import takes longer
than on an ordinary machine, the limits grow with it. Sources are compiled once, as they are when a package is
installed: where Python is told to write no byte code, each import would compile them anew.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ATTEMPTS = 12
ORDINARY_NUMPY_MS = 110.0  # on the 2-core machine the limits were set on: 70 to 100 ms

MEASURE = """
import json, sys, time
clock = time.perf_counter
a = clock(); import numpy
b = clock(); import cuda_async
c = clock(); import tilekern
d = clock()
print(json.dumps({"numpy": (b - a) * 1e3, "cuda_async": (c - b) * 1e3, "tilekern": (d - c) * 1e3}))
"""


def run(code: str, **environment: str) -> str:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        env={**env, **environment},
    ).stdout


@pytest.mark.timing
def test_import_time_within_limits(tmp_path: Path) -> None:
    best = {"numpy": float("inf"), "cuda_async": float("inf"), "tilekern": float("inf")}
    for _ in range(ATTEMPTS):
        times = json.loads(run(MEASURE, PYTHONPYCACHEPREFIX=str(tmp_path)))
        best = {name: min(best[name], times[name]) for name in best}
        slowness = max(1.0, best["numpy"] / ORDINARY_NUMPY_MS)
        if best["cuda_async"] < 80 * slowness and best["tilekern"] < 40 * slowness:
            break
    else:
        pytest.fail(f"best of {ATTEMPTS} in ms: {best}; limits 80 and 40, times {slowness:.2f}")


def test_import_takes_nothing_optional() -> None:
    """Only users of these pay for them, and only on first use."""
    heavy = ("cuda", "cupy", "torch", "trio", "triton", "uvloop")
    code = f"import sys, cuda_async, tilekern; print([n for n in {heavy!r} if n in sys.modules])"
    assert run(code).strip() == "[]"


def test_import_works_without_what_is_optional() -> None:
    """As on a machine where only the required dependencies are installed."""
    code = (
        "import sys\n"
        "for name in ('cuda', 'cupy', 'torch', 'trio', 'triton', 'uvloop'): sys.modules[name] = None\n"
        "import cuda_async, tilekern\n"
        "for package in (cuda_async, tilekern):\n"
        "    for name in package.__all__: getattr(package, name)\n"
    )
    run(code)


def test_import_starts_no_thread() -> None:
    code = "import threading, cuda_async, tilekern; print(threading.active_count())"
    assert run(code).strip() == "1"


FIRST_USES = """
import asyncio, sys, threading
import numpy as np
import cuda_async as ca
import tilekern as tk

PTX = open(sys.argv[1]).read()
DEVICE = sys.argv[2]
imported = []
looking = False

def look(event, arguments):
    if looking and event == "import" and threading.get_ident() == main_thread:
        imported.append(arguments[0])

main_thread = threading.get_ident()
sys.addaudithook(look)

@tk.kernel
def shifted(out: tk.Tile1D, x: tk.Tensor1D, by: float):
    out.store(tk.exp(tk.load_like(x, out)) + by)

async def main():
    global looking
    await asyncio.sleep(0.01)
    looking = True
    with ca.use_device(DEVICE):
        kernel = ca.Module.from_ptx(PTX).function("axpy_f32")
        x = await ca.from_host(np.ones(128, np.float32))
        y = await ca.zeros((128,), "float32")
        await kernel.launch(1, 128, 128, 2.0, ca.read(x), ca.mut(y))
        await y.astype("float16")
        shared = ca.zeros(3).shared()
        await ca.parallel(shared.map(lambda x: x), shared.map(lambda x: x))
        await ca.zip(*ca.zip(ca.zeros(3), ca.zeros(3)).unzip())
        await ca.zeros(3).start()
        await y[::2].to_host()
        await shifted(ca.empty(128).partition(32), x, 1.0)
        await ca.drain()
    looking = False

asyncio.run(main())
print(*imported)
"""


@pytest.mark.parametrize("device", ["host:0", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_first_uses_import_nothing_on_the_loop(tmp_path: Path, device: str) -> None:
    """An import takes milliseconds, and without byte code tens of them."""
    ptx = Path(__file__).parents[1] / "benchmarks" / "kernels" / "small.ptx"
    program = tmp_path / "first_uses.py"
    program.write_text(FIRST_USES)
    done = subprocess.run(
        [sys.executable, str(program), str(ptx), device],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
