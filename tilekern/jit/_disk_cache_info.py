"""What the disk cache tells of itself. Apart from it, since a launch that finds its kernel there needs none of it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CacheEntry", "CacheInfo", "Json"]

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """State of the cache, and what this process did with it."""

    folder: str
    """Where entries are; empty if switched off."""
    is_enabled: bool
    reason: str
    """Why it is off; empty if it is on."""
    entries: int
    size_bytes: int
    max_bytes: int
    hits: int
    misses: int
    stored: int
    damaged: int
    """Entries found damaged, and removed."""
    evicted: int
    failures: int
    """Writes and reads the file system refused."""


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One entry, without its value."""

    name: str
    metadata: dict[str, Json]
    size_bytes: int
    used: float
    """When it was last read or written, in seconds since the epoch."""
