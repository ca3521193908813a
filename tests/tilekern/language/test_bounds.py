"""Where tile indices are checked, what is refused, and what is not."""

import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk


def zeros(*shape):
    return ca.zeros(shape, "f4").sync()


def rungs(kernel, *args, **options):
    made = kernel.with_options(**options) if options else kernel
    return [(axis.access, axis.tensor, axis.axis, axis.rung) for axis in made.check_report(*args).accesses]


@tk.kernel
def columns(out, x, y):
    total = tk.zeros((8, 8), tk.float32)
    for k in range(tk.num_tiles(x, 1, (8, 8))):
        total += tk.load(x, (0, k), (8, 8)) + tk.load(y, (k, 0), (8, 8))
    out.store(total)


def test_index_that_counts_the_tiles_needs_no_check():
    x = tk.meta((8, 64), "f4")
    found = rungs(columns, tk.meta((8, 8), "f4").partition((8, 8)), x, tk.meta((64, 8), "f4"))
    assert ("load", "x", 1, "proven") in found
    assert ("load", "y", 0, "launch") in found
    assert ("store", "out", 0, "proven") in found
    assert all(rung != "kernel" for *_, rung in found)


def test_loop_over_one_tensor_that_indexes_another_is_checked_at_the_launch(device):
    out = zeros(8, 8)
    columns(out.partition((8, 8)), ca.ones((8, 20), "f4"), ca.ones((24, 8), "f4")).sync()
    assert out.to_host().sync()[0, 0] == 6.0  # 3 tiles each; the third of x is half outside
    with pytest.raises(
        ca.LaunchError, match="load of y: its tile index along axis 0 goes from 0 to 2, and there are 2"
    ):
        columns(out.partition((8, 8)), zeros(8, 20), zeros(16, 8)).sync()


def test_precondition_proves_and_is_verified(device):
    kernel = columns.with_options(preconditions=("dim(x, 1) == dim(y, 0)",))
    out, x = zeros(8, 8), zeros(8, 24)
    args = (out.partition((8, 8)), x, zeros(24, 8))
    assert ("load", "y", 0, "precondition") in rungs(kernel, *args)
    kernel(*args).sync()
    with pytest.raises(
        ca.LaunchError, match=r"dim\(x, 1\) == dim\(y, 0\) does not hold: x.shape\[1\] is 24 and .* is 32"
    ):
        kernel(out.partition((8, 8)), x, zeros(32, 8)).sync()


def test_precondition_of_a_multiple(device):
    @tk.kernel(preconditions=["dim(x, 0) % 12 == 0", "dim(x, 1) == 8"])
    def kernel(out, x):
        out.store(tk.load(x, (0, 0), (8, 8)))

    out = zeros(8, 8)
    kernel(out.partition((8, 8)), zeros(24, 8)).sync()
    assert "divisor=4" in kernel.ir(out.partition((8, 8)), zeros(12, 8))
    for shape, message in (((20, 8), "x.shape\\[0\\] is 20"), ((24, 16), "x.shape\\[1\\] is 16")):
        with pytest.raises(ca.LaunchError, match=message):
            kernel(out.partition((8, 8)), zeros(*shape)).sync()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dim(x, 0) < 3", "is not understood; the forms are"),
        ("x.shape[0] == 3", "is not understood"),
        ("dim(x, -1) == 3", "is not understood"),
        (7, "a precondition is text such as"),
    ],
)
def test_precondition_of_another_form_is_refused(text, message):
    with pytest.raises(tk.KernelOptionError, match=message):
        columns.with_options(preconditions=(text,))


@pytest.mark.parametrize("text", ["dim(z, 0) == 3", "dim(x, 2) == 3"])
def test_precondition_about_nothing_is_an_error_at_the_kernel(text):
    kernel = columns.with_options(preconditions=(text,))
    with pytest.raises(tk.KernelValueError, match="there is no tensor parameter") as caught:
        kernel.ir(tk.meta((8, 8), "f4").partition((8, 8)), tk.meta((8, 8), "f4"), tk.meta((8, 8), "f4"))
    assert "def columns" in str(caught.value)


