"""What writing, reading and assembling Tile IR can fail with: a class per thing to do differently.

All are `cuda_async.errors.CompileError`. Those under `AssemblerError` come from running NVIDIA's
assembler and carry what is needed to report them: kernel, architecture, compiler and its output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cuda_async.errors import CompileError

if TYPE_CHECKING:
    from ._toolchain import Toolchain

__all__ = [
    "ArchitectureError",
    "AssemblerError",
    "BytecodeError",
    "CompilerCrashedError",
    "CompilerFailedError",
    "CompilerNotFoundError",
    "CompilerTimeoutError",
    "CompilerTooOldError",
    "DecodeError",
    "NewerBytecodeError",
    "RejectedError",
    "TypeRuleError",
    "UnknownArchitectureError",
]


class BytecodeError(CompileError):
    """A module that cannot be written: wrong operands, attributes, types or version.

    Attributes:
        op: name of the operation at fault, empty where it is not about one.
    """

    def __init__(self, message: str, op: str = "") -> None:
        self.op = op
        super().__init__(message)


class NewerBytecodeError(BytecodeError):
    """Something that the bytecode version being written does not have.

    Attributes:
        needed: the version that has it, such as (13, 4).
    """

    def __init__(self, message: str, op: str, needed: tuple[int, int]) -> None:
        self.needed = needed
        super().__init__(message, op)


class TypeRuleError(BytecodeError, ValueError):
    """A Tile IR type that breaks a rule of its kind, such as a tile side that is no power of two."""


class DecodeError(CompileError):
    """Bytes that are no Tile IR bytecode, or damaged.

    Attributes:
        offset: position in the input where reading stopped.
    """

    def __init__(self, message: str, offset: int) -> None:
        self.offset = offset
        super().__init__(f"{message} (at byte {offset})")


class AssemblerError(CompileError):
    """The assembler did not make a cubin; the subclass says in which way.

    Attributes:
        kernel: names of the module's kernels, comma-separated.
        source: where the kernel is defined, as "file:line"; empty where that is not known.
        architecture: the target asked for, such as "sm_90"; empty for a check without a target.
        compiler: path of the assembler, empty where none was found.
        compiler_version: its version text, empty where unknown.
        exit_code: what it exited with; negative for a signal; None where it did not exit by itself.
        log: what it printed on stderr and stdout.
    """

    def __init__(
        self,
        message: str,
        *,
        kernel: str = "",
        source: str = "",
        architecture: str = "",
        toolchain: Toolchain | None = None,
        exit_code: int | None = None,
        log: str = "",
    ) -> None:
        self.kernel = kernel
        self.source = source
        self.architecture = architecture
        self.compiler = toolchain.assembler if toolchain else ""
        self.compiler_version = toolchain.version if toolchain else ""
        self.exit_code = exit_code
        lines = [f"{kernel}: {message}" if kernel else message]
        if source:
            lines.append(f"  kernel: {kernel}, {source}")
        if architecture:
            lines.append(f"  architecture: {architecture}")
        if toolchain:
            lines.append(f"  compiler: {toolchain.assembler} ({toolchain.version})")
        if log:
            lines.append("  it printed:")
            lines += [f"    {line}" for line in log.rstrip().splitlines()]
        super().__init__("\n".join(lines), log)


class CompilerNotFoundError(AssemblerError):
    """No `tileiras`, or one without the libnvvm and ptxas it needs beside it."""


class CompilerTooOldError(AssemblerError):
    """The assembler does not read the bytecode version that was written.

    Attributes:
        needed: the module's bytecode version, such as (13, 3).
        supported: versions the assembler reads.
    """

    needed: tuple[int, int] = (0, 0)
    supported: tuple[tuple[int, int], ...] = ()


class UnknownArchitectureError(AssemblerError):
    """The assembler has no such target.

    Attributes:
        known: names of the targets it has.
    """

    known: tuple[str, ...] = ()


class RejectedError(AssemblerError):
    """The bytecode or the program in it breaks a rule of Tile IR.

    Attributes:
        op: name of the operation the verifier names, such as "addf"; empty where it names none.
        rule: what the verifier said about it.
        location: (file, line, column) in the user's source, None where the module has no locations.
        callers: for inlined code, where it was called, innermost first.
    """

    op: str = ""
    rule: str = ""
    location: tuple[str, int, int] | None = None
    callers: tuple[tuple[str, int, int], ...] = ()


class ArchitectureError(AssemblerError):
    """A legal program that this architecture cannot run, such as fp8 on sm_80.

    Attributes:
        reason: what the assembler said is not supported.
        location: (file, line, column) in the user's source, None where the module has no locations.
    """

    reason: str = ""
    location: tuple[str, int, int] | None = None


class CompilerTimeoutError(AssemblerError):
    """The assembler did not end in time and was killed.

    Attributes:
        timeout_s: the limit it ran under.
    """

    timeout_s: float = 0.0


class CompilerCrashedError(AssemblerError):
    """The assembler was ended by a signal."""


class CompilerFailedError(AssemblerError):
    """The assembler gave up for a reason it did not tell, or one of its own (disk, libnvvm, ptxas)."""
