"""Launches that begin while the kernel before them on the stream still runs (programmatic dependent launch).

What makes that safe: every block waits before it touches memory or ends, so no access of the kernel comes before
the end of the one in front of it, and the kernel does not end before that one has. Everything else about
streams (order, events, frees) then holds as for any launch.

A kernel that does not say where it waits does so at its beginning, behind letting the next one begin: that one's blocks
come in where this kernel leaves room, and wait in turn. What is hidden is how long a launch takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import KernelValueError
from ..ir import GridLaunchDependentsOp, GridWaitOp, Op, TokenType, Value, walk

if TYPE_CHECKING:
    from ..ir import Function

__all__ = ["check_waits_first", "wait_at_the_beginning"]


def wait_at_the_beginning(function: Function) -> None:
    """Let the next kernel begin, and wait for the one before, unless the kernel itself says where."""
    if not any(isinstance(op, GridWaitOp | GridLaunchDependentsOp) for op in walk(function.body)):
        function.body.ops[:0] = [
            kind(result_token=Value(TokenType())) for kind in (GridLaunchDependentsOp, GridWaitOp)
        ]


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
