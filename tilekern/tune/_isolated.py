"""Configurations in a process of their own, which is killed when one hangs, and started anew.

The process imports the module that `make` and `verify` come from, so those are functions at the top of a module.
The main program's module is imported from its file under another name, so that its `if __name__ == "__main__":`
part does not run there. Both sides speak JSON lines over two pipes of their own: what the program prints goes
where it always goes.

A device that is lost takes the process with it, so that is started anew as well.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from cuda_async import Device

from ..bench import Comparison, MeasureOptions, Timing
from ..errors import TilekernError
from ._runner import Make, Outcome, Verify
from ._space import Config, config_key

__all__ = ["Isolated"]

_START_S = 120.0
"""For importing the caller's module and opening the device."""


class Isolated:
    """Runs configurations in another process, each within `timeout_s`."""

    def __init__(
        self,
        make: Make,
        verify: Verify | None,
        device: Device,
        options: MeasureOptions | None,
        timeout_s: float,
    ) -> None:
        if not isinstance(timeout_s, int | float) or not 0 < timeout_s < float("inf"):
            raise ValueError(f"timeout_s is a number of seconds above 0, got {timeout_s!r}")
        self._hello = {
            "make": _address(make, "make"),
            "verify": None if verify is None else _address(verify, "verify"),
            "device": f"{device.kind}:{device.ordinal}",
            "options": dataclasses.asdict(options or MeasureOptions()),
            "path": sys.path,
        }
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Isolated:
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def run(self, config: Config, slow_ms: float | None) -> Outcome:
        answer = self._ask({"run": json.loads(config_key(config)), "slow_ms": slow_ms})
        return answer if isinstance(answer, Outcome) else Outcome(**answer["outcome"])

    def compare(self, first: Config, second: Config) -> Comparison | Outcome:
        answer = self._ask({"compare": [json.loads(config_key(first)), json.loads(config_key(second))]})
        if isinstance(answer, Outcome):
            return answer
        if "outcome" in answer:
            return Outcome(**answer["outcome"])
        found = answer["comparison"]
        return Comparison(
            Timing(tuple(found["first"])),
            Timing(tuple(found["second"])),
            found["ratio"],
            (found["interval"][0], found["interval"][1]),
        )

    def _ask(self, question: Mapping[str, object]) -> dict[str, Any] | Outcome:
        """The process's answer, or what became of it."""
        if self._process is None:
            self._start()
        self._send(question)
        try:
            answer = self._receive(self._timeout_s)
        except TimeoutError:
            self._stop(grace_s=0)
            return Outcome("timeout", None, f"not done after {self._timeout_s:g} s, and killed")
        if answer is None:
            code = self._stop()
            return Outcome("invalid", None, f"the process ended with exit code {code}")
        if answer.get("is_lost"):
            self._stop()
        return answer

    def _start(self) -> None:
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        command = [sys.executable, "-m", "tilekern.tune._worker", str(theirs_in), str(theirs_out)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([p for p in sys.path if p])}
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=(theirs_in, theirs_out),
                process_group=0,
            )
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        self._pending = b""
        self._send(self._hello)
        try:
            answer = self._receive(_START_S)
        except TimeoutError:
            self._stop(grace_s=0)
            raise TilekernError(
                f"the process that runs candidates did not start within {_START_S:g} s"
            ) from None
        if answer is None or "error" in answer:
            code = self._stop()
            reason = answer["error"] if answer else f"it ended with exit code {code}"
            raise TilekernError(f"the process that runs candidates did not start: {reason}")

    def _send(self, message: Mapping[str, object]) -> None:
        data = json.dumps(message).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self._to, data) :]
        except BrokenPipeError:
            pass  # it has ended, which the answer says

    def _receive(self, timeout_s: float) -> dict[str, Any] | None:
        """The next line; None at the end of the process."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._from], [], [], left)[0]:
                raise TimeoutError
            part = os.read(self._from, 1 << 16)
            if not part:
                return None
            self._pending += part
        line, _, self._pending = self._pending.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _stop(self, grace_s: float = 5.0) -> int | None:
        """End the process: by itself if it does so in time, else by force; its exit code."""
        process, self._process = self._process, None
        if process is None:
            return None
        os.close(self._to)
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        code = process.wait()
        os.close(self._from)
        return code


def _address(function: Callable[..., object], what: str) -> list[str]:
    """[module, file of the main program or "", qualified name] of a function at the top of a module."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    owner = sys.modules.get(str(module))
    if owner is None or getattr(owner, name, None) is not function:
        raise TypeError(
            f"{what} is {function!r}, which another process cannot import; with timeout_s it must be a function at "
            "the top of a module"
        )
    if module != "__main__":
        return [str(module), "", name]
    file = getattr(owner, "__file__", None)
    if file is None:
        raise TypeError(
            f"{what} is defined in a program without a file; put it into a module to use timeout_s"
        )
    return ["__main__", os.path.abspath(file), name]
