"""Running one of NVIDIA's tools: bounded in time, with a temporary folder of its own, leaving nothing behind.

The tools read CUDA_HOME, CUDA_PATH and CUDA_ROOT to find libnvvm and ptxas and then fail on those of an
older toolkit, so they run without. They leave files in TMPDIR when killed, and start ptxas as a child:
hence a private folder and a process group that is killed as a whole.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

__all__ = ["Finished", "run_tool"]

_REST_S = 5.0
_UNSET = ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT")


@dataclass(frozen=True, slots=True)
class Finished:
    """How a tool ended."""

    exit_code: int | None
    """Negative: ended by that signal. None: it did not end in time and was killed."""
    stdout: str
    stderr: str


def run_tool(
    command: Sequence[str | Path],
    folder: Path,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
) -> Finished:
    """Run `command` with `folder` as its working and temporary folder.

    Args:
        environment: variables to set besides this process's own.
    Raises:
        OSError: it could not be started.
    """
    import subprocess

    variables = {name: value for name, value in os.environ.items() if name not in _UNSET}
    variables.update(environment or {}, TMPDIR=str(folder))
    with subprocess.Popen(
        [str(word) for word in command],
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
            exit_code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            _kill_group(process.pid)
            out, err = _rest(process)
            exit_code = None
        except BaseException:  # an interrupt must not leave the tool running
            _kill_group(process.pid)
            raise
    return Finished(exit_code, out.decode(errors="replace"), err.decode(errors="replace"))


def _rest(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """What a killed tool had printed; nothing if a process that left its group still holds the pipes."""
    import subprocess

    try:
        return process.communicate(timeout=_REST_S)
    except subprocess.TimeoutExpired:
        return b"", b""


def _kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass
