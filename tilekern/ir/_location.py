"""Where in the user's source an operation comes from, through inlined helpers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Location"]

_CALLS_SHOWN = 3
"""Of a long chain of calls, such as a recursion without end, as many are shown at either end."""


@dataclass(frozen=True, slots=True)
class Location:
    """A range of source text, and where the function that holds it was called from.

    Lines count from 1; columns from 0 and in characters, as carets need them.
    """

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    function: str
    caller: Location | None = None

    def chain(self) -> Iterator[Location]:
        """This place, then the call that led to it, and so on outwards."""
        here: Location | None = self
        while here is not None:
            yield here
            here = here.caller

    def describe(self, reason: str) -> str:
        """`reason` with the source line, a caret under it, and the calls that led there."""
        lines = [f"{self.file}:{self.line}:{self.column + 1}: {reason}", *self._excerpt()]
        calls = list(self.chain())[1:]
        left_out = len(calls) - 2 * _CALLS_SHOWN if len(calls) > 3 * _CALLS_SHOWN else 0
        for number, call in enumerate(calls):
            if _CALLS_SHOWN <= number < _CALLS_SHOWN + left_out:
                continue
            if left_out and number == _CALLS_SHOWN + left_out:
                lines += [f"... {left_out} calls in between"]
            lines += [f"called from {call.file}:{call.line}:{call.column + 1}, in {call.function}"]
            lines += call._excerpt()
        return "\n".join(lines)

    def _excerpt(self) -> list[str]:
        import linecache

        text = linecache.getline(self.file, self.line).rstrip("\n")
        if not text.strip():
            return []
        end = self.end_column if self.end_line == self.line else len(text)
        indent = len(text) - len(text.lstrip())
        number = f"{self.line:5} | "
        caret = " " * (self.column - indent) + "^" * max(1, end - self.column)
        return [number + text.lstrip(), " " * (len(number) - 2) + "| " + caret]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column + 1}"
