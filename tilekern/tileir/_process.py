"""Running one of NVIDIA's tools: bounded in time and output, in a temporary folder of its own, leaving nothing behind.

The tools read CUDA_HOME, CUDA_PATH and CUDA_ROOT to find libnvvm and ptxas and then fail on those of an
older toolkit, so they run without. They leave files in TMPDIR when killed, and start ptxas as a child:
hence a private folder and a process group that is killed as a whole.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

__all__ = ["Finished", "run_tool"]

_REST_S = 5.0
MOST_OUTPUT = 64 << 20
"""Bytes that are kept of what a tool prints, of each of its two outputs; the rest is read and dropped."""
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
            printed = _Printed(process)
            exit_code: int | None = printed.until_end(timeout_s)
        except TimeoutError:
            _kill_group(process.pid)
            exit_code = None
            # A process that left the group may still hold the pipes.
            with contextlib.suppress(TimeoutError):
                printed.until_end(_REST_S)
        except BaseException:  # an interrupt must not leave the tool running
            _kill_group(process.pid)
            raise
        out, err = printed.texts()
    return Finished(exit_code, out, err)


class _Printed:
    """What a process prints on its two outputs."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._kept = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
        self._open = set(self._kept)

    def until_end(self, timeout_s: float) -> int:
        """Read until both outputs are closed and the process has ended; its exit code.

        Raises:
            TimeoutError: it has not ended in time; can be called again.
        """
        import subprocess

        over_at = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            for descriptor in self._open:
                selector.register(descriptor, selectors.EVENT_READ)
            while self._open:
                left_s = over_at - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError
                for key, _ in selector.select(left_s):
                    data = os.read(key.fd, 1 << 16)
                    if not data:
                        selector.unregister(key.fd)
                        self._open.discard(key.fd)
                    kept = self._kept[key.fd]
                    kept += data[: MOST_OUTPUT - len(kept)]
        try:
            return self._process.wait(max(0.0, over_at - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise TimeoutError from None

    def texts(self) -> tuple[str, str]:
        """What was kept of either."""
        out, err = (kept.decode(errors="replace") for kept in self._kept.values())
        return out, err


def _kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass
