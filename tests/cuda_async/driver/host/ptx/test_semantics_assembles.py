"""What the interpreter takes for PTX is PTX: NVIDIA's assembler accepts every spelling it knows.

Needs `ptxas`, which comes with the `nvidia-cuda-nvcc` wheel and needs no GPU. Packed formats of the data
centre chips and packed bytes of the consumer chips exclude each other, hence two targets.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from cuda_async.driver.host.ptx._semantics import FORMS, Operation, operation, type_bits

TARGETS = ("sm_103a", "sm_120a")
VERSION = "9.3"  # packed bytes and bf16x2 from fp8 came last


def assembler() -> str | None:
    wheel = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin" / "ptxas"
    return str(wheel) if wheel.is_file() else shutil.which("ptxas")


def register(ptx_type: str, modifiers: tuple[str, ...]) -> str:
    """Register type for an operand; only conversions between 8 bits and the newer types want `.b8`."""
    if ptx_type == "pred":
        return "pred"
    bits = type_bits(ptx_type)
    return f"b{bits}" if bits > 8 or {"bf16", "e2m1x2"} & set(modifiers) else "b16"


def statement(opcode: str, modifiers: tuple[str, ...], op: Operation) -> str:
    """The instruction in a scope of its own, its registers never set."""
    sources = [f"s{i}" for i in range(len(op.operand_types))]
    targets = [f"d{i}" for i in range(len(op.result_types))]
    if opcode == "setp" and modifiers[-1] in ("f16", "bf16"):
        targets = targets[:1]  # these have no second destination
    names = [*zip(sources, op.operand_types), *zip(targets, op.result_types)]
    declared = " ".join(f".reg .{register(t, modifiers)} {n};" for n, t in names)
    if opcode == "lop3":
        sources[3] = "0x96"
    if len(sources) == 5 and modifiers[0] == "rs":
        sources = ["{" + ", ".join(sources[:4]) + "}", sources[4]]
    spelling = ".".join((opcode, *modifiers))
    return f"{{ {declared} {spelling} {'|'.join(targets)}, {', '.join(sources)}; }}"


def refused(lines: list[str], target: str, folder: Path) -> set[int]:
    """Numbers of the lines the assembler refuses for a target."""
    tool = assembler()
    assert tool is not None
    header = f".version {VERSION} .target {target} .address_size 64 .visible .entry kernel() {{"
    source = folder / "kernel.ptx"
    source.write_text("\n".join([header, *lines, "ret; }", ""]))
    run = subprocess.run(
        [tool, f"-arch={target}", "-O0", str(source), "-o", str(folder / "kernel.cubin")],
        capture_output=True,
        text=True,
        check=False,
    )
    if "Unsupported .version" in run.stderr:
        pytest.skip(f"ptxas is too old for PTX {VERSION}")
    found = {int(n) - 2 for n in re.findall(r"line (\d+); error", run.stderr)}
    assert found or run.returncode == 0, run.stderr
    return found


@pytest.mark.skipif(assembler() is None, reason="no ptxas on this machine")
@pytest.mark.parametrize("opcode", sorted(FORMS))
def test_every_spelling_assembles(opcode: str, tmp_path: Path) -> None:
    lines = [
        statement(opcode, modifiers, operation(opcode, modifiers, form.operands))
        for form in FORMS[opcode]
        for modifiers in form.spellings()
    ]
    left = refused(lines, TARGETS[0], tmp_path)
    if left:
        chosen = [lines[i] for i in sorted(left)]
        assert not [chosen[i] for i in refused(chosen, TARGETS[1], tmp_path)]
