"""From bytecode to a cubin with NVIDIA's assembler, and from its complaints to our errors.

Every call is a process of its own (0.1 to 2 s for `assemble`, 10 ms for `verify`), bounded in time: there
are inputs on which the assembler never ends. It blocks; call it from a worker thread.

The assembler leaves source locations out of what its verifier says; the disassembler, which runs the
same verifier, prints them. So a rejected module is given to that as well, to name the user's line.

What it hands to ptxas is looked at on the way (`_ptx_check.py`): where a register is used before it is set, the module
is assembled once more, without optimisation.
"""

from __future__ import annotations

import contextlib
import linecache
import logging
import os
import re
import shlex
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import KernelOptionError
from ._process import Finished, run_tool
from ._ptx_check import used_before_set
from ._remarks import Place, Remark, parse_places, parse_remarks
from ._toolchain import PACKAGES, Toolchain, find_toolchain
from ._version import Version, version_text
from .errors import (
    ArchitectureError,
    AssemblerError,
    CompilerCrashedError,
    CompilerFailedError,
    CompilerNotFoundError,
    CompilerTimeoutError,
    CompilerTooOldError,
    RejectedError,
    UnknownArchitectureError,
)

__all__ = ["DEFAULT_TIMEOUT_S", "TIMEOUT_VARIABLE", "Assembly", "assemble", "disassemble", "verify"]

DEFAULT_TIMEOUT_S = 60.0
TIMEOUT_VARIABLE = "TILEKERN_COMPILE_TIMEOUT"
"""Environment variable: seconds the assembler may take where the call does not say."""

_VERSION_OFFSET = 8
_MODULE = "module.tileir"
_CUBIN = "module.cubin"
ELF_MAGIC = b"\x7fELF"
_PTX = "module.ptx"
_PTXAS_LOG = "ptxas.log"
_logger = logging.getLogger("tilekern")


@dataclass(frozen=True, slots=True)
class Assembly:
    """What the assembler made."""

    cubin: bytes
    warnings: tuple[Remark, ...]
    remarks: tuple[Remark, ...]
    """Empty unless asked for."""
    remarks_text: str
    """The remarks as printed."""
    ptx: str
    """The PTX it went through; empty unless asked for."""
    ptxas_log: str
    """What `ptxas -v` said about resources; empty unless the PTX was asked for."""
    log: str
    """What it printed on stderr, the warnings included."""


def assemble(
    bytecode: bytes,
    arch: str = "sm_90",
    *,
    kernel: str = "",
    source: str = "",
    opt_level: int | None = None,
    line_info: bool = False,
    debug: bool = False,
    remarks: bool = False,
    keep_ptx: bool = False,
    timeout_s: float | None = None,
    toolchain: Toolchain | None = None,
) -> Assembly:
    """Compile a module for one architecture. Blocks; needs no GPU.

    Args:
        arch: target such as "sm_90".
        kernel: what to call it in errors; read from the module if not given.
        source: where it is defined, as "file:line", for errors.
        opt_level: 0 to 3; 3 if not given, or 0 with `debug`. Where the assembler's code uses a register before it sets
            it, 0 is taken, and a warning logged ("tilekern").
        line_info: keep source lines, as far as the module has them, for profilers and the debugger.
        debug: full debug information; only unoptimised.
        remarks: report how loads, stores and matrix products were compiled.
        keep_ptx: give the PTX as well, and what `ptxas -v` says.
        timeout_s: the assembler is killed after this long; `TILEKERN_COMPILE_TIMEOUT` if not given, and
            60 seconds without that.
        toolchain: the assembler to use; the one `find_toolchain` finds if not given.
    Raises:
        AssemblerError: one of its subclasses, which tell the cases apart.
        ValueError: `opt_level` out of range, or not 0 with `debug`; a time limit that is none.
    """
    limit_s = _limit(timeout_s)
    level = (0 if debug else 3) if opt_level is None else opt_level
    if level not in (0, 1, 2, 3):
        raise ValueError(f"opt_level is 0, 1, 2 or 3, got {opt_level}")
    if debug and level:
        raise ValueError(f"debug information needs opt_level 0, got {opt_level}")
    options = ["--device-debug"] if debug else ["--lineinfo"] if line_info else []
    if remarks:
        options.append("--remarks=all")
    toolchain = toolchain or find_toolchain()
    report = _Report(bytecode, kernel, arch, toolchain, source)

    def at(level: int) -> Assembly:
        return _assembled(report, [f"--gpu-name={arch}", f"--opt-level={level}", *options], limit_s, keep_ptx)

    made = at(level)
    too_early = used_before_set(made.ptx) if level else None
    if too_early is not None:
        _logger.warning(
            "%s for %s is assembled without optimisation, which is slow: with it, the assembler (%s) uses a register "
            "before it sets it (%s). The kernel in another shape, or in two, avoids that",
            *(report.kernel, arch, toolchain.version, too_early),
        )
        made = at(0)
    return made if keep_ptx else replace(made, ptx="")


