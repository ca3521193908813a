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


# ------------------------------------------------------------------------- accesses that are not reached


def one(value=0):
    return ca.full((1,), value, "i4").sync().partition(1)


def number_of(kernel, *args):
    return int(kernel(one(), *args).first().unpartition().to_host().sync()[0])


@tk.kernel
def guarded_by_a_flag(out: tk.Tile1D, y: tk.Tensor1D, turns: int, use: bool):
    total = tk.full((), 0, tk.int32)
    for _ in range(turns):
        if use:
            total = total + tk.sum(tk.load(y, 1, 2))
    out.store(total)


@tk.kernel
def guarded_by_the_count(out: tk.Tile1D, y: tk.Tensor1D, turns: int, use: bool):
    total = tk.full((), 0, tk.int32)
    for _ in range(turns):
        if tk.num_tiles(y, 0, 2) > 1:
            total = total + tk.sum(tk.load(y, 1, 2))
    out.store(total)


@pytest.mark.parametrize("kernel", [guarded_by_a_flag, guarded_by_the_count], ids=lambda k: k.name)
def test_guarded_access_in_a_loop_over_an_argument_is_not_refused(device, kernel):
    short, long = ca.ones(2, "i4").sync(), ca.ones(4, "i4").sync()
    for turns in (0, 3, -1, 3):
        assert number_of(kernel, short, turns, False) == 0
        assert number_of(kernel, long, turns, True) == 2 * max(turns, 0)
    out = ca.full((1,), 5, "i4").sync()
    kernel.bind(out.partition(1), short, 3, False, device=out.device).launch().sync()
    assert out.to_host().sync()[0] == 0


@pytest.mark.parametrize("shift", [0, 2, 3, 5])
def test_guard_that_never_holds_makes_no_error(device, shift):
    @tk.kernel
    def neighbours(out: tk.Tile1D, x: tk.Tensor1D, shift: tk.Constant[int]):
        total = tk.full((), 0, tk.int32)
        for k in range(3):
            j = k - shift
            if j >= 0 and j < tk.num_tiles(x, 0, 1):
                total = total + tk.sum(tk.load(x, j, 1))
        out.store(total)

    assert number_of(neighbours, ca.ones(12, "i4").sync(), shift) == max(0, 3 - shift)


def test_and_of_comparisons_bounds_an_index():
    @tk.kernel
    def kernel(out: tk.Tile1D, x: tk.Tensor1D, j: int):
        if j >= 0 and j < tk.num_tiles(x, 0, 1):
            out.store(tk.sum(tk.load(x, j, 1)))

    found = rungs(kernel, tk.meta(1, "i4").partition(1), tk.meta(8, "i4"), 3)
    assert ("load", "x", 0, "proven") in found


HALVES = {
    "a half of a half": "if n // 2 // 2 < n: total = tk.sum(tk.load(x, n, 1))",
    "its half": """half = (n + 1) // 2
    if half // 2 <= n: total = tk.sum(tk.load(x, n, 1))""",
    "two names": """q = n // 4
    r = q // 2
    if r < n: total = tk.sum(tk.load(x, n, 1))""",
    "the rest": "if n % 4 // 2 < n: total = tk.sum(tk.load(x, n, 1))",
    "of the row": """row = n // 3
    if row // 2 <= n: total = tk.sum(tk.load(x, row + n, 1))""",
}


@pytest.mark.parametrize("lines", HALVES.values(), ids=HALVES)
def test_quotients_that_bound_what_they_are_made_of(host, lines):
    """A bound of n by n // 4 // 2, whose own bounds ask for those of n."""
    text = f"def kernel(out, x, n: int):\n    total = 0\n    {lines}\n    out.store(total)\n"
    names = {"tk": tk}
    exec(compile(text, tk.register_source(text), "exec"), names)
    kernel = tk.kernel(names["kernel"])
    assert number_of(kernel, ca.ones(12, "i4").sync(), 2) == 1
    with pytest.raises((ca.LaunchError, tk.KernelError)):
        number_of(kernel, ca.ones(12, "i4").sync(), 12)


# ------------------------------------------------------------------------- what is assumed on one side only


def test_what_a_slice_assumes_holds_in_its_branch_only():
    """A slice's extent is not negative: where the slice is made."""

    @tk.kernel
    def kernel(out: tk.Tile1D, x: tk.Tensor1D, n: int, use: bool):
        total = tk.full((), 0, tk.int32)
        if use:
            total = total + tk.sum(tk.load(x.slice(0, 0, n), 0, 1))
        out.store(total + tk.sum(tk.load(x, n, 1)))

    x = ca.ones(8, "i4").sync()
    assert number_of(kernel, x, 3, True) == 2
    with pytest.raises(ca.LaunchError, match="goes from -1 to -1, and there are 8 tiles"):
        number_of(kernel, x, -1, False)


def test_slice_in_a_loop_without_turns(device):
    @tk.kernel
    def kernel(out: tk.Tile1D, x: tk.Tensor1D, n: int, turns: int):
        total = tk.full((), 0, tk.int32)
        for _ in range(turns):
            total = total + tk.sum(tk.load(x.slice(0, n, x.shape[0]), 0, 2))
        out.store(total)

    x = ca.ones(4, "i4").sync()
    assert number_of(kernel, x, 2, 3) == 6
    assert number_of(kernel, x, 9, 0) == 0


def test_slice_that_is_none_in_a_loop_is_told_at_its_line(host):
    @tk.kernel
    def kernel(out: tk.Tile1D, x: tk.Tensor1D, turns: int):
        total = tk.full((), 0, tk.int32)
        for j in range(turns):
            part = x.slice(0, j, x.shape[0])
            for i in range(tk.num_tiles(part, 0, 1)):
                total = total + tk.sum(tk.load(part, i, 1))
        out.store(total)

    x = ca.ones(4, "i4").sync()
    assert number_of(kernel, x, 4) == 10
    with pytest.raises(tk.KernelAssertionError, match="along axis 0 of x is not in it"):
        number_of(kernel, x, 6)


@tk.kernel
def promised_in_a_branch(out: tk.Tile1D, n: int, turns: int):
    total = tk.full((), 0, tk.int32)
    if n % 16 == 0:
        total = tk.assume_divisible_by(n + total, 16)
    else:
        total = total + turns
        total = total - 1
    out.store(total)


@tk.kernel
def promised_in_an_expression(out: tk.Tile1D, n: int, turns: int):
    out.store(tk.assume_divisible_by(n, 16) if n % 16 == 0 else -1)


@tk.kernel
def promised_in_a_loop(out: tk.Tile1D, n: int, turns: int):
    total = tk.full((), -1, tk.int32)
    for _ in range(turns):
        total = tk.assume_divisible_by(n, 16) + 0 * total
    out.store(total)


@pytest.mark.parametrize(
    "kernel", [promised_in_a_branch, promised_in_an_expression, promised_in_a_loop], ids=lambda k: k.name
)
def test_promise_counts_where_it_is_made(device, kernel):
    assert number_of(kernel, 32, 1) == 32
    assert number_of(kernel, 7, 0) == -1
