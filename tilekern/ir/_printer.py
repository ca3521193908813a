"""The printed form of a function: one line per operation, parsed back by `parse`.

    func @name(%x: ptr<f32>, %n: i32) num_ctas=2 {
      %sum = reduce %t axis=1 kind=max : tile<4xf32>
      %tile, %0 = load %view, [%i, %j], _ : tile<4x8xf32>, token
      %acc_1 = for %lower, %n, %step, [%zero] : f32 (%i: i32, %acc: f32) {
        continue [%acc]
      }
      return
    }

Results, mnemonic, operands (a list in brackets where there can be any number, `_` for one left out),
attributes that differ from their defaults, result types, regions. Names are hints made unique, values
without one are numbered; printing what was parsed gives the same text.
"""

from __future__ import annotations

import json
import re

from ._op import Block, Function, Op, Value

__all__ = ["format_function", "format_op"]

_WORD = re.compile(r"[a-z_][a-z0-9_]*", re.ASCII)
_NAME = re.compile(r"[A-Za-z_.$][A-Za-z0-9_.$]*", re.ASCII)
_RESERVED = {"true", "false", "none", "inf", "nan"}


def format_function(function: Function, *, locations: bool = False) -> str:
    """`function` as text; with `locations`, each operation's source place in a comment."""
    names = _Names()
    parameters = ", ".join(f"{names[v]}: {v.type}" for v in function.body.arguments)
    hints = "".join(f" {name}={value}" for name, value in function.hints.items())
    lines = [f"func @{function.name}({parameters}){hints} {{"]
    _format_block(function.body, names, "  ", lines, locations)
    return "\n".join([*lines, "}"]) + "\n"


def format_op(op: Op) -> str:
    """One operation as text, without its regions."""
    return _format_line(op, _Names())


class _Names:
    """Unique printed names, given in order of first use."""

    def __init__(self) -> None:
        self._names: dict[Value, str] = {}
        self._taken: set[str] = set()
        self._count = 0

    def __getitem__(self, value: Value) -> str:
        name = self._names.get(value)
        if name is None:
            name = self._names[value] = self._new(value.name)
        return name

    def _new(self, hint: str) -> str:
        if not _NAME.fullmatch(hint):
            self._count += 1
            return f"%{self._count - 1}"
        name, number = hint, 0
        while name in self._taken:
            number += 1
            name = f"{hint}_{number}"
        self._taken.add(name)
        return f"%{name}"


def _format_block(block: Block, names: _Names, indent: str, lines: list[str], locations: bool) -> None:
    for op in block.ops:
        text = indent + _format_line(op, names)
        comment = f"  // {op.location}" if locations and op.location else ""
        if not op.regions:
            lines.append(text + comment)
            continue
        for number, region in enumerate(op.regions):
            opening = text if number == 0 else f"{indent}}} else"
            if region.arguments:
                opening += f" ({', '.join(f'{names[v]}: {v.type}' for v in region.arguments)})"
            lines.append(opening + " {" + (comment if number == 0 else ""))
            _format_block(region, names, indent + "  ", lines, locations)
        lines.append(indent + "}")


def _format_line(op: Op, names: _Names) -> str:
    results = op.results
    text = f"{', '.join([names[v] for v in results])} = " if results else ""
    operands = []
    attributes = ""
    for name, kind in op.fields:
        value = getattr(op, name)
        if kind == "operand":
            operands.append(names[value])
        elif kind == "operands":
            operands.append(f"[{', '.join([names[v] for v in value])}]")
        elif kind == "optional":
            operands.append("_" if value is None else names[value])
        elif kind == "attribute" and not (hasattr(type(op), name) and getattr(type(op), name) == value):
            attributes += f" {name}={_format_attribute(value)}"
    text += op.mnemonic
    if operands:
        text += f" {', '.join(operands)}"
    text += attributes
    if results:
        text += f" : {', '.join([str(v.type) for v in results])}"
    return text


def _format_attribute(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_format_attribute, value))}]"
    assert isinstance(value, str), f"attribute {value!r} has no printed form"
    return value if _WORD.fullmatch(value) and value not in _RESERVED else json.dumps(value)
