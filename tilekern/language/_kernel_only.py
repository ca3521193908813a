"""What language functions do when Python itself calls them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn, TypeVar

from ..errors import TilekernError

__all__ = ["IN_KERNELS", "kernel_only", "means_in_kernels"]

FunctionT = TypeVar("FunctionT", bound=Callable[..., object])

IN_KERNELS = "__tilekern_means__"
"""Attribute of a function with two meanings: the language function it is in kernels."""


def means_in_kernels(function: Callable[..., object]) -> Callable[[FunctionT], FunctionT]:
    """Mark a host function as having another meaning in kernels, that of a language function."""

    def mark(host: FunctionT) -> FunctionT:
        setattr(host, IN_KERNELS, function)
        return host

    return mark


def kernel_only(name: str = "") -> NoReturn:
    """Raise the error for a call outside of a kernel; the name is the caller's own if left out."""
    name = name or sys._getframe(1).f_code.co_name
    raise TilekernError(
        f"{name} has a meaning only inside a kernel; call it from a function marked @tilekern.kernel "
        "(or from a helper that such a function calls)"
    )
