"""How long compiling took, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["CompileTimings", "Origin"]

Origin = Literal["assembled", "disk cache", "recalled", "ahead of time", "interpreted"]


@dataclass(frozen=True, slots=True)
class CompileTimings:
    """One compilation of a kernel in this process, in milliseconds; steps that were not needed are 0.

    Attributes:
        kernel: its name.
        target: "host" or an architecture such as "sm_90".
        origin: where the code came from. "assembled": from the assembler; "disk cache": the front end ran
            and its bytecode was found in the disk cache; "recalled": the disk cache knew the result for this
            source and these arguments, and the front end did not run; "ahead of time": from a folder that
            `load_compiled` opened; "interpreted": the host device runs the IR.
        front_end_ms: from the syntax tree to the IR, imports on first use included.
        passes_ms: rewriting the IR.
        lowering_ms: from the IR to bytecode.
        assembler_ms: NVIDIA's assembler.
        total_ms: all of it, look-ups included.
    """

    kernel: str
    target: str
    origin: Origin
    front_end_ms: float
    passes_ms: float
    lowering_ms: float
    assembler_ms: float
    total_ms: float

    def __str__(self) -> str:
        return (
            f"{self.kernel} for {self.target}, {self.origin}: {self.total_ms:.1f} ms (front end "
            f"{self.front_end_ms:.1f}, passes {self.passes_ms:.1f}, lowering {self.lowering_ms:.1f}, assembler "
            f"{self.assembler_ms:.1f})"
        )
