"""A compile option with a value per architecture."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import KernelOptionError

__all__ = ["TARGETS", "ByTarget"]

TARGETS = (
    *("sm_80", "sm_86", "sm_87", "sm_88", "sm_89", "sm_90"),
    *("sm_100", "sm_103", "sm_107", "sm_110", "sm_120", "sm_121"),
)
"""What the assembler compiles for; as in tileir, which is not imported to define a kernel."""


class ByTarget:
    """`ByTarget(sm_90=2, default=1)`: a value per architecture, and one for all others.

    Stands for a number in the options `occupancy`, `num_ctas`, `num_worker_warps` and `opt_level`. Without a default,
    other architectures get what they get when the option is not given.

    Attributes:
        values: (architecture, value), in order of the architectures' names; "default" among them.
    """

    __slots__ = ("values",)

    def __init__(self, *, default: int | None = None, **targets: int | None) -> None:
        """Raises `KernelOptionError` for an architecture that there is not, or no value at all."""
        found = dict(targets)
        unknown = sorted(set(found) - set(TARGETS))
        if unknown:
            raise KernelOptionError(
                f"there is no target {', '.join(unknown)}; there are {', '.join(TARGETS)}"
            )
        if default is not None:
            found["default"] = default
        if not found:
            raise KernelOptionError(
                "ByTarget holds a value for an architecture, as in ByTarget(sm_90=2, default=1)"
            )
        self.values: tuple[tuple[str, int | None], ...] = tuple(sorted(found.items()))

    def get(self, target: str, otherwise: int | None) -> int | None:
        """The value for an architecture."""
        found = dict(self.values)
        return found.get(target, found.get("default", otherwise))

    def items(self) -> Iterator[tuple[str, int | None]]:
        """Architectures, "default" among them, and values."""
        return iter(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByTarget) and self.values == other.values

    def __hash__(self) -> int:
        return hash(self.values)

    def __repr__(self) -> str:
        return f"ByTarget({', '.join(f'{target}={value!r}' for target, value in self.values)})"
