"""Tokens keep every pair of accesses in order that has to be: random programs, executed with their tokens.

A program is run over its numbers alone. A token is the set of accesses it comes after; an access that shares an
element with an earlier one, one of the two being a store, must have that one in its token's set. So must
every access after one that acquires, and one that releases must have all before it.
"""

import operator
import random

import pytest

from tilekern import ir, passes

HEAD = """\
func @f(%p: ptr<i32>, %q: ptr<i32>, %n: i32) {
  %pt = make_tensor %p, [%n], [] : tensor<?xi32, [1]>
  %qt = make_tensor %q, [%n], [] : tensor<?xi32, [1]>
  %p2 = make_view %pt : view<2, tensor<?xi32, [1]>>
  %p4 = make_view %pt : view<4, tensor<?xi32, [1]>>
  %pover = make_view %pt : view<2, tensor<?xi32, [1]>, steps=[1]>
  %q2 = make_view %qt : view<2, tensor<?xi32, [1]>>
  %zero = constant value=0 : i32
  %one = constant value=1 : i32
  %two = constant value=2 : i32
  %three = constant value=3 : i32
  %v2 = constant value=1 : tile<2xi32>
  %v4 = constant value=1 : tile<4xi32>
"""
COMPUTED = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "and": operator.and_,
    "truncdiv": operator.floordiv,
    "compare": operator.lt,
}
SIDES = {"p2": 2, "p4": 4, "pover": 2, "q2": 2}
N = 12


