"""What a kernel declares of its arguments, verified on every launch and taken as known while it is compiled.

Two forms, as text: `dim(a, 0) == dim(b, 1)`, extents of two tensors that are equal, or of one and a number; and
`dim(a, 0) % 16 == 0`, an extent that is a multiple.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .._terms import Argument, LaunchFacts, Term, constant, encoded, quotient
from ..errors import KernelOptionError, KernelValueError
from ._checks import LaunchCheck, Requires

if TYPE_CHECKING:
    from ..ir import Location

__all__ = ["apply_preconditions", "check_syntax"]

FORMS = "dim(a, 0) == dim(b, 1), dim(a, 0) == 128 or dim(a, 0) % 16 == 0"

_Dim = tuple[str, int]


def check_syntax(text: object) -> None:
    """Refuse what is no precondition.

    Raises:
        KernelOptionError: it has another form.
    """
    if not isinstance(text, str):
        raise KernelOptionError(f"a precondition is text such as {FORMS}; got {text!r}")
    _parse(text)


def _parse(text: str) -> tuple[_Dim, _Dim | int, bool]:
    """(dimension, what it equals or is a multiple of, whether it is the latter)."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        node = None
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq):
        left, right = node.left, node.comparators[0]
        if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod):
            first, divisor = _dim(left.left), _number(left.right)
            if first is not None and divisor is not None and divisor > 0 and _number(right) == 0:
                return first, divisor, True
        first = _dim(left)
        second = _dim(right)
        if first is not None and (other := second if second is not None else _number(right)) is not None:
            return first, other, False
    raise KernelOptionError(f"precondition {text!r} is not understood; the forms are {FORMS}")


def _dim(node: ast.expr) -> _Dim | None:
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "dim"
        and len(node.args) == 2
        and not node.keywords
        and isinstance(node.args[0], ast.Name)
    ):
        axis = _number(node.args[1])
        return None if axis is None else (node.args[0].id, axis)
    return None


def _number(node: ast.expr) -> int | None:
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value >= 0:
        return node.value
    return None


def apply_preconditions(
    texts: Sequence[str],
    extent: Callable[[str, int], Term | None],
    facts: LaunchFacts,
    location: Location | None,
) -> tuple[LaunchFacts, list[LaunchCheck]]:
    """The facts with the preconditions in them, and the checks that launches get.

    Args:
        extent: the dimension of a parameter; None if there is no such.
    Raises:
        KernelValueError: at the kernel, a precondition about something it has not, or that never holds.
    """
    equal: dict[Term, Term] = {}
    multiples: list[tuple[Term, int]] = []
    checks: list[LaunchCheck] = []

    def find(where: _Dim, text: str) -> Term:
        term = extent(*where)
        if term is None:
            raise KernelValueError(
                f"precondition {text!r}: there is no tensor parameter {where[0]} with an axis {where[1]}",
                location,
            )
        return term

    def settled(term: Term) -> Term:
        while term in equal:
            term = equal[term]
        return term

    for text in texts:
        first, other, is_multiple = _parse(text)
        left = find(first, text)
        terms: tuple[Term, ...]
        conditions: tuple[Term, ...]
        if is_multiple:
            assert isinstance(other, int)
            multiples.append((left, other))
            wrong, terms = left - quotient(left, constant(other)) * other, (left,)
            conditions = (-wrong,)
        else:
            right = constant(other) if isinstance(other, int) else find(other, text)
            conditions, terms = (left - right, right - left), (left, right)
            a, b = settled(left), settled(right)
            if a != b:
                if a.number is not None:
                    a, b = b, a
                equal[a] = b
        if all(c.number is not None for c in conditions):
            if any(c.constant < 0 for c in conditions):
                raise KernelValueError(f"precondition {text!r} does not hold for these arguments", location)
            continue
        values = " and ".join([f"{term} is {{{i}}}" for i, term in enumerate(terms) if term.number is None])
        flats = {a.position for term in terms for a in term.atoms() if isinstance(a, Argument)}
        shown = tuple(terms)
        reason = f"precondition {text} does not hold: {values}"
        reads = tuple(sorted(flats))
        checks.append(Requires(encoded(conditions), (), False, reason, encoded(shown), reads, location))
    pairs = tuple([(a, settled(b)) for a, b in equal.items()])
    return facts._replace(equal=pairs, multiples=tuple(multiples)), checks
