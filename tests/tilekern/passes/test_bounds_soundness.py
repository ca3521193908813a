"""The placement of bounds checks against checking everything in place, on random programs."""

import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tilekern import ir, passes
from tilekern._terms import LaunchFacts, argument, constant, encoded, quotient
from tilekern.errors import KernelIndexError, KernelValueError
from tilekern.frontend import Requires

sys.path.insert(0, str(Path(__file__).parent))
import random_programs as rp

SCALARS = frozenset({4})
X0, X1, Y0 = argument(1, "x_shape0"), argument(2, "x_shape1"), argument(3, "y_shape0")


def access_fails(function, numbers, grid):
    try:
        rp.run(function, numbers, grid)
    except KernelIndexError:
        return True
    return False


def problem(condition, numbers, grid):
    check = Requires(
        encoded(condition.at_least),
        encoded(condition.guards),
        condition.decides,
        condition.reason,
        encoded(condition.shown),
        (),
        None,
    )
    return check.problem([0, *numbers, 0], grid)


def placed(text, facts, *, variants=True):
    function = ir.parse(text)
    check = passes.CheckBounds(facts, variants=variants)
    passes.run_passes(function, (*passes.PIPELINE, check, *passes.AFTER_CHECKS))
    for op in ir.walk(function.body):
        if isinstance(op, ir.AssertOp):
            op.bounds = "ahead"  # so that the interpreter heeds those next to an access, too
    return function, check.placement


def outcome(text, facts, numbers, grid):
    """ "refused", "asserted", "missed" or "fine": what becomes of a launch."""
    function, placement = placed(text, facts)
    if any(problem(c, numbers, grid) for c in placement.conditions if c.decides):
        function, placement = placed(text, facts, variants=False)
        assert not any(c.decides for c in placement.conditions)
    if any(problem(c, numbers, grid) for c in placement.conditions):
        return "refused"
    try:
        rp.run(function, numbers, grid)
    except KernelIndexError as error:
        return "missed" if "of tile (" in str(error) else "asserted"
    return "fine"


def compare(text, facts, numbers, grid):
    fails = access_fails(ir.parse(text), numbers, grid)
    try:
        result = outcome(text, facts, numbers, grid)
    except KernelValueError:
        return "static"  # it is wrong wherever it is reached
    assert result != "missed", "an access out of range that no check saw"
    assert (result in ("refused", "asserted")) == fails, (
        f"{result}, but in place it {'fails' if fails else 'is fine'}"
    )
    return result


QUICK = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=150)


WRAPS = """func @f(%p: ptr<f32>, %x_shape0: i32, %x_shape1: i32, %y_shape0: i32, %s: i32, %q: ptr<i32>) {
  %d0 = assume_bounded %x_shape0 lower=0 upper=none : i32
  %y = make_tensor %p, [%d0], [] : tensor<?xf32, [1]>
  %w = make_view %y : view<4, tensor<?xf32, [1]>>
  %t = constant value=1.0 : tile<4xf32>
  %zero = constant value=0 : i32
  %large = constant value=1073741824 : i32
  %i = mul %large, %d0 : i32
  %c = compare %s, %zero predicate=gt : bool
  loop [] () {
    if %c {
      %token = store %w, %t, [%i], _ : token
      yield []
    } else {
      yield []
    }
    break []
  }
  return
}
"""


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("reached", [0, 1])
def test_an_index_that_can_only_be_too_large_and_wraps(size, reached):
    found = compare(WRAPS, LaunchFacts(scalars=SCALARS), [size, 0, size, reached], (1, 1, 1))
    assert found == ("asserted" if reached and size != 4 else "fine")


@QUICK
@given(rp.programs(accesses=True), rp.launches())
def test_placed_checks_fail_exactly_where_accesses_do(text, launch):
    numbers, grid = launch
    compare(text, LaunchFacts(scalars=SCALARS), numbers, grid)


@QUICK
@given(rp.programs(accesses=True), rp.launches())
def test_with_grids_of_partitions_and_preconditions(text, launch):
    (x0, x1, _, s), grid = launch
    limits = ((0, quotient(X0, constant(4), up=True)), (1, quotient(X1, constant(2), up=True)))
    grid = (min(grid[0], -(-x0 // 4)), min(grid[1], -(-x1 // 2)), 1)
    facts = LaunchFacts(grid_limits=limits, equal=((Y0, X0),), scalars=SCALARS)
    compare(text, facts, [x0, x1, x0, s], grid)


@QUICK
@given(rp.programs(accesses=True), rp.launches())
def test_what_is_stated_to_the_assembler_holds(text, launch):
    """The interpreter asserts every assumption."""
    function = ir.parse(text)
    passes.run_passes(function, (*passes.PIPELINE, passes.StateRanges(LaunchFacts(scalars=SCALARS))))
    access_fails(function, *launch)


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=3000)
@given(rp.programs(accesses=True), rp.launches())
def test_many_placements(text, launch):
    numbers, grid = launch
    compare(text, LaunchFacts(scalars=SCALARS), numbers, grid)


REWRITES = (
    *(passes.FoldConstants(), passes.SelectBranches(), passes.EliminateCommon(), passes.HoistInvariants()),
    *(passes.EliminateDead(), passes.OrderMemory(), passes.StateRanges(LaunchFacts(scalars=SCALARS))),
)


@pytest.mark.parametrize("one", REWRITES, ids=lambda one: one.name)
@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=25)
@given(rp.programs(accesses=False), rp.launches())
def test_pass_preserves_what_a_program_writes(one, text, launch):
    numbers, _ = launch
    expected = rp.run(ir.parse(text), numbers, (1, 1, 1))
    function = ir.parse(text)
    passes.run_passes(function, (one,))
    assert rp.run(function, numbers, (1, 1, 1)) == expected


def test_every_rung_is_met():
    """The generator's programs reach each of the rungs; so the tests above say something about each."""
    found = Counter()

    @settings(
        deadline=None,
        suppress_health_check=list(HealthCheck),
        max_examples=60,
        database=None,
        derandomize=True,
    )
    @given(rp.programs(accesses=True))
    def collect(text):
        try:
            found.update(axis.rung for axis in placed(text, LaunchFacts(scalars=SCALARS))[1].axes)
        except KernelValueError:
            found["error"] += 1

    collect()
    assert min(found[rung] for rung in ("proven", "launch", "variant", "kernel", "error")) > 2, found