# ------------------------------------------------------------------ violations


@tk.kernel
def past(out, x):
    out.store(tk.load(x, tk.num_tiles(x, 0, 8), 8))


@tk.kernel
def before(out, x):
    for k in range(3):
        out.store(tk.load(x, -1 - k, 8))


@pytest.mark.parametrize(("kernel", "message"), [(past, "past the last"), (before, "before the first tile")])
def test_violation_that_is_certain_does_not_compile(kernel, message):
    with pytest.raises(tk.KernelValueError, match=message) as caught:
        kernel.ir(tk.meta(8, "f4").partition(8), tk.meta(64, "f4"))
    assert "tk.load(x" in str(caught.value)


@tk.kernel
def guarded(out, x, n):
    for k in range(n):
        if k > 0:
            out.store(tk.load(x, k - 1, 8))


def test_access_that_may_not_happen_is_checked_in_the_kernel(device):
    x = ca.from_host(np.arange(32, dtype="f4")).sync()
    out = zeros(8)
    found = guarded.check_report(out.partition(8), x, 5)
    assert [axis.where for axis in found.in_kernel] == ["in place"]
    guarded(out.partition(8), x, 5).sync()
    assert out.to_host().sync().tolist() == list(range(24, 32))


def test_out_of_range_in_the_kernel_is_an_error_on_the_host_device(host):
    with pytest.raises(tk.KernelIndexError, match=r"load of tile \(4,\) of x, which has \(4,\) tiles"):
        guarded(zeros(8).partition(8), zeros(32), 6).sync()


@tk.kernel
def hoisted(out, x, table):
    start = tk.load(table, 0, 1).item()
    for k in range(tk.num_tiles(x, 0, 8)):
        tk.store(out, start + 2 * k, tk.load(x, k, 8))


def test_check_stands_before_the_loop(host):
    x, table = zeros(32), ca.from_host(np.array([1], "i4")).sync()
    report = hoisted.check_report(ca.mut(zeros(64)), x, table)
    (axis,) = [a for a in report.accesses if a.access == "store"]
    assert axis.rung == "kernel"
    assert axis.where.startswith("before the loop of ")
    assert "checked in the kernel" in str(report)
    hoisted(ca.mut(zeros(64)), x, table).grid(1).sync()
    out = zeros(56)
    with pytest.raises(
        tk.KernelIndexError, match="store of out: its tile index is out of range along axis 0"
    ):
        hoisted(ca.mut(out), x, table).grid(1).sync()
    assert not out.to_host().sync().any()  # before any turn
    hoisted(ca.mut(zeros(0)), zeros(0), table).grid(1).sync()  # a loop without turns never fails


def test_deny_refuses_a_check_in_the_kernel():
    x = tk.meta(32, "f4")
    with pytest.raises(tk.KernelValueError, match="would have to be checked in the kernel") as caught:
        guarded.with_options(deny_in_kernel_checks=True).ir(tk.meta(8, "f4").partition(8), x, 5)
    assert "tk.load(x, k - 1, 8)" in str(caught.value)
    columns.with_options(deny_in_kernel_checks=True).ir(
        tk.meta((8, 8), "f4").partition((8, 8)), tk.meta((8, 8), "f4"), tk.meta((8, 8), "f4")
    )


def test_unchecked_leaves_no_check():
    args = (tk.meta(8, "f4").partition(8), tk.meta(32, "f4"), 5)
    assert "assert" in guarded.ir(*args)
    assert {rung for *_, rung in rungs(guarded, *args, unchecked=True)} == {"unchecked"}
    assert "assert" not in guarded.with_options(unchecked=True).ir(*args)
    with pytest.raises(tk.KernelOptionError, match="nothing for deny_in_kernel_checks to deny"):
        guarded.with_options(unchecked=True, deny_in_kernel_checks=True)


