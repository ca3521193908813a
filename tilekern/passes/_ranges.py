"""What is known of the whole numbers in a kernel: each as a term, and bounds of the parts it is made of.

Theory. Every integer scalar has a term (`_terms.py`). Sums, differences and products with what a launch knows
stay terms; whatever else defines a number makes it an unknown, with bounds where there are some:

    block index          0 to num_blocks - 1
    counter of a loop    lower to upper - 1 (of a stepped one its last value)
    x // d, x % d        between the quotients of x's bounds; 0 to d - 1
    min, max, select     between the bounds of the two
    behind a condition   what the condition says, while inside of it

A bound is *exact* if the number takes that value whenever its loops run at all. Only exact bounds may refuse a
launch; others prove.

Terms are exact and the kernel's integers wrap. Sums and products that wrap are right again as soon as the
result is in range, since both are modulo 2**bits; so an index needs no more than its own bounds checked
against its type. Where a wrapped number would lead elsewhere (a quotient, a loop's bound, a wider type), the
term must be shown to fit; if only the launch can tell, that it does is one of the `needs` of the bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from .._terms import (
    Argument,
    Atom,
    Extreme,
    GridSize,
    LaunchFacts,
    Quotient,
    Term,
    Unknown,
    argument,
    constant,
    extreme,
    grid_size,
    quotient,
)
from ..dtypes import DType
from ..ir import (
    AddOp,
    AndOp,
    AssumeBelowOp,
    AssumeBoundedOp,
    AssumeDivByOp,
    BlockIdOp,
    CastOp,
    CompareOp,
    ConstantOp,
    FloorDivOp,
    ForOp,
    Function,
    IndexSpaceOp,
    LoopOp,
    MakeTensorOp,
    MaxOp,
    MinOp,
    ModOp,
    MulOp,
    NegOp,
    NumBlocksOp,
    Op,
    SelectOp,
    ShiftLeftOp,
    ShiftRightOp,
    SubOp,
    TensorType,
    TileType,
    TruncDivOp,
    Value,
    ViewType,
)

__all__ = ["NOTHING", "Bound", "Needs", "Ranges", "integer_scalar"]

MAX_GRID = (1 << 24) - 1
MAX_STEPS = 400
"""Steps a proof may take."""

Needs = frozenset[Term]
"""Terms that must be 0 or more."""
NOTHING: Needs = frozenset()


@dataclass(frozen=True)
class Bound:
    """A number on one side of another; holds if `needs` do.

    `exact`: it is reached if the loops that lead there run. `weak`: of the type alone; proves and refuses nothing
    at a launch.
    """

    term: Term
    exact: bool = False
    needs: Needs = NOTHING
    weak: bool = False


@dataclass
class _Range:
    """Bounds of an atom; `derived`: it is computed from other atoms, so the two do not vary freely."""

    lows: list[Bound] = field(default_factory=list)
    highs: list[Bound] = field(default_factory=list)
    derived: bool = False


def integer_scalar(value: Value) -> DType | None:
    """The type of an integer scalar; None for anything else."""
    kind = value.type
    if (
        isinstance(kind, TileType)
        and not kind.shape
        and isinstance(kind.dtype, DType)
        and kind.dtype.is_integer
    ):
        return kind.dtype
    return None


class Ranges:
    """Terms and bounds, filled in while a function is gone through in order.

    `visit` takes an operation without regions; `enter_for`, `enter_loop` and `where` are for what has some.
    """

    def __init__(self, function: Function, facts: LaunchFacts | None = None) -> None:
        facts = facts or LaunchFacts()
        self._terms: dict[Value, Term] = {}
        self._ranges: dict[Atom, _Range] = {}
        self._values: dict[Unknown, Value] = {}
        self._makers: dict[Value, Op] = {}
        self._extents: dict[Value, tuple[Term, ...]] = {}
        self._steps = 0
        self._proved: dict[Term, Needs | None] = {}
        self._hopeless: dict[Term, int] = {}  # from which depth of the search on
        self._learned: list[tuple[list[Bound], Bound]] = []  # from what the blocks gone through assume
        self._scalars = facts.scalars
        equal = dict(facts.equal)
        for position, value in enumerate(function.body.arguments):
            dtype = integer_scalar(value)
            if dtype is None:
                continue
            term = argument(position, value.name)
            bounds = _Range(
                [Bound(constant(dtype.lowest), weak=True)], [Bound(constant(dtype.highest), weak=True)]
            )
            atom = term.atom
            assert atom is not None
            self._ranges[atom] = bounds
            self._terms[value] = equal.get(term, term)
        for axis in range(3):
            bounds = _Range([Bound(constant(1))], [Bound(constant(MAX_GRID))])
            bounds.highs[:0] = [
                Bound(self._same(term, equal)) for at, term in facts.grid_limits if at == axis
            ]
            self._ranges[GridSize(axis)] = bounds
        self._blocks = [
            self._unknown(f"bid({axis})", [Bound(constant(0), True)], [Bound(grid_size(axis) - 1, True)])
            for axis in range(3)
        ]

    def _same(self, term: Term, equal: dict[Term, Term]) -> Term:
        """A limit, with equal arguments as one."""
        atom = term.atom
        if isinstance(atom, Quotient):
            return quotient(equal.get(atom.above, atom.above), atom.below, up=atom.up)
        return equal.get(term, term)

    # -- terms

    def term(self, value: Value) -> Term:
        """What an integer scalar is."""
        found = self._terms.get(value)
        if found is None:
            found = self._terms[value] = self._of_value(value, [], [])
        return found

    def _unknown(self, name: str, lows: list[Bound], highs: list[Bound], *, derived: bool = False) -> Term:
        atom = Unknown(len(self._ranges), name)
        self._ranges[atom] = _Range(lows, highs, derived)
        return Term(0, ((atom, 1),))

    def _of_value(
        self, value: Value, lows: list[Bound], highs: list[Bound], *, derived: bool = False
    ) -> Term:
        """An unknown that is a value: its type bounds it in any case."""
        dtype = integer_scalar(value)
        if dtype is not None:
            lows = [*lows, Bound(constant(dtype.lowest), weak=True)]
            highs = [*highs, Bound(constant(dtype.highest), weak=True)]
        term = self._unknown(value.name, lows, highs, derived=derived)
        atom = term.atom
        assert isinstance(atom, Unknown)
        self._values[atom] = value
        self._terms[value] = term
        return term

    def value_of(self, atom: Unknown) -> Value | None:
        """The value that an unknown is."""
        return self._values.get(atom)

    def extents(self, tensor: Value) -> tuple[Term, ...]:
        """The dimensions of a tensor."""
        return self._extents[tensor]

    def counts(self, view: ViewType, tensor: Value) -> tuple[Term, ...]:
        """The number of tiles of a view of a tensor, per tile axis."""
        sizes = self._extents[tensor]
        return tuple(
            [
                quotient(sizes[along], constant(step), up=True)
                for along, step in zip(view.order, view.starts_every, strict=True)
            ]
        )

    # -- operations

    def visit(self, op: Op) -> None:
        """Note what an operation defines."""
        for result in op.results:
            self._makers[result] = op
        if isinstance(op, MakeTensorOp):
            kind = op.result.type
            assert isinstance(kind, TensorType)
            given = iter(op.shape)
            self._extents[op.result] = tuple(
                [self.term(next(given)) if n is None else constant(n) for n in kind.shape]
            )
            return
        if isinstance(op, IndexSpaceOp):
            self._index_space(op)
            return
        if len(op.results) == 1 and integer_scalar(op.results[0]) is not None:
            found = self._term_of(op)
            if found is not None:
                self._terms[op.results[0]] = found

    def _index_space(self, op: IndexSpaceOp) -> None:
        maker = self._makers.get(op.view)
        view = op.view.type
        tensor = getattr(maker, "tensor", None)
        if isinstance(view, ViewType) and tensor in self._extents:
            for count, term in zip(op.counts, self.counts(view, tensor), strict=True):
                dtype = integer_scalar(count)
                assert dtype is not None
                needs = self.fits(term, dtype)
                if needs == NOTHING:
                    self._terms[count] = term
                elif needs is not None:
                    self._of_value(count, [Bound(term, True, needs)], [Bound(term, True, needs)])

    def _term_of(self, op: Op) -> Term | None:
        result = op.results[0]
        if isinstance(op, ConstantOp):
            return constant(op.value) if type(op.value) is int else None
        if isinstance(op, BlockIdOp):
            return self._blocks[op.axis]
        if isinstance(op, NumBlocksOp):
            return grid_size(op.axis)
        if isinstance(op, AssumeDivByOp):
            return self.term(op.source)
        if isinstance(op, AssumeBelowOp):
            return self._of_value(
                result, [Bound(constant(0))], [Bound(self.term(op.limit) - 1)], derived=True
            )
        if isinstance(op, AssumeBoundedOp):
            return self._assumed(op)
        if isinstance(op, AddOp | SubOp):
            other = self.term(op.rhs)
            return self.term(op.lhs) + (other if isinstance(op, AddOp) else -other)
        if isinstance(op, NegOp):
            return -self.term(op.source)
        if isinstance(op, MulOp):
            return self._times(op)
        if isinstance(op, ShiftLeftOp | ShiftRightOp):
            by = self.term(op.rhs).number
            dtype = integer_scalar(result)
            if by is None or dtype is None or not 0 <= by < dtype.bits:
                return None
            if isinstance(op, ShiftLeftOp):
                return self.term(op.lhs) * (1 << by)
            return self._divided(op, op.lhs, constant(1 << by))
        if isinstance(op, FloorDivOp):
            return self._divided(op, op.lhs, self.term(op.rhs))
        if isinstance(op, TruncDivOp):
            if self.proves(self.term(op.lhs)) is None:
                return None
            return self._divided(op, op.lhs, self.term(op.rhs))
        if isinstance(op, ModOp):
            return self._rest(op)
        if isinstance(op, AndOp):
            masks = [
                n for n in (self.term(op.lhs).number, self.term(op.rhs).number) if n is not None and n >= 0
            ]
            if not masks:
                return None
            return self._of_value(result, [Bound(constant(0))], [Bound(constant(min(masks)))], derived=True)
        if isinstance(op, MinOp | MaxOp):
            return self._extremum(op)
        if isinstance(op, SelectOp):
            return self._union(result, (op.if_true, op.if_false))
        if isinstance(op, CastOp):
            source, dtype = integer_scalar(op.source), integer_scalar(result)
            if source is None or dtype is None:
                return None
            term = self.term(op.source)
            if dtype.bits <= source.bits and self.fits(term, source) is not None:
                return term if self.fits(term, dtype) == NOTHING else None
            return term if self.fits(term, source) == NOTHING else None
        return None

    def _assumed(self, op: AssumeBoundedOp) -> Term:
        term = self.term(op.source)
        atom = term.atom
        if atom is not None and atom in self._ranges:
            known = self._ranges[atom]
            self._proved.clear()
            self._hopeless.clear()
            for bounds, limit in ((known.lows, op.lower), (known.highs, op.upper)):
                if limit is not None:
                    bound = Bound(constant(limit))
                    bounds.insert(0, bound)
                    self._learned.append((bounds, bound))
        return term

    def _times(self, op: MulOp) -> Term | None:
        a, b = self.term(op.lhs), self.term(op.rhs)
        if a.number is not None or b.number is not None or not (self.is_unknown(a) or self.is_unknown(b)):
            return a * b
        # of two that are not negative: from 0 to the product of their ends, if that does not wrap
        dtype = integer_scalar(op.result)
        assert dtype is not None
        first, second = self.end(a, low=False), self.end(b, low=False)
        shown = [self.proves(a), self.proves(b), self.fits(a, dtype), self.fits(b, dtype)]
        if first is None or second is None or None in shown:
            return None
        top = first.term * second.term
        needs = first.needs.union(second.needs, *[found for found in shown if found])
        if self.proves(constant(dtype.highest) - top) != NOTHING:
            needs |= {constant(dtype.highest) - top}
        lows, highs = [Bound(constant(0), needs=needs)], [Bound(top, needs=needs)]
        return self._of_value(op.result, lows, highs, derived=True)

    def _divided(self, op: Op, lhs: Value, below: Term) -> Term | None:
        above, dtype = self.term(lhs), integer_scalar(lhs)
        assert dtype is not None
        fits, divisor = self.fits(above, dtype), self._divisor(below, dtype)
        if fits is None or divisor is None or self.is_unknown(below):
            return None
        needs = fits | divisor
        if not needs and not self.is_unknown(above):
            return quotient(above, below)
        lows, highs = (
            [Bound(quotient(b.term, below), b.exact, b.needs | needs) for b in self._ends(above, low=low)]
            for low in (True, False)
        )
        return self._of_value(op.results[0], lows, highs, derived=True)

    def _rest(self, op: ModOp) -> Term | None:
        above, below, dtype = self.term(op.lhs), self.term(op.rhs), integer_scalar(op.lhs)
        assert dtype is not None
        divisor = self._divisor(below, dtype)
        if divisor is None:
            return None
        if not divisor and self.fits(above, dtype) == NOTHING:
            if self.proves(above) == NOTHING and self.proves(below - 1 - above) == NOTHING:
                return above
            if not self.is_unknown(above) and not self.is_unknown(below):
                return above - quotient(above, below) * below
        lows, highs = [Bound(constant(0), needs=divisor)], [Bound(below - 1, needs=divisor)]
        return self._of_value(op.result, lows, highs, derived=True)

    def _divisor(self, below: Term, dtype: DType) -> Needs | None:
        """What it takes for a divisor to be 1 or more, and what its term says."""
        fits, positive = self.fits(below, dtype), self.proves(below - 1)
        if positive is None and not self.varies(below) and not self.is_unknown(below):
            positive = Needs({below - 1})
        return None if fits is None or positive is None else fits | positive

    def varies(self, term: Term) -> bool:
        """True when it can differ between launches of one prepared call."""
        return any(isinstance(a, Argument) and a.position in self._scalars for a in term.atoms())

    def _extremum(self, op: MinOp | MaxOp) -> Term | None:
        dtype = integer_scalar(op.result)
        assert dtype is not None
        terms = [self.term(op.lhs), self.term(op.rhs)]
        if any(self.fits(term, dtype) != NOTHING for term in terms):
            return None
        which = "min" if isinstance(op, MinOp) else "max"
        if not any(map(self.is_unknown, terms)):
            return extreme("min" if which == "min" else "max", terms)
        # each of the two bounds it from one side; the other side is that of both
        own = [Bound(term) for term in terms]
        lows = self._common(terms, low=True)
        highs = self._common(terms, low=False)
        if which == "min":
            return self._of_value(op.result, lows, [*own, *highs], derived=True)
        return self._of_value(op.result, [*own, *lows], highs, derived=True)

    def _union(self, result: Value, values: Sequence[Value]) -> Term | None:
        terms = [self.term(value) for value in values]
        dtype = integer_scalar(result)
        if dtype is None or any(self.fits(term, dtype) != NOTHING for term in terms):
            return None
        if len(set(terms)) == 1:
            return terms[0]
        lows, highs = self._common(terms, low=True), self._common(terms, low=False)
        return self._of_value(result, lows, highs, derived=True)

    def _common(self, terms: Sequence[Term], *, low: bool) -> list[Bound]:
        """A bound of whichever of some terms it is."""
        ends = [self._ends(term, low=low) for term in terms]
        if not all(ends):
            return []
        needs = NOTHING.union(*[e[0].needs for e in ends])
        return [Bound(extreme("min" if low else "max", [e[0].term for e in ends]), False, needs)]

    def merge(self, result: Value, values: Sequence[Value]) -> None:
        """Note that `result` is one of some values: the result of a branch."""
        if integer_scalar(result) is not None:
            found = self._union(result, values)
            if found is not None:
                self._terms[result] = found

    # -- regions

    def trips(self, op: ForOp) -> Bound | None:
        """More than 0 exactly when a loop makes a turn; None where that is not known."""
        dtype = integer_scalar(op.lower)
        assert dtype is not None
        lower, upper = self.term(op.lower), self.term(op.upper)
        first, last = self.fits(lower, dtype), self.fits(upper, dtype)
        return None if first is None or last is None else Bound(upper - lower, True, first | last)

    def enter_for(self, op: ForOp) -> None:
        """Note the counter of a loop."""
        counter = op.body.arguments[0]
        trips = self.trips(op)
        if trips is None:
            self._of_value(counter, [], [])
            return
        lower, upper, step = self.term(op.lower), self.term(op.upper), self.term(op.step)
        free = not self.is_unknown(lower) and not self.is_unknown(upper)
        needs = trips.needs
        lows = [Bound(lower, True, needs)]
        highs = [Bound(upper - 1, step.number == 1, needs)]
        if step.number is not None and step.number > 1 and free:
            last = lower + quotient(trips.term - 1, step) * step.number
            highs.insert(0, Bound(last, True, needs))
        self._of_value(counter, lows, highs, derived=not free)

    def enter_loop(self, op: LoopOp, next_values: Sequence[Sequence[Value]]) -> None:
        """Note the arguments of a `loop`, given the values of each `continue` of it.

        One that only ever grows by a constant does not fall below its first value, unless it wraps: which
        it does not where the loop goes on only below a bound (`where` adds that).
        """
        for position, (value, first) in enumerate(zip(op.body.arguments, op.initial, strict=True)):
            dtype = integer_scalar(value)
            if dtype is None:
                continue
            grows = bool(next_values) and all(
                self._grows_by_one(value, nexts[position], op) for nexts in next_values
            )
            start = self.term(first)
            known = grows and self.fits(start, dtype) == NOTHING
            self._of_value(value, [Bound(start)] if known else [], [])

    def _grows_by_one(self, value: Value, following: Value, loop: LoopOp) -> bool:
        """True for `value + 1` behind a condition that keeps it from wrapping: the first of the body."""
        if following is value:
            return True
        one = next((o for o in loop.body.ops if following in o.results), None)
        if not isinstance(one, AddOp) or one.lhs is not value:
            return False
        step = self._terms.get(one.rhs)
        if step is None or step.number != 1:
            return False
        compared = next((o for o in loop.body.ops if isinstance(o, CompareOp)), None)
        return compared is not None and compared.lhs is value and compared.predicate == "lt"

    @contextmanager
    def region(self) -> Iterator[None]:
        """A block, within the `with` statement: what is assumed in it holds where it runs, and not behind it."""
        before = len(self._learned)
        try:
            yield
        finally:
            if len(self._learned) > before:
                self.forget(self._learned[before:])
                del self._learned[before:]

    @contextmanager
    def where(self, condition: Value, truth: bool) -> Iterator[None]:
        """What a condition says, within the `with` statement."""
        added: list[tuple[list[Bound], Bound]] = []
        self._refine(condition, truth, added)
        try:
            yield
        finally:
            self.forget(added)

    def assume(self, condition: Value, truth: bool) -> list[tuple[list[Bound], Bound]]:
        """As `where`, up to `forget`."""
        added: list[tuple[list[Bound], Bound]] = []
        self._refine(condition, truth, added)
        return added

    def forget(self, added: list[tuple[list[Bound], Bound]]) -> None:
        """Undo `assume`."""
        self._proved.clear()
        self._hopeless.clear()
        for bounds, bound in added:
            bounds.remove(bound)

    def _refine(self, condition: Value, truth: bool, added: list[tuple[list[Bound], Bound]]) -> None:
        self._proved.clear()
        self._hopeless.clear()
        maker = self._makers.get(condition)
        if isinstance(maker, AndOp) and truth:
            self._refine(maker.lhs, True, added)
            self._refine(maker.rhs, True, added)
            return
        if not isinstance(maker, CompareOp):
            return
        dtype = integer_scalar(maker.lhs)
        if dtype is None:
            return
        left, right = self.term(maker.lhs), self.term(maker.rhs)
        if self.fits(left, dtype) != NOTHING or self.fits(right, dtype) != NOTHING:
            return
        predicate = maker.predicate if truth else _OPPOSITE[maker.predicate]
        for a, b, relation in ((left, right, predicate), (right, left, _SWAPPED[predicate])):
            if len(a.parts) != 1 or a.parts[0][1] != 1 or a.parts[0][0] not in self._ranges:
                continue
            atom, offset = a.parts[0][0], a.constant
            if any(inner == atom for inner in b.atoms()):
                continue
            known = self._ranges[atom]
            if relation in ("lt", "le", "eq"):
                bound = Bound(b - offset - (1 if relation == "lt" else 0))
                known.highs.insert(0, bound)
                added.append((known.highs, bound))
            if relation in ("gt", "ge", "eq"):
                bound = Bound(b - offset + (1 if relation == "gt" else 0))
                known.lows.insert(0, bound)
                added.append((known.lows, bound))

    # -- proofs

    def is_unknown(self, term: Term) -> bool:
        """True when a launch does not know it."""
        return any(isinstance(atom, Unknown) for atom in term.atoms())

    def fits(self, term: Term, dtype: DType) -> Needs | None:
        """What a term needs to be a value of a type as it is; None where nothing is known."""
        if term.atom is not None and isinstance(term.atom, Unknown):
            value = self._values.get(term.atom)
            own = None if value is None else integer_scalar(value)
            if own is not None and dtype.lowest <= own.lowest and own.highest <= dtype.highest:
                return NOTHING
        needs = NOTHING
        for low, distance in ((True, term - dtype.lowest), (False, constant(dtype.highest) - term)):
            found = self.proves(distance)
            if found is None:
                end = self.end(term, low=low)
                if end is None or end.term.number is not None:
                    return None
                rest = end.term - dtype.lowest if low else constant(dtype.highest) - end.term
                found = Needs({rest}) | end.needs
            needs |= found
        return needs

    def proves(self, term: Term) -> Needs | None:
        """What it takes for a term to be 0 or more; None where that cannot be shown."""
        if term in self._proved:
            return self._proved[term]
        self._steps = 0
        found = self._proved[term] = self._proves(term, 0)
        return found

    def _proves(self, term: Term, depth: int) -> Needs | None:
        if not term.parts:
            return NOTHING if term.constant >= 0 else None
        self._steps += 1
        if depth > 8 or self._steps > MAX_STEPS:
            return None
        if self._hopeless.get(term, 9) <= depth:
            return None
        found = self._search(term, depth)
        if found is None and self._steps <= MAX_STEPS:
            self._hopeless[term] = depth
        return found

    def _search(self, term: Term, depth: int) -> Needs | None:
        if (found := self._by_monotony(term, depth)) is not None:
            return found
        for atom, count in sorted(term.parts, key=_order):
            for bounds in self._alternatives(atom, depth, low=count > 0):
                for bound in bounds:
                    rest = self._proves(term.with_atom(atom, bound.term), depth + 1)
                    if rest is not None:
                        return rest | bound.needs
        return None

    def _by_monotony(self, term: Term, depth: int) -> Needs | None:
        """floordiv(a, d) - floordiv(b, d) is 0 or more where a - b is."""
        more = [a for a, n in term.parts if n == 1 and isinstance(a, Quotient)]
        less = [a for a, n in term.parts if n == -1 and isinstance(a, Quotient)]
        for a in more:
            for b in less:
                if a.below != b.below or a.up != b.up:
                    continue
                first = self._proves(a.above - b.above, depth + 1)
                if first is None:
                    continue
                rest = self._proves(term - Term(0, ((a, 1),)) + Term(0, ((b, 1),)), depth + 1)
                if rest is not None:
                    return first | rest
        return None

    def _alternatives(self, atom: Atom, depth: int, *, low: bool) -> Iterator[list[Bound]]:
        """Bounds of an atom from one side, each of which proves by itself."""
        deep = max(4, depth + 1)  # a side question: not so deep, but always deeper
        known = self._ranges.get(atom)
        if known is not None:
            yield known.lows if low else known.highs
        elif isinstance(atom, Quotient):
            # the divisor is 1 or more, or that is among the needs of what brought the quotient here
            if low and atom.up and self._proves(atom.above - 1, deep) == NOTHING:
                yield [Bound(constant(1))]
            elif self._proves(atom.above, deep) == NOTHING:
                yield [Bound(constant(0))] if low else [Bound(atom.above)]
            elif not low and self._proves(-atom.above, deep) == NOTHING:
                yield [Bound(constant(0))]
        elif isinstance(atom, Extreme):
            if (atom.which == "min") != low:
                yield [Bound(term) for term in atom.terms]
            elif atom.terms:
                numbers = [t.number for t in atom.terms if t.number is not None]
                if numbers and all(
                    self._proves((t - numbers[0]) * (1 if low else -1), deep) == NOTHING for t in atom.terms
                ):
                    yield [Bound(constant(numbers[0]))]

    def _ends(self, term: Term, *, low: bool) -> list[Bound]:
        """Bounds that hold no unknowns of the kernel; the first is the best known."""
        exact, needs = True, NOTHING
        for _ in range(16):
            unknown = [(a, n) for a, n in term.parts if isinstance(a, Unknown)]
            if not unknown:
                return [] if self.is_unknown(term) else [Bound(term, exact, needs)]
            atom, count = max(unknown, key=lambda part: part[0].number)
            known = self._ranges[atom]
            bounds = [b for b in (known.lows if (count > 0) == low else known.highs) if not b.weak]
            if not bounds:
                return []
            exact = exact and bounds[0].exact and not (known.derived and len(unknown) > 1)
            needs |= bounds[0].needs
            term = term.with_atom(atom, bounds[0].term)
        return []

    def end(self, term: Term, *, low: bool) -> Bound | None:
        """A bound that the launch knows; None where there is none."""
        found = self._ends(term, low=low)
        return found[0] if found else None

    def range_of(self, atom: Atom) -> tuple[Bound | None, Bound | None]:
        """The first lower and upper bound of an atom."""
        known = self._ranges.get(atom)
        if known is None:
            return None, None
        return (known.lows[0] if known.lows else None), (known.highs[0] if known.highs else None)


def _order(part: tuple[Atom, int]) -> tuple[int, int]:
    """Unknowns first, those defined last before others: what they are bounded by comes earlier."""
    atom = part[0]
    if isinstance(atom, Unknown):
        return (0, -atom.number)
    return (2 if isinstance(atom, Argument) else 1, 0)


_OPPOSITE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}
_SWAPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
