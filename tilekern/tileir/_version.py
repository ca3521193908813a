"""Bytecode versions: which exist, and which is written unless an op needs a newer one."""

from __future__ import annotations

__all__ = ["DEFAULT_VERSION", "SUPPORTED_VERSIONS", "Version", "version_text"]

Version = tuple[int, int]
"""(major, minor) of a bytecode file."""

SUPPORTED_VERSIONS: tuple[Version, ...] = ((13, 1), (13, 2), (13, 3), (13, 4), (13, 5))

DEFAULT_VERSION: Version = (13, 3)
"""The lowest version with every feature Hopper kernels want (views, fp8 accumulation, strided views)."""


def version_text(version: Version) -> str:
    """`(13, 3)` as "13.3"."""
    return f"{version[0]}.{version[1]}"
