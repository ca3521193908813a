"""How accesses to memory are ordered with those of other blocks."""

from __future__ import annotations

import enum

__all__ = ["MemoryOrder", "MemoryScope"]


class MemoryOrder(enum.Enum):
    """What a block that sees an access also sees, and what it promises.

    The accesses of one block are in program order anyway; this is between blocks.
    """

    WEAK = "weak"
    """Promises that no other block has a conflicting access; loads and stores only."""
    RELAXED = "relaxed"
    """Whole elements, in no order with anything else."""
    ACQUIRE = "acquire"
    """Accesses after it see what was written before the release whose value it read; not for stores."""
    RELEASE = "release"
    """What was accessed before it is seen by whoever acquires the value it writes; not for loads."""
    ACQ_REL = "acq_rel"
    """Both; atomics only."""


class MemoryScope(enum.Enum):
    """Whom an access is ordered with."""

    NONE = "none"
    """Nobody: weak accesses, for which any scope means this."""
    BLOCK = "block"
    """The same block."""
    DEVICE = "device"
    """All blocks of the device."""
    SYS = "sys"
    """All devices and the host."""
