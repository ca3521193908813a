"""Finding the source text of a Python function, and its syntax tree with the file's own line numbers.

The text comes from `linecache`, which knows files, notebook cells, the REPL where it keeps its input, and
whatever a program registered there before `exec`; for `python -c`, from the command line. Where a name says
little, as "<string>" does, a text is taken only if it compiles to the very code of the function. Trees are
kept per code object.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import linecache
import os
import stat
import sys
import textwrap
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ..errors import KernelSourceError
from ._register import LOADED_AT
from ._syntax import assigned_names

__all__ = ["FunctionNode", "FunctionSource", "source_of"]

FunctionNode = ast.FunctionDef | ast.Lambda


@dataclass(eq=False)
class FunctionSource:
    """A Python function as the front end sees it.

    Attributes:
        name: its name, for messages.
        node: syntax tree, with line numbers of `file`.
        file: what `linecache` knows its text by.
        globals: names of its module.
        cells: its closure, by name.
        defaults: default values by parameter name.
    """

    name: str
    node: FunctionNode
    file: str
    globals: Mapping[str, object]
    cells: Mapping[str, types.CellType] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)

    @cached_property
    def local_names(self) -> frozenset[str]:
        """Names the function binds: they are its own even before it has set them."""
        body = [] if isinstance(self.node, ast.Lambda) else self.node.body
        return frozenset(assigned_names(body))


_MAGICS = {"<timed exec>": "%%time", "<magic-timeit>": "%%timeit"}
"""Names that IPython gives to code whose text it does not keep, and what runs such code."""


def source_of(function: types.FunctionType) -> FunctionSource:
    """The source of `function`.

    Raises:
        KernelSourceError: its text cannot be found, or is not that function's any more.
    """
    code = function.__code__
    node = _nodes.get(code)
    if node is None:
        node = _nodes[code] = _parse(function)
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    arguments = node.args
    positional = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    values = function.__defaults__ or ()
    defaults: dict[str, object] = dict(zip(positional[len(positional) - len(values) :], values, strict=True))
    defaults.update(function.__kwdefaults__ or {})
    return FunctionSource(function.__name__, node, code.co_filename, function.__globals__, cells, defaults)


_nodes: dict[types.CodeType, FunctionNode] = {}


def _parse(function: types.FunctionType) -> FunctionNode:
    code = function.__code__
    found_text = False
    for lines, is_surely_it in _texts(function):
        found_text = found_text or code.co_firstlineno <= len(lines)
        node = _find(function, lines)
        if node is not None and (is_surely_it or _compiles_to(code, lines)):
            return node
    # these name every text given so; the one Python knows may be another
    if not found_text or code.co_filename in _SHARED_NAMES:
        if code.co_filename in _MAGICS:
            raise KernelSourceError(
                f"the source of {function.__name__} is not available: {_MAGICS[code.co_filename]} runs a cell without "
                "keeping its text; define the kernel in a cell of its own"
            )
        raise KernelSourceError(
            f"the source of {function.__name__}, defined in {code.co_filename}, is not available, and tile "
            "kernels are compiled from their source; define it in a file, a notebook cell or (from "
            "Python 3.13 on) the REPL, or make its text known "
            "before exec: exec(compile(text, tk.register_source(text), 'exec'))"
        )
    raise KernelSourceError(
        f"the text at {code.co_filename}:{code.co_firstlineno} is not the definition of {function.__name__}: the "
        "file has changed since it was loaded, so start Python again"
    )


_SHARED_NAMES = ("<string>", "<stdin>")
"""What code is said to come from that came from a string, or from standard input."""


def _texts(function: types.FunctionType) -> Iterator[tuple[list[str], bool]]:
    """Texts a function may be defined in, and whether there is no doubt that it is."""
    code = function.__code__
    linecache.checkcache(code.co_filename)  # the module may have been edited and loaded again
    lines = linecache.getlines(code.co_filename, function.__globals__)
    if code.co_filename not in _SHARED_NAMES:
        yield lines, not _changed_since_loaded(code)
        return
    yield lines, False
    if function.__module__ == "__main__":
        for text in _texts_of_main():
            yield text.splitlines(keepends=True), False


def _texts_of_main() -> Iterator[str]:
    """What `python -c` was given, and standard input where it is a file: Python itself forgets both."""
    arguments = sys.orig_argv
    if "-c" in arguments[:-1]:
        text = arguments[arguments.index("-c") + 1]
        yield text
        yield textwrap.dedent(text)
    try:
        about = os.fstat(0)
        if stat.S_ISREG(about.st_mode) and about.st_size < MAX_STANDARD_INPUT:
            yield os.pread(0, about.st_size, 0).decode()
    except (OSError, ValueError, AttributeError):  # none, closed, no text, or no such call on this system
        return


MAX_STANDARD_INPUT = 1 << 24
"""Bytes of a file given as standard input up to which it is looked into."""


def _find(function: types.FunctionType, lines: list[str]) -> FunctionNode | None:
    code = function.__code__
    if code.co_firstlineno > len(lines):
        return None
    return _find_lambda(code, lines) if function.__name__ == "<lambda>" else _find_function(code, lines)


def _parameters(node: FunctionNode) -> tuple[str, ...]:
    arguments = node.args
    return tuple([a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)])


def _find_function(code: types.CodeType, lines: list[str]) -> ast.FunctionDef | None:
    """The `def` at a code object's first line; only its own lines are parsed."""
    first = code.co_firstlineno
    try:
        text = "".join(inspect.getblock(lines[first - 1 :]))
        indented = text[:1].isspace()
        # an indented block is parsed inside of an `if`, so that columns and strings stay as they are
        tree = ast.parse(f"if True:\n{text}" if indented else text)
    except (SyntaxError, EOFError):
        return None
    wanted = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.name != code.co_name or _parameters(node) != wanted:
            continue
        starts = [node.lineno, *[decorator.lineno for decorator in node.decorator_list]]
        if min(starts) == (2 if indented else 1):
            ast.increment_lineno(node, first - (2 if indented else 1))
            return node
    return None


