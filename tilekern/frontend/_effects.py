"""What a kernel does to memory. One that stores nothing to an output leaves there what was there before.

Stores and loads are noted as they are translated. Code that is left out at compile time is noted too: an
output it would store to is left alone on purpose.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ..errors import KernelTypeError, KernelValueError
from ..ir import Function, MemoryOp, Value, memory_roots, walk
from ._aggregates import leaves
from ._values import OwnedTileValue, RawMemoryValue, TensorValue, TiledViewValue, is_pointer

if TYPE_CHECKING:
    from ._frame import Frame
    from ._translator import Translator

__all__ = ["Effects", "check_effects"]

_READERS = ("load", "load_like", "num_tiles", "cdiv")


class Effects:
    """Names of the parameters a kernel stores to, loads from, and would store to in code left out.

    Attributes:
        asserts: whether it has assertions that run.
    """

    def __init__(self) -> None:
        self.stored: set[str] = set()
        self.loaded: set[str] = set()
        self.left_out: set[str] = set()
        self.asserts = False

    def leave_out(self, frame: Frame, nodes: Iterable[ast.AST]) -> None:
        """Note what code that is not translated would store to."""
        for root in nodes:
            for node in ast.walk(root):
                for name in _stored_names(node):
                    value = frame.find(name)
                    for leaf in leaves(value):
                        if is_pointer(leaf) or isinstance(
                            leaf, TensorValue | OwnedTileValue | TiledViewValue | RawMemoryValue
                        ):
                            self.left_out.add(leaf.name)


def _stored_names(node: ast.AST) -> Iterable[str]:
    """Names of what a node may store to: `x` in `x.store`, and arguments of calls that do not only read."""
    if isinstance(node, ast.Attribute) and node.attr.startswith(("store", "atomic_")):
        yield from _root_name(node.value)
    elif isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if called not in _READERS:
            for argument in (*node.args, *[keyword.value for keyword in node.keywords]):
                yield from _root_name(argument)


def _root_name(node: ast.expr) -> Iterable[str]:
    """`x` of `x`, `x.part` and `x[0]`."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id


def note_accesses(t: Translator, function: Function) -> None:
    """Note what is accessed through pointers, which may come from several parameters.

    Raises:
        KernelTypeError: a store where a parameter given for reading points to, at its line.
    """
    roots = memory_roots(function)
    for op in walk(function.body):
        if not isinstance(op, MemoryOp):
            continue
        for root in roots[op.accessed]:
            name, writable = t.memory[root]
            if op.effect == "write" and not writable:
                raise KernelTypeError(
                    f"{name} is given for reading; give it as ca.mut({name}) to store to it", op.location
                )
            (t.effects.stored if op.effect == "write" else t.effects.loaded).add(name)


def check_effects(
    effects: Effects, frame: Frame, parameters: dict[str, object], memory: Mapping[Value, tuple[str, bool]]
) -> None:
    """Refuse a kernel with an output it neither stores to nor loads, or without any effect.

    Raises:
        KernelValueError: at the parameter.
    """
    outputs = [
        (value.name, isinstance(value, OwnedTileValue), parameter)
        for parameter, whole in parameters.items()
        for value in leaves(whole)
        if isinstance(value, OwnedTileValue)
        or (isinstance(value, TensorValue) and value.writable)
        or (is_pointer(value) and memory[value][1])
    ]
    does_something = bool(effects.stored or effects.left_out or effects.asserts)
    for name, is_partition, parameter in outputs:
        if name in effects.stored | effects.left_out or (does_something and name in effects.loaded):
            continue
        if is_partition:
            reason = f"nothing is stored to {name}, a partition; store its tile with {name}.store(tile)"
        else:
            reason = (
                f"nothing is stored to {name}, given as mut; store to it with tk.store({name}, index, tile)"
            )
        if effects.stored:
            reason += ", or give the tensor as it is"
            reason += " and say .grid(...) if it is there for the grid" if is_partition else ""
        arguments = frame.source.node.args
        nodes = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        node = next(a for a in nodes if a.arg == parameter)
        raise KernelValueError(reason, frame.locate(node))
