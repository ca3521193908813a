"""How a kernel and the next one on its stream overlap (programmatic dependent launch)."""

from __future__ import annotations

from ._op import Op, OptionalOperand, Result
from ._types import TokenType

__all__ = ["GridLaunchDependentsOp", "GridWaitOp"]


class _GridOp(Op):
    token: OptionalOperand = None
    result_token: Result

    def verify(self) -> None:
        for value in (self.token, self.result_token):
            if value is not None and not isinstance(value.type, TokenType):
                raise self.fail(f"tokens have type token, got {value.type}")


class GridWaitOp(_GridOp, mnemonic="grid_wait", effect="control"):
    """Wait for the grids this one depends on; what they wrote can be read afterwards."""


class GridLaunchDependentsOp(_GridOp, mnemonic="grid_launch_dependents", effect="control"):
    """Let the grids that depend on this one begin."""
