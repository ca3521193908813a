"""Random programs over a few integer tensors, with what each step makes of them in NumPy.

A program has one to four branches. Each writes tensors that no other branch uses, so a branch that was stopped on the
way (cancelled, or by an exception) has left its tensors as they were after some number of its steps, and nothing else:
that is what can be checked whatever happened. All arithmetic is on int32 and wraps around, so every value is exact.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

import cuda_async as ca

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    Arrays = list[np.ndarray[Any, Any]]

BLOCK = 128
BINS = 32

_HEAD = """
.version 7.0
.target sm_75
.address_size 64
"""

_INDEX = """
    .reg .pred %p<4>;
    .reg .b32 %r<24>;
    .reg .b64 %d<12>;
    ld.param.u32 %r0, [n];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    setp.ge.u32 %p0, %r4, %r0;
"""

PTX = (
    _HEAD
    + """
// x[i] = a * x[i] + b, `rounds` times
.visible .entry affine(.param .u64 x, .param .u32 n, .param .s32 a, .param .s32 b, .param .u32 rounds)
{"""
    + _INDEX
    + """
    @%p0 bra END;
    ld.param.u64 %d0, [x];
    ld.param.s32 %r5, [a];
    ld.param.s32 %r6, [b];
    ld.param.u32 %r7, [rounds];
    mul.wide.u32 %d1, %r4, 4;
    add.s64 %d2, %d0, %d1;
    ld.global.s32 %r8, [%d2];
LOOP:
    setp.eq.u32 %p1, %r7, 0;
    @%p1 bra STORE;
    mad.lo.s32 %r8, %r8, %r5, %r6;
    sub.u32 %r7, %r7, 1;
    bra LOOP;
STORE:
    st.global.s32 [%d2], %r8;
END:
    ret;
}

// y[i] = a * x[i] + b * y[i]
.visible .entry combine(.param .u64 y, .param .u64 x, .param .u32 n, .param .s32 a, .param .s32 b)
{"""
    + _INDEX
    + """
    @%p0 bra END;
    ld.param.u64 %d0, [y];
    ld.param.u64 %d1, [x];
    ld.param.s32 %r5, [a];
    ld.param.s32 %r6, [b];
    mul.wide.u32 %d2, %r4, 4;
    add.s64 %d3, %d0, %d2;
    add.s64 %d4, %d1, %d2;
    ld.global.s32 %r7, [%d3];
    ld.global.s32 %r8, [%d4];
    mul.lo.s32 %r7, %r7, %r6;
    mad.lo.s32 %r7, %r8, %r5, %r7;
    st.global.s32 [%d3], %r7;
END:
    ret;
}

// each block of 128 elements backwards, through shared memory; what lies behind the end reads as 0
.visible .entry mirror(.param .u64 y, .param .u64 x, .param .u32 n)
{
    .shared .align 4 .b8 line[512];"""
    + _INDEX
    + """
    mov.u32 %r5, 0;
    @%p0 bra PUT;
    ld.param.u64 %d1, [x];
    mul.wide.u32 %d2, %r4, 4;
    add.s64 %d3, %d1, %d2;
    ld.global.s32 %r5, [%d3];
PUT:
    mov.u32 %r6, line;
    shl.b32 %r7, %r3, 2;
    add.u32 %r8, %r6, %r7;
    st.shared.s32 [%r8], %r5;
    bar.sync 0;
    @%p0 bra END;
    sub.u32 %r9, 508, %r7;
    add.u32 %r10, %r6, %r9;
    ld.shared.s32 %r11, [%r10];
    ld.param.u64 %d0, [y];
    mul.wide.u32 %d4, %r4, 4;
    add.s64 %d5, %d0, %d4;
    st.global.s32 [%d5], %r11;
END:
    ret;
}

// y[x[i] & 31] += 1
.visible .entry count(.param .u64 y, .param .u64 x, .param .u32 n)
{"""
    + _INDEX
    + """
    @%p0 bra END;
    ld.param.u64 %d0, [y];
    ld.param.u64 %d1, [x];
    mul.wide.u32 %d2, %r4, 4;
    add.s64 %d3, %d1, %d2;
    ld.global.s32 %r5, [%d3];
    and.b32 %r5, %r5, 31;
    mul.wide.u32 %d4, %r5, 4;
    add.s64 %d5, %d0, %d4;
    red.global.add.s32 [%d5], 1;
END:
    ret;
}
"""
)


class Kernels:
    """The raw kernels above, loaded, and a tile kernel where tile kernels can be compiled for the device."""

    def __init__(self, device: ca.Device, tile_kernel: Callable[..., Any] | None) -> None:
        module = ca.Module.from_ptx(PTX, name="soak.ptx")
        self.affine, self.combine, self.mirror, self.count = (
            module.function(name) for name in ("affine", "combine", "mirror", "count")
        )
        for function in (self.affine, self.combine, self.mirror, self.count):
            function.load(device)
        self.tile_kernel = tile_kernel


# ------------------------------------------------------------------------------------- arithmetic


def wrapped(value: int) -> int:
    """An integer as 32 bits hold it, two's complement."""
    return (value + 2**31) % 2**32 - 2**31


