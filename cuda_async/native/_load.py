"""Looks for the compiled module, and puts what it has in the place of functions."""

from __future__ import annotations

import functools
import importlib
import os
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import ContextError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["compiled", "find_compiled", "is_switched_off", "native"]

F = TypeVar("F", bound="Callable[..., Any]")

VERSION = 4
"""Of `_native.c`, counted up with what it takes and gives: what was built from an older one is left out."""


SWITCH = "CUDA_ASYNC_NATIVE"


def is_switched_off() -> bool:
    """Whether `CUDA_ASYNC_NATIVE` leaves out what is there; unset and empty do not.

    Raises:
        ContextError: it says neither on nor off.
    """
    text = os.environ.get(SWITCH, "").strip()
    if text.lower() not in ("", "0", "false", "no", "off", "1", "true", "yes", "on"):
        raise ContextError(f"{SWITCH} is {text!r}; give 1 or 0")
    return text.lower() in ("0", "false", "no", "off")


def find_compiled() -> Any:  # a module that may not be there
    """The compiled module that goes with this package, or None."""
    try:
        module = importlib.import_module("._native", __package__)
    except ImportError:
        return None
    return module if module.VERSION == VERSION else None


native: Any = None if is_switched_off() else find_compiled()
"""The compiled module, or None."""


def compiled(kind: str, original: F, *classes: type) -> F:
    """What makes what `original` makes, compiled where it can be; `kind` names a number in the compiled module.

    Args:
        classes: the class of what is made, and those that it is made of.
    """
    if native is None:
        return original
    maker: F = native.Maker(getattr(native, kind), original, *classes)
    functools.update_wrapper(maker, original)
    return maker
