"""Looks for the compiled module, and puts what it has in the place of functions."""

from __future__ import annotations

import functools
import importlib
import os
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["compiled", "native"]

F = TypeVar("F", bound="Callable[..., Any]")

VERSION = 3
"""Of `_native.c`, counted up with what it takes and gives: what was built from an older one is left out."""


def _load() -> Any:  # a module that may not be there
    if os.environ.get("CUDA_ASYNC_NATIVE") == "0":
        return None
    try:
        module = importlib.import_module("._native", __package__)
    except ImportError:
        return None
    return module if module.VERSION == VERSION else None


native = _load()
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
