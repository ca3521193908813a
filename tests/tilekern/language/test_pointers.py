"""Pointer parameters, tiles of pointers, raw memory, and memory behind a pointer as a tensor."""

import ml_dtypes
import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk

DTYPES = ["?", "i1", "u2", "i4", "u8", np.float16, ml_dtypes.bfloat16, "f4", "f8", ml_dtypes.float8_e4m3fn]


def ids(value):
    return np.dtype(value).name if isinstance(value, type | str) else None


@tk.kernel
def reverse(out: tk.Pointer, x: tk.Pointer, n: int):
    i = tk.arange(16, dtype=tk.int32)
    t = (x + i).load(mask=i < n, padding_value=0)
    (out + (n - 1) - i).store(t, mask=i < n)


@pytest.mark.parametrize("dtype", DTYPES, ids=ids)
def test_pointers_of_every_type(dtype, device):
    if device.kind == "cuda" and "float8" in np.dtype(dtype).name and device.compute_capability < (8, 9):
        pytest.skip("no fp8 here")
    x = (np.arange(11) % 7).astype(dtype)
    out = ca.zeros((11,), dtype).sync()
    outputs = reverse(ca.mut(out), ca.read(ca.from_host(x).sync()), 11).grid(1).sync()
    assert outputs[0] is out
    assert np.array_equal(out.to_host().sync(), x[::-1])


@tk.kernel
def walk(out: tk.Pointer[tk.float32], x: tk.Pointer[tk.float32], n: int, far: bool):
    """A pointer that a loop carries, one that is chosen, and tiles of them in two axes."""
    at = x
    total = tk.zeros((2, 4), tk.float32)
    for _ in range(n):
        rows = at + 4 * tk.arange(2, dtype=tk.int32)
        tk.static_assert(rows.shape == (2,) and rows.ndim == 1 and rows.dtype is tk.float32)
        total += (rows.reshape((2, 1)) + tk.arange(4, dtype=tk.int32)).load()
        at = at + 8
    to = out + 8 if far else out
    (to.broadcast_to((2, 4)) + tk.arange(8, dtype=tk.int32).reshape((2, 4))).store(total)


@pytest.mark.parametrize("far", [False, True])
def test_pointers_in_loops_and_branches(far, device):
    x = np.arange(24, dtype="f4")
    out = ca.zeros((16,), "f4").sync()
    walk(ca.mut(out), ca.from_host(x), 3, far).grid(1).sync()
    expected = np.zeros(16)
    expected[8 * far : 8 * far + 8] = x.reshape(3, 8).sum(0)
    assert np.array_equal(out.to_host().sync(), expected)


@tk.kernel
def through_a_tensor(out: tk.Pointer, x: tk.Pointer, rows: int, columns: int):
    a = tk.make_tensor(x, (rows, columns))
    b = tk.make_tensor(out, (columns, rows), (1, columns))
    for i in range(tk.num_tiles(a, 0, (4, 8))):
        tile = tk.load(a, (i, 0), (4, 8))
        tk.store(b, (0, i), tile.transpose() + 1)


def test_memory_behind_a_pointer_as_a_tensor(device):
    x = np.arange(6 * 7, dtype="f4").reshape(6, 7)
    out = ca.zeros((6, 7), "f4").sync()
    through_a_tensor(ca.mut(out), ca.from_host(x), 6, 7).grid(1).sync()
    assert np.array_equal(out.to_host().sync(), x + 1)


@tk.kernel
def atomics(out: tk.Pointer, old):
    i = tk.arange(4, dtype=tk.int32)
    tk.store(old, 0, tk.atomic_add(out + 2, i, 10 * i, mask=i < 3))
    tk.atomic_cas(out, 0, 0, 99)


def test_atomics_through_pointers(device):
    out, old = ca.from_host(np.arange(6, dtype="i4")).sync(), ca.zeros((4,), "i4").sync()
    atomics(ca.mut(out), ca.mut(old)).grid(1).sync()
    assert out.to_host().sync().tolist() == [99, 1, 2, 13, 24, 5]
    assert old.to_host().sync()[:3].tolist() == [2, 3, 4]


