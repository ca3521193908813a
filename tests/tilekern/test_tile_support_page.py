"""docs/tile-support.md says what the compiler takes; the compiler what the assembler takes."""

import importlib.util
import itertools
import sys
from pathlib import Path

import pytest

import tilekern as tk
from tilekern import tileir
from tilekern.dtypes import DTYPES

TOOL = Path(__file__).resolve().parents[2] / "tools" / "tile_support.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("tile_support", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules["tile_support"] = module
    spec.loader.exec_module(module)
    return module


def test_page_is_current(tool):
    assert tool.PAGE.read_text(encoding="utf-8") == tool.page(), "run python tools/tile_support.py"


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_every_case_is_valid_tile_ir(dtype, tool, disassemble):
    """Of every element type, in one kernel; sm_120 has all of them."""
    taken, refused = tool.taken_cases(dtype, "sm_120")
    assert taken
    assert not refused
    disassemble(tool.bytecode(taken, dtype))


SAMPLE = {("f32", "sm_90"), ("u8", "sm_100"), ("f4e2m1fn", "sm_120"), ("bf16", "sm_80")}
TARGETS = ("sm_80", "sm_90", "sm_100", "sm_120")


@pytest.mark.parametrize(
    ("dtype", "arch"),
    [
        pytest.param(d, a, id=f"{d}-{a}", marks=() if (d.short, a) in SAMPLE else pytest.mark.slow)
        for d, a in itertools.product(DTYPES.values(), TARGETS)
    ],
)
def test_every_case_assembles(dtype, arch, tool, assembles):
    taken, refused = tool.taken_cases(dtype, arch)
    if taken:
        assembles(tool.bytecode(taken, dtype), arch)
    for case in refused[:2]:
        with pytest.raises(tileir.errors.ArchitectureError):
            tileir.assemble(tool.bytecode((case,), dtype), arch)


@tk.kernel
def eight_bits(out, x):
    t = tk.load_like(x, out)
    out.store(t.astype(tk.float8_e5m2).astype(tk.float32))


def test_refusal_names_the_line():
    """Before an assembler runs: this needs none."""
    from tilekern import frontend, lowering

    t = tk.meta(64, "f4")
    specs = eight_bits._specs((t.partition(16), t), {})
    function = frontend.translate(eight_bits.source, specs, {}).function
    lowering.check_target(function, "sm_90")
    with pytest.raises(tk.KernelTypeError, match="float8_e5m2 needs sm_89 or later, not sm_86") as caught:
        lowering.check_target(function, "sm_86")
    assert "t.astype(tk.float8_e5m2)" in str(caught.value)
