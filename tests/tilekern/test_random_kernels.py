"""Random kernels against NumPy; planted bugs are found. `tools/differential.py` runs many, on a GPU too."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import tilekern as tk
from tilekern import ir, tileir
from tilekern.frontend.operations import HANDLERS
from tilekern.jit._compile import build_program

TOOLS = Path(__file__).parents[2] / "tools"


def run(tool, *arguments):
    command = [sys.executable, str(TOOLS / tool), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=1800)


def load(name):
    """A tool as a module."""
    path = TOOLS / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules.setdefault(name, importlib.util.module_from_spec(spec))
    sys.path.insert(0, str(TOOLS))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(TOOLS))
    return module


@pytest.fixture(scope="module")
def tool():
    return load("differential")


@pytest.fixture(scope="module")
def planted():
    return load("planted_bugs")


def test_interpreter_agrees_with_numpy():
    done = run("differential.py", "--count", 170)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "170 programs" in done.stdout


def test_other_orders_that_tokens_allow_agree():
    done = run("differential.py", "--count", 24, "--first", 10_000, "--orders")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


@pytest.mark.parametrize(("target", "free"), [("k", True), ("k + 1", False)])
def test_turns_are_turned_round_where_no_token_keeps_them(tool, target, free):
    text = "import tilekern as tk\n@tk.kernel\ndef f(c):\n    for k in range(3):\n"
    text += f"        tk.store(c, {target}, tk.load(c, k, 4) + 1)\n"
    names = {}
    exec(compile(text, tk.register_source(text), "exec"), names)
    kernel = names["f"]
    specs = kernel._specs((tk.meta(64, "i4").mut(),), {})
    function = build_program(kernel.source, specs, kernel.options, for_device=True).function
    tool.random_kernels.orders.AnotherOrder().run(function)
    function.verify()
    loop = next(op for op in ir.walk(function.body) if isinstance(op, ir.ForOp))
    assert (
        loop.body.arguments[0] in loop.body.ops[0].operands and loop.body.ops[0].mnemonic == "sub"
    ) == free


def test_bugs_can_be_planted(planted):
    for bug in (*planted.ON_THE_HOST, *planted.IN_THE_PASSES, *planted.IN_THE_LOWERING):
        text = (planted.ROOT / "tilekern" / bug.file).read_text(encoding="utf-8")
        assert text.count(bug.right) == 1, bug.name
        ast.parse(text.replace(bug.right, bug.wrong))


@pytest.mark.parametrize("name", ["a load has no token of the store before", "floor division truncates"])
def test_planted_bug_is_found(name):
    done = run("planted_bugs.py", "--only", name)
    assert done.returncode == 0, done.stdout + done.stderr[-1000:]


def test_seed_gives_one_program(tool):
    once, again = tool.draw(77), tool.draw(77)
    assert once.source == again.source
    for a, b in zip(once.outputs, again.outputs, strict=True):
        assert a.expected.tobytes() == b.expected.tobytes()


def test_every_function_is_drawn(tool):
    count = 2 * len(tool.random_kernels.OPERATIONS)
    text = "\n".join(tool.draw(seed).source.split("def drawn")[1] for seed in range(count))
    functions = {f.__name__ for f in HANDLERS if inspect.isfunction(f) and "." not in f.__qualname__}
    drawn = {name for name in functions if re.search(rf"\btk\.{name}\b|\.{name}\(", text)}
    assert functions - drawn == set(tool.random_kernels.NOT_DRAWN)


def test_only_what_matters_is_counted(tool):
    p = tool.random_kernels.Program(3)
    p.input("int32")
    p.perform("negative")
    used = p.values[-1]
    p.perform("bitwise_not")
    assert p.values[-1] is not used
    assert p.reaching([used])["negative"] == 1
    assert p.reaching([used])["bitwise_not"] == 0


def test_loads_hang_on_the_stores_before_them(tool):
    p = tool.random_kernels.Program(3)
    p.perform("store")
    stored = next(place for place, chunk in enumerate(p.chunks) if chunk.writes)
    p.perform("load")
    assert stored in tool.random_kernels.program.needed(p.chunks, {p.values[-1].name}, set())
    p.perform("bid")
    assert stored not in tool.random_kernels.program.needed(p.chunks, {p.values[-1].name}, set())


@pytest.mark.parametrize(
    ("value", "dtype", "mode", "expected"),
    [
        (Fraction(1, 3), "float32", "RN", np.float32(1) / np.float32(3)),
        (Fraction(10) ** 39, "float32", "RN", np.inf),
        (Fraction(10) ** 39, "float32", "RZ", np.finfo("f4").max),
        (-(Fraction(10) ** 39), "float32", "RP", -np.finfo("f4").max),
        (Fraction(1, 2**150), "float32", "RN", 0.0),
        (Fraction(1, 2**150), "float32", "RP", 2.0**-149),
        (Fraction(2049), "float16", "RN", 2048.0),
        (Fraction(2051), "float16", "RN", 2052.0),
        (Fraction(500), "float8_e4m3fn", "RN", 448.0),
        (Fraction(17), "float8_e4m3fn", "RN", 16.0),
    ],
)
def test_rounding_of_the_other_side(tool, value, dtype, mode, expected):
    assert tool.random_kernels.exact.nearest(value, dtype, mode) == expected


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_random_kernels_assemble(arch):
    done = run("differential.py", "--count", 6, "--first", 40, "--assemble", arch)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


@pytest.mark.slow
def test_every_operation_of_the_ir_is_drawn(tool, tmp_path):
    found = set()
    for seed in range(len(tool.random_kernels.OPERATIONS)):
        drawn = tool.draw(seed)
        kernel = tool.load_kernel(drawn, tmp_path)
        specs = kernel._specs(tool.stand_ins(drawn), {})
        for for_device in (True, False):  # for devices, scans are written out in steps
            program = build_program(kernel.source, specs, kernel.options, for_device=for_device)
            found |= {op.mnemonic for op in ir.walk(program.function.body)}
    assert set(ir.OPERATIONS) - found == {"mma_scaled", "print"}


@pytest.mark.slow
def test_interpreter_agrees_with_numpy_at_length():
    done = run("differential.py", "--count", 10_000, "--first", 1_000_000, "--workers", 2)
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.gpu
def test_compiled_kernels_agree():
    done = run("differential.py", "--count", 60, "--device", "cuda:0", "--workers", 2)
    assert done.returncode == 0, done.stdout[-3000:]


def test_assembled_kernels_agree():
    """The PTX that the assembler makes, on the simulated device."""
    try:
        tileir.find_toolchain()
    except tileir.errors.CompilerNotFoundError as error:
        pytest.skip(str(error))
    done = run("differential.py", "--count", 40, "--first", 30_000, "--assembled")
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.slow
def test_other_orders_agree_at_length():
    done = run("differential.py", "--count", 2000, "--first", 20_000, "--workers", 2, "--orders")
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.slow
def test_planted_bugs_are_found():
    done = run("planted_bugs.py", "--workers", 2, "--assembled")
    assert done.returncode == 0, done.stdout + done.stderr[-1000:]


def test_pipelines_agree_with_numpy():
    """Larger tiles, streamed through loops: `tools/random_pipelines.py`."""
    done = run("random_pipelines.py", "--count", 150)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "150 programs on host:0, 0 problems" in done.stdout


def test_assembled_pipelines_agree_with_numpy():
    done = run("random_pipelines.py", "--count", 24, "--assembled")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


@pytest.mark.gpu
def test_compiled_pipelines_agree_with_numpy():
    done = run("random_pipelines.py", "--count", 64, "--device", "cuda:0", "--workers", 4)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
