"""Where the bounds of each access are checked, and why there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..frontend import LaunchCheck, ParameterSpec
    from ..passes import CheckedAxis
    from ._kernel import Kernel

__all__ = ["CheckReport", "check_report_of"]


@dataclass(frozen=True)
class CheckReport:
    """Where a kernel's bounds are checked. `str(report)` is meant for reading.

    Attributes:
        kernel: its name.
        accesses: one entry per load or store and axis of its index, in program order, with `access`, `tensor`,
            `axis`, `rung`, `where`, `why` and `location`. Rungs, from the cheapest: "static", "proven",
            "precondition", "launch", "variant", "kernel"; and "unchecked".
        launch_checks: what is verified before a launch: of each new kind of call if it is about shapes, of every
            launch if it is about numbers.
    """

    kernel: str
    accesses: tuple[CheckedAxis, ...]
    launch_checks: tuple[LaunchCheck, ...]

    @property
    def in_kernel(self) -> tuple[CheckedAxis, ...]:
        """Those checked while the kernel runs."""
        return tuple([axis for axis in self.accesses if axis.rung == "kernel"])

    def __str__(self) -> str:
        lines = [
            f"{self.kernel}: {len(self.accesses)} tile indices, {len(self.in_kernel)} checked in the kernel"
        ]
        for one in self.accesses:
            place = f"{one.location.line}:{one.location.column + 1}" if one.location else "?"
            where = f", {one.where}" if one.where else ""
            lines.append(
                f"  {place} {one.access} {one.tensor} axis {one.axis}: {one.rung}{where} ({one.why})"
            )
        return "\n".join(lines)


def check_report_of(kernel: Kernel, specs: tuple[ParameterSpec, ...]) -> CheckReport:
    """The report for arguments of those specs."""
    from ..passes import Placement
    from ._compile import build_program

    placement = Placement()
    program = build_program(kernel.source, specs, kernel.options, for_device=False, placement=placement)
    return CheckReport(kernel.name, tuple(placement.axes), program.checks)
