"""Tuples, named tuples, dicts and frozen dataclasses of tensors and numbers as arguments; enumerations."""

import dataclasses
import enum
from typing import Annotated, NamedTuple

import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk


class Op(enum.Enum):
    ADD = "add"
    SCALE = "scale"


class Side(enum.IntEnum):
    SMALL = 4
    LARGE = 8


@dataclasses.dataclass(frozen=True)
class Affine:
    weight: tk.Tensor1D
    bias: tk.Tensor1D
    factor: float = 1.0
    steps: tk.Constant[int] = 1

    def apply(self, t, out):
        for _ in tk.static_iter(range(self.steps)):
            t = t * tk.load_like(self.weight, out) + tk.load_like(self.bias, out)
        return t * self.factor


@dataclasses.dataclass
class Loose:
    n: int


class Pair(NamedTuple):
    x: tk.Tensor1D
    n: int


def array(*values, dtype="f4"):
    return ca.from_host(np.array(values, dtype)).sync()


def fresh(n=4, dtype="f4"):
    return ca.zeros((n,), dtype).sync().partition(n)


def stored(partition):
    return partition.tensor.to_host().sync().tolist()


@tk.kernel
def of_tuple(out: tk.Tile1D, pair, more: tuple[tk.Tensor1D, int]):
    x, (y, n) = pair
    z, m = more
    out.store(tk.load_like(x, out) * n + tk.load_like(y, out) * m + tk.load_like(z, out))


def test_tuples(device):
    x, y, z = array(1, 2, 3, 4), array(10, 20, 30, 40), array(100, 100, 100, 100)
    out, pair, more = of_tuple(fresh(), (x, (y, 3)), (z, 2)).sync()
    assert stored(out) == [123, 146, 169, 192]
    assert pair[0] is x
    assert pair[1][0] is y
    assert pair[1][1] == 3
    assert more == (z, 2)
    again, *_ = of_tuple(fresh(), (x, (y, 1)), (z, 0)).sync()
    assert stored(again) == [101, 102, 103, 104]


@tk.kernel
def of_record(out: tk.Tile1D, x: tk.Tensor1D, layer: Affine):
    out.store(layer.apply(tk.load_like(x, out), out))


def test_record(device):
    layer = Affine(array(2, 2, 2, 2), array(1, 0, 0, 1), factor=0.5, steps=2)
    out, _, given = of_record(fresh(), array(1, 2, 3, 4), layer).sync()
    assert stored(out) == [3.5, 4, 6, 9.5]
    assert given == layer
    other = dataclasses.replace(layer, steps=1, factor=2.0)
    assert stored(of_record(fresh(), array(1, 2, 3, 4), other).sync()[0]) == [6, 8, 12, 18]


@tk.kernel
def of_outputs(outs, x: tk.Tensor1D, table):
    outs[0].store(tk.load_like(x, outs[0]) * table["by"])
    outs[1].store(tk.load_like(x, outs[1]) + table["plus"])
    tk.store(table["total"], 0, tk.sum(tk.load_like(x, outs[0])))


def test_outputs_in_groups(device):
    total = ca.zeros((1,), "f4").sync()
    op = of_outputs((fresh(), fresh()), array(1, 2, 3, 4), {"by": 3, "plus": 1, "total": ca.mut(total)})
    (first, second), _, table = op.sync()
    assert stored(first) == [3, 6, 9, 12]
    assert stored(second) == [2, 3, 4, 5]
    assert table["total"] is total
    assert total.to_host().sync()[0] == 10


@tk.kernel
def of_named_tuple(out: tk.Tile1D, pair: Pair):
    out.store(tk.load_like(pair.x, out) * pair.n)


def test_named_tuple_and_operations_in_it(device):
    op = of_named_tuple(fresh(), Pair(ca.ones((4,), "f4"), 7))
    out, pair = op.sync()
    assert stored(out) == [7] * 4
    assert isinstance(pair, Pair)
    assert isinstance(pair.x, ca.Tensor)


