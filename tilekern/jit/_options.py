"""Compile options, validated: the assembler ignores a hint it does not understand without a word."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..errors import KernelOptionError

__all__ = ["KernelOptions"]

_ALLOWED: dict[str, tuple[int, ...] | range] = {
    "occupancy": range(1, 33),
    "num_ctas": (1, 2, 4, 8, 16),
    "num_worker_warps": (4, 8, 16),
    "opt_level": range(4),
    "max_divisibility": (1, 2, 4, 8, 16),
}
_SWITCHES = ("line_info", "debug")
_NAMES = (*_ALLOWED, *_SWITCHES, "compile_timeout_s", "const_grid")


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelOptions:
    """How a kernel is compiled. None leaves a choice to the compiler.

    Attributes:
        occupancy: blocks that shall fit on a multiprocessor at once, 1 to 32; caps registers.
        num_ctas: CTAs that share one block's work, 1, 2, 4, 8 or 16 (a cluster; from sm_90 on).
        num_worker_warps: warps that compute, 4, 8 or 16.
        opt_level: 0 to 3.
        max_divisibility: what shapes, strides and addresses are known to be multiples of is capped at
            this; 1 makes one variant serve all.
        line_info: keep source lines in the code, for profilers.
        debug: full debug information, for debuggers; the code is not optimised, whatever `opt_level` says.
        compile_timeout_s: seconds the assembler may take; `TILEKERN_COMPILE_TIMEOUT` if not given, and 60
            without that. Two options that differ in this alone are equal: it changes no code.
        const_grid: compile the grid in, so that `tk.num_blocks` is known at compile time. True is what
            `launch.const_grid` sets; to look at a kernel without launching it, give (x, y, z) here.
    """

    occupancy: int | None = None
    num_ctas: int | None = None
    num_worker_warps: int | None = None
    opt_level: int = 3
    max_divisibility: int = 16
    line_info: bool = False
    debug: bool = False
    compile_timeout_s: float | None = field(default=None, compare=False)
    const_grid: bool | tuple[int, int, int] = False

    def __post_init__(self) -> None:
        for name, allowed in _ALLOWED.items():
            value = getattr(self, name)
            if value is None and name not in ("opt_level", "max_divisibility"):
                continue
            if type(value) is not int or value not in allowed:
                span = (
                    f"{allowed.start} to {allowed.stop - 1}"
                    if isinstance(allowed, range)
                    else f"one of {allowed}"
                )
                raise KernelOptionError(f"{name} is {span}, got {value!r}")
        for name in _SWITCHES:
            if type(getattr(self, name)) is not bool:
                raise KernelOptionError(f"{name} is True or False, got {getattr(self, name)!r}")
        seconds = self.compile_timeout_s
        if seconds is not None and not (type(seconds) in (int, float) and 0 < seconds < math.inf):
            raise KernelOptionError(f"compile_timeout_s is a number of seconds above 0, got {seconds!r}")

    def updated(self, changes: Mapping[str, object]) -> KernelOptions:
        """These options with some changed."""
        for name in changes:
            if name not in _NAMES:
                raise KernelOptionError(f"there is no option {name}; there are {', '.join(_NAMES)}")
        grid = changes.get("const_grid")
        if grid is not None and not isinstance(grid, bool):
            from ._grid import as_grid

            changes = {**changes, "const_grid": as_grid(grid)}
        return replace(self, **changes)  # type: ignore[arg-type]  # checked when it is made

    def with_grid(self, grid: tuple[int, int, int]) -> KernelOptions:
        """What a launch of that grid is compiled with."""
        return replace(self, const_grid=grid) if self.const_grid else self

    @property
    def hints(self) -> dict[str, int]:
        """Those that go into the kernel's entry."""
        chosen = {
            "num_ctas": self.num_ctas,
            "occupancy": self.occupancy,
            "num_worker_warps": self.num_worker_warps,
        }
        return {name: value for name, value in chosen.items() if value is not None}
