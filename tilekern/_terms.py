"""Whole numbers that are known once a launch's arguments and grid are: sums of products, in one form.

Theory. Proofs about indices compare numbers such as `ceil(n / 128) - 1` and `grid.x - 1`. A term is a constant
plus whole multiples of *atoms*, sorted, so that equal sums are equal objects and subtracting one from
another shows by how much they differ. Atoms are what is not a sum: an argument of the launch, the number of
blocks along a grid axis, a product of atoms, a quotient, the least or greatest of some terms, and, while a
kernel is compiled, a value inside of it (`Unknown`). Terms are exact: nothing wraps.

Launch checks hold terms in a plain form, `encoded`, which `frontend/_checks.py` evaluates: they are kept between
processes and used where no compiler is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

__all__ = [
    "Argument",
    "Atom",
    "Extreme",
    "GridSize",
    "LaunchFacts",
    "Product",
    "Quotient",
    "Term",
    "Unknown",
    "argument",
    "constant",
    "encoded",
    "extreme",
    "grid_size",
    "quotient",
    "sum_of",
]

T = TypeVar("T")


class _Once(Generic[T]):
    """A property that is worked out once. (functools.cached_property takes a lock before Python 3.12.)"""

    def __init__(self, work: Callable[[Any], T]) -> None:
        self._work = work

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> T:
        found: T
        found = instance.__dict__[self._name] = self._work(instance)
        return found


class _Keyed:
    """Compared, hashed and sorted by `key`, which is made once: terms are looked up more often than made."""

    key: Any

    @_Once
    def _hash(self) -> int:
        return hash(self.key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and self.key == other.key)


@dataclass(frozen=True, eq=False)
class Argument(_Keyed):
    """A flat argument of the launch, by position; `name` is for messages."""

    position: int
    name: str

    @_Once
    def key(self) -> tuple[Any, ...]:
        return (0, self.position)

    def __str__(self) -> str:
        base, _, axis = self.name.rpartition("_shape")
        if base and axis.isdigit():
            return f"{base}.shape[{axis}]"
        base, _, axis = self.name.rpartition("_stride")
        return f"{base}.strides[{axis}]" if base and axis.isdigit() else self.name


@dataclass(frozen=True, eq=False)
class GridSize(_Keyed):
    """The number of blocks along a grid axis."""

    axis: int

    @_Once
    def key(self) -> tuple[Any, ...]:
        return (1, self.axis)

    def __str__(self) -> str:
        return f"num_blocks({self.axis})"


@dataclass(frozen=True, eq=False)
class Unknown(_Keyed):
    """A value inside of the kernel, by a number its user gives it; no launch knows it."""

    number: int
    name: str

    @_Once
    def key(self) -> tuple[Any, ...]:
        return (2, self.number)

    def __str__(self) -> str:
        return self.name or "a value of the kernel"


@dataclass(frozen=True, eq=False)
class Product(_Keyed):
    """Two or more atoms multiplied."""

    factors: tuple[Atom, ...]

    @_Once
    def key(self) -> tuple[Any, ...]:
        return (3, tuple([f.key for f in self.factors]))

    def __str__(self) -> str:
        return " * ".join(map(str, self.factors))


@dataclass(frozen=True, eq=False)
class Quotient(_Keyed):
    """`above / below`, rounded up or down to a whole number; `below` of 0 or less has no value."""

    above: Term
    below: Term
    up: bool

    @_Once
    def key(self) -> tuple[Any, ...]:
        return (4, self.above.key, self.below.key, self.up)

    def __str__(self) -> str:
        return f"{'cdiv' if self.up else 'floordiv'}({self.above}, {self.below})"


@dataclass(frozen=True, eq=False)
class Extreme(_Keyed):
    """The least or greatest of some terms."""

    which: Literal["min", "max"]
    terms: tuple[Term, ...]

    @_Once
    def key(self) -> tuple[Any, ...]:
        return (5, self.which, tuple([t.key for t in self.terms]))

    def __str__(self) -> str:
        return f"{self.which}({', '.join(map(str, self.terms))})"


Encoded = tuple[Any, ...]
"""A term of plain values; see `encoded`."""

Atom = Argument | GridSize | Unknown | Product | Quotient | Extreme


@dataclass(frozen=True, eq=False)
class Term(_Keyed):
    """`constant` plus `count * atom` for each of `parts`, sorted, no count being 0."""

    constant: int
    parts: tuple[tuple[Atom, int], ...] = ()

    @_Once
    def key(self) -> tuple[Any, ...]:
        return (self.constant, tuple([(atom.key, count) for atom, count in self.parts]))

    @property
    def number(self) -> int | None:
        """Its value, if it is the same for all launches."""
        return None if self.parts else self.constant

    @property
    def atom(self) -> Atom | None:
        """The atom, if it is nothing but one."""
        if self.constant == 0 and len(self.parts) == 1 and self.parts[0][1] == 1:
            return self.parts[0][0]
        return None

    def atoms(self) -> Iterator[Atom]:
        """Every atom in it, those inside of others too."""
        for atom, _ in self.parts:
            yield from _inner(atom)

    def __add__(self, other: Term | int) -> Term:
        if isinstance(other, int):
            return Term(self.constant + other, self.parts)
        if not other.parts:
            return Term(self.constant + other.constant, self.parts)
        counts = dict(self.parts)
        for atom, count in other.parts:
            counts[atom] = counts.get(atom, 0) + count
        return _from_counts(self.constant + other.constant, counts)

    def __neg__(self) -> Term:
        return Term(-self.constant, tuple([(atom, -count) for atom, count in self.parts]))

    def __sub__(self, other: Term | int) -> Term:
        return self + (-other)

    def __mul__(self, other: Term | int) -> Term:
        if isinstance(other, int):
            other = Term(other)
        counts: dict[Atom, int] = {}
        for left, m in ((None, self.constant), *self.parts):
            for right, n in ((None, other.constant), *other.parts):
                if left is not None and right is not None:
                    atom: Atom = _product(left, right)
                    counts[atom] = counts.get(atom, 0) + m * n
                elif (one := left or right) is not None:
                    counts[one] = counts.get(one, 0) + m * n
        return _from_counts(self.constant * other.constant, counts)

    def with_atom(self, atom: Atom, term: Term) -> Term:
        """With a term in place of an atom that is one of its parts."""
        counts = dict(self.parts)
        times = counts.pop(atom)
        for other, count in term.parts:
            counts[other] = counts.get(other, 0) + count * times
        return _from_counts(self.constant + term.constant * times, counts)

    def replace(self, mapping: Mapping[Atom, Term]) -> Term:
        """With terms in place of atoms at the top of it."""
        found = Term(self.constant)
        for atom, count in self.parts:
            found += mapping[atom] * count if atom in mapping else Term(0, ((atom, count),))
        return found

    def __str__(self) -> str:
        text = ""
        for atom, count in self.parts:
            sign = ("-" if count < 0 else "") if not text else (" - " if count < 0 else " + ")
            shown = f"({atom})" if isinstance(atom, Product) and abs(count) != 1 else str(atom)
            text += f"{sign}{shown}" if abs(count) == 1 else f"{sign}{abs(count)} * {shown}"
        if not text:
            return str(self.constant)
        if self.constant:
            text += f" {'-' if self.constant < 0 else '+'} {abs(self.constant)}"
        return text


class LaunchFacts(NamedTuple):
    """What the launcher sees to, whatever a kernel does.

    Attributes:
        grid_limits: (grid axis, term): the grid has at most that many blocks along the axis.
        equal: (argument, term): a declared precondition says that they are the same.
        multiples: (argument, divisor): likewise.
        scalars: positions of arguments that may differ from launch to launch of one prepared call.
    """

    grid_limits: tuple[tuple[int, Term], ...] = ()
    equal: tuple[tuple[Term, Term], ...] = ()
    multiples: tuple[tuple[Term, int], ...] = ()
    scalars: frozenset[int] = frozenset()


def _inner(atom: Atom) -> Iterator[Atom]:
    yield atom
    if isinstance(atom, Product):
        for factor in atom.factors:
            yield from _inner(factor)
    elif isinstance(atom, Quotient):
        yield from atom.above.atoms()
        yield from atom.below.atoms()
    elif isinstance(atom, Extreme):
        for term in atom.terms:
            yield from term.atoms()


def _from_counts(number: int, counts: dict[Atom, int]) -> Term:
    parts = [(atom, count) for atom, count in counts.items() if count]
    if len(parts) > 1:
        parts.sort(key=_part_order)
    return Term(number, tuple(parts))


def _order(atom: Atom) -> tuple[Any, ...]:
    return atom.key


def _part_order(part: tuple[Atom, int]) -> tuple[Any, ...]:
    return part[0].key


def _product(left: Atom, right: Atom) -> Product:
    factors = [
        *(left.factors if isinstance(left, Product) else (left,)),
        *(right.factors if isinstance(right, Product) else (right,)),
    ]
    return Product(tuple(sorted(factors, key=_order)))


def _of(atom: Atom) -> Term:
    return Term(0, ((atom, 1),))


def constant(number: int) -> Term:
    """A number."""
    return Term(number)


def argument(position: int, name: str) -> Term:
    """A flat argument of the launch."""
    return _of(Argument(position, name))


def grid_size(axis: int) -> Term:
    """The number of blocks along a grid axis."""
    return _of(GridSize(axis))


def quotient(above: Term, below: Term, *, up: bool = False) -> Term:
    """`above / below`, rounded down, or up."""
    divisor = below.number
    if divisor is not None and divisor > 0:
        if above.constant % divisor == 0 and all(count % divisor == 0 for _, count in above.parts):
            return Term(above.constant // divisor, tuple([(a, c // divisor) for a, c in above.parts]))
        if above.number is not None:
            return Term(-(-above.number // divisor) if up else above.number // divisor)
    return _of(Quotient(above, below, up))


def extreme(which: Literal["min", "max"], terms: Sequence[Term]) -> Term:
    """The least or greatest of one or more terms."""
    kept = tuple(dict.fromkeys(terms))
    numbers = [t.constant for t in kept if not t.parts]
    if numbers:
        best = Term(min(numbers) if which == "min" else max(numbers))
        kept = (*[t for t in kept if t.parts], best)
    return kept[0] if len(kept) == 1 else _of(Extreme(which, kept))


def sum_of(counted: Sequence[tuple[Term, int]]) -> Term:
    """The sum of terms, each times a number."""
    total = Term(0)
    for term, count in counted:
        total += term * count
    return total


def encoded(terms: Sequence[Term]) -> tuple[Encoded, ...]:
    """Terms as nested tuples: ("sum", constant, (count, atom), ...).

    Atoms are ("argument", position), ("grid", axis), ("product", *atoms), ("floordiv", term, term),
    ("cdiv", term, term), ("min", *terms) and ("max", *terms).

    Raises:
        TypeError: something in it is known in the kernel only.
    """
    return tuple([("sum", t.constant, *[(n, _encode(atom)) for atom, n in t.parts]) for t in terms])


def _encode(atom: Atom) -> Encoded:
    if isinstance(atom, Argument):
        return ("argument", atom.position)
    if isinstance(atom, GridSize):
        return ("grid", atom.axis)
    if isinstance(atom, Product):
        return ("product", *map(_encode, atom.factors))
    if isinstance(atom, Quotient):
        return ("cdiv" if atom.up else "floordiv", *encoded((atom.above, atom.below)))
    if isinstance(atom, Extreme):
        return (atom.which, *encoded(atom.terms))
    raise TypeError(f"{atom} is known in the kernel only")
