"""The kernel that steers a conditional node of a graph: it reads an integer and sets the node's handle.

`cudaGraphSetConditional` is a function that the driver's own linker provides; it has to be declared only.
"""

from __future__ import annotations

from .._protocol import ParameterInfo, ParameterKind
from ._kernel_text import KernelText

__all__ = ["condition_kernel"]


def condition_kernel(itemsize: int) -> KernelText:
    """Set the condition `handle` to whether the integer of `itemsize` bytes (1, 2, 4, 8) at `address` is not 0."""
    name = f"ca_set_condition_{8 * itemsize}"
    kind = {1: "u32", 2: "u32", 4: "u32", 8: "u64"}[itemsize]
    text = f"""\
.extern .func cudaGraphSetConditional(.param .b64 ca_handle, .param .b32 ca_value);

.visible .entry {name}(
    .param .u64 {name}_handle,
    .param .u64 {name}_address
)
{{
    .reg .pred %p_set;
    .reg .b32 %r_value;
    .reg .b64 %rd_handle, %rd_address;
    .reg .b{kind[1:]} %value;
    ld.param.u64 %rd_handle, [{name}_handle];
    ld.param.u64 %rd_address, [{name}_address];
    ld.global.u{8 * itemsize} %value, [%rd_address];
    setp.ne.{kind} %p_set, %value, 0;
    selp.u32 %r_value, 1, 0, %p_set;
    {{
        .param .b64 handle_argument;
        .param .b32 value_argument;
        st.param.b64 [handle_argument], %rd_handle;
        st.param.b32 [value_argument], %r_value;
        call.uni cudaGraphSetConditional, (handle_argument, value_argument);
    }}
    ret;
}}
"""
    parameters = tuple(
        ParameterInfo(
            name=parameter,
            offset_bytes=8 * i,
            size_bytes=8,
            alignment_bytes=8,
            kind=ParameterKind.INTEGER,
        )
        for i, parameter in enumerate(("handle", "address"))
    )
    return KernelText(name=name, text=text, parameters=parameters)
