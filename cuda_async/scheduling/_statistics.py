"""How much memory a device has in use."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MemoryStatistics"]


@dataclass(frozen=True, kw_only=True)
class MemoryStatistics:
    """A snapshot, in bytes.

    Attributes:
        used_bytes: live tensors, by what was asked for. used_high_bytes: the most so far.
        reserved_bytes: what the pool holds, cached memory included.
        limit_bytes: the limit that was set, or None.
        pinned_bytes: page-locked host memory held for staging.
    """

    used_bytes: int
    used_high_bytes: int
    reserved_bytes: int
    limit_bytes: int | None
    pinned_bytes: int
