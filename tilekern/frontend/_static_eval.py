"""`tk.static_eval(expression)`: Python itself computes an expression while the kernel is compiled.

So everything Python has can be used there, on values known at compile time. In place of a tile the
expression sees an object with its `dtype`, `shape`, `ndim` and `size`; it cannot compute with it, but choose it.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ._aggregates import leaves, rebuild
from ._iteration import is_static_range, static_range
from ._values import OwnedTileValue, RangeValue, TensorValue, Unset, describe, is_tile, tile_type

if TYPE_CHECKING:
    from ._frame import Frame
    from ._translator import Translator

__all__ = ["static_eval"]


class Known:
    """What `tk.static_eval` sees of a tile or parameter: what is known of it at compile time."""

    def __init__(self, value: object) -> None:
        self._value = value
        if is_tile(value):
            kind = tile_type(value)
            self.dtype, self.ndim, self.size = kind.number, kind.rank, kind.size
            self.shape: tuple[object, ...] = kind.shape
        elif isinstance(value, TensorValue):
            self.dtype, self.ndim = value.dtype, value.rank
            self.shape = tuple([None if is_tile(n) else n for n in value.shape])
        elif isinstance(value, OwnedTileValue):
            self.dtype, self.shape, self.ndim = value.tensor.dtype, value.tile_shape, len(value.tile_shape)

    def __getattr__(self, name: str) -> object:
        raise AttributeError(f"{describe(self._value)} has no {name} that is known at compile time")

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of {describe(self._value)} is not known at compile time")


Known.__name__ = "value of the kernel"  # what Python's own messages call it


def static_eval(t: Translator, frame: Frame, node: ast.Call) -> object:
    """The value of the call's only argument, computed by Python."""
    t.at(frame, node)
    if len(node.args) != 1 or node.keywords or isinstance(node.args[0], ast.Starred):
        raise t.wrong_type("static_eval takes one expression")
    expression = node.args[0]
    names: dict[str, object] = {}
    for part in ast.walk(expression):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load) and part.id not in names:
            value = frame.find(part.id)
            if isinstance(value, Unset):
                continue  # a variable of the expression's own, or Python's NameError
            names[part.id] = rebuild(value, iter([_seen(leaf) for leaf in leaves(value)]))
    code = compile(ast.fix_missing_locations(ast.Expression(expression)), "<static_eval>", "eval")
    try:
        result = eval(code, names)
    except Exception as error:
        t.at(frame, node)
        hint = ""
        if isinstance(error, TypeError) and any(
            isinstance(leaf, Known) for leaf in leaves(tuple(names.values()))
        ):
            hint = "; a value of the kernel has only its dtype, shape, ndim and size here"
        raise t.wrong_value(f"static_eval: {type(error).__name__}: {error}{hint}") from None
    if type(result) is list:
        result = tuple(result)
    return rebuild(
        result, iter([leaf._value if isinstance(leaf, Known) else leaf for leaf in leaves(result)])
    )


def _seen(value: object) -> object:
    if is_tile(value) or isinstance(value, TensorValue | OwnedTileValue):
        return Known(value)
    if isinstance(value, RangeValue) and is_static_range(value):
        return static_range(value)
    return value