def _assembled(report: _Report, options: list[str], limit_s: float, verbose: bool) -> Assembly:
    """What one run makes; `verbose` asks for what `ptxas -v` says, and that there be PTX."""
    command = [report.toolchain.assembler, *options, _MODULE, "-o", _CUBIN]
    with _private_folder(report) as folder:
        environment: dict[str, str] = {}
        with contextlib.nullcontext() if verbose else contextlib.suppress(CompilerFailedError):
            environment = _watch_ptxas(report, Path(folder), verbose)
        finished = _run(report, command, folder, limit_s, environment)
        if finished.exit_code and environment and not verbose:
            # Maybe our script cannot be started there; and what is wrong shall be said as the assembler says it.
            finished = _run(report, command, folder, limit_s)
        if finished.exit_code != 0:
            raise _explain(report, finished, limit_s, folder)
        cubin = _read(report, Path(folder, _CUBIN), finished)
        ptx, ptxas_log = (_text(Path(folder, name)) for name in (_PTX, _PTXAS_LOG))
    has_remarks = "--remarks=all" in options
    return Assembly(
        cubin,
        parse_remarks(finished.stderr),
        parse_remarks(finished.stdout) if has_remarks else (),
        finished.stdout if has_remarks else "",
        ptx,
        ptxas_log,
        finished.stderr,
    )


def _watch_ptxas(report: _Report, folder: Path, verbose: bool) -> dict[str, str]:
    """The environment that makes the assembler use a `ptxas` of ours, which keeps what it is given.

    The assembler looks for ptxas and libnvvm under CUDA_HOME first: a folder there holds links to the real
    ones, and a script in place of ptxas.
    """
    toolchain = report.toolchain
    root = folder / "root"
    try:
        (root / "bin").mkdir(parents=True)
        above = Path(toolchain.assembler).parent.parent
        for name in ("lib", "nvvm"):
            if (above / name).exists():
                (root / name).symlink_to(above / name)
        script = root / "bin" / "ptxas"
        quoted = [shlex.quote(str(part)) for part in (folder / _PTX, toolchain.ptxas, folder / _PTXAS_LOG)]
        more = f'-v "$@" 2> {quoted[2]}' if verbose else '"$@"'
        script.write_text(
            "#!/bin/sh\n"
            f'for word; do case "$word" in *.ptx) cat "$word" > {quoted[0]};; esac; done\n'
            f"exec {quoted[1]} {more}\n"
        )
        script.chmod(0o700)
    except OSError as error:
        raise CompilerFailedError(f"ptxas cannot be watched: {error}", **report.facts()) from error
    return {"CUDA_HOME": str(root)}


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def disassemble(
    bytecode: bytes,
    *,
    locations: bool = False,
    kernel: str = "",
    timeout_s: float | None = None,
    toolchain: Toolchain | None = None,
) -> str:
    """The module as NVIDIA's textual Tile IR, after verifying it; with `locations` source lines as well.

    Raises:
        RejectedError: it breaks a rule; with its source location if the module has them.
        CompilerNotFoundError: there is no disassembler.
    """
    limit_s = _limit(timeout_s)
    toolchain = toolchain or find_toolchain()
    report = _Report(bytecode, kernel, "", toolchain)
    with _private_folder(report) as folder:
        command = [_disassembler(report), _MODULE, *(["-g"] if locations else [])]
        finished = _run(report, command, folder, limit_s)
    if finished.exit_code != 0:
        raise _explain(report, finished, limit_s, folder=None)
    return finished.stdout


