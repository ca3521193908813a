"""The variables of one function being translated, and how a run of statements ended."""

from __future__ import annotations

import ast
import builtins
import linecache
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import KernelNameError
from ..ir import Location
from ._captures import Captures
from ._carried import Carried
from ._values import Unset

if TYPE_CHECKING:
    from ..ir import Value
    from ._source import FunctionSource

__all__ = ["BROKE", "CONTINUED", "LEFT", "Ending", "Frame", "Loop", "Outcome", "Returned"]


@dataclass(frozen=True)
class Returned:
    """The function returned a value."""

    value: object


@dataclass(frozen=True)
class Ending:
    """A run of statements ended without reaching its end."""

    how: str


LEFT = Ending("left")
"""The IR block has its terminator: the loop went on, or was left, at run time."""
BROKE = Ending("break")
"""`break` in an unrolled loop, decided at compile time."""
CONTINUED = Ending("continue")
"""`continue` in an unrolled loop, decided at compile time."""

Outcome = Returned | Ending | None
"""None: the end was reached."""


def _no_counter() -> tuple[Value, ...]:
    return ()


@dataclass(eq=False)
class Loop:
    """A loop around the statement being translated.

    Attributes:
        unrolled: its turns are copies made at compile time; the rest is for others.
        branches: number of run-time branches around it.
        carried: the variables it carries.
        trial: a turn translated only to see what becomes of the variables.
        next_counter: adds the counter's next value, where `continue` hands it on.
        again: values a `continue` could hand on that nothing reaches.
        has_else: a `break` is noted, because something runs without one.
    """

    unrolled: bool
    branches: int
    carried: Carried = field(default_factory=lambda: Carried({}, [], []))
    trial: bool = False
    next_counter: Callable[[], tuple[Value, ...]] = _no_counter
    again: tuple[Value, ...] = ()
    has_else: bool = False


@dataclass(eq=False)
class Frame:
    """A function in translation.

    Attributes:
        source: the function.
        captures: notes what is read of the program around the kernel.
        caller: where it was called from; None for the kernel.
        outer: frame of the function it is defined in, for those defined inside of kernels.
        variables: local variables by name; replaced by a copy while a branch is translated.
        set_at: where each was set last.
        loops: loops around the current statement, outermost first.
        branches: number of run-time branches around the current statement.
        sides: number of run-time conditions in the current expression that decide whether this part of it runs.
        in_comprehension: it is not a function but a comprehension's own variables.
    """

    source: FunctionSource
    captures: Captures
    caller: Location | None = None
    outer: Frame | None = None
    variables: dict[str, object] = field(default_factory=dict)
    set_at: dict[str, ast.AST] = field(default_factory=dict)
    loops: list[Loop] = field(default_factory=list)
    branches: int = 0
    sides: int = 0
    in_comprehension: bool = False

    @property
    def is_kernel(self) -> bool:
        """True for the kernel itself, False for functions it calls."""
        return self.caller is None and self.outer is None

    def locate(self, node: ast.AST) -> Location:
        """Where `node` stands; its columns in characters, not in the bytes that `ast` counts."""
        line = getattr(node, "lineno", 0)
        column = getattr(node, "col_offset", 0)
        end_line = getattr(node, "end_lineno", line)
        end_column = getattr(node, "end_col_offset", column)
        text = linecache.getline(self.source.file, line)
        if not text.isascii():
            data = text.encode()
            column = len(data[:column].decode(errors="replace"))
            if end_line == line:
                end_column = len(data[:end_column].decode(errors="replace"))
        return Location(self.source.file, line, column, end_line, end_column, self.source.name, self.caller)

    def lookup(self, node: ast.Name) -> object:
        """The value of a name: a variable here or around, captured, of the module, or Python's own."""
        name = node.id
        value = self.find(name)
        if isinstance(value, Unset):
            raise KernelNameError(value.reason, self.locate(node))
        return value

    def find(self, name: str) -> object:
        """What a name is bound to; an `Unset` where it is to nothing."""
        frame: Frame | None = self
        while frame is not None:
            if name in frame.variables:
                return frame.variables[name]
            if name in frame.source.cells:
                try:
                    return self.captures.from_cell(frame.source.cells[name], name)
                except ValueError:
                    return Unset(f"{name!r}, of the function around, has no value yet")
            if name in frame.source.local_names:
                return Unset(f"{name!r} is used before it is set")
            frame = frame.outer
        if name in self.source.globals:
            return self.captures.from_globals(self.source.globals, name)
        if hasattr(builtins, name):
            return getattr(builtins, name)
        from .. import language

        hint = f"; is tk.{name} meant?" if name in language.__all__ else ""
        return Unset(f"name {name!r} is not defined{hint}")
