"""Tiles that a loop carries: loaded a turn ahead of their use, kept for later turns, handed on, used behind the loop.

Each kernel takes the largest of a row along, for which the threads of a block wait for each other: NVIDIA's assembler
then has a group of warps of their own load the tiles, where it may.
"""

import ml_dtypes
import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk

TURNS = 7
SHAPES = [(1, 1024), (4, 1024), (64, 64)]


def of_rows(t):
    return t + tk.max(t, axis=1, keepdims=True)


def expected_of_rows(array):
    return array + array.max(axis=1, keepdims=True)


@tk.kernel
def a_turn_ahead(out, x, y, shape: tk.Constant[tuple[int, int]]):
    ahead = tk.load(x, (0, 0), shape)
    for i in range(TURNS):
        here = ahead
        ahead = tk.load(x, (tk.minimum(i + 1, TURNS - 1), 0), shape)
        tk.store(out, (i, 0), of_rows(here))


@tk.kernel
def a_turn_ahead_behind_its_use(out, x, y, shape: tk.Constant[tuple[int, int]]):
    ahead = tk.load(x, (0, 0), shape)
    for i in range(TURNS):
        made = of_rows(ahead)
        ahead = tk.load(x, (tk.minimum(i + 1, TURNS - 1), 0), shape)
        tk.store(out, (i, 0), made)


@tk.kernel
def a_turn_ahead_where_there_is_one(out, x, y, shape: tk.Constant[tuple[int, int]]):
    ahead = tk.load(x, (0, 0), shape)
    for i in range(TURNS):
        here = ahead
        if i + 1 < TURNS:
            ahead = tk.load(x, (i + 1, 0), shape)
        tk.store(out, (i, 0), of_rows(here))


@tk.kernel
def two_turns_ahead(out, x, y, shape: tk.Constant[tuple[int, int]]):
    first, second = tk.load(x, (0, 0), shape), tk.load(x, (1, 0), shape)
    for i in range(TURNS):
        here, first = first, second
        second = tk.load(x, (tk.minimum(i + 2, TURNS - 1), 0), shape)
        tk.store(out, (i, 0), of_rows(here))


@tk.kernel
def by_an_inner_loop(out, x, y, shape: tk.Constant[tuple[int, int]]):
    ahead = tk.load(x, (0, 0), shape)
    for i in range(TURNS):
        tk.store(out, (i, 0), of_rows(ahead))
        for j in range(i, i + 1):
            ahead = tk.load(x, (tk.minimum(j + 1, TURNS - 1), 0), shape)


@tk.kernel
def turned(out, x, y, shape: tk.Constant[tuple[int, int]]):
    ahead = tk.load(x, (0, 0), shape).transpose()
    for i in range(TURNS):
        here = ahead
        ahead = tk.load(x, (tk.minimum(i + 1, TURNS - 1), 0), shape).transpose()
        tk.store(out, (i, 0), of_rows(here.transpose()))


@tk.kernel
def in_a_row(out, x, y, shape: tk.Constant[tuple[int, int]]):
    ahead = tk.load(x, (0, 0), shape).reshape((shape[0] * shape[1],))
    for i in range(TURNS):
        here = ahead.reshape(shape)
        ahead = tk.load(x, (tk.minimum(i + 1, TURNS - 1), 0), shape).reshape((shape[0] * shape[1],))
        tk.store(out, (i, 0), of_rows(here))


def one_each(x, y, rows):
    return expected_of_rows(x)


@tk.kernel
def beside_one_that_is_not(out, x, y, shape: tk.Constant[tuple[int, int]]):
    ahead = tk.load(y, (0, 0), shape)
    for i in range(TURNS):
        here = ahead
        ahead = tk.load(y, (tk.minimum(i + 1, TURNS - 1), 0), shape)
        tk.store(out, (i, 0), of_rows(tk.load(x, (i, 0), shape)) + of_rows(here))


def both(x, y, rows):
    return expected_of_rows(x) + expected_of_rows(y)


@tk.kernel
def the_one_before(out, x, y, shape: tk.Constant[tuple[int, int]]):
    before = tk.load(y, (0, 0), shape)
    for i in range(TURNS):
        t = tk.load(x, (i, 0), shape)
        tk.store(out, (i, 0), of_rows(t) + of_rows(before))
        before = t


def with_the_one_before(x, y, rows):
    return expected_of_rows(x) + expected_of_rows(np.concatenate([y[:rows], x[:-rows]]))


@tk.kernel
def kept_for_three_turns(out, x, y, shape: tk.Constant[tuple[int, int]]):
    kept = tk.load(y, (0, 0), shape)
    for i in range(TURNS):
        if i % 3 == 1:
            kept = tk.load(x, (i, 0), shape)
        tk.store(out, (i, 0), of_rows(kept) + of_rows(tk.load(y, (i, 0), shape)))