def verify(
    bytecode: bytes,
    *,
    kernel: str = "",
    timeout_s: float | None = None,
    toolchain: Toolchain | None = None,
) -> None:
    """Check a module against every rule of Tile IR without generating code; raises as `disassemble` does."""
    disassemble(bytecode, kernel=kernel, timeout_s=timeout_s, toolchain=toolchain)


def _limit(timeout_s: float | None) -> float:
    """The time limit of a run, in seconds."""
    if timeout_s is not None:
        return timeout_s
    text = os.environ.get(TIMEOUT_VARIABLE, "").strip()
    if not text:
        return DEFAULT_TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise KernelOptionError(
            f"{TIMEOUT_VARIABLE} is {text!r}; write a number of seconds above 0, such as 120"
        )
    return seconds


class _Report:
    """The facts every error carries."""

    def __init__(
        self, bytecode: bytes, kernel: str, arch: str, toolchain: Toolchain, source: str = ""
    ) -> None:
        self.bytecode = bytecode
        self.arch = arch
        self.toolchain = toolchain
        self.source = source
        self._kernel = kernel

    @property
    def kernel(self) -> str:
        if not self._kernel:
            self._kernel = _kernel_names(self.bytecode)
        return self._kernel

    # Any: these are the keyword arguments of AssemblerError.
    def facts(self, finished: Finished | None = None) -> dict[str, Any]:
        printed = (finished.stderr, finished.stdout) if finished else ()
        log = "\n".join(part.rstrip() for part in printed if part)
        return {
            "kernel": self.kernel,
            "source": self.source,
            "architecture": self.arch,
            "toolchain": self.toolchain,
            "exit_code": finished.exit_code if finished else None,
            "log": log,
        }


@contextmanager
def _private_folder(report: _Report) -> Iterator[str]:
    """A folder with the module in it, removed at the end whatever the tool left there."""
    import tempfile

    try:
        temporary = tempfile.TemporaryDirectory(prefix="tilekern-", ignore_cleanup_errors=True)
    except OSError as error:
        raise CompilerFailedError(f"no temporary folder could be made: {error}", **report.facts()) from error
    with temporary as folder:
        try:
            Path(folder, _MODULE).write_bytes(report.bytecode)
        except OSError as error:
            raise CompilerFailedError(f"the module cannot be written: {error}", **report.facts()) from error
        yield folder


def _run(
    report: _Report,
    command: list[str],
    folder: str,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
) -> Finished:
    try:
        return run_tool(command, Path(folder), timeout_s, environment)
    except OSError as error:
        raise CompilerNotFoundError(f"{command[0]} cannot be started: {error}", **report.facts()) from error


def _read(report: _Report, file: Path, finished: Finished) -> bytes:
    try:
        if not stat.S_ISREG(file.lstat().st_mode):
            raise OSError("it is no ordinary file")
        cubin = file.read_bytes()
    except OSError as error:
        raise CompilerFailedError(
            f"the assembler left no cubin: {error}", **report.facts(finished)
        ) from error
    if cubin[: len(ELF_MAGIC)] != ELF_MAGIC:
        raise CompilerFailedError(
            f"the assembler said nothing was wrong, and left {len(cubin)} bytes that are no cubin",
            **report.facts(finished),
        )
    return cubin


def _disassembler(report: _Report) -> str:
    if not report.toolchain.disassembler:
        raise CompilerNotFoundError(
            f"there is no tileirdisasm beside {report.toolchain.assembler}", **report.facts()
        )
    return report.toolchain.disassembler


