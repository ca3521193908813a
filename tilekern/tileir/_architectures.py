"""Targets of the assembler, and which element types each refuses."""

from __future__ import annotations

__all__ = ["ARCHITECTURES"]

ARCHITECTURES: tuple[str, ...] = (
    *("sm_80", "sm_86", "sm_87", "sm_88", "sm_89", "sm_90"),
    *("sm_100", "sm_103", "sm_107", "sm_110", "sm_120", "sm_121"),
)
"""Every target `tileiras` 13.5 generates code for."""
