"""Variables that a loop carries from turn to turn, and the type each has over the loop.

A variable assigned in the body and set before it is carried. A tile's type is known at the start and must
stay. A loose number has none yet: the body is translated once for nothing, starting from the numbers, to
see what they become; one that comes out as it was stays what it is. If the loop then makes a number
something else than assumed, `TypeChanged` says so and it is translated again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import KernelError
from ..ir import Value
from ._aggregates import leaves, rebuild, same_structure
from ._merge import Kind, coerce, fits, kind_of, merged_kind, same
from ._values import VALUE, Nothing, Unset, describe, is_loose, is_pointer, is_tile

if TYPE_CHECKING:
    from ._frame import Frame
    from ._translator import Translator

__all__ = ["Carried", "TypeChanged", "ValueFound", "plan_carried"]


_TWO_RETURNS = "the function returns {} or {}, depending on a run-time condition; it must return one type"


class TypeChanged(Exception):
    """A carried number became `end` in a turn, which its type over the loop does not hold."""

    def __init__(self, position: int, end: object) -> None:
        super().__init__(position, end)
        self.position = position
        self.end = end


class ValueFound(Exception):
    """A `return` inside of the loop gives `value`; nothing was known of that before."""

    def __init__(self, value: object) -> None:
        super().__init__(value)
        self.value = value


@dataclass(eq=False)
class Carried:
    """The variables a loop carries.

    Attributes:
        before: their values before the loop, by name.
        first: the leaves of those values, in order.
        kinds: per leaf, what it is carried as; None where it stays as it is.
    """

    before: dict[str, object]
    first: list[object]
    kinds: list[Kind | None]

    def initial(self, t: Translator) -> tuple[Value, ...]:
        """The carried leaves before the loop."""
        return tuple(
            [coerce(t, part, kind) for part, kind in zip(self.first, self.kinds, strict=True) if kind]
        )

    def fresh(self) -> list[Value]:
        """New values, one per carried leaf: arguments of the body, or results of the loop."""
        return [kind.value() for kind in self.kinds if kind is not None]

    def bind(self, frame: Frame, values: list[Value]) -> None:
        """Give the variables the values of a turn, or of the end."""
        rest = iter(values)
        parts = iter(
            [part if kind is None else next(rest) for part, kind in zip(self.first, self.kinds, strict=True)]
        )
        for name, value in self.before.items():
            frame.variables[name] = rebuild(value, parts)
            for part in leaves(frame.variables[name]):
                if isinstance(part, Value) and not part.name:
                    part.name = name

    def current(self, t: Translator, frame: Frame) -> tuple[Value, ...]:
        """The carried leaves as they are now, in their kinds.

        Raises:
            TypeChanged: a number is something else now.
        """
        values: list[Value] = []
        for position, (name, part) in enumerate(self.now(t, frame)):
            first, kind = self.first[position], self.kinds[position]
            if kind is not None and fits(part, kind):
                values.append(coerce(t, part, kind))
            elif kind is not None or not same(part, first):
                if is_loose(first):
                    raise TypeChanged(position, part)
                if name == VALUE:
                    raise self._two_returns(t, frame, first, part)
                t.at(frame, frame.set_at[name])
                raise t.wrong_type(
                    f"{name!r} is {describe(first)} before the loop and {describe(part)} after a turn; it must "
                    "keep its type over the loop"
                    + (
                        "; set it to a tile of that type before, as in tk.zeros(shape, dtype)"
                        if first is None
                        else ""
                    )
                )
        return tuple(values)

    def now(self, t: Translator, frame: Frame) -> Iterator[tuple[str, object]]:
        """The leaves of the variables as they are, with their names."""
        for name, before in self.before.items():
            value = frame.variables[name]
            if isinstance(before, Nothing) and not isinstance(value, Nothing):
                raise ValueFound(value)
            if isinstance(value, Unset):
                raise t.wrong_type(f"the loop carries {name!r} from turn to turn, but {value.reason}")
            if not same_structure(before, value):
                if name == VALUE:
                    raise self._two_returns(t, frame, before, value)
                raise t.wrong_type(
                    f"{name!r} is {describe(before)} before the loop and {describe(value)} after a turn; it must "
                    "keep its structure over the loop"
                )
            for part in leaves(value):
                yield name, part

    def _two_returns(self, t: Translator, frame: Frame, a: object, b: object) -> KernelError:
        t.at(frame, frame.set_at[VALUE])
        return t.wrong_type(_TWO_RETURNS.format(describe(a), describe(b)))

    def retype(self, t: Translator, changed: TypeChanged) -> None:
        """Carry a number in a type that holds what it became."""
        first, kind = self.first[changed.position], self.kinds[changed.position]
        merged = _kind_of_number(first, changed.end)
        if kind is not None and merged is not None and kind.loose and merged.loose:
            # a number that grew: hold what it was taken for, too
            merged = merged_kind(kind.value(), merged.value())
        if merged in (None, kind):
            name = [n for n, value in self.before.items() for _ in leaves(value)][changed.position]
            if name == VALUE:
                raise t.wrong_type(_TWO_RETURNS.format(describe(first), describe(changed.end)))
            raise t.wrong_type(
                f"{name!r} is {describe(first)} before the loop and {describe(changed.end)} after a turn; give "
                "it its type before the loop, as in tk.full((), 0, tk.float32)"
            )
        self.kinds[changed.position] = merged


def plan_carried(t: Translator, frame: Frame, names: list[str], trial: Callable[[Carried], None]) -> Carried:
    """What a loop carries whose body sets `names`; `trial` translates one turn for nothing."""
    before = {
        name: frame.variables[name]
        for name in names
        if not isinstance(frame.variables.get(name, Unset("")), Unset)
    }
    first = [part for value in before.values() for part in leaves(value)]
    carried = Carried(
        before, first, [kind_of(part) if is_tile(part) or is_pointer(part) else None for part in first]
    )
    if any(is_loose(part) for part in first):
        ends = _ends(t, frame, carried, trial)
        for position, part in enumerate(first):
            if is_loose(part):
                carried.kinds[position] = _kind_of_number(part, ends[position] if ends else part)
    return carried


def _ends(
    t: Translator, frame: Frame, carried: Carried, trial: Callable[[Carried], None]
) -> list[object] | None:
    """The leaves after one turn from their first values; None if that turn fails."""
    variables = dict(frame.variables)
    try:
        with t.scratch():
            trial(carried)
            return [part for _, part in carried.now(t, frame)]
    except (KernelError, ValueFound):
        return None  # the turn that counts meets the error again, and reports it
    finally:
        frame.variables = variables


def _kind_of_number(start: object, end: object) -> Kind | None:
    """What a loose number is carried as that a turn makes `end`; None where it stays what it is."""
    return None if same(start, end) else merged_kind(start, end)