@tk.kernel
def raw(out, x):
    source, target = x.get_raw_memory(), out.get_raw_memory()
    tk.static_assert(source.dtype is x.dtype)
    i = tk.arange(8, dtype=tk.int64)
    target.store_offset(7 - i, source.load_offset(2 * i, mask=i < 6, padding_value=-1))
    target.store_offset(8, 5, mask=x.shape[0] == 4)


def test_raw_memory_knows_no_shape(device):
    x = np.arange(12, dtype="i4").reshape(4, 3)
    out = ca.zeros((3, 3), "i4").sync()
    raw(ca.mut(out), ca.from_host(x)).grid(1).sync()
    assert out.to_host().sync().ravel().tolist() == [-1, -1, 10, 8, 6, 4, 2, 0, 5]


@tk.kernel
def raw_atomics(out, old):
    memory, i = out.get_raw_memory(), tk.arange(2, dtype=tk.int32)
    order = tk.MemoryOrder.RELAXED
    tk.store(old, 0, memory.atomic_add_offset(i, 3, memory_order=order))
    memory.atomic_max_offset(1, 50)
    memory.atomic_min_offset(2, -7)
    memory.atomic_and_offset(3, 6)
    memory.atomic_or_offset(4, 8)
    memory.atomic_xor_offset(5, 1)
    tk.store(old, 1, memory.atomic_xchg_offset(6 + i, 70 + i, mask=i < 1))
    tk.store(old, 2, memory.atomic_cas_offset(7 + i, 7 + 2 * i, 1))


def test_atomics_by_offset(device):
    out, old = ca.from_host(np.arange(9, dtype="i4")).sync(), ca.zeros((6,), "i4").sync()
    raw_atomics(ca.mut(out), ca.mut(old)).grid(1).sync()
    assert out.to_host().sync().tolist() == [3, 50, -7, 2, 12, 4, 70, 1, 8]
    seen = old.to_host().sync().tolist()
    assert seen[:3] + seen[4:] == [0, 1, 6, 7, 8]


def test_memory_behind_no_allocation_is_an_error_on_the_host_device(host):
    @tk.kernel
    def stray(out: tk.Pointer):
        (out + 100_000_000).store(1.0)

    out = ca.zeros((4,), "f4").sync()
    with pytest.raises(ca.errors.MemoryFault) as caught:
        stray(ca.mut(out)).grid(1).sync()
    assert "store_pointers" in "".join(caught.value.__notes__)


def test_the_same_memory_twice_is_refused(device):
    x = ca.zeros((16,), "f4").sync()
    with pytest.raises(ca.AliasError, match="out and x"):
        walk(ca.mut(x), x, 1, False).grid(1).sync()


# ------------------------------------------------------------------ what is refused


def store_through_an_input(x: tk.Pointer):
    (x + tk.arange(4, dtype=tk.int32)).store(1.0)


def store_through_one_of_two(out: tk.Pointer, x: tk.Pointer, n: int):
    at = out if n > 1 else x
    at.store(1.0)


def make_a_tensor_of_an_input(x: tk.Pointer):
    tk.store(tk.make_tensor(x, 4), 0, 1.0)


def multiply(x: tk.Pointer):
    x * 2


def compare(x: tk.Pointer):
    assert x == x


def add_floats(x: tk.Pointer):
    x + 1.5


def exponential(x: tk.Pointer):
    tk.exp(x)


def load_without_parts(x: tk.Pointer):
    x.load_offset(1)


def nothing_stored(out: tk.Pointer, x: tk.Pointer):
    x.load()


F = tk.meta((8,), "f4")