class Writer:
    """Writes a random program; every name is used once."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.lines = []
        self.count = 0

    def name(self):
        self.count += 1
        return f"%x{self.count}"

    def add(self, text):
        name = self.name()
        self.lines.append(f"{name} = {text}")
        return name

    def index(self, counters):
        """A number: of counters, of constants, of both."""
        choose = self.random.choice
        if not counters or self.random.random() < 0.2:
            return choose(["%zero", "%one", "%two"])
        at = choose(counters)
        match self.random.randrange(8):
            case 0 | 1 | 2:
                return at
            case 3:
                return self.add(f"add {at}, {choose(['%one', '%two', *counters])} : i32")
            case 4:
                return self.add(f"sub %n, {at} : i32")
            case 5:
                return self.add(f"mul {at}, {choose(['%two', '%three', '%zero'])} : i32")
            case 6:
                return self.add(f"and {at}, %one : i32")
            case _:
                return self.add(f"truncdiv {at}, %two : i32")

    def access(self, counters):
        view = self.random.choice(["p2", "p2", "p2", "p4", "pover", "q2"])
        index, kind = self.index(counters), self.random.random()
        side, token = SIDES[view], self.name()
        order = ""
        if self.random.random() < 0.06:
            order = " ordering={} scope=device".format("acquire" if kind < 0.45 else "release")
        if kind < 0.45:
            self.lines.append(
                f"{self.name()}, {token} = load %{view}, [{index}], _{order} : tile<{side}xi32>, token"
            )
        elif kind < 0.9 or order:
            self.lines.append(f"{token} = store %{view}, %v{side}, [{index}], _{order} : token")
        else:
            self.lines.append(f"{token} = atomic_reduce %{view}, %v{side}, [{index}], _ mode=add : token")

    def block(self, depth, counters, in_loop):
        for _ in range(self.random.randint(1, 4)):
            kind = self.random.random()
            if kind < 0.6 or depth == 0:
                self.access(counters)
            elif kind < 0.85:
                counter = self.name()
                step = self.random.choice(["%one", "%one", "%two"])
                lower = self.random.choice(["%zero", "%one", *counters])
                self.lines.append(f"for {lower}, %three, {step}, [] ({counter}: i32) {{")
                self.block(depth - 1, [*counters, counter], True)
                self.lines += ["continue []", "}"]
            else:
                left, right = self.index(counters), self.index(counters)
                condition = self.add(f"compare {left}, {right} predicate=lt : bool")
                self.lines.append(f"if {condition} {{")
                self.block(depth - 1, counters, in_loop)
                leaves = in_loop and self.random.random() < 0.3
                self.lines += ["continue []" if leaves else "yield []", "} else {"]
                if self.random.random() < 0.5:
                    self.block(depth - 1, counters, in_loop)
                self.lines += ["yield []", "}"]

    def text(self):
        self.block(3, [], False)
        return HEAD + "\n".join(self.lines) + "\nreturn\n}"


class Run:
    """Runs a function over its numbers, and checks the order of its accesses."""

    def __init__(self, function):
        self.values = dict.fromkeys(function.body.arguments, N)
        self.makers = {r: op for op in ir.walk(function.body) for r in op.results}
        self.roots = ir.memory_roots(function)
        self.stored = {
            root
            for op in ir.walk(function.body)
            if isinstance(op, ir.MemoryOp) and op.effect == "write"
            for root in self.roots[op.accessed]
        }
        self.done = []
        self.block(function.body)

    def __getitem__(self, value):
        return self.values[value]

    def all(self, values):
        return [self.values[v] for v in values]

    def block(self, block):
        for op in block.ops:
            match op:
                case ir.MemoryOp():
                    self.access(op)
                case ir.MakeTokenOp():
                    self.values[op.result] = frozenset()
                case ir.JoinTokensOp():
                    self.values[op.result] = frozenset().union(*self.all(op.tokens))
                case ir.ForOp():
                    self.loop(op)
                case ir.IfOp():
                    end = self.block(op.then if self[op.condition] else op.otherwise)
                    if not isinstance(end[0], ir.YieldOp):
                        return end
                    self.values.update(zip(op.merged, end[1], strict=True))
                case _ if op.terminator:
                    return op, self.all(op.operands)
                case _:
                    self.compute(op)
        return None

    def loop(self, op):
        carried = self.all(op.initial)
        for counter in range(self[op.lower], self[op.upper], self[op.step]):
            self.values.update(zip(op.body.arguments, [counter, *carried], strict=True))
            carried = self.block(op.body)[1]
        self.values.update(zip(op.final, carried, strict=True))

    def compute(self, op):
        if isinstance(op, ir.ConstantOp):
            self.values[op.result] = op.value
        elif op.mnemonic in COMPUTED:
            self.values[op.result] = COMPUTED[op.mnemonic](*self.all(op.operands))

    def access(self, op):
        (root,) = self.roots[op.accessed]
        view = op.view.type
        start = self[op.index[0]] * view.starts_every[0]
        own = (root, set(range(start, start + view.tile_shape[0])), op.effect == "write", op)
        before = frozenset() if op.token is None else self[op.token]
        for number, (other, elements, writes, earlier) in enumerate(self.done):
            conflict = other is root and elements & own[1] and (writes or own[2])
            fenced = (earlier.acquires and root in self.stored) or (op.releases and other in self.stored)
            if conflict or fenced:
                assert number in before, f"{ir.format_op(op)} may come before {ir.format_op(earlier)}"
        self.values[op.result_token] = before | {len(self.done)}
        self.done.append(own)


def check(seed):
    function = ir.parse(Writer(seed).text())
    function.verify()
    passes.OrderMemory().run(function)
    function.verify()
    try:
        return len(Run(function).done)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{function}") from None


@pytest.mark.parametrize("block", range(10))
def test_conflicting_accesses_are_in_order(block):
    assert sum(check(seed) for seed in range(40 * block, 40 * block + 40)) > 100


@pytest.mark.slow
def test_conflicting_accesses_are_in_order_at_length():
    for seed in range(1000, 11_000):
        check(seed)


def test_the_check_finds_a_missing_token():
    function = ir.parse(
        HEAD + "%a = store %p2, %v2, [%one], _ : token\n%b = store %p4, %v4, [%zero], _ : token\nreturn\n}"
    )
    with pytest.raises(AssertionError, match=r"store %p4.* may come before .* store %p2"):
        Run(function)
