"""What the tests of tilekern share: running kernels on NumPy arrays, and checking bytecode.

The folders of IR samples and of tools are made import paths: folders of tests are none in the import mode they run in.
"""

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest

import cuda_async as ca
from tilekern import tileir

sys.path.insert(0, str(Path(__file__).parent / "ir"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))


@pytest.fixture(scope="session", autouse=True)
def interpreted_or_assembled(request):
    """With `--assembled`, what the host device runs comes from the assembler."""
    if request.config.getoption("--assembled"):
        from assembled_code import assembled_code

        with assembled_code():
            yield
    else:
        yield


@pytest.fixture(scope="session", autouse=True)
def printed_kernels_are_read_back():
    """Every kernel that a test compiles: printed, parsed and printed again, it is the same; each place once."""
    from tilekern import ir
    from tilekern.jit import _compile

    build, seen = _compile.build_program, set()

    def checked(*args, **kwargs):
        program = build(*args, **kwargs)
        place = (str(program.function.location), kwargs.get("for_device"))
        if place not in seen:
            seen.add(place)
            text = str(program.function)
            again = ir.parse(text)
            assert str(again) == text
            assert ir.structurally_equal(again, program.function)
        return program

    _compile.build_program = checked
    yield
    _compile.build_program = build


def _operand(value):
    return ca.from_host(value) if isinstance(value, np.ndarray) and value.ndim else value


@pytest.fixture
def run(device):
    """Run a kernel whose first parameter is a partition; gives the output.

    `run(kernel, (shape, dtype, tile), *args, grid=None)`; arrays among the arguments are uploaded. An array in place
    of the shape is the output's first contents.
    """

    return _launch


@pytest.fixture
def run_on_host(host):
    """`run` on the host device alone: for what traps on a GPU, or is not noticed there."""
    return _launch


def _launch(kernel, out, *args, grid=None, options=None):
    first, dtype, tile = out
    made = ca.from_host(first) if isinstance(first, np.ndarray) else ca.zeros(first, dtype)
    op = kernel(made.partition(tile), *map(_operand, args))
    if grid is not None:
        op = op.grid(grid)
    if options:
        op = op.with_options(**options)
    return op.first().unpartition().to_host().sync()


@pytest.fixture(scope="session")
def assembles(request):
    """`assembles(bytecode, arch)`: the assembler takes a module; asked once for each, over runs of the tests."""
    toolchain = _toolchain()
    folder = request.config.cache.mkdir("assembled")

    def check(bytecode, arch):
        key = hashlib.sha256(f"{toolchain.fingerprint} {arch} ".encode() + bytecode).hexdigest()
        mark = folder / key
        if not mark.exists():
            assert tileir.assemble(bytecode, arch, timeout_s=300).cubin
            mark.touch()

    return check


def _toolchain():
    try:
        return tileir.find_toolchain()
    except tileir.errors.CompilerNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture
def assembled(device):
    """On the host device runs what the assembler makes; skips where there is none."""
    from assembled_code import assembled_code

    _toolchain()
    with assembled_code():
        yield


@pytest.fixture(scope="session")
def disassemble():
    """NVIDIA's text of a module, after its verifier accepted it; skips where the tools are missing."""
    _toolchain()
    return tileir.disassemble
