"""Machines without a GPU, a driver or the packages: importing works, and asking says what is missing.

Each case runs in an interpreter of its own, because what is found is kept for the life of a process.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

OPEN = """
from cuda_async.driver.cuda import cuda_device_count, cuda_unavailable_reason, open_cuda_driver
from cuda_async.errors import ContextError
assert cuda_device_count() == 0
try: open_cuda_driver(0)
except ContextError as error: print(error)
assert cuda_unavailable_reason(), "there is a reason"
"""

# A `cuda.bindings` and a `libcuda` that are there, and answer as the case says.
STAND_IN = """
import ctypes, sys, types
import cuda_async.driver.cuda._bindings as bindings
driver = types.ModuleType("cuda.bindings.driver")
driver.cuInit = lambda flags: ({init},)
driver.cuDeviceGetCount = lambda: (0, {count})
driver.cuGetErrorName = lambda code: (0, b"NAME")
driver.cuGetErrorString = lambda code: (0, b"meaning")
package = types.ModuleType("cuda.bindings")
package.__version__, package.driver = {version!r}, driver
root = types.ModuleType("cuda")
root.bindings = package
sys.modules.update({{"cuda": root, "cuda.bindings": package, "cuda.bindings.driver": driver}})
bindings._has_bindings = bindings._has_library = lambda *_: True
"""


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("blocked", ["cuda", "cuda.bindings"])
def test_missing_package(blocked):
    said = run(f"import sys; sys.modules[{blocked!r}] = None\n{OPEN}")
    assert "the package cuda-bindings (13 or newer) is not installed" in said
    assert 'pip install "cuda-bindings>=13"' in said


@pytest.mark.parametrize("has_library", [True, False])
def test_missing_package_and_driver_are_both_said(has_library):
    block = "import cuda_async.driver.cuda._bindings as b; b._has_bindings = lambda: False\n"
    block += f"b._has_library = lambda name: {has_library}\n"
    said = run(block + OPEN)
    assert "the package cuda-bindings (13 or newer) is not installed" in said
    assert ("nor was an NVIDIA driver found" in said) is not has_library


def test_package_that_cannot_be_imported():
    said = run(
        f"{STAND_IN.format(init=0, count=1, version='13.0')}\nsys.modules['cuda.bindings'] = None\n{OPEN}"
    )
    assert "importing cuda.bindings.driver failed" in said
    assert 'pip install "cuda-bindings>=13"' in said


def test_missing_nvidia_driver():
    block = "import cuda_async.driver.cuda._bindings as b; b._has_bindings = lambda: True\n"
    block += "b._has_library = lambda name: False\n"
    said = run(block + OPEN)
    assert "no NVIDIA driver was found" in said
    assert "install the NVIDIA driver" in said


def test_old_package():
    said = run(f"{STAND_IN.format(init=0, count=1, version='12.9.1')}\n{OPEN}")
    assert "cuda-bindings is 12.9.1, but 13 or newer is needed" in said


@pytest.mark.parametrize(("init", "count"), [(100, 0), (0, 0)])
def test_no_device(init, count):
    said = run(f"{STAND_IN.format(init=init, count=count, version='13.0')}\n{OPEN}", CUDA_VISIBLE_DEVICES="")
    assert "no CUDA device was found (CUDA_VISIBLE_DEVICES is '')" in said


def test_driver_that_fails_to_start():
    said = run(f"{STAND_IN.format(init=803, count=0, version='13.0')}\n{OPEN}")
    assert "cuInit failed: NAME (803): meaning" in said


def test_library_that_cannot_be_loaded_after_all():
    broken = (
        "\ndef broken(flags): raise RuntimeError('Failed to dlopen libcuda.so.1')\ndriver.cuInit = broken\n"
    )
    said = run(f"{STAND_IN.format(init=0, count=0, version='13.0')}{broken}{OPEN}")
    assert "the NVIDIA driver could not be loaded: Failed to dlopen libcuda.so.1" in said


def test_unknown_ordinal():
    code = """
from cuda_async.driver.cuda import open_cuda_driver
from cuda_async.errors import ContextError
for ordinal in (2, -1):
    try: open_cuda_driver(ordinal)
    except ContextError as error: print(error)
"""
    said = run(f"{STAND_IN.format(init=0, count=2, version='13.0')}\n{code}")
    assert said.splitlines() == [
        "cuda:2 does not exist; this machine has cuda:0 to cuda:1",
        "cuda:-1 does not exist; this machine has cuda:0 to cuda:1",
    ]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_is_told():
    """The count stays what it was, so that a default device is not silently another kind in the child."""
    code = """
import os
from cuda_async.driver.cuda import cuda_device_count, cuda_unavailable_reason, open_cuda_driver
from cuda_async.errors import ContextError
assert cuda_device_count() == 1
pid = os.fork()
if pid == 0:
    status = 1
    try:
        assert cuda_device_count() == 1
        try: open_cuda_driver(0)
        except ContextError as error: status = 0 if "fork" in str(error) and "spawn" in str(error) else 2
    finally:
        os._exit(status)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert run(f"{STAND_IN.format(init=0, count=1, version='13.0')}\n{code}").strip() == "0"


def test_import_needs_nothing_of_nvidia():
    code = "import sys; sys.modules['cuda'] = None; import cuda_async.driver.cuda; print('imported')"
    assert run(code).strip() == "imported"


def test_import_loads_nothing_of_nvidia():
    code = "import sys, cuda_async.driver.cuda; print([n for n in sys.modules if n.split('.')[0] == 'cuda'])"
    assert run(code).strip() == "[]"
