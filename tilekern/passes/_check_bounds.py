"""Where a tile index is checked: as far out as it is sound, and nowhere if it cannot be wrong.

Theory. A load or store through a view is in bounds if along each axis `0 <= index` and `index < count`, the number
of tiles. Each of the two goes down this ladder and stops at the first rung that holds:

    static        both are numbers; a violation is an error at the user's line
    proven        the bounds of what the index is made of (`_ranges.py`) show it: it counts that very axis, it is
                  this block's index along a partition, ...
    precondition  likewise, with what the kernel declares and the launcher verifies
    launch        the extreme that the index takes for sure is known at the launch: one comparison there
    variant       it may or may not be taken (it stands under an `if`, it comes from `//`): if the comparison holds
                  the kernel runs as it is, else another variant does, which checks in the kernel
    kernel        an assertion, in front of all loops around the access that run for sure and whose counter is the
                  only thing in the index that changes

An assertion in front of a loop tests the last value the index takes in it and passes if the loop makes no
turn, so it fails exactly if an access would: early, but never in vain. It is computed in int64, so it does not
wrap. What keeps it inside of a loop: `while` and `break` (the last turn is not known), a branch, a counter
whose bounds may wrap, an index computed from what the loop computes.

A declared `deny` makes the last rung an error. `in_place` skips all rungs but the last and puts the assertion
next to the access: the reference that tests compare with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from .._terms import Argument, Extreme, GridSize, LaunchFacts, Product, Quotient, Term, Unknown, constant
from ..dtypes import DType, bool_, int64
from ..errors import KernelValueError
from ..ir import (
    AddOp,
    AndOp,
    AssertOp,
    Block,
    BlockIdOp,
    BreakOp,
    CastOp,
    CompareOp,
    ConstantOp,
    ContinueOp,
    FloorDivOp,
    ForOp,
    Function,
    IfOp,
    IndexSpaceOp,
    Location,
    LoopOp,
    MakeTensorOp,
    MakeViewOp,
    MaxOp,
    MemoryOp,
    MinOp,
    MulOp,
    NumBlocksOp,
    Op,
    OrOp,
    ReturnOp,
    SubOp,
    Value,
    ViewType,
    YieldOp,
    scalar,
)
from ._pass import Pass
from ._ranges import NOTHING, Bound, Needs, Ranges, integer_scalar

__all__ = ["CheckBounds", "CheckedAxis", "LaunchCondition", "Placement", "Rung"]

NO_FACTS = LaunchFacts()

Rung = Literal["static", "proven", "precondition", "launch", "variant", "kernel", "unchecked"]


class CheckedAxis(NamedTuple):
    """Where the index of an access along one axis is checked.

    Attributes:
        access: "load", "store" or the like.
        tensor: name of the parameter.
        axis: of the tile index.
        rung: see the module.
        where: place of the check in words; empty where there is none.
        why: the reason for the rung.
        location: of the access.
    """

    access: str
    tensor: str
    axis: int
    rung: Rung
    where: str
    why: str
    location: Location | None


class LaunchCondition(NamedTuple):
    """What a launch must satisfy.

    Attributes:
        at_least: terms that are 0 or more.
        guards: it need not, if one of these is below 1: a loop that makes no turn.
        decides: if it does not, another variant of the kernel is to run.
        reason: what is wrong otherwise; `shown` are put in for its braces.
        location: of the access.
    """

    at_least: tuple[Term, ...]
    guards: tuple[Term, ...]
    decides: bool
    reason: str
    shown: tuple[Term, ...]
    location: Location | None


@dataclass
class Placement:
    """What came of it: filled in by the pass."""

    axes: list[CheckedAxis] = field(default_factory=list)
    conditions: list[LaunchCondition] = field(default_factory=list)


@dataclass(frozen=True)
class CheckBounds(Pass):
    """Add the assertions that are left of bounds checks, and say what launches must satisfy.

    Attributes:
        facts: what the launcher sees to.
        placement: gets the result.
        deny: an assertion is an error instead.
        unchecked: nothing is checked.
        in_place: everything is, next to the access.
        variants: use the rung of that name.
    """

    name = "check-bounds"
    facts: LaunchFacts = NO_FACTS
    placement: Placement = field(default_factory=Placement, compare=False)
    deny: bool = False
    unchecked: bool = False
    in_place: bool = False
    variants: bool = True

    def run(self, function: Function) -> bool:
        walk = _Walk(function, self)
        walk.function()
        if self.facts.equal and not self.in_place:
            self._name_preconditions(function)
        return walk.changed

    def _name_preconditions(self, function: Function) -> None:
        """Tell apart what holds by a precondition: what is not proven without."""
        bare = CheckBounds(self.facts._replace(equal=()), variants=self.variants)
        _Walk(function, bare, dry=True).function()
        for i, (axis, without) in enumerate(zip(self.placement.axes, bare.placement.axes, strict=True)):
            if axis.rung == "proven" and without.rung != "proven":
                self.placement.axes[i] = axis._replace(rung="precondition", why="a precondition says so")


@dataclass(eq=False)
class _Frame:
    """A block that is being gone through.

    Attributes:
        kind: what it belongs to.
        op: that.
        before: operations so far of the block around, in front of `op`.
        certain: what comes next runs whenever the block does.
        defined: values defined in it so far.
    """

    kind: Literal["entry", "for", "branch", "loop"]
    op: Op | None
    before: list[Op]
    certain: bool = True
    defined: set[Value] = field(default_factory=set)


class _Walk:
    def __init__(self, function: Function, options: CheckBounds, *, dry: bool = False) -> None:
        self._function = function
        self._options = options
        self._dry = dry
        self._ranges = Ranges(function, options.facts)
        self._frames: list[_Frame] = []
        self._makers: dict[Value, Op] = {}
        self._arguments = dict(enumerate(function.body.arguments))
        self._asserted: dict[tuple[object, ...], list[Op]] = {}
        self.changed = False

    def function(self) -> None:
        self._block(self._function.body, "entry", None, [])

    # -- going through

    def _block(
        self, block: Block, kind: Literal["entry", "for", "branch", "loop"], op: Op | None, before: list[Op]
    ) -> None:
        frame = _Frame(kind, op, before, defined=set(block.arguments))
        self._frames.append(frame)
        with self._ranges.region():
            kept = self._operations(block, frame)
        self._frames.pop()
        if self._frames:
            self._frames[-1].defined |= frame.defined
        if not self._dry:
            block.ops = kept

    def _operations(self, block: Block, frame: _Frame) -> list[Op]:
        """Go through the operations of a block; gives them with the assertions that come before them."""
        kept: list[Op] = []
        learned: list[tuple[list[Bound], Bound]] = []
        for one in block.ops:
            for result in one.results:
                self._makers[result] = one
            if isinstance(one, MemoryOp) and isinstance(one.accessed.type, ViewType):
                self._access(one, kept)
            if isinstance(one, IfOp):
                learned += self._branch(one, kept)
            elif isinstance(one, ForOp):
                self._ranges.enter_for(one)
                self._block(one.body, "for", one, kept)
            elif isinstance(one, LoopOp):
                self._ranges.enter_loop(one, _continues(one.body))
                self._block(one.body, "loop", one, kept)
            elif one.regions:
                for region in one.regions:
                    self._block(region, "loop", one, kept)
            if isinstance(one, ContinueOp | BreakOp | ReturnOp):
                self._leave(one)
            self._ranges.visit(one)
            frame.defined.update(one.results)
            kept.append(one)
        self._ranges.forget(learned)
        return kept

    def _branch(self, op: IfOp, kept: list[Op]) -> list[tuple[list[Bound], Bound]]:
        """Both sides; gives what is known behind it because the other side goes elsewhere."""
        for region, truth in ((op.then, True), (op.otherwise, False)):
            with self._ranges.where(op.condition, truth):
                self._block(region, "branch", op, kept)
        yields = [r.terminator for r in op.regions if isinstance(r.terminator, YieldOp)]
        for i, result in enumerate(op.merged):
            self._ranges.merge(result, [y.values[i] for y in yields])
        if len(yields) != 1:
            return []
        return self._ranges.assume(op.condition, op.then.terminator is yields[0])

    def _leave(self, op: Op) -> None:
        """What follows a branch that leaves is not certain to run."""
        if self._frames[-1].kind != "branch" and not isinstance(op, ReturnOp):
            return
        if isinstance(op, ReturnOp) and self._frames[-1].kind == "entry":
            return
        for frame in reversed(self._frames):
            frame.certain = False
            if frame.kind in ("for", "loop") and not isinstance(op, ReturnOp):
                return

    # -- one access

    def _access(self, op: MemoryOp, kept: list[Op]) -> None:
        view = op.accessed.type
        assert isinstance(view, ViewType)
        maker = self._makers[op.accessed]
        assert isinstance(maker, MakeViewOp)
        counts = self._ranges.counts(view, maker.tensor)
        name = self._tensor_name(maker.tensor)
        index: Sequence[Value] = op.index  # type: ignore[attr-defined]  # accesses of views have one
        for axis, (value, count) in enumerate(zip(index, counts, strict=True)):
            here = _Axis(self, op, axis, value, count, name, kept)
            if self._options.unchecked or getattr(op, "contained", False):
                here.note("unchecked", "", "the kernel says it is in range")
            else:
                here.place()

    def _tensor_name(self, tensor: Value) -> str:
        maker = self._makers.get(tensor)
        name = tensor.name.removesuffix("_tensor")
        if not name and isinstance(maker, MakeTensorOp):
            name = maker.base.name
        return name or "a tensor"


class _Axis:
    """The index of an access along one axis."""

    def __init__(
        self, walk: _Walk, op: MemoryOp, axis: int, value: Value, count: Term, tensor: str, kept: list[Op]
    ) -> None:
        dtype = integer_scalar(value)
        assert dtype is not None
        self._walk = walk
        self._ranges = walk._ranges
        self._options = walk._options
        self._op = op
        self._axis = axis
        self._value = value
        self._dtype: DType = dtype
        self._count = count
        self._tensor = tensor
        self._kept = kept
        self._index = self._ranges.term(value)

    def note(self, rung: Rung, where: str, why: str) -> None:
        """Report the rung."""
        found = CheckedAxis(self._op.mnemonic, self._tensor, self._axis, rung, where, why, self._op.location)
        self._options.placement.axes.append(found)

    def place(self) -> None:
        if self._options.in_place:
            self._assert(self._kept, "in place", "all checks are asked for in place", low=True, high=True)
            return
        self._refuse_violation()
        low, high = self._ranges.proves(self._index), self._ranges.proves(self._count - 1 - self._index)
        fits = self._fits()
        if low is not None and high is not None and fits is not None:
            needs = low | high | fits
            if not needs:
                known = self._index.number is not None and self._count.number is not None
                self.note(
                    "static" if known else "proven", "", f"{self._index} is within 0 to {self._count} - 1"
                )
                return
            if self._need(needs):
                return
        if self._at_launch(low, high):
            return
        self._in_kernel(low == NOTHING, high == NOTHING, fits == NOTHING)

    def _fits(self) -> Needs | None:
        """What keeps the index from wrapping into range."""
        return self._ranges.fits(self._index, self._dtype)

    def _refuse_violation(self) -> None:
        ranges, index = self._ranges, self._index
        if ranges.fits(index, self._dtype) != NOTHING:
            return
        inside, outside = (index, self._count - 1 - index), (-index - 1, index - self._count)
        below, above = (
            ranges.proves(out) == NOTHING and ranges.proves(in_) != NOTHING  # both: it is never reached
            for in_, out in zip(inside, outside, strict=True)
        )
        if below:
            what = "before the first tile"
        elif above:
            what = f"past the last of {self._count} tiles"
        else:
            return
        raise KernelValueError(
            f"{self._op.mnemonic} of {self._tensor}: tile index {index} along axis {self._axis} is always {what}",
            self._op.location,
        )

    # -- at the launch

    def _need(self, needs: Needs) -> bool:
        """Prove with what only the launch can tell, where that tells calls apart that are prepared apart."""
        varies = any(self._ranges.varies(term) for term in needs)
        if not self._guards()[1] if varies else not self._options.variants:
            return False
        for term in sorted(needs, key=str):
            self._require(
                (term,),
                not varies,
                "{access}: a number that its tile index along axis {axis} is made of does not fit its type "
                f"({term} is {{0}})",
                (term,),
            )
        rung: Rung = "launch" if varies else "variant"
        self.note(
            rung, "before the launch", f"if {' and '.join(f'{t} >= 0' for t in sorted(needs, key=str))}"
        )
        return True

    def _at_launch(self, low: Needs | None, high: Needs | None) -> bool:
        ranges = self._ranges
        first = ranges.end(self._index, low=True)
        distance = ranges.end(self._count - 1 - self._index, low=True)
        last = ranges.end(self._index, low=False)
        if first is None or distance is None or last is None:
            return False
        needs = first.needs | distance.needs | last.needs
        wanted = [first.term] if low != NOTHING else []
        wanted += [distance.term] if high != NOTHING else []
        room = constant(self._dtype.highest) - last.term
        if ranges.proves(room) != NOTHING:
            wanted.append(room)
        if any(term.number is not None and term.number < 0 for term in wanted):
            return False
        guards, certain = self._guards()
        exact = certain and all(b.exact for b in (first, distance, last)) and not needs
        terms = (*wanted, *sorted(needs, key=str))
        varies = any(ranges.varies(term) for term in (*terms, *guards))
        if not exact and (varies or not self._options.variants):
            return False
        self._require(
            terms,
            not exact,
            "{access}: its tile index along axis {axis} goes from {0} to {1}, and there are {2} tiles",
            (first.term, last.term, self._launch_count()),
            guards,
        )
        sides = [f"{first.term} >= 0"] if low != NOTHING else []
        sides += [f"{last.term} < {self._launch_count()}"] if high != NOTHING or not sides else []
        text = " and ".join(sides)
        why = (
            "the range is reached"
            if exact
            else "the range may not be reached: else a variant that checks runs"
        )
        self.note("launch" if exact else "variant", "before the launch", f"{text}; {why}")
        return True

    def _launch_count(self) -> Term:
        end = self._ranges.end(self._count, low=True)
        return self._count if end is None else end.term

    def _guards(self) -> tuple[tuple[Term, ...], bool]:
        """Loops around that may make no turn; whether the access is certain if all of them do."""
        found: list[Term] = []
        certain = True
        for frame in self._walk._frames:
            certain = certain and frame.certain and frame.kind in ("entry", "for")
            if isinstance(frame.op, ForOp):
                trips = self._ranges.trips(frame.op)
                if trips is None or trips.needs or self._ranges.is_unknown(trips.term):
                    certain = False
                elif self._ranges.proves(trips.term - 1) != NOTHING:
                    found.append(trips.term)
        return tuple(dict.fromkeys(found)), certain

    def _require(
        self,
        terms: tuple[Term, ...],
        decides: bool,
        reason: str,
        shown: tuple[Term, ...],
        guards: tuple[Term, ...] = (),
    ) -> None:
        reason = reason.replace("{access}", f"{self._op.mnemonic} of {self._tensor}")
        reason = reason.replace("{axis}", str(self._axis))
        condition = LaunchCondition(terms, guards, decides, reason, shown, self._op.location)
        known = [(c.at_least, c.guards, c.decides) for c in self._options.placement.conditions]
        if (terms, guards, decides) not in known:
            self._options.placement.conditions.append(condition)

    # -- in the kernel

    def _in_kernel(self, low: bool, high: bool, fits: bool) -> None:
        """Assert, as far out as it is sound.

        Args:
            low, high: whether the index is shown to be at least 0, and below the number of tiles, before it wraps.
            fits: whether it is shown not to wrap. One that may is neither.
        """
        why = self._why_not(low=low, fits=fits)
        if self._options.deny:
            raise KernelValueError(
                f"{self._op.mnemonic} of {self._tensor}: the tile index along axis {self._axis}, {self._index}, "
                f"would have to be checked in the kernel, which deny_in_kernel_checks forbids: {why}; "
                "iterate over the tensor's own tiles, declare a precondition, or promise it at the access",
                self._op.location,
            )
        if self._walk._dry:
            self.note("kernel", "", why)
            return
        first, distance, guards, frame = self._climb()
        if frame is None:
            self._assert(self._kept, "in place", why, low=not (low and fits), high=not (high and fits))
            return
        where = (
            f"before the loop of {frame.op.location}" if frame.op and frame.op.location else "before the loop"
        )
        self._assert_terms(
            frame.before, [*([] if low else [first]), *([] if high and fits else [distance])], guards
        )
        self.note("kernel", where, why)

    def _why_not(self, *, low: bool, fits: bool) -> str:
        unknown = [a for a in self._index.atoms() if isinstance(a, Unknown)]
        for atom in unknown:
            lowest, highest = self._ranges.range_of(atom)
            if lowest is None or lowest.weak or highest is None or highest.weak:
                return f"the range of {atom} is not known"
        if self._ranges.is_unknown(self._count):
            return f"the number of tiles, {self._count}, is known in the kernel only"
        if any(self._ranges.varies(t) for t in (self._index, self._count)):
            return "a number given at each launch decides, and the access may not be reached"
        if not low:
            return f"that {self._index} >= 0 is not known"
        if not fits:
            return f"that {self._index} fits its type is not known"
        return f"that {self._index} < {self._count} is not known"

    def _climb(self) -> tuple[Term, Term, list[ForOp], _Frame | None]:
        """The index's least value, the least distance to the end, loops that may be empty, the place."""
        ranges = self._ranges
        first, distance = self._index, self._count - 1 - self._index
        guards: list[ForOp] = []
        found: _Frame | None = None
        for frame in reversed(self._walk._frames):
            loop = frame.op
            if frame.kind != "for" or not frame.certain or not isinstance(loop, ForOp):
                break
            trips = ranges.trips(loop)
            if trips is None or trips.needs:
                break
            lower, upper = self._counter_ends(loop)
            if lower is None or upper is None:
                break
            atom = ranges.term(loop.body.arguments[0]).atom
            assert atom is not None
            ends = [_at_lowest(term, atom, lower, upper) for term in (first, distance)]
            if not all(self._is_outside(term, frame) for term in ends):
                break
            if any(v in frame.defined for g in guards for v in (g.lower, g.upper)):
                break
            first, distance = ends
            if ranges.proves(trips.term - 1) != NOTHING:
                guards.append(loop)
            found = frame
        return first, distance, guards, found

    def _counter_ends(self, loop: ForOp) -> tuple[Term | None, Term | None]:
        atom = self._ranges.term(loop.body.arguments[0]).atom
        assert atom is not None
        low, high = self._ranges.range_of(atom)
        if low is None or high is None or not low.exact or not high.exact:
            return None, None
        return low.term, high.term

    def _is_outside(self, term: Term, frame: _Frame) -> bool:
        """True where a term can be computed in front of a frame's operation, without wrapping in int64."""
        for atom in term.atoms():
            if isinstance(atom, Unknown):
                value = self._ranges.value_of(atom)
                if value is not None and (value in frame.defined or _is_wide(value)):
                    return False
            if isinstance(atom, Product):
                return False
        return True

    def _assert(self, kept: list[Op], where: str, why: str, *, low: bool, high: bool) -> None:
        """Assert in place, on the very value of the index."""
        if self._walk._dry:
            self.note("kernel", where, why)
            return
        emit = _Emitter(kept, self._walk, self._op.location)
        index = emit.wide(self._value)
        conditions = [emit.compare(index, emit.number(0), "ge")] if low else []
        if high:
            counts = emit.counts(self._op.accessed)
            conditions.append(emit.compare(index, counts[self._axis], "lt"))
        emit.check(conditions, self._message(), "here")
        self._walk.changed = True
        self.note("kernel", where, why)

    def _assert_terms(self, kept: list[Op], terms: list[Term], guards: list[ForOp]) -> None:
        emit = _Emitter(kept, self._walk, self._op.location)
        conditions = [emit.compare(emit.term(term), emit.number(0), "ge") for term in terms]
        empty = [emit.compare(loop.lower, loop.upper, "ge") for loop in guards]
        emit.check(conditions, self._message(), "ahead", empty)
        self._walk.changed = True

    def _message(self) -> str:
        return (
            f"{self._op.mnemonic} of {self._tensor}: its tile index is out of range along axis {self._axis}"
        )


