"""What people try with a tensor, or an operation that yields one, because arrays have it: errors that say what to do.

The names belong to the class, so they cost nothing where they are not used, and what a subclass or an object has of
that name comes first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["instead_of_a_value", "unlike_arrays"]

C = TypeVar("C", bound=type)

_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
_OPERATORS = (
    *(f"__{kind}{name}__" for name in _BINARY for kind in ("", "r", "i")),
    *(f"__{name}__" for name in ("neg", "pos", "abs", "float", "int")),
)


def instead_of_a_value(thing: object) -> str:
    """How to get what an operation or future (or one of that class) yields, as the end of a message that refuses it.

    "" for anything else.
    """
    hint: str = getattr(thing if isinstance(thing, type) else type(thing), "_instead_of_a_value", "")
    return hint


class _Missing:
    """An attribute that is not there."""

    def __init__(self, name: str, refuse: Callable[[Any, str], NoReturn]) -> None:
        self._name = name
        self._refuse = refuse

    def __get__(self, found: Any, owner: type) -> NoReturn:
        if found is None:  # dataclasses look for a default
            raise AttributeError(f"type object {owner.__name__!r} has no attribute {self._name!r}")
        self._refuse(found, self._name)


def unlike_arrays(
    names: Iterable[str], refuse: Callable[[Any, str], NoReturn], explain: Callable[[Any], str]
) -> Callable[[C], C]:
    """A class decorator.

    Args:
        names: attributes that are not there: `refuse(object, name)` raises `AttributeError`.
        explain: what the `TypeError` says that every operator raises.
    """

    def refuse_operator(self: Any, *_: object) -> NoReturn:
        raise TypeError(explain(self))

    def decorate(cls: C) -> C:
        for name in names:
            setattr(cls, name, _Missing(name, refuse))
        for name in _OPERATORS:
            setattr(cls, name, refuse_operator)
        return cls

    return decorate