def _changed_since_loaded(code: types.CodeType) -> bool:
    """True if the file of `code` has changed since this package was loaded; its lines may stand where they did."""
    entry = linecache.cache.get(code.co_filename)
    changed_at = entry[1] if entry is not None and len(entry) == 4 else None
    return changed_at is not None and changed_at >= LOADED_AT and "@pytest_ar" not in code.co_names


def _compiles_to(code: types.CodeType, lines: list[str]) -> bool:
    """True if compiling the text gives `code` somewhere."""
    future = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
    try:
        flags = code.co_flags & future
        made = compile("".join(lines), code.co_filename, "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    meaning = _meaning(code)
    return any(
        c.co_name == code.co_name and c.co_firstlineno == code.co_firstlineno and _meaning(c) == meaning
        for c in _codes(made)
    )


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _codes(constant)


def _meaning(code: types.CodeType) -> list[object]:
    """What code does, without how calls are prepared: that depends on which names the text imports.

    A text may have been compiled in pieces, as cells are.
    """
    import dis

    parts: list[object] = [code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]]
    for step in dis.get_instructions(code):
        if step.opname in ("PUSH_NULL", "PRECALL", "NOP", "EXTENDED_ARG"):
            continue
        value = step.argval
        if isinstance(value, types.CodeType):
            value = _meaning(value)
        elif step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
            value = None
        parts.append(("LOAD_ATTR" if step.opname == "LOAD_METHOD" else step.opname, repr(value)))
    return parts


def _find_lambda(code: types.CodeType, lines: list[str]) -> ast.Lambda | None:
    """The smallest lambda around all places the code's instructions come from; the whole file is parsed."""
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return None
    # places of one line in `ast`'s terms: (line, column in bytes)
    starts = [(p[0], p[2]) for p in code.co_positions() if None not in p and p[2] != p[3]]
    wanted = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    best: ast.Lambda | None = None
    for node in ast.walk(tree):
        if not isinstance(node, ast.Lambda) or _parameters(node) != wanted:
            continue
        begin, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
        holds_all = all(begin <= start < end for start in starts)
        if holds_all and (best is None or begin >= (best.lineno, best.col_offset)):
            best = node
    return best
