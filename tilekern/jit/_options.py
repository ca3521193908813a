"""Compile options, validated: the assembler ignores a hint it does not understand without a word."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from ..errors import KernelOptionError
from ._by_target import ByTarget

__all__ = ["IN_PLACE_VARIABLE", "KernelOptions"]

_ALLOWED: dict[str, tuple[int, ...] | range] = {
    "occupancy": range(1, 33),
    "num_ctas": (1, 2, 4, 8, 16),
    "num_worker_warps": (4, 8, 16),
    "opt_level": range(4),
    "max_divisibility": (1, 2, 4, 8, 16),
}
_PER_TARGET = ("occupancy", "num_ctas", "num_worker_warps", "opt_level")
_CHECKS = ("deny_in_kernel_checks", "unchecked", "checks_in_place", "check_variants")
_CODE = ("line_info", "debug", "fuse_multiply_add", "allow_tma", "programmatic_dependent_launch")
_SWITCHES = (*_CODE, *_CHECKS)
_NAMES = (*_ALLOWED, *_SWITCHES, "compile_timeout_s", "const_grid", "preconditions")

IN_PLACE_VARIABLE = "TILEKERN_CHECKS_IN_PLACE"
"""Environment variable: 1 makes `checks_in_place` the default, for comparing."""


def _in_place_by_default() -> bool:
    text = os.environ.get(IN_PLACE_VARIABLE, "")
    if text not in ("", "0", "1"):
        raise KernelOptionError(f"{IN_PLACE_VARIABLE} is {text!r}; write 1 or 0")
    return text == "1"


def _check_hint(what: str, name: str, value: object) -> None:
    """Refuse what the assembler would ignore, or misunderstand."""
    allowed = _ALLOWED[name]
    if value is None and name not in ("opt_level", "max_divisibility"):
        return
    if type(value) is not int or value not in allowed:
        span = f"{allowed.start} to {allowed.stop - 1}" if isinstance(allowed, range) else f"one of {allowed}"
        raise KernelOptionError(f"{what} is {span}, got {value!r}")


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
        preconditions: what every launch is checked for and the compiler may use, as text: "dim(a, 1) == dim(b, 0)",
            "dim(a, 1) == 128", "dim(a, 0) % 16 == 0".
        deny_in_kernel_checks: a bounds check that would be left in the kernel is an error.
        unchecked: no bounds checks on a GPU: every index of a load or store is promised to be in range.
        checks_in_place: every bounds check stands next to its access, none is proven away; to compare with.
            `TILEKERN_CHECKS_IN_PLACE=1` makes it the default.
        check_variants: where a bounds check holds for some calls only, calls for which it does run without it.
        fuse_multiply_add: `a * b + c` of floats may be rounded once instead of twice.
        allow_tma: False keeps loads and stores from the tensor memory accelerator, but for those that allow it
            themselves: setting it up takes about a microsecond, which a small kernel has no use for.
        programmatic_dependent_launch: the kernel may begin while the one before it on the stream still runs. It
            waits for that at its beginning, and lets the next one begin, or where it calls
            `tk.grid_dependency_control_wait()` itself, before it touches memory. From sm_90 on; elsewhere, and in
            bound launches, it begins as any other.

    `occupancy`, `num_ctas`, `num_worker_warps` and `opt_level` may be `ByTarget`, with a value per architecture.
    """

    occupancy: int | ByTarget | None = None
    num_ctas: int | ByTarget | None = None
    num_worker_warps: int | ByTarget | None = None
    opt_level: int | ByTarget = 3
    max_divisibility: int = 16
    line_info: bool = False
    debug: bool = False
    compile_timeout_s: float | None = field(default=None, compare=False)
    const_grid: bool | tuple[int, int, int] = False
    preconditions: tuple[str, ...] = ()
    deny_in_kernel_checks: bool = False
    unchecked: bool = False
    checks_in_place: bool = field(default_factory=_in_place_by_default)
    check_variants: bool = True
    fuse_multiply_add: bool = False
    allow_tma: bool = True
    programmatic_dependent_launch: bool = False
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in _ALLOWED:
            value = getattr(self, name)
            if isinstance(value, ByTarget) and name in _PER_TARGET:
                for target, one in value.items():
                    _check_hint(f"{name} for {target}", name, one)
            else:
                _check_hint(name, name, value)
        for name in _SWITCHES:
            if type(getattr(self, name)) is not bool:
                raise KernelOptionError(f"{name} is True or False, got {getattr(self, name)!r}")
        seconds = self.compile_timeout_s
        if seconds is not None and not (type(seconds) in (int, float) and 0 < seconds < math.inf):
            raise KernelOptionError(f"compile_timeout_s is a number of seconds above 0, got {seconds!r}")
        if self.preconditions:
            self._check_preconditions()
        if self.unchecked and (self.deny_in_kernel_checks or self.checks_in_place):
            if self.deny_in_kernel_checks:
                raise KernelOptionError(
                    "unchecked leaves nothing for deny_in_kernel_checks to deny; give one of them"
                )
            object.__setattr__(self, "checks_in_place", False)
        if self.deny_in_kernel_checks and self.checks_in_place:
            # the reference that tests compare with has its checks in the kernel
            object.__setattr__(self, "deny_in_kernel_checks", False)
        values = [getattr(self, f.name) for f in fields(self) if f.compare]
        object.__setattr__(self, "_hash", hash(tuple(values)))

    def __hash__(self) -> int:
        return self._hash

    def _check_preconditions(self) -> None:
        from ..frontend._preconditions import check_syntax

        texts = self.preconditions
        object.__setattr__(self, "preconditions", (texts,) if isinstance(texts, str) else tuple(texts))
        for text in self.preconditions:
            check_syntax(text)

    def for_target(self, target: str) -> KernelOptions:
        """These options with the values of one architecture, such as "sm_90", or of the host device."""
        chosen = {
            name: value.get(target, 3 if name == "opt_level" else None)
            for name in _PER_TARGET
            if isinstance(value := getattr(self, name), ByTarget)
        }
        return replace(self, **chosen) if chosen else self  # type: ignore[arg-type]  # checked when it was made

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

    def level(self, target: str) -> int:
        """The optimisation level for an architecture."""
        value = self.opt_level
        found = value.get(target, 3) if isinstance(value, ByTarget) else value
        assert found is not None
        return found

    @property
    def hints(self) -> dict[str, int]:
        """Those that go into the kernel's entry; those of no architecture in particular if it is not chosen."""
        chosen = {
            "num_ctas": self.num_ctas,
            "occupancy": self.occupancy,
            "num_worker_warps": self.num_worker_warps,
        }
        plain = {n: v.get("", None) if isinstance(v, ByTarget) else v for n, v in chosen.items()}
        return {name: value for name, value in plain.items() if value is not None}
