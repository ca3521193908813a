"""Frame of the small kernels this driver brings itself (fill, strided copy, conversion), as PTX text.

They are written in PTX so that no compiler is needed: the driver compiles them for its device. Threads walk a
grid-stride loop over a flat index, and only plain instructions of PTX 7.0 for sm_75 are used, which every
driver that `cuda.bindings` 13 supports takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._protocol import ParameterInfo, ParameterKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["BLOCK_THREADS", "KernelText", "elementwise_kernel", "module_text"]

BLOCK_THREADS = 256


@dataclass(frozen=True, kw_only=True)
class KernelText:
    """A kernel's entry as PTX text; `module_text` makes a module of one or several."""

    name: str
    text: str
    parameters: tuple[ParameterInfo, ...]


def module_text(*kernels: KernelText) -> str:
    """A PTX module."""
    return "\n".join([".version 7.0", ".target sm_75", ".address_size 64", "", *(k.text for k in kernels)])


def elementwise_kernel(
    name: str,
    parameters: Sequence[str],
    element: Callable[[int], Sequence[str]],
    *,
    table_bytes: int = 0,
    unroll: int = 1,
) -> KernelText:
    """A kernel that runs `element` for each index below the parameter `count`.

    Args:
        name: the entry's name.
        parameters: names of its 64-bit parameters, in registers `%rd_<name>`; `count` is one of them.
        element: the instructions for one index. Its argument k says where the index is, in `%rd_i<k>`, and
            the text may use registers `%p<k>_n`, `%h<k>_n`, `%r<k>_n`, `%rd<k>_n`, `%f<k>_n`, `%d<k>_n` with n
            below 32. Labels are possible without `unroll` only.
        table_bytes: size of one more parameter, a table of 64-bit numbers whose address is in `%rd_table`.
        unroll: so many indices, one grid's width apart, are handled together, so that their loads are in
            flight together; a second loop does what is left.
    """
    declarations = [f"    .param .u64 {name}_{parameter}" for parameter in parameters]
    body: list[str] = []
    for parameter in parameters:
        body += [f".reg .b64 %rd_{parameter};", f"ld.param.u64 %rd_{parameter}, [{name}_{parameter}];"]
    if table_bytes:
        declarations.append(f"    .param .align 8 .b8 {name}_table[{table_bytes}]")
        body += [".reg .b64 %rd_table;", f"mov.b64 %rd_table, {name}_table;"]
    for k in range(unroll):
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
    ]
    if unroll > 1:
        body.append("$L_main:")
        body += [f"add.u64 %rd_i{k}, %rd_i{k - 1}, %rd_step;" for k in range(1, unroll)]
        body += [f"setp.ge.u64 %p_more, %rd_i{unroll - 1}, %rd_count;", "@%p_more bra $L_rest;"]
        for k in range(unroll):
            body += element(k)
        body += [f"add.u64 %rd_i0, %rd_i{unroll - 1}, %rd_step;", "bra $L_main;"]
    body += [
        "$L_rest:",
        "setp.ge.u64 %p_more, %rd_i0, %rd_count;",
        "@%p_more bra $L_done;",
        *element(0),
        "add.u64 %rd_i0, %rd_i0, %rd_step;",
        "bra $L_rest;",
        "$L_done:",
        "ret;",
    ]
    lines = [
        f".visible .entry {name}(",
        ",\n".join(declarations),
        ")",
        "{",
        *(line if line.startswith("$") else f"    {line}" for line in body),
        "}",
        "",
    ]
    return KernelText(name=name, text="\n".join(lines), parameters=_parameter_infos(parameters, table_bytes))


def _parameter_infos(parameters: Sequence[str], table_bytes: int) -> tuple[ParameterInfo, ...]:
    infos = [
        ParameterInfo(
            name=name, offset_bytes=8 * i, size_bytes=8, alignment_bytes=8, kind=ParameterKind.INTEGER
        )
        for i, name in enumerate(parameters)
    ]
    if table_bytes:
        infos.append(
            ParameterInfo(
                name="table",
                offset_bytes=8 * len(parameters),
                size_bytes=table_bytes,
                alignment_bytes=8,
                kind=ParameterKind.STRUCT,
            )
        )
    return tuple(infos)
