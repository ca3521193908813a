"""Looking at compiled kernels: machine code, PTX, resources, and a report of what the assembler made of them.

Everything is compiled afresh by the assembler, with source lines in it, and nothing goes into a cache.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..frontend import ParameterSpec
    from ..tileir import Assembly, Remark
    from ._kernel import Kernel

__all__ = ["Report", "Resources", "cubin_of", "ptx_of", "report_of", "resources_of", "sass_of", "target_for"]

DEFAULT_TARGET = "sm_90"


@dataclass(frozen=True, slots=True)
class Resources:
    """What a compiled kernel takes, as `ptxas` reports it.

    Attributes:
        registers: per thread.
        spill_store_bytes, spill_load_bytes: registers kept in memory instead, per thread; 0 is what one wants.
        stack_bytes: per thread.
        shared_bytes: static shared memory per block; what the launch adds is not in it.
        barriers: named barriers.
        threads: threads of a block, as the compiler chose; 0 if it does not say.
    """

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    shared_bytes: int
    barriers: int
    threads: int

    def __str__(self) -> str:
        spills = (
            f"spills {self.spill_store_bytes} bytes out, {self.spill_load_bytes} in"
            if self.spill_store_bytes or self.spill_load_bytes
            else "no spills"
        )
        return (
            f"{self.registers} registers a thread, {spills}, {self.stack_bytes} bytes of stack, "
            f"{self.shared_bytes} bytes of shared memory, {self.barriers} barriers, {self.threads} threads"
        )


@dataclass(frozen=True, slots=True)
class Report:
    """How a kernel was compiled. `str(report)` is meant for reading.

    Attributes:
        kernel: its name.
        architecture: the target, such as "sm_90".
        compiler: release of the assembler.
        resources: registers and the like.
        remarks: what the assembler remarked, in the order of the source.
        warnings: what it warned of.
    """

    kernel: str
    architecture: str
    compiler: str
    resources: Resources
    remarks: tuple[Remark, ...]
    warnings: tuple[Remark, ...]

    @property
    def tma_loads(self) -> int:
        """Loads that the tensor memory accelerator does (from sm_90 on)."""
        return sum(_is_tma(remark) and "Load" in remark.name for remark in self.remarks)

    @property
    def tma_stores(self) -> int:
        """Stores that it does."""
        return sum(_is_tma(remark) and "Store" in remark.name for remark in self.remarks)

    @property
    def uses_tensor_cores(self) -> bool:
        """True if a matrix product runs on them."""
        return any(
            remark.name == "RemarkTensorCoreMMA" and remark.kind == "passed" for remark in self.remarks
        )

    def __str__(self) -> str:
        lines = [f"{self.kernel} for {self.architecture} (tileiras {self.compiler})", f"  {self.resources}"]
        lines += [f"  {_worded(remark)}" for remark in (*self.warnings, *self.remarks)]
        return "\n".join(lines)


def _is_tma(remark: Remark) -> bool:
    return remark.kind == "passed" and any("TMA" in detail for detail in remark.details)


def _worded(remark: Remark) -> str:
    where = f"{remark.place[0].rpartition('/')[2]}:{remark.place[1]}: " if remark.place else ""
    details = [re.sub(r'loc\("(?:[^"\\]|\\.)*":\d+:\d+\): ', "", detail) for detail in remark.details]
    mark = {"passed": "", "analysis": "", "warning": "warning: "}.get(remark.kind, "not optimised: ")
    return f"{where}{mark}{remark.title}" + (f" ({'; '.join(details)})" if details else "")


def target_for(arch: str | None) -> str:
    """The target asked for, or that of the current device."""
    if arch is not None:
        return arch
    from cuda_async import current_device

    from ._variant import HOST, target_of

    device = current_device()
    target = target_of(device.kind, device.compute_capability)
    return DEFAULT_TARGET if target == HOST else target


def cubin_of(kernel: Kernel, specs: tuple[ParameterSpec, ...], arch: str | None) -> bytes:
    """The machine code of a kernel."""
    return _assemble(kernel, specs, target_for(arch), locations=False).cubin


def ptx_of(kernel: Kernel, specs: tuple[ParameterSpec, ...], arch: str | None) -> str:
    """The PTX it goes through."""
    return _assemble(kernel, specs, target_for(arch), locations=False, keep_ptx=True).ptx


def sass_of(kernel: Kernel, specs: tuple[ParameterSpec, ...], arch: str | None) -> str:
    """The machine code as text."""
    from ..tileir import disassemble_cubin

    return disassemble_cubin(cubin_of(kernel, specs, arch), kernel=kernel.name)


def resources_of(kernel: Kernel, specs: tuple[ParameterSpec, ...], arch: str | None) -> Resources:
    """What it takes."""
    return _resources(_assemble(kernel, specs, target_for(arch), locations=False, keep_ptx=True))


def report_of(kernel: Kernel, specs: tuple[ParameterSpec, ...], arch: str | None) -> Report:
    """How it was compiled."""
    from ..tileir import tileiras_version

    target = target_for(arch)
    made = _assemble(kernel, specs, target, locations=True, remarks=True, keep_ptx=True)
    remarks = sorted(made.remarks, key=lambda remark: remark.place or ("", 0, 0))
    return Report(
        kernel.name, target, tileiras_version(), _resources(made), tuple(remarks), tuple(made.warnings)
    )


def _assemble(
    kernel: Kernel,
    specs: tuple[ParameterSpec, ...],
    target: str,
    *,
    locations: bool,
    remarks: bool = False,
    keep_ptx: bool = False,
) -> Assembly:
    from ..lowering import lower
    from ._compile import assembled, build_program, bytecode_of, toolchain_for

    options = kernel.options.for_target(target)
    function = build_program(kernel.source, specs, options, for_device=True).function
    bytecode = lower(function, locations=True) if locations else bytecode_of(function, options)
    toolchain = toolchain_for(function, target)
    return assembled(function, bytecode, options, target, toolchain, remarks=remarks, keep_ptx=keep_ptx)


def _resources(made: Assembly) -> Resources:
    """From the lines of `ptxas -v`, such as "Used 255 registers, used 1 barriers, 98576 bytes smem"."""
    log = made.ptxas_log

    def number(pattern: str, text: str = log) -> int:
        found = re.search(pattern, text)
        return int(found[1]) if found else 0

    return Resources(
        registers=number(r"Used (\d+) registers"),
        spill_store_bytes=number(r"(\d+) bytes spill stores"),
        spill_load_bytes=number(r"(\d+) bytes spill loads"),
        stack_bytes=number(r"(\d+) bytes stack frame"),
        shared_bytes=number(r"(\d+) bytes smem"),
        barriers=number(r"used (\d+) barriers"),
        threads=number(r"\.reqntid\s+(\d+)", made.ptx),
    )
