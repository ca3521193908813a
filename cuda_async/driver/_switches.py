"""Environment variables that switch something on or off, or set how long waits poll."""

from __future__ import annotations

import os

from ..errors import ContextError

__all__ = ["OFF", "ON", "longest_poll_s", "poison_freed", "read_switch"]

OFF = ("", "0", "false", "no", "off")
ON = ("1", "true", "yes", "on")
POLL_BUDGET_S = {"cuda": 1e-3, "host": 0.0}
"""Longest poll of one await, by kind of device. The simulated one needs the interpreter lock to get on, so
polling would hold it up."""


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


def longest_poll_s(kind: str) -> float:
    """How long a wait polls before it blocks: `CUDA_ASYNC_POLL_US`, or what suits the kind of device."""
    text = os.environ.get("CUDA_ASYNC_POLL_US", "").strip()
    if not text:
        return POLL_BUDGET_S[kind]
    try:
        budget_us = float(text)
    except ValueError:
        budget_us = -1.0
    if not 0 <= budget_us < float("inf"):
        raise ContextError(f"CUDA_ASYNC_POLL_US is {text!r}; write a number of microseconds, such as 50")
    return budget_us * 1e-6
