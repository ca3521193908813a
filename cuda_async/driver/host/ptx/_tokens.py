"""PTX text as tokens, and errors that show the line.

A token is (kind, text, offset). Debug sections (`.section ... { ... }`) hold nothing a run needs and can be
most of a `-G` build, so the scan takes each for one long blank.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import NamedTuple

from ....errors import CompileError

__all__ = ["Source", "Token"]


class Token(NamedTuple):
    """One token; `kind` is "name", "dot" (`.name`), "int", "float", "string", "mark" or "end"."""

    kind: str
    text: str
    offset: int


_TOKEN = re.compile(
    r"""
      (?P<skip>\s+|//[^\n]*|/\*.*?\*/|@@DWARF[^\n]*
        |\.section(?:\s|//[^\n]*|/\*.*?\*/)++[\w.$]+(?:\s|//[^\n]*|/\*.*?\*/)*+
            \{(?:[^}/]+|//[^\n]*|/\*.*?\*/)*+\})
    | (?P<float>0[fF][0-9a-fA-F]{8}(?!\w)|0[dD][0-9a-fA-F]{16}(?!\w)
        |(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?(?!\w)|\d+[eE][+-]?\d+(?!\w))
    | (?P<int>0[xX][0-9a-fA-F]+U?(?!\w)|0[bB][01]+U?(?!\w)|0[0-7]*U?(?!\w)|[1-9]\d*U?(?!\w))
    | (?P<name>(?:[A-Za-z_$]|%(?=[A-Za-z_$]))[\w$]*(?:\.\w+(?:::\w+)*)*)
    | (?P<dot>\.[A-Za-z_]\w*)
    | (?P<string>"(?:[^"\\\n]|\\.)*")
    | (?P<mark><<|>>|<=|>=|==|!=|&&|\|\||[{}()\[\],;:<>@!+\-*/%&|^~?=])
    """,
    re.VERBOSE | re.DOTALL,
)


_LONG = 1000
_LONG_NUMBER = re.compile(rf"\d{{{_LONG}}}")
"""Python itself converts no more than 4300 digits; registers have numbers too."""


class Source:
    """The text of a module: its tokens, its lines, and how to point at a place in it."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.text = text
        self._lines = text.split("\n")
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line) + 1)
        self.tokens = self._scan(text)

    def _scan(self, text: str) -> list[Token]:
        tokens: list[Token] = []
        append = tokens.append
        position, end = 0, len(text)
        match = _TOKEN.match
        while position < end:
            found = match(text, position)
            if found is None:
                raise self.error(f"unexpected character {text[position]!r}", position)
            kind = found.lastgroup
            if kind != "skip":
                assert kind is not None
                if found.end() - position > _LONG and kind != "string" and _LONG_NUMBER.search(found.group()):
                    raise self.error(f"a number of more than {_LONG} digits", position)
                append(Token(kind, found.group(), position))
            position = found.end()
        append(Token("end", "", end))
        return tokens

    def line_of(self, offset: int) -> int:
        """Line number, from 1, of a token's offset."""
        return bisect_right(self._starts, offset)

    def error(self, message: str, offset: int) -> CompileError:
        """A `CompileError` that shows the place: line, name, the line's text and a caret."""
        line = min(self.line_of(offset), len(self._lines))
        column = offset - self._starts[line - 1]
        shown = self._lines[line - 1].rstrip()
        column = min(column, len(shown))
        pad = "".join("\t" if c == "\t" else " " for c in shown[:column])
        label = f"{line:>5} | "
        return CompileError(
            f"line {line} of {self.name}: {message}\n{label}{shown}\n{' ' * (len(label) - 2)}| {pad}^"
        )
