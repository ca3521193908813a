"""Rewrites of the IR. `run_passes` runs and verifies them; each has a file that says what it matches.

`pipeline(...)` is what a kernel goes through: `PIPELINE`, the bounds checks, `AFTER_CHECKS`, and, where it is
compiled, `EXPAND`, facts and `order(...)`: the interpreter runs in program order and needs no tokens, and no facts.
"""

from ._check_bounds import CheckBounds, CheckedAxis, LaunchCondition, Placement, Rung
from ._copy_handed_on import CopyHandedOn
from ._direct_accesses import DirectAccesses
from ._eliminate import EliminateCommon, EliminateDead
from ._expand_scans import ExpandScans
from ._fold_constants import FoldConstants
from ._fuse_multiply_add import FuseMultiplyAdd
from ._hoist_invariants import HoistInvariants
from ._order_memory import OrderMemory
from ._pass import PRINT_VARIABLE, Pass, run_passes
from ._pin_loads import PinLoads
from ._select_branches import SelectBranches
from ._settle import SettleLoads
from ._state_ranges import StateRanges
from ._turn_repeats import TurnRepeats

PIPELINE: tuple[Pass, ...] = (
    FoldConstants(),
    SelectBranches(),
    EliminateCommon(),
    HoistInvariants(),
    EliminateCommon(),
    EliminateDead(),
)
"""What every kernel goes through."""

AFTER_CHECKS: tuple[Pass, ...] = (
    FoldConstants(),
    EliminateCommon(),
    HoistInvariants(),
    EliminateCommon(),
    EliminateDead(),
)
"""What it goes through once bounds checks are in it."""

FUSE: tuple[Pass, ...] = (FuseMultiplyAdd(), EliminateDead())
"""In between, where the kernel allows it."""

EXPAND: tuple[Pass, ...] = (
    ExpandScans(),
    TurnRepeats(),
    EliminateCommon(),
    EliminateDead(),
    SettleLoads(),
    CopyHandedOn(),
)
"""What makes of compiled kernels what the assembler can."""


def order(allow_tma: bool = True) -> tuple[Pass, ...]:
    """The last of what compiled kernels go through."""
    return (OrderMemory(), DirectAccesses(everywhere=not allow_tma), PinLoads())


def pipeline(check: CheckBounds, *, fuse: bool, for_device: bool, allow_tma: bool = True) -> tuple[Pass, ...]:
    """All passes of a kernel, in order.

    Args:
        check: the bounds checks, with what they are to do.
        fuse: products and sums of floats may be rounded once.
        for_device: it is to be compiled; the interpreter needs no order, and no facts.
        allow_tma: loads and stores may go through the tensor memory accelerator.
    """
    return (
        *PIPELINE,
        check,
        *(FUSE if fuse else ()),
        *AFTER_CHECKS,
        *((*EXPAND, StateRanges(check.facts), *order(allow_tma)) if for_device else ()),
    )


__all__ = [
    "AFTER_CHECKS",
    "EXPAND",
    "FUSE",
    "PIPELINE",
    "PRINT_VARIABLE",
    "CheckBounds",
    "CheckedAxis",
    "CopyHandedOn",
    "DirectAccesses",
    "EliminateCommon",
    "EliminateDead",
    "ExpandScans",
    "FoldConstants",
    "FuseMultiplyAdd",
    "HoistInvariants",
    "LaunchCondition",
    "OrderMemory",
    "Pass",
    "PinLoads",
    "Placement",
    "Rung",
    "SelectBranches",
    "SettleLoads",
    "StateRanges",
    "TurnRepeats",
    "order",
    "pipeline",
    "run_passes",
]
