"""Variants of a kernel that differ only in what they captured: an old one serves again when it is right again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from ._single_flight import SingleFlight

if TYPE_CHECKING:
    from ._variant import Variant

__all__ = ["Versions"]

MAX_VERSIONS = 32
"""Variants kept per key; beyond, the oldest goes."""


class Versions:
    """Compiled variants by key, of which those are used whose captures hold. Thread-safe."""

    def __init__(self) -> None:
        self._flight: SingleFlight[Variant] = SingleFlight()
        self._made: dict[Hashable, list[tuple[int, Variant]]] = {}

    def get(self, key: Hashable, make: Callable[[], Variant]) -> Variant:
        """A variant of that key whose captures hold; `make()` compiles one if there is none."""
        while True:
            made = self._made.get(key, [])
            for _, variant in reversed(made):
                if variant.is_current():
                    return variant
            number = made[-1][0] + 1 if made else 0
            mine: list[Variant] = []

            def compile_one(number: int = number, mine: list[Variant] = mine) -> Variant:
                variant = make()
                mine.append(variant)
                kept = [*self._made.get(key, []), (number, variant)]
                for old, _ in kept[:-MAX_VERSIONS]:
                    self._flight.forget((key, old))
                self._made[key] = kept[-MAX_VERSIONS:]
                return variant

            variant = self._flight.get((key, number), compile_one)
            # another thread may have compiled it before a change that this call has to see
            if mine or variant.is_current():
                return variant

    def holds(self, variant: Variant) -> bool:
        """Whether that one is kept."""
        return any(one is variant for made in list(self._made.values()) for _, one in made)

    def discard(self, variant: Variant) -> None:
        """Compile it anew when it is next asked for."""
        for key, made in list(self._made.items()):
            for number, one in made:
                if one is variant:
                    self._made[key] = [kept for kept in made if kept[1] is not variant]
                    self._flight.forget((key, number))