class _Emitter:
    """Adds the operations of a check to a list."""

    def __init__(self, ops: list[Op], walk: _Walk, location: Location | None) -> None:
        self._ops = ops
        self._walk = walk
        self._location = location

    def _add(self, op: Op) -> Value:
        op.location = self._location
        self._ops.append(op)
        return op.results[0]

    def number(self, value: int) -> Value:
        return self._add(ConstantOp(value=value, result=Value(scalar(int64))))

    def wide(self, value: Value) -> Value:
        if value.type == scalar(int64):
            return value
        return self._add(CastOp(source=value, result=Value(scalar(int64), value.name)))

    def counts(self, view: Value) -> tuple[Value, ...]:
        assert isinstance(view.type, ViewType)
        op = IndexSpaceOp(view=view, counts=tuple([Value(scalar(int64)) for _ in view.type.tile_shape]))
        self._add(op)
        return op.counts

    def term(self, term: Term) -> Value:
        """A term in int64."""
        total = self.number(term.constant)
        for atom, count in term.parts:
            value = self._atom(atom)
            if abs(count) != 1:
                value = self._two(MulOp, value, self.number(abs(count)))
            total = self._two(AddOp if count > 0 else SubOp, total, value)
        return total

    def _atom(self, atom: object) -> Value:
        if isinstance(atom, Argument):
            return self.wide(self._walk._arguments[atom.position])
        if isinstance(atom, GridSize):
            return self.wide(self._add(NumBlocksOp(axis=atom.axis, result=_int32())))
        if isinstance(atom, Unknown):
            value = self._walk._ranges.value_of(atom)
            if value is None:  # a block index
                axis = int(atom.name.removeprefix("bid(").removesuffix(")"))
                value = self._add(BlockIdOp(axis=axis, result=_int32()))
            return self.wide(value)
        if isinstance(atom, Quotient):
            above, below = atom.above, self.term(atom.below)
            if not atom.up:
                return self._two(FloorDivOp, self.term(above), below)
            return self._two(FloorDivOp, self._two(AddOp, self.term(above - 1), below), below)
        assert isinstance(atom, Extreme), "products are not hoisted"
        found = self.term(atom.terms[0])
        for other in atom.terms[1:]:
            found = self._two(MinOp if atom.which == "min" else MaxOp, found, self.term(other))
        return found

    def _two(self, kind: type[Op], lhs: Value, rhs: Value) -> Value:
        return self._add(kind(lhs=lhs, rhs=rhs, result=Value(scalar(int64))))

    def compare(self, lhs: Value, rhs: Value, predicate: str) -> Value:
        return self._add(CompareOp(lhs=lhs, rhs=rhs, predicate=predicate, result=Value(scalar(bool_))))

    def check(
        self,
        conditions: list[Value],
        message: str,
        bounds: str,
        otherwise: Sequence[Value] = (),
    ) -> None:
        """Assert that all conditions hold, or one of `otherwise`."""
        if not conditions:
            return
        fine = conditions[0]
        for other in conditions[1:]:
            fine = self._add(AndOp(lhs=fine, rhs=other, result=Value(scalar(bool_))))
        for other in otherwise:
            fine = self._add(OrOp(lhs=fine, rhs=other, result=Value(scalar(bool_))))
        op = AssertOp(condition=fine, message=message, bounds=bounds)
        op.location = self._location
        self._ops.append(op)


def _int32() -> Value:
    from ..dtypes import int32

    return Value(scalar(int32))


def _is_wide(value: Value) -> bool:
    dtype = integer_scalar(value)
    return dtype is None or dtype.bits > 32


def _at_lowest(term: Term, atom: object, lower: Term, upper: Term) -> Term:
    """A term at the end of the atom's range where it is least."""
    count = dict(term.parts).get(atom, 0)  # type: ignore[call-overload]
    return term.replace({atom: lower if count > 0 else upper}) if count else term  # type: ignore[dict-item]


def _continues(block: Block) -> list[tuple[Value, ...]]:
    """The values of every `continue` of the loop whose body this is."""
    found = []
    for op in block.ops:
        if isinstance(op, ContinueOp):
            found.append(op.values)
        elif isinstance(op, IfOp):
            for region in op.regions:
                found += _continues(region)
    return found
