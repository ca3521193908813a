"""`read(t)` and `mut(t)`: saying out loud what a launch does to its operands."""

from __future__ import annotations

from typing import NoReturn

from ..native import compiled
from ._hints import instead_of_a_value
from ._tensor import Tensor

__all__ = ["Mut", "Read", "mut", "read"]

# The classes have no __init__: a launch makes some of these, and a call of a class without is the cheapest way.


class Read:
    """An operand that the kernel only reads. Made by `read(tensor)`."""

    __slots__ = ("tensor",)
    tensor: Tensor

    def __repr__(self) -> str:
        return f"read({getattr(self, 'tensor', None)!r})"

    def __getattr__(self, name: str) -> NoReturn:
        raise _no_attribute(self, name)


class Mut:
    """An operand the kernel has to itself and may write. Made by `mut(tensor)`."""

    __slots__ = ("tensor",)
    tensor: Tensor

    def __repr__(self) -> str:
        return f"mut({getattr(self, 'tensor', None)!r})"

    def __getattr__(self, name: str) -> NoReturn:
        raise _no_attribute(self, name)


def _no_attribute(operand: Read | Mut, name: str) -> AttributeError:
    """Asked for only where there is none, so launches pay nothing for it."""
    made, by = type(operand).__name__, type(operand).__name__.lower()
    if name == "tensor":
        return AttributeError(f"{made}() holds no tensor; such operands are made by {by}(tensor)")
    return AttributeError(f"{made!r} object has no attribute {name!r}")


def _refuse(tensor: object, name: str) -> TypeError:
    hint = instead_of_a_value(tensor)
    if not hint and hasattr(tensor, "unpartition"):
        hint = "; get the tensor back with .unpartition()"
    return TypeError(
        f"{name}() takes a Tensor, got {type(tensor).__name__}{hint or '; bring an array over with from_host()'}"
    )


def read(tensor: Tensor) -> Read:
    """Pass `tensor` to a kernel that only reads it; other launches may read it at the same time."""
    if type(tensor) is not Tensor:
        raise _refuse(tensor, "read")
    wrapped = Read()
    wrapped.tensor = tensor
    return wrapped


def mut(tensor: Tensor) -> Mut:
    """Pass `tensor` to a kernel that may write it, exclusively and whole.

    That the kernel's own threads do not write over each other is the kernel's business.
    """
    if type(tensor) is not Tensor:
        raise _refuse(tensor, "mut")
    wrapped = Mut()
    wrapped.tensor = tensor
    return wrapped


read = compiled("MAKES_OPERAND", read, Read, Tensor)
mut = compiled("MAKES_OPERAND", mut, Mut, Tensor)