@pytest.mark.parametrize(
    ("body", "args", "message"),
    [
        (store_through_an_input, (F,), r"x is given for reading; give it as ca.mut\(x\) to store to it"),
        (store_through_one_of_two, (F.mut(), F, 1), "x is given for reading"),
        (make_a_tensor_of_an_input, (F,), "x is given for reading"),
        (multiply, (F.mut(),), r"a pointer to float32 \* 2: pointers take \+ and -"),
        (compare, (F.mut(),), "== does not take a pointer to float32"),
        (add_floats, (F.mut(),), "what moves a pointer is of whole numbers and integer tiles, got 1.5"),
        (exponential, (F.mut(),), "got a pointer to float32"),
        (load_without_parts, (F,), "a pointer to float32 has no load_offset; it has dtype, shape, ndim"),
        (nothing_stored, (F.mut(), F), "nothing is stored to out"),
    ],
)
def test_refused_at_the_line(body, args, message):
    with pytest.raises(tk.KernelError, match=message):
        tk.kernel(body).ir(*args)


def test_arguments_are_tensors_of_the_declared_type(host):
    out = tk.meta((16,), "f4").mut()
    with pytest.raises(
        tk.KernelArgumentError, match=r"x is declared tk.Pointer\[tk.float32\], got a tensor of f"
    ):
        walk.ir(out, tk.meta((16,), "f8"), 1, False)
    with pytest.raises(tk.KernelArgumentError, match="got a partition; give the tensor"):
        walk.ir(tk.meta((16,), "f4").partition(4), tk.meta((16,), "f4"), 1, False)
    with pytest.raises(tk.KernelArgumentError, match=r"x is declared tk.Pointer\[tk.float32\], got int 3"):
        walk.ir(out, 3, 1, False)


@tk.kernel
def odd(x: tk.Pointer[3]):
    x.load()


def test_pointers_are_to_element_types():
    with pytest.raises(tk.KernelArgumentError, match=r"annotated tk.Pointer\[3\]; give it an element type"):
        odd.ir(tk.meta((16,), "f4"))


def pointer_in_a_text(x: tk.Pointer):
    print(f"at {x}")


def pointer_for_a_tensor(x: tk.Pointer):
    tk.store(x, 0, 1.0)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (pointer_in_a_text, "an f-string shows tiles and numbers, got a pointer to float32"),
        (
            pointer_for_a_tensor,
            r"got a pointer to float32; use the pointer's own load and store, or tk.make_ten",
        ),
    ],
)
def test_pointers_are_no_tiles_and_no_tensors(body, message):
    with pytest.raises(tk.KernelTypeError, match=message):
        tk.kernel(body).ir(F.mut())


def test_code_compiled_ahead_serves_better_aligned_pointers():
    from tilekern.jit._compiled import covers
    from tilekern.jit._export import _text
    from tilekern.jit._specialize import specialize

    def specs(alignment, *, writable=True):
        out = tk.meta((16,), "f4", alignment=alignment)
        args = (out.mut() if writable else out, tk.meta((16,), "f4"), 1, False)
        return specialize("walk", walk.parameters, args, 16)

    assert covers(specs(4), specs(16))
    assert not covers(specs(16), specs(4))
    assert not covers(specs(16), specs(16, writable=False))
    assert [_text(spec) for spec in specs(16)[:2]] == ["mut float32[*]", "float32[*]"]


@tk.kernel
def merge(out: tk.Pointer, x: tk.Pointer, y: tk.Pointer):
    i = tk.arange(8, dtype=tk.int32)
    (out + i).store(tk.where(i % 2 == 0, x + i, y).load())


def test_where_of_pointers(device):
    x, y = np.arange(8, dtype="i4"), np.array([-1], "i4")
    out = ca.zeros((8,), "i4").sync()
    merge(ca.mut(out), ca.from_host(x), ca.from_host(y)).grid(1).sync()
    assert out.to_host().sync().tolist() == [0, -1, 2, -1, 4, -1, 6, -1]
    with pytest.raises(
        tk.KernelTypeError, match=r"where takes pointers to one type, got a tile .* to int32 and a"
    ):
        merge.ir(tk.meta(8, "i4").mut(), tk.meta(8, "i4"), tk.meta(8, "f4"))