@tk.kernel
def by_mode(out: tk.Tile1D, x: tk.Tensor1D, mode: Op, side, name, dtype):
    t = tk.load(x, 0, side)
    tk.static_assert(name == "f" and dtype is tk.float32)
    out.store(t + 1 if mode is Op.ADD else t * int(side))


def test_enumerations_and_other_constants(device):
    def run(mode):
        out = fresh()
        return stored(by_mode(out, array(1, 2, 3, 4), mode, Side.SMALL, "f", tk.float32).sync()[0])

    assert run(Op.ADD) == [2, 3, 4, 5]
    assert run(Op.SCALE) == [4, 8, 12, 16]
    assert run(Op.ADD) == [2, 3, 4, 5]


def test_compiled_bound_and_printed(device):
    x, layer = array(1, 2, 3, 4), Affine(array(2, 2, 2, 2), array(1, 0, 0, 1))
    like = Affine(tk.meta(4, "f4"), tk.meta(4, "f4"))
    of_record.compile(tk.meta(4, "f4").partition(4), tk.meta(4, "f4"), like).sync()
    out = fresh()
    bound = of_record.bind(out, x, layer, device=device)
    assert bound.launch().sync()[2] is not None
    assert stored(out) == [3, 4, 6, 9]
    text = of_record.ir(tk.meta(4, "f4").partition(4), tk.meta(4, "f4"), like)
    assert text.count(" = load ") == 3
    assert of_record.bytecode(tk.meta(4, "f4").partition(4), tk.meta(4, "f4"), like)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: of_record(fresh(), x, (x, x)), "layer is declared Affine, got a tuple"),
        (lambda x: of_record(fresh(), x, x), "layer is declared Affine, got a tensor"),
        (lambda x: of_record(fresh(), x, Affine(x, 3)), r"layer\.bias is declared tk.Tensor1D, got int 3"),
        (lambda x: by_mode(fresh(), x, Side.LARGE, 4, "f", tk.float32), "mode is declared Op, got Side"),
        (
            lambda x: of_tuple(fresh(), {1, 2}, (x, 2)),
            "pair takes tensors and numbers, got a set; give a tuple",
        ),
        (
            lambda x: of_tuple(fresh(), (x, (Loose(1), 1)), (x, 2)),
            r"pair\[1\]\[0\] takes .* a Loose, which can change",
        ),
        (lambda x: of_tuple(fresh(), (x, (np.ones(4), 1)), (x, 2)), r"pair\[1\]\[0\].* a NumPy array"),
    ],
)
def test_wrong_groups(call, message, device):
    with pytest.raises(tk.KernelArgumentError, match=message):
        call(array(1, 2, 3, 4)).sync()


def test_parts_that_share_memory_are_named(device):
    x = ca.zeros((4,), "f4").sync()
    table = {"by": 3, "plus": 1, "total": ca.mut(ca.zeros((1,), "f4").sync())}
    op = of_outputs((x.partition(4), fresh()), x, table)
    with pytest.raises(ca.AliasError, match=r"outs\[0\] and x"):
        op.sync()


def test_partition_in_a_group_must_be_stored():
    @tk.kernel
    def kernel(outs, x: tk.Tensor1D):
        outs[0].store(tk.load_like(x, outs[0]))

    like = tk.meta(4, "f4")
    outs = (like.partition(4), like.partition(4))
    with pytest.raises(tk.KernelValueError, match=r"nothing is stored to outs\[1\]") as caught:
        kernel.ir(outs, like)
    assert "def kernel(outs, x: tk.Tensor1D):" in str(caught.value)


def test_changeable_class_is_refused():
    @dataclasses.dataclass
    class Changeable:
        n: int

    def kernel(out: tk.Tile1D, c: Changeable):
        out.store(c.n)

    kernel.__annotations__ = {"out": tk.Tile1D, "c": Changeable}
    with pytest.raises(tk.KernelArgumentError, match="c is annotated Changeable, which can change; mark it"):
        tk.kernel(kernel).ir(tk.meta(4, "f4").partition(4), Changeable(1))


# ------------------------------------------------------------------ what is compiled in of a tensor

