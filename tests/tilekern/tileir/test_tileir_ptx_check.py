"""Registers used before they are set, in pieces of PTX written for that, and in what the assembler makes."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from test_tileir_examples import vector_add
from tileir_kernels import matmul, row_softmax

from tilekern.tileir import _assembler, assemble
from tilekern.tileir._ptx_check import used_before_set

HEAD = ".version 9.0\n.target sm_90\n.entry k(.param .b64 p)\n{\n\t.reg .b64 %rd<9>;\n\tld.param.b64 %rd1, [p];\n"
TAIL = "\tret;\n}\n"


def body(*lines: str) -> str:
    return HEAD + "".join(f"{line}\n" if line.endswith(":") else f"\t{line};\n" for line in lines) + TAIL


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["add.s64 %rd2, %rd3, 4", "mul.wide.u32 %rd3, %r1, 8"], "add.s64 %rd2, %rd3, 4;"),
        (["st.global.b64 [%rd3], %rd1", "mov.b64 %rd3, %rd1"], "st.global.b64 [%rd3], %rd1;"),
        (["@%p1 bra $L", "mov.b64 {%r1, %r2}, %rd3", "$L:", "setp.eq.b64 %p1, %rd1, 0"], None),
        (["$L:", "@!%p1 mov.b64 %rd2, %rd1", "setp.eq.b64 %p1, %rd1, 0"], "@!%p1 mov.b64 %rd2, %rd1;"),
        (["ld.global.v2.b32 {%r1, %r2}, [%rd1]", "add.s32 %r3, %r1, %r2"], None),
        (
            ["mma.sync.m16n8k8.f32\n\t\t{%r1, %r2},\n\t\t{%r3}, {%r4},\n\t\t{%r1, %r2}", "mov.b32 %r3, %r5"],
            "mma.sync.m16n8k8.f32 {%r1, %r2}, {%r3}, {%r4}, {%r1, %r2};",
        ),
    ],
    ids=["an-address", "a-store", "another-piece", "a-guard", "in-order", "on-several-lines"],
)
def test_use_before_the_only_set(lines: list[str], found: str | None) -> None:
    assert used_before_set(body(*lines)) == found


@pytest.mark.parametrize(
    "lines",
    [
        ["$L:", "add.s64 %rd2, %rd3, 4", "mov.b64 %rd3, %rd2", "@%p1 bra $L"],
        ["mov.b64 %rd3, %rd1", "add.s64 %rd2, %rd3, 4", "mov.b64 %rd3, %rd2"],
        ["bar.red.popc.u32 %r1, 0, %p1", "add.s32 %r2, %r1, 1", "mov.b32 %r1, %r2"],
    ],
    ids=["set-a-turn-before", "set-twice", "set-by-a-barrier"],
)
def test_what_may_be_right_is_left_alone(lines: list[str]) -> None:
    assert used_before_set(body(*lines)) is None


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("kernel", [vector_add, row_softmax, matmul], ids=lambda k: k.__name__)
def test_kernels_are_in_order(kernel: object) -> None:
    made = assemble(kernel(), "sm_90", keep_ptx=True)
    assert "ld.param" in made.ptx
    assert used_before_set(made.ptx) is None


@pytest.mark.usefixtures("tools")
def test_code_out_of_order_is_made_without_optimisation(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = assemble(matmul(), "sm_90", opt_level=0).cubin
    assert plain != assemble(matmul(), "sm_90").cubin
    monkeypatch.setattr(_assembler, "used_before_set", lambda ptx: "add.s64 %rd2, %rd3, 4;")
    with caplog.at_level(logging.WARNING, "tilekern"):
        made = assemble(matmul(), "sm_90")
    assert (made.cubin, made.ptx) == (plain, "")
    assert "matmul for sm_90 is assembled without optimisation" in caplog.text
    assert "(add.s64 %rd2, %rd3, 4;)" in caplog.text


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("trouble", ["cannot-be-started", "cannot-be-written"])
def test_ptxas_that_cannot_be_watched(monkeypatch: pytest.MonkeyPatch, trouble: str) -> None:
    """A folder for temporary files from which nothing may be started, say: the code is not looked at then."""
    expected = assemble(matmul(), "sm_90").cubin
    if trouble == "cannot-be-started":
        monkeypatch.setattr(Path, "chmod", lambda self, mode: None)
    else:
        monkeypatch.setattr(
            Path, "symlink_to", lambda self, target: (_ for _ in ()).throw(OSError("no links"))
        )
    assert assemble(matmul(), "sm_90").cubin == expected