def with_what_is_kept(x, y, rows):
    tiles, first = x.reshape(TURNS, rows, -1), y[:rows]
    kept = np.concatenate([first, *(tiles[(i - 1) // 3 * 3 + 1] for i in range(1, TURNS))])
    return expected_of_rows(kept) + expected_of_rows(y)


@tk.kernel
def two_that_change_places(out, x, y, shape: tk.Constant[tuple[int, int]]):
    one, other = tk.load(x, (0, 0), shape), tk.load(y, (0, 0), shape)
    for i in range(TURNS):
        tk.store(out, (i, 0), of_rows(one) + of_rows(other) * 2)
        one, other = other, one


def in_turns(x, y, rows):
    pair = expected_of_rows(x[:rows]), expected_of_rows(y[:rows])
    return np.concatenate([pair[i % 2] + 2 * pair[1 - i % 2] for i in range(TURNS)])


@tk.kernel
def the_last_one(out, x, y, shape: tk.Constant[tuple[int, int]]):
    last = tk.load(y, (0, 0), shape)
    for i in range(TURNS):
        last = tk.load(x, (i, 0), shape)
    for i in range(TURNS):
        tk.store(out, (i, 0), of_rows(last) + of_rows(tk.load(y, (i, 0), shape)))


def with_the_last(x, y, rows):
    return np.tile(expected_of_rows(x[-rows:]), (TURNS, 1)) + expected_of_rows(y)


@tk.kernel
def the_one_it_ended_with(out, x, y, shape: tk.Constant[tuple[int, int]]):
    i, t = 0, tk.load(y, (0, 0), shape)
    while True:
        t = tk.load(x, (i, 0), shape)
        if i == TURNS - 1 or tk.max(t) > 50:
            break
        i += 1
    for j in range(TURNS):
        tk.store(out, (j, 0), of_rows(t) + of_rows(tk.load(y, (j, 0), shape)))


KERNELS = [
    *((kernel, one_each) for kernel in (a_turn_ahead, a_turn_ahead_behind_its_use, two_turns_ahead)),
    *((kernel, one_each) for kernel in (a_turn_ahead_where_there_is_one, by_an_inner_loop, turned, in_a_row)),
    (beside_one_that_is_not, both),
    (the_one_before, with_the_one_before),
    (kept_for_three_turns, with_what_is_kept),
    (two_that_change_places, in_turns),
    *((kernel, with_the_last) for kernel in (the_last_one, the_one_it_ended_with)),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("kernel", "expected"), KERNELS, ids=lambda part: getattr(part, "__name__", ""))
def test_each_turn_has_its_own_tile(device, kernel, expected, dtype, shape):
    random = np.random.default_rng(len(kernel.__name__))
    x, y = (random.integers(-2, 3, (TURNS * shape[0], shape[1])).astype("f4") for _ in range(2))
    number = np.dtype(getattr(ml_dtypes, dtype, dtype))
    on_device = [ca.from_host(array.astype(number)).sync() for array in (x, y)]
    out = ca.empty(x.shape, number).sync()
    made = kernel(ca.mut(out), *on_device, shape).grid(1).first().to_host().sync()
    np.testing.assert_array_equal(made.astype("f4"), expected(x, y, shape[0]))  # small integers: exact


@tk.kernel
def stores_the_same(out, last, x, shape: tk.Constant[tuple[int, int]]):
    same = tk.load(x, (0, 0), shape)
    for i in range(TURNS):
        tk.store(out, (i, 0), of_rows(same))
    tk.store(last, (0, 0), of_rows(same))


@pytest.mark.parametrize("shape", [*SHAPES, (16, 64)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_same_tile_is_stored_in_a_loop_and_behind_it(device, dtype, shape):
    tensor = np.random.default_rng(4).integers(-2, 3, shape)
    x = ca.from_host(tensor.astype(dtype)).sync()
    out = ca.empty((TURNS * shape[0], shape[1]), dtype).sync()
    last = ca.empty(shape, dtype).sync()
    stores_the_same(ca.mut(out), ca.mut(last), x, shape).grid(1).sync()
    np.testing.assert_array_equal(last.to_host().sync(), expected_of_rows(tensor))
    np.testing.assert_array_equal(out.to_host().sync(), np.tile(expected_of_rows(tensor), (TURNS, 1)))


@tk.kernel
def product(out, x, y, shape: tk.Constant[tuple[int, int]]):
    total = tk.zeros(shape, tk.float32)
    left, right = tk.load(x, (tk.bid(0), 0), (shape[0], 16)), tk.load(y, (0, 0), (16, shape[1]))
    steps = tk.num_tiles(x, 1, (shape[0], 16))
    for k in range(steps):
        a, b = left, right
        ahead = tk.minimum(k + 1, steps - 1)
        left, right = tk.load(x, (tk.bid(0), ahead), (shape[0], 16)), tk.load(y, (ahead, 0), (16, shape[1]))
        total = tk.mma(a, b, total)
    tk.store(out, (tk.bid(0), 0), total)


def test_product_of_factors_that_are_loaded_ahead(device):
    random = np.random.default_rng(1)
    x, y = random.integers(-2, 3, (192, 128)), random.integers(-2, 3, (128, 64))
    on_device = [ca.from_host(array.astype(ml_dtypes.bfloat16)).sync() for array in (x, y)]
    out = ca.empty((192, 64), "f4").sync()
    made = product(ca.mut(out), *on_device, (64, 64)).grid(3).first().to_host().sync()
    np.testing.assert_array_equal(made, x @ y)


def test_such_loads_keep_away_from_the_accelerator_and_others_do_not():
    x, y = (ca.zeros((TURNS, 1024), "f4").sync() for _ in range(2))
    text = beside_one_that_is_not.ir(ca.mut(ca.empty((TURNS, 1024), "f4").sync()), x, y, (1, 1024))
    loads = [line for line in text.splitlines() if "= load " in line]
    assert [("allow_tma=false" in line) for line in loads] == [True, True, False]
