"""Source locations: what the bytecode's debug section holds, and the simple form a front end gives.

A front end says `SourceLocation("f.py", 12, 5)`; code inlined from a helper has the helper's place and
`caller=` the place of the call, any number of times. The bytecode wants more (compile unit, file,
subprogram, and for each op a location inside its function's subprogram or a chain of call sites that
ends in one); `LocationTable` builds that.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "CallSite",
    "CompileUnit",
    "DebugAttribute",
    "DebugLocation",
    "File",
    "LexicalBlock",
    "Location",
    "LocationTable",
    "Scope",
    "SourceLocation",
    "Subprogram",
]


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A place in the user's source.

    Attributes:
        file: path, absolute or relative, as it shall appear in messages and line tables.
        line, column: from 1.
        function: name of the Python function the line is in; "" means the kernel itself.
        caller: where that function was called, for code inlined from a helper.
    """

    file: str
    line: int
    column: int = 1
    function: str = ""
    caller: SourceLocation | None = None


@dataclass(frozen=True, slots=True)
class File:
    name: str
    directory: str


@dataclass(frozen=True, slots=True)
class CompileUnit:
    file: File


@dataclass(frozen=True, slots=True)
class Subprogram:
    """A function of the source; that of an entry has the entry's name as linkage name."""

    file: File
    line: int
    name: str
    linkage_name: str
    compile_unit: CompileUnit
    scope_line: int


@dataclass(frozen=True, slots=True)
class LexicalBlock:
    scope: Scope
    file: File
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Location:
    scope: Scope
    file_name: str
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class CallSite:
    """Code at `callee` that was inlined into the place `caller`."""

    callee: DebugLocation
    caller: DebugLocation


Scope = Subprogram | LexicalBlock
DebugLocation = Location | CallSite
DebugAttribute = File | CompileUnit | Subprogram | LexicalBlock | Location | CallSite


class LocationTable:
    """Turns the source locations of one kernel into debug locations.

    `function` is where the kernel is defined; its file and line become the entry's subprogram.
    """

    def __init__(self, linkage_name: str, function: SourceLocation) -> None:
        self._unit = CompileUnit(_file(function.file))
        self._entry = Subprogram(
            self._unit.file,
            function.line,
            function.function or linkage_name,
            linkage_name,
            self._unit,
            function.line,
        )
        self._cache: dict[SourceLocation, DebugLocation] = {}
        self.function = Location(self._entry, function.file, function.line, function.column)
        """The location of the entry itself."""

    def resolve(self, source: SourceLocation) -> DebugLocation:
        """The debug location of an operation at `source`."""
        known = self._cache.get(source)
        if known is None:
            known = self._cache[source] = self._build(source)
        return known

    def _build(self, source: SourceLocation) -> DebugLocation:
        if source.caller is None:
            return Location(self._entry, source.file, source.line, source.column)
        file = _file(source.file)
        # The line a helper starts at is not known here; its own line serves, as only the name is shown.
        inlined = Subprogram(file, source.line, source.function, source.function, self._unit, source.line)
        callee = Location(inlined, source.file, source.line, source.column)
        return CallSite(callee, self.resolve(source.caller))


def _file(path: str) -> File:
    directory, _, name = path.rpartition("/")
    return File(name or path, directory or "/" * path.startswith("/") or ".")
