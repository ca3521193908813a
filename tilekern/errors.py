"""What can be wrong with a tile kernel, one class per thing a caller would do differently.

All are `cuda_async.errors.CudaAsyncError`; what keeps a kernel from compiling is also its `CompileError`.
Errors in kernel code carry the place: the message ends with the source line, a caret under the code at
fault, and the chain of helper calls that led there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cuda_async.errors import CompileError, CudaAsyncError, LaunchError

if TYPE_CHECKING:
    from .ir import Location

__all__ = [
    "CompiledKernelError",
    "KernelArgumentError",
    "KernelAssertionError",
    "KernelError",
    "KernelIndexError",
    "KernelNameError",
    "KernelOptionError",
    "KernelSourceError",
    "KernelSyntaxError",
    "KernelTypeError",
    "KernelValueError",
    "ParseError",
    "TilekernError",
    "VerifyError",
]


class TilekernError(CudaAsyncError):
    """Base of all errors of `tilekern`."""


class KernelError(TilekernError, CompileError):
    """Kernel code that cannot be compiled.

    Attributes:
        reason: what is wrong, without the place.
        location: where in the user's source; None where there is no line to point at.
    """

    def __init__(self, reason: str, location: Location | None = None) -> None:
        self.reason = reason
        self.location = location
        CompileError.__init__(self, reason if location is None else location.describe(reason))


class KernelSyntaxError(KernelError):
    """Python that kernels cannot use, such as `try` or `async`."""


class KernelNameError(KernelError, NameError):
    """A name that is not defined, or not on every path that leads here."""


class KernelTypeError(KernelError, TypeError):
    """An operation on types it does not take: element types, ranks, a store to a read argument."""


class KernelValueError(KernelError, ValueError):
    """A value out of range: a tile side that is no power of two, an axis that is not there."""


class KernelSourceError(TilekernError, CompileError):
    """The source text of a kernel or helper cannot be found, so it cannot be compiled."""


class CompiledKernelError(TilekernError, CompileError):
    """Kernels compiled ahead of time that cannot be used: a damaged folder, or no variant that serves a call."""


class KernelOptionError(TilekernError, ValueError):
    """A compile option or hint outside of what the compiler honours."""


class KernelArgumentError(TilekernError, TypeError):
    """A call gave a kernel arguments that do not fit its parameters; nothing was enqueued."""


class KernelIndexError(TilekernError, LaunchError, IndexError):
    """A running kernel addressed a tile or element outside of its tensor (host device)."""


class KernelAssertionError(TilekernError, AssertionError):
    """An assertion in a running kernel did not hold (host device)."""


class VerifyError(TilekernError):
    """IR that breaks a rule of its operations; a bug of the front end or of a pass, not of the user.

    Attributes:
        op: text of the operation at fault; empty where it is about the function.
    """

    def __init__(self, message: str, op: str = "") -> None:
        self.op = op
        super().__init__(f"{message}\n  in: {op}" if op else message)


class ParseError(TilekernError, ValueError):
    """Text that is no IR.

    Attributes:
        line: line number in the text, from 1.
    """

    def __init__(self, message: str, line: int) -> None:
        self.line = line
        super().__init__(f"line {line}: {message}")
