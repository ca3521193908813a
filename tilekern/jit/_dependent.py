"""Launches that begin while the kernel before them on the stream still runs (programmatic dependent launch).

What makes that safe: every block waits before it touches memory or ends, so no access of the kernel comes before
the end of the one in front of it, and the kernel does not end before that one has. Everything else about
streams (order, events, frees) then holds as for any launch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import KernelValueError
from ..ir import GridWaitOp, Op, walk

if TYPE_CHECKING:
    from ..ir import Function

__all__ = ["check_waits_first"]


def check_waits_first(function: Function) -> None:
    """Refuse a kernel that may not begin early.

    Raises:
        KernelValueError: at the first access to memory, or end, that may come before the wait.
    """
    for op in function.body.ops:
        if isinstance(op, GridWaitOp):
            return
        for inner in (op, *[nested for region in op.regions for nested in walk(region)]):
            if _needs_wait(inner):
                raise KernelValueError(
                    "programmatic_dependent_launch starts this kernel before the one in front of it has ended; call "
                    "tk.grid_dependency_control_wait() before any load or store, outside of branches and loops",
                    inner.location or function.location,
                )


def _needs_wait(op: Op) -> bool:
    return op.effect in ("read", "write") or op.mnemonic in ("return", "grid_wait")