Rows = Annotated[tk.Tensor2D, tk.ArrayAnnotation(static_shape_dims=(1,), static_stride_dims=(0, -1))]
Wide = Annotated[tk.Tensor1D, tk.ArrayAnnotation(index_dtype=tk.int64)]
Narrow = Annotated[tk.Tensor1D, tk.ArrayAnnotation(index_dtype=tk.int32)]


@tk.kernel
def row_sums(out: tk.Tile1D, x: Rows):
    width = x.shape[1]
    tk.static_assert(tk.ensure_constant(width) in (4, 8))
    out.store(tk.sum(tk.load(x, (tk.bid(0), 0), (1, width)), axis=1))


def test_static_shape_and_strides(device):
    for width in (4, 8):
        x = np.arange(3 * width, dtype="f4").reshape(3, width)
        out = row_sums(ca.zeros((3,), "f4").partition(1), ca.from_host(x)).first().unpartition().to_host()
        assert np.array_equal(out.sync(), x.sum(1))
    text = row_sums.ir(tk.meta(3, "f4").partition(1), tk.meta((3, 8), "f4"))
    assert "tensor<?x8xf32, [8, 1]>" in text


def test_index_type():
    @tk.kernel
    def kernel(out: tk.Tile1D, x: Wide):
        out.store(tk.load_like(x, out))

    @tk.kernel
    def narrow(out: tk.Tile1D, x: Narrow):
        out.store(tk.load_like(x, out))

    out = tk.meta(8, "f4").partition(8)
    assert "%x_shape0: i64" in kernel.ir(out, tk.meta(8, "f4"))
    assert "%x_shape0: i32" in narrow.ir(out, tk.meta(8, "f4"))
    with pytest.raises(tk.KernelArgumentError, match="declared with 32-bit indices, and its shape"):
        narrow.ir(out, tk.meta(2**32, "f4"))


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (lambda: tk.ArrayAnnotation(index_dtype=tk.int16), "index_dtype is tk.int32 or tk.int64"),
        (lambda: tk.ArrayAnnotation(static_shape_dims=("x",)), "static_shape_dims names axes"),
    ],
)
def test_wrong_array_annotation(annotation, message):
    with pytest.raises(TypeError, match=message):
        annotation()


def test_axis_that_is_not_there():
    def kernel(out: tk.Tile1D, x):
        out.store(tk.load_like(x, out))

    kernel.__annotations__["x"] = Annotated[tk.Tensor1D, tk.ArrayAnnotation(static_shape_dims=1)]
    with pytest.raises(tk.KernelArgumentError, match="names axis 1 of a tensor with 1 axes"):
        tk.kernel(kernel).ir(tk.meta(8, "f4").partition(8), tk.meta(8, "f4"))


# ------------------------------------------------------------------ the grid compiled in


@tk.kernel
def strided_sum(out, x: tk.Tensor1D, tiles: int):
    total = tk.zeros((4,), tk.float32)
    for i in range(tk.bid(0), tiles, tk.num_blocks(0)):
        total += tk.load(x, i, 4)
    tk.store(out, tk.bid(0), total)


def test_const_grid(device):
    x = ca.from_host(np.arange(32, dtype="f4")).sync()
    expected = np.arange(32, dtype="f4").reshape(8, 4)
    for blocks in (2, 4):
        out = ca.zeros((4 * blocks,), "f4").sync()
        strided_sum(ca.mut(out), x, 8).const_grid(blocks).sync()
        sums = expected.reshape(-1, blocks, 4).sum(0)
        assert np.array_equal(out.to_host().sync().reshape(blocks, 4), sums)


def test_const_grid_of_partitions(device):
    @tk.kernel
    def kernel(out: tk.Tile1D):
        tk.static_assert(tk.num_blocks(0) * out.shape[0] == 8)
        out.store(tk.num_blocks(0))

    for tile in (2, 8):
        out = kernel(ca.zeros((8,), "f4").partition(tile)).const_grid().first().unpartition().to_host().sync()
        assert set(out.tolist()) == {8 // tile}
    text = kernel.with_options(const_grid=4).ir(tk.meta(8, "f4").partition(2))
    assert "num_blocks" not in text
