"""Helpers edited between runs, and closures: a new process sees what is there now, and compiles only that.

Each run is a process of its own with one disk cache. It launches on the device; where that is the host
device, the same kernels are also compiled for a GPU, since the host device keeps nothing on disk.
"""

import json
import os
import subprocess
import sys

import pytest

from tilekern import tileir

HELPERS = """
def of_helper(t):
    return t * FACTOR


def elsewhere(t):
    return of_helper(t)
"""

SCRIPT = """
import json
import cuda_async as ca, tilekern as tk
import edited_helpers


def doubled(t):
    return t * FACTOR


def other(t):
    return t * 100


def by_constant(t, which):
    return (doubled, other)[which](t)


@tk.kernel
def in_file(out: tk.Tile1D, x: tk.Tensor1D):
    out.store(doubled(tk.load_like(x, out)))


@tk.kernel
def in_module(out: tk.Tile1D, x: tk.Tensor1D):
    out.store(edited_helpers.of_helper(tk.load_like(x, out)))


@tk.kernel
def of_a_helper(out: tk.Tile1D, x: tk.Tensor1D):
    out.store(edited_helpers.elsewhere(tk.load_like(x, out)))


@tk.kernel
def chosen(out: tk.Tile1D, x: tk.Tensor1D, which: tk.Constant[int]):
    out.store(by_constant(tk.load_like(x, out), which))


CALLS = [(in_file,), (in_module,), (of_a_helper,), (chosen, 0), (chosen, 1)]
"""

CLOSURES = """
import json
import cuda_async as ca, tilekern as tk


def plus(n):
    @tk.kernel
    def k(out: tk.Tile1D, x: tk.Tensor1D):
        out.store(tk.load_like(x, out) + n)
    return k


def through(helper):
    @tk.kernel
    def k(out: tk.Tile1D, x: tk.Tensor1D):
        out.store(helper(tk.load_like(x, out)))
    return k


def three(t):
    return t + 3


CALLS = [(plus(1),), (plus(2),), (through(three),), (through(lambda t: t + 4),)]
"""

RUN = """
def origin(kernel, *constants):
    if ca.current_device().kind == "cuda":
        return kernel.timings[-1].origin
    from tilekern.jit._disk_cache import DiskCache
    from tilekern.jit._obtain import obtain
    from tilekern.jit._specialize import specialize
    args = (tk.meta(4, "f4").partition(4), tk.meta(4, "f4"), *constants)
    specs = specialize(kernel.name, kernel.parameters, args, 16)
    return obtain(kernel, kernel._function, specs, kernel.options, "sm_90", DiskCache()).timings.origin

x = ca.ones((4,), "f4").sync()
results, origins = [], []
for kernel, *constants in CALLS:
    out = kernel(ca.zeros((4,), "f4").partition(4), x, *constants)
    results.append(float(out.first().unpartition().to_host().sync()[0]))
    origins.append(origin(kernel, *constants) if WITH_ASSEMBLER else "")
print(json.dumps([results, origins]))
"""


@pytest.fixture
def run(device, tmp_path):
    """Run a script in a new process; gives the results of its calls, and where their code came from."""
    try:
        tileir.find_toolchain()
        has_assembler = True
    except tileir.errors.CompilerNotFoundError:
        has_assembler = False

    def launch(text, factor=None):
        script = tmp_path / "edited_script.py"
        script.write_text(text.replace("FACTOR", str(factor)) + f"\nWITH_ASSEMBLER = {has_assembler}\n" + RUN)
        (tmp_path / "edited_helpers.py").write_text(HELPERS.replace("FACTOR", str(factor)))
        environment = {
            **os.environ,
            "CUDA_ASYNC_DRIVER": device.kind,
            "TILEKERN_CACHE_DIR": str(tmp_path / "cache"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(
            [sys.executable, str(script)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        results, origins = json.loads(done.stdout)
        return results, set(origins) if has_assembler else None

    return launch


def compiled_nothing(origins):
    return origins is None or origins <= {"recalled", "disk cache"}


def test_helper_edited_between_runs(run):
    assert run(SCRIPT, 2.0)[0] == [2, 2, 2, 2, 100]
    results, origins = run(SCRIPT, 3.0)
    assert results == [3, 3, 3, 3, 100]
    assert origins is None or "assembled" in origins
    results, origins = run(SCRIPT, 3.0)
    assert results == [3, 3, 3, 3, 100]
    assert compiled_nothing(origins)


def test_same_source_different_closure(run):
    assert run(CLOSURES)[0] == [2, 3, 4, 5]
    results, origins = run(CLOSURES)
    assert results == [2, 3, 4, 5]
    assert compiled_nothing(origins)