def _explain(report: _Report, finished: Finished, timeout_s: float, folder: str | None) -> AssemblerError:
    """The error for a tool that did not succeed; `folder` still holds the module if there is one."""
    facts = report.facts(finished)
    text = finished.stderr
    if finished.exit_code is None:
        timeout = CompilerTimeoutError(
            f"the assembler did not end within {timeout_s:g} s and was killed; allow more time "
            f"(compile_timeout_s=, {TIMEOUT_VARIABLE}), or change the kernel: on some programs it never ends "
            "(known: num_cta_in_cga=2 where a loaded tile is the "
            "first value a loop carries into a matrix product)",
            **facts,
        )
        timeout.timeout_s = timeout_s
        return timeout
    if finished.exit_code < 0 or finished.exit_code > 128:
        number = -finished.exit_code if finished.exit_code < 0 else finished.exit_code - 128
        return CompilerCrashedError(f"the assembler was ended by {_signal_name(number)}", **facts)
    if re.search(r"Cannot find option named|architecture \S+ is not supported", text):
        known = report.toolchain.architectures
        unknown = UnknownArchitectureError(
            f"the assembler has no target {report.arch!r}; it has {', '.join(known) or 'none that it lists'}",
            **facts,
        )
        unknown.known = known
        return unknown
    version = _bytecode_version(report.bytecode)
    supported = report.toolchain.bytecode_versions
    if version is not None and supported and version not in supported:
        old = CompilerTooOldError(
            f"the assembler does not read bytecode {version_text(version)}, only "
            f"{', '.join(map(version_text, supported))}; a newer one comes with "
            f"pip install --upgrade {PACKAGES}",
            **facts,
        )
        old.needed, old.supported = version, supported
        return old
    if match := re.search(r"error: (Incompatibility with architecture .*)", text):
        places = parse_places(text)
        refused = ArchitectureError(_at(places, match[1]), **facts)
        refused.reason, refused.location = match[1], places[0] if places else None
        return refused
    if finished.exit_code == 3 and "error: " in text:
        return _rejected(report, finished, folder)
    hint = ""
    if "failed to compile Tile IR program" in text:
        hint = (
            " and does not say why; it does so where a kernel needs more shared memory than the architecture has: "
            "smaller tiles need less, above all of scans and of several tiles scanned or reduced together"
        )
    return CompilerFailedError(
        f"the assembler gave up with exit code {finished.exit_code}"
        + (hint if text.strip() else " and said nothing"),
        **facts,
    )


def _rejected(report: _Report, finished: Finished, folder: str | None) -> RejectedError:
    """A rejected module; where the assembler names no place, the disassembler may."""
    facts = report.facts(finished)
    text = finished.stderr
    if folder is not None and not parse_places(text) and report.toolchain.disassembler:
        again = _run(report, [report.toolchain.disassembler, _MODULE, "-g"], folder, DEFAULT_TIMEOUT_S)
        if again.exit_code == 3 and parse_places(again.stderr):
            text = again.stderr
    first = next((line for line in text.splitlines() if "error: " in line), "")
    rule = first.rpartition("error: ")[2] if "' op " not in first else first.partition("error: ")[2]
    named = re.search(r"'cuda_tile\.(\w+)' op (.*)", first)
    places = parse_places(first)
    rejected = RejectedError(_at(places, f"not valid Tile IR: {rule or 'no reason given'}"), **facts)
    rejected.rule = named[2] if named else rule
    rejected.op = named[1] if named else ""
    rejected.location = places[0] if places else None
    rejected.callers = places[1:]
    return rejected


def _at(places: tuple[Place, ...], reason: str) -> str:
    """`reason` with the first place, its source line with a caret under it, and the calls that led there."""
    if not places:
        return reason
    lines = []
    for position, (file, line, column) in enumerate(places):
        lines.append(
            f"{file}:{line}:{column}: {reason}" if not position else f"called from {file}:{line}:{column}"
        )
        text = linecache.getline(file, line).rstrip("\n")
        if text.strip():
            number = f"{line:5} | "
            indent = len(text) - len(text.lstrip())
            lines.append(number + text.lstrip())
            lines.append(" " * (len(number) - 2) + "| " + " " * max(0, column - 1 - indent) + "^")
    return "\n".join(lines)


def _bytecode_version(bytecode: bytes) -> Version | None:
    if len(bytecode) < _VERSION_OFFSET + 2:
        return None
    return bytecode[_VERSION_OFFSET], bytecode[_VERSION_OFFSET + 1]


def _kernel_names(bytecode: bytes) -> str:
    from ._decoder import decode_module
    from .errors import DecodeError

    try:
        return ", ".join(function.name for function in decode_module(bytecode).functions)
    except DecodeError:
        return ""


def _signal_name(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
