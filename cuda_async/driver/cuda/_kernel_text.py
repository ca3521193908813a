"""Frame of the small kernels this driver brings itself (fill, strided copy, conversion), as PTX text.

They are written in PTX so that no compiler is needed: the driver compiles them for its device. All
parameters are 64-bit integers, threads walk a grid-stride loop over a flat index, and only plain
instructions of PTX 7.0 for sm_75 are used, which every driver that `cuda.bindings` 13 supports takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._protocol import ParameterInfo, ParameterKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["KernelText", "elementwise_kernel"]

BLOCK_THREADS = 256
UNROLL = 4


@dataclass(frozen=True, kw_only=True)
class KernelText:
    """A kernel as PTX text."""

    name: str
    text: str
    parameters: tuple[ParameterInfo, ...]


def elementwise_kernel(
    name: str, parameters: Sequence[str], prologue: Sequence[str], element: Callable[[int], Sequence[str]]
) -> KernelText:
    """A kernel that runs `element` for each index below the parameter `count`.

    Parameters are loaded into `%rd_<name>`. The main loop handles four indices, one grid's width apart, so
    that their loads are in flight together; a second loop does what is left.

    Args:
        name: the entry's name.
        parameters: names of the 64-bit parameters; `count` is one of them.
        prologue: instructions before the loops.
        element: the instructions for one index. Its argument k says where the index is, in `%rd_i<k>`, and
            the text may use registers `%r<k>_n`, `%rd<k>_n`, `%h<k>_n`, `%f<k>_n`, `%d<k>_n`, `%p<k>_n`
            with n below 32.
    """
    lines = [
        ".version 7.0",
        ".target sm_75",
        ".address_size 64",
        "",
        f".visible .entry {name}(",
        ",\n".join(f"    .param .u64 {name}_{p}" for p in parameters),
        ")",
        "{",
    ]
    body: list[str] = []
    for parameter in parameters:
        body += [f".reg .b64 %rd_{parameter};", f"ld.param.u64 %rd_{parameter}, [{name}_{parameter}];"]
    for k in range(UNROLL):
        body += [
            f".reg .b64 %rd_i{k};",
            f".reg .pred %p{k}_<32>;",
            f".reg .b16 %h{k}_<32>;",
            f".reg .b32 %r{k}_<32>;",
            f".reg .b64 %rd{k}_<32>;",
            f".reg .f32 %f{k}_<32>;",
            f".reg .f64 %d{k}_<32>;",
        ]
    body += [
        ".reg .pred %p_more;",
        ".reg .b32 %r_block, %r_blocks, %r_threads, %r_thread;",
        ".reg .b64 %rd_step, %rd_thread;",
        "mov.u32 %r_block, %ctaid.x;",
        "mov.u32 %r_blocks, %nctaid.x;",
        "mov.u32 %r_threads, %ntid.x;",
        "mov.u32 %r_thread, %tid.x;",
        "cvt.u64.u32 %rd_thread, %r_thread;",
        "mul.wide.u32 %rd_i0, %r_block, %r_threads;",
        "add.u64 %rd_i0, %rd_i0, %rd_thread;",
        "mul.wide.u32 %rd_step, %r_blocks, %r_threads;",
        *prologue,
        "$L_main:",
    ]
    for k in range(1, UNROLL):
        body.append(f"add.u64 %rd_i{k}, %rd_i{k - 1}, %rd_step;")
    body += [f"setp.ge.u64 %p_more, %rd_i{UNROLL - 1}, %rd_count;", "@%p_more bra $L_rest;"]
    for k in range(UNROLL):
        body += element(k)
    body += [
        f"add.u64 %rd_i0, %rd_i{UNROLL - 1}, %rd_step;",
        "bra $L_main;",
        "$L_rest:",
        "setp.ge.u64 %p_more, %rd_i0, %rd_count;",
        "@%p_more bra $L_done;",
        *element(0),
        "add.u64 %rd_i0, %rd_i0, %rd_step;",
        "bra $L_rest;",
        "$L_done:",
        "ret;",
    ]
    lines += [line if line.startswith("$") else f"    {line}" for line in body]
    lines += ["}", ""]
    return KernelText(
        name=name,
        text="\n".join(lines),
        parameters=tuple(
            ParameterInfo(
                name=parameter,
                offset_bytes=8 * i,
                size_bytes=8,
                alignment_bytes=8,
                kind=ParameterKind.INTEGER,
            )
            for i, parameter in enumerate(parameters)
        ),
    )