def test_one_access_is_unchecked():
    @tk.kernel
    def promise(out, x, n):
        while n > 0:
            out.store(tk.load(x, n, 8, check_bounds=False))
            n -= 1

    found = rungs(promise, tk.meta(8, "f4").partition(8), tk.meta(32, "f4"), 5)
    assert [rung for access, _, _, rung in found if access == "load"] == ["unchecked"]


def test_differential_mode_checks_all_in_place(monkeypatch):
    args = (tk.meta((8, 8), "f4").partition((8, 8)), tk.meta((8, 8), "f4"), tk.meta((8, 8), "f4"))
    assert {rung for *_, rung in rungs(columns, *args, checks_in_place=True)} == {"kernel"}
    monkeypatch.setenv("TILEKERN_CHECKS_IN_PLACE", "1")
    assert tk.KernelOptions().checks_in_place
    assert not tk.KernelOptions(unchecked=True).checks_in_place
    monkeypatch.setenv("TILEKERN_CHECKS_IN_PLACE", "maybe")
    with pytest.raises(tk.KernelOptionError, match="TILEKERN_CHECKS_IN_PLACE is 'maybe'; write 1 or 0"):
        tk.KernelOptions()


@tk.kernel
def by_hand(out, x, unused):
    """A persistent kernel: rows and columns of a count of tiles."""
    rows, columns = tk.num_tiles(x, 0, (4, 4)), tk.num_tiles(x, 1, (4, 4))
    for count in range(tk.bid(0), rows * columns, tk.num_blocks(0)):
        tk.store(
            out,
            (count // columns, count % columns),
            tk.load(x, (count // columns, count % columns), (4, 4)) + 1,
        )


def test_what_holds_for_a_call_decides_between_variants(device):
    x, out = ca.ones((10, 13), "f4").sync(), zeros(10, 13)
    args = (ca.mut(out), x, 0)
    assert {rung for *_, rung in rungs(by_hand, *args)} == {"variant"}
    by_hand(*args).grid(3).sync()
    assert (out.to_host().sync() == 2).all()
    wide = zeros(10, 17)
    by_hand(ca.mut(wide), x, 0).grid(3).sync()
    assert (wide.to_host().sync()[:, :13] == 2).all()


def test_variant_that_checks_finds_what_is_wrong(host):
    with pytest.raises(tk.KernelIndexError):
        by_hand(ca.mut(zeros(10, 5)), ca.ones((10, 13), "f4").sync(), 0).grid(3).sync()


def test_bound_launch_is_checked_once(device):
    bound = columns.bind(zeros(8, 8).partition((8, 8)), zeros(8, 16), zeros(16, 8), device=device)
    bound.launch().sync()
    with pytest.raises(ca.LaunchError, match="there are 1 tiles"):
        columns.bind(zeros(8, 8).partition((8, 8)), zeros(8, 16), zeros(8, 8), device=device)


@tk.kernel
def product(c, a, b, step: tk.Constant[int]):
    rows, columns = c.shape
    i, j = c.index
    acc = tk.zeros(c.shape, tk.float32)
    for k in range(tk.num_tiles(a, 1, (rows, step))):
        acc = tk.mma(tk.load(a, (i, k), (rows, step)), tk.load(b, (k, j), (step, columns)), acc)
    c.store(acc)


def test_checks_agree_with_those_in_place(device):
    a = ca.from_host(np.random.default_rng(0).standard_normal((33, 50)).astype("f4")).sync()
    b = ca.from_host(np.random.default_rng(1).standard_normal((50, 20)).astype("f4")).sync()
    results = [
        product.with_options(checks_in_place=in_place)(zeros(33, 20).partition((16, 16)), a, b, 16)
        .first()
        .unpartition()
        .to_host()
        .sync()
        for in_place in (False, True)
    ]
    assert np.array_equal(*results)
