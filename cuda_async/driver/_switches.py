"""Environment variables that switch something on or off."""

from __future__ import annotations

import os

from ..errors import ContextError

__all__ = ["OFF", "ON", "poison_freed", "read_switch"]

OFF = ("", "0", "false", "no", "off")
ON = ("1", "true", "yes", "on")


def read_switch(name: str) -> bool:
    """Whether the variable says on; unset and empty are off.

    Raises:
        ContextError: it says neither.
    """
    text = os.environ.get(name, "").strip()
    if text.lower() not in (*ON, *OFF):
        raise ContextError(f"{name} is {text!r}; give 1 or 0")
    return text.lower() in ON


def poison_freed() -> bool:
    """`CUDA_ASYNC_POISON_FREED`: whether freed memory is filled with 0xDD."""
    return read_switch("CUDA_ASYNC_POISON_FREED")
