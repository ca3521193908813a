"""Which function here gives a language function its meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

__all__ = ["HANDLERS", "implements"]

# The first argument is the translator, the others are those of the language function, by name.
Handler = Callable[..., object]
HandlerT = TypeVar("HandlerT", bound=Handler)

HANDLERS: dict[object, Handler] = {}
"""The handler of each language function."""


def implements(function: Callable[..., object]) -> Callable[[HandlerT], HandlerT]:
    """Mark a function as what `function` of the language means."""

    def register(handler: HandlerT) -> HandlerT:
        HANDLERS[function] = handler
        return handler

    return register
