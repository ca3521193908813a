"""Hints per target, and what is refused."""

import pytest

import tilekern as tk
from tilekern.jit import KernelOptions

X = tk.meta(64, "f4")


@tk.kernel(
    num_ctas=tk.ByTarget(sm_90=2, default=1), occupancy=tk.ByTarget(sm_100=4), opt_level=tk.ByTarget(sm_80=1)
)
def copy(out, x):
    out.store(tk.load_like(x, out))


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("sm_80", (1, None, 1)),
        ("sm_90", (2, None, 3)),
        ("sm_100", (1, 4, 3)),
        ("host", (1, None, 3)),
    ],
)
def test_value_of_a_target(target, expected):
    chosen = copy.options.for_target(target)
    assert (chosen.num_ctas, chosen.occupancy, chosen.opt_level) == expected
    assert chosen.level(target) == copy.options.level(target) == expected[2]


def test_hints_reach_the_code(assembles):
    ptx = {arch: copy.ptx(X.partition(64), X, arch=arch) for arch in ("sm_90", "sm_120")}
    assert ".reqnctapercluster 2" in ptx["sm_90"]
    assert ".reqnctapercluster 2" not in ptx["sm_120"]


def test_same_values_are_equal():
    assert tk.ByTarget(sm_90=2, default=1) == tk.ByTarget(default=1, sm_90=2)
    a, b = (KernelOptions(num_ctas=tk.ByTarget(sm_90=2)) for _ in range(2))
    assert a == b
    assert hash(a) == hash(b)
    assert repr(tk.ByTarget(sm_90=2)) == "ByTarget(sm_90=2)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tk.ByTarget(sm_75=2), "there is no target sm_75"),
        (lambda: tk.ByTarget(), "holds a value for an architecture"),
        (lambda: KernelOptions(num_ctas=tk.ByTarget(sm_90=3)), "num_ctas for sm_90 is one of"),
        (
            lambda: KernelOptions(occupancy=tk.ByTarget(default=40)),
            "occupancy for default is 1 to 32, got 40",
        ),
        (lambda: KernelOptions(num_worker_warps=tk.ByTarget(sm_90=2)), "num_worker_warps for sm_90"),
        (lambda: KernelOptions(opt_level=tk.ByTarget(sm_90=None)), "opt_level for sm_90 is 0 to 3"),
        (lambda: KernelOptions(max_divisibility=tk.ByTarget(sm_90=4)), "max_divisibility is one of"),
    ],
)
def test_hint_there_is_not_is_refused(make, message):
    with pytest.raises(tk.KernelOptionError, match=message):
        make()


def test_targets_are_those_of_the_assembler():
    from tilekern.jit._by_target import TARGETS
    from tilekern.tileir import ARCHITECTURES

    assert TARGETS == ARCHITECTURES
