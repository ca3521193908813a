"""Rewrites of the IR. `run_passes` runs and verifies them; each has a file that says what it matches.

`PIPELINE` is what every kernel goes through; `ORDER` is added where it is compiled: the interpreter runs
in program order and needs no tokens.
"""

from ._eliminate import EliminateCommon, EliminateDead
from ._fold_constants import FoldConstants
from ._hoist_invariants import HoistInvariants
from ._order_memory import OrderMemory
from ._pass import PRINT_VARIABLE, Pass, run_passes
from ._select_branches import SelectBranches

PIPELINE: tuple[Pass, ...] = (
    FoldConstants(),
    SelectBranches(),
    EliminateCommon(),
    HoistInvariants(),
    EliminateCommon(),
    EliminateDead(),
)
"""What every kernel goes through."""

ORDER: tuple[Pass, ...] = (OrderMemory(),)
"""What compiled kernels go through after that."""

__all__ = [
    "ORDER",
    "PIPELINE",
    "PRINT_VARIABLE",
    "EliminateCommon",
    "EliminateDead",
    "FoldConstants",
    "HoistInvariants",
    "OrderMemory",
    "Pass",
    "SelectBranches",
    "run_passes",
]