def affine_power(a: int, b: int, rounds: int) -> tuple[int, int]:
    """The (A, B) for which `A * x + B` is `a * x + b` applied `rounds` times, in 32 bits."""
    total_a, total_b = 1, 0
    while rounds:
        if rounds & 1:
            total_a, total_b = wrapped(a * total_a), wrapped(a * total_b + b)
        a, b = wrapped(a * a), wrapped(a * b + b)
        rounds >>= 1
    return total_a, total_b


def linear(terms: list[tuple[int, np.ndarray[Any, Any]]], constant: int = 0) -> np.ndarray[Any, Any]:
    """The sum of factor times array, in int32 that wraps around."""
    total = np.full(len(terms[0][1]), constant, np.int64)
    for factor, array in terms:
        total += factor * array.astype(np.int64)
    return total.astype(np.int32)


def mirrored(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    padded = np.zeros(-(-len(array) // BLOCK) * BLOCK, np.int32)
    padded[: len(array)] = array
    return padded.reshape(-1, BLOCK)[:, ::-1].reshape(-1)[: len(array)].copy()


# ------------------------------------------------------------------------------------- steps


@dataclass(frozen=True)
class Step:
    """One operation on tensors, and the new value of the one that it writes.

    Attributes:
        name: for messages. writes: which tensor. enqueue: makes the operation from all tensors. apply: makes the new
            value of the written one from the values of all.
    """

    name: str
    writes: int
    enqueue: Callable[[list[ca.Tensor]], ca.DeviceOp[Any]]
    apply: Callable[[Arrays], np.ndarray[Any, Any]]


@dataclass
class Common:
    """What all threads use at once: nobody writes to it.

    Attributes:
        tensors: by their length, with their values. shared: likewise, an operation of which all get the one result.
        graphs: likewise, a graph `3 * x + 1` of its input `x`, called from every thread.
        policies: asked for streams by every thread.
    """

    kernels: Kernels
    long_rounds: int
    policies: list[ca.SchedulingPolicy]
    tensors: dict[int, tuple[ca.Tensor, np.ndarray[Any, Any]]] = field(default_factory=dict)
    shared: dict[int, tuple[ca.SharedOp[ca.Tensor], np.ndarray[Any, Any]]] = field(default_factory=dict)
    graphs: dict[int, ca.CudaGraph[ca.Tensor]] = field(default_factory=dict)


class Drawing:
    """Draws steps and branches from a random generator."""

    def __init__(self, chance: random.Random, common: Common, size: int) -> None:
        self.chance = chance
        self.common = common
        self.size = size

    def launch(self, function: ca.Function, *arguments: Any) -> ca.DeviceOp[Any]:
        return function.launch(-(-self.size // BLOCK), BLOCK, *arguments)

    def branches(self, tensors: int) -> list[list[Step]]:
        """Lists of steps; tensors of one list are in no other."""
        groups = self.chance.choice([1, 1, 2, 4])
        numbers = list(range(tensors))
        return [
            [self.step(numbers[i::groups]) for _ in range(self.chance.randrange(1, 6))] for i in range(groups)
        ]

    def step(self, numbers: list[int]) -> Step:
        """A step that uses only these tensors, and what is common."""
        target = self.chance.choice(numbers)
        others = [i for i in numbers if i != target]
        alone = [self.affine, self.long, self.fill, self.upload, self.of_common, self.of_shared]
        two = [
            self.combine,
            self.shifted,
            self.through_new,
            self.converted,
            self.mirror,
            self.count,
            self.graph,
        ]
        if self.common.kernels.tile_kernel is not None:
            two.append(self.tile)
        kind: Callable[..., Step] = self.chance.choice(alone + two if others else alone)
        return kind(target, self.chance.choice(others)) if kind in two else kind(target)

    def factors(self) -> tuple[int, int]:
        return self.chance.choice([-7, -1, 1, 3, 5]), self.chance.randrange(-1000, 1000)

    def affine(self, t: int) -> Step:
        return self._affine("affine", t, self.chance.randrange(4))

    def long(self, t: int) -> Step:
        return self._affine("long", t, self.chance.randrange(1, self.common.long_rounds))

    def _affine(self, name: str, t: int, rounds: int) -> Step:
        a, b = self.factors()
        kernel, n = self.common.kernels.affine, self.size
        total_a, total_b = affine_power(a, b, rounds)
        return Step(
            f"{name}({t}, {a}, {b}, {rounds})",
            t,
            lambda ts: self.launch(kernel, ca.mut(ts[t]), n, a, b, rounds),
            lambda arrays: linear([(total_a, arrays[t])], total_b),
        )

    def fill(self, t: int) -> Step:
        first, step, value = self.chance.randrange(5), self.chance.randrange(1, 4), self.chance.randrange(99)

        def apply(arrays: Arrays) -> np.ndarray[Any, Any]:
            result = arrays[t].copy()
            result[first::step] = value
            return result

        return Step(
            f"fill({t}[{first}::{step}], {value})", t, lambda ts: ca.fill(ts[t][first::step], value), apply
        )

    def upload(self, t: int) -> Step:
        data = np.random.default_rng(self.chance.randrange(2**32)).integers(
            -(2**31), 2**31, self.size, np.int32
        )
        return Step(f"upload({t})", t, lambda ts: ca.memcpy(ts[t], data), lambda arrays: data)

    def of_common(self, t: int) -> Step:
        tensor, value = self.common.tensors[self.size]
        a, b = self.factors()
        kernel, n = self.common.kernels.combine, self.size
        return Step(
            f"of_common({t}, {a}, {b})",
            t,
            lambda ts: self.launch(kernel, ca.mut(ts[t]), ca.read(tensor), n, a, b),
            lambda arrays: linear([(a, value), (b, arrays[t])]),
        )

    def of_shared(self, t: int) -> Step:
        op, value = self.common.shared[self.size]
        kernel, n = self.common.kernels.combine, self.size
        return Step(
            f"of_shared({t})",
            t,
            lambda ts: op.then(lambda s: self.launch(kernel, ca.mut(ts[t]), ca.read(s), n, 1, -1)),
            lambda arrays: linear([(1, value), (-1, arrays[t])]),
        )

    def combine(self, t: int, s: int) -> Step:
        a, b = self.factors()
        kernel, n = self.common.kernels.combine, self.size
        return Step(
            f"combine({t}, {s}, {a}, {b})",
            t,
            lambda ts: self.launch(kernel, ca.mut(ts[t]), ca.read(ts[s]), n, a, b),
            lambda arrays: linear([(a, arrays[s]), (b, arrays[t])]),
        )

    def shifted(self, t: int, s: int) -> Step:
        by = self.chance.randrange(1, 9)

        def apply(arrays: Arrays) -> np.ndarray[Any, Any]:
            return np.concatenate([arrays[t][:by], arrays[s][:-by]])

        return Step(f"shifted({t}, {s}, {by})", t, lambda ts: ca.memcpy(ts[t][by:], ts[s][:-by]), apply)

    def through_new(self, t: int, s: int) -> Step:
        """Memory is allocated and freed on the way, in stream order."""
        a, b = self.factors()
        kernel, n = self.common.kernels.affine, self.size

        def enqueue(ts: list[ca.Tensor]) -> ca.DeviceOp[Any]:
            copied = ca.copy(ts[s]).then(lambda new: self.launch(kernel, ca.mut(new), n, a, b, 1))
            return copied.first().then(lambda new: ca.memcpy(ts[t], new))

        return Step(f"through_new({t}, {s})", t, enqueue, lambda arrays: linear([(a, arrays[s])], b))

    def converted(self, t: int, s: int) -> Step:
        def enqueue(ts: list[ca.Tensor]) -> ca.DeviceOp[Any]:
            there = ts[s].astype("int64").then(lambda wide: wide.astype("int32"))
            return there.then(lambda back: ca.memcpy(ts[t], back))

        return Step(f"converted({t}, {s})", t, enqueue, lambda arrays: arrays[s].copy())

    def mirror(self, t: int, s: int) -> Step:
        kernel, n = self.common.kernels.mirror, self.size
        return Step(
            f"mirror({t}, {s})",
            t,
            lambda ts: self.launch(kernel, ca.mut(ts[t]), ca.read(ts[s]), n),
            lambda arrays: mirrored(arrays[s]),
        )

    def count(self, t: int, s: int) -> Step:
        kernel, n = self.common.kernels.count, self.size

        def apply(arrays: Arrays) -> np.ndarray[Any, Any]:
            result = arrays[t].copy()
            with np.errstate(over="ignore"):
                result[:BINS] += np.bincount(arrays[s] & (BINS - 1), minlength=BINS).astype(np.int32)
            return result

        return Step(
            f"count({t}, {s})", t, lambda ts: self.launch(kernel, ca.mut(ts[t]), ca.read(ts[s]), n), apply
        )

    def graph(self, t: int, s: int) -> Step:
        """One graph, called from every thread at once; inside a capture it becomes a part of the other one."""
        graph = self.common.graphs[self.size]
        return Step(
            f"graph({t}, {s})",
            t,
            lambda ts: graph(x=ts[s]).then(lambda out: ca.memcpy(ts[t], out)),
            lambda arrays: linear([(3, arrays[s])], 1),
        )

    def tile(self, t: int, s: int) -> Step:
        kernel: Any = self.common.kernels.tile_kernel
        a, b = self.factors()
        tensor, value = self.common.tensors[self.size]
        return Step(
            f"tile({t}, {s}, {a}, {b})",
            t,
            lambda ts: kernel(ts[t].partition(BLOCK), ts[s], tensor, a, b),
            lambda arrays: linear([(a, arrays[s]), (1, value)], b),
        )


# ------------------------------------------------------------------------------------- programs


class Planned(Exception):
    """Raised by a step that was drawn to fail."""


class Program:
    """Branches, as one operation, and the values that its tensors may have afterwards."""

    def __init__(self, branches: list[list[Step]], *, raise_in: tuple[int, int] | None = None) -> None:
        self.branches = branches
        self.reached = [0] * len(branches)
        self._raise_in = raise_in

    def __str__(self) -> str:
        return " | ".join(" ".join(step.name for step in branch) for branch in self.branches)

    @property
    def length(self) -> int:
        return sum(map(len, self.branches))

    def operation(self, tensors: list[ca.Tensor], side_by_side: bool) -> ca.DeviceOp[Any]:
        """All branches, on streams of their own or one after the other."""
        made = [self._chain(number, tensors) for number in range(len(self.branches))]
        if len(made) == 1:
            return made[0]
        return ca.parallel(*made) if side_by_side else ca.zip(*made)

    def _chain(self, number: int, tensors: list[ca.Tensor]) -> ca.DeviceOp[Any]:
        op: ca.DeviceOp[Any] = ca.value(None)
        for position, step in enumerate(self.branches[number]):

            def go_on(_: object, step: Step = step, position: int = position) -> ca.DeviceOp[Any]:
                if self._raise_in == (number, position):
                    raise Planned(step.name)
                self.reached[number] = position + 1
                return step.enqueue(tensors)

            op = op.then(go_on)
        return op

    def states(self, number: int, arrays: Arrays, times: int = 1) -> list[Arrays]:
        """The values of all tensors before the branch, and after each of its steps, `times` times over."""
        states = [list(arrays)]
        for step in self.branches[number] * times:
            after = list(states[-1])
            after[step.writes] = step.apply(after)
            states.append(after)
        return states

    def finished(self, arrays: Arrays, times: int = 1) -> Arrays:
        """The values after all of it."""
        result = list(arrays)
        for number in range(len(self.branches)):
            after = self.states(number, arrays, times)[-1]
            for step in self.branches[number]:
                result[step.writes] = after[step.writes]
        return result

    def stopped(self, arrays: Arrays, found: Arrays) -> str | None:
        """What is wrong with the values found after the program was stopped on the way; None if nothing is.

        The last step that a branch came to may have been enqueued or not.
        """
        for number, branch in enumerate(self.branches):
            states = self.states(number, arrays)
            written = {step.writes for step in branch}
            came_to = self.reached[number]
            allowed = {max(0, came_to - 1), came_to}
            if not any(all((states[k][t] == found[t]).all() for t in written) for k in allowed):
                where = [k for k, s in enumerate(states) if all((s[t] == found[t]).all() for t in written)]
                return f"branch {number} stopped at step {came_to}, values are those after {where or 'none'}"
        touched = {step.writes for branch in self.branches for step in branch}
        for i, (before, after) in enumerate(zip(arrays, found)):
            if i not in touched and not (before == after).all():
                return f"tensor {i} changed, and no step writes it"
        return None
