"""Adding operations one by one, each verified as it is added."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from ._location import Location
from ._op import Block, Op

__all__ = ["Builder"]

OpT = TypeVar("OpT", bound=Op)


class Builder:
    """Appends to a block. Attributes are set freely.

    Attributes:
        block: where the next operation goes.
        location: the place in the user's source it is given.
    """

    def __init__(self, block: Block) -> None:
        self.block = block
        self.location: Location | None = None

    def add(self, op: OpT) -> OpT:
        """Append `op` and return it."""
        op.location = self.location
        op.verify()
        self.block.ops.append(op)
        return op

    @contextmanager
    def inside(self, block: Block) -> Iterator[Block]:
        """Append to `block` within the `with` statement."""
        outer, self.block = self.block, block
        try:
            yield block
        finally:
            self.block = outer
