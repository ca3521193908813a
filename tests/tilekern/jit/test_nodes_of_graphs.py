"""Changing the arguments of a tile kernel in a graph: what its launch made sure of still holds."""

import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk


@tk.kernel
def part(out: tk.Tile1D, x: tk.Tensor1D, low: int, high: int, scale: float):
    piece = x.slice(0, low, high)
    total = tk.zeros((16,), tk.float32)
    for j in range(tk.num_tiles(piece, 0, 16)):
        total += tk.load(piece, j, 16)
    out.store(total * scale)


@pytest.fixture
def graph(device):
    """Of `part`, from 0 to 100 of the first 100 of 400 numbers; parameters: out, x and its extent, 0, 100, 1.0."""
    x = ca.from_host(np.arange(400, dtype="f4")).sync()[:100]
    return part(ca.empty(16).partition(16), x, 0, 100, 1.0).first().unpartition().graph().sync()


def expected(low, high, scale=1.0):
    padded = np.zeros(-(-(high - low) // 16) * 16)
    padded[: high - low] = np.arange(low, high)
    return padded.reshape(-1, 16).sum(axis=0) * scale


OUT, OUT_SHAPE, X, X_SHAPE, LOW, HIGH, SCALE = range(7)
"""Positions in what the kernel is compiled to: its strides of 1 are known, and none."""


def test_numbers_are_replaced_and_checked_again(graph):
    (node,) = graph.nodes
    node.set_arguments({LOW: 20, HIGH: 60, SCALE: 2.0})
    np.testing.assert_allclose(graph.launch().to_host().sync(), expected(20, 60, 2.0))
    for low, high in ((20, 101), (20, 400), (20, -5), (70, 60)):
        with pytest.raises(ca.LaunchError, match=r"part: .*slice"):
            node.set_arguments({LOW: low, HIGH: high})
    np.testing.assert_allclose(graph.launch().to_host().sync(), expected(20, 60, 2.0))


def test_what_the_kernel_was_made_for_stays(graph):
    (node,) = graph.nodes
    with pytest.raises(
        ca.LaunchError, match="is an extent or a stride, 100, which the kernel was made and checked for"
    ):
        node.set_arguments({X_SHAPE: 400})
    with pytest.raises(ca.CaptureError, match="part is a tile kernel, whose grid follows from its operands"):
        node.set_launch(grid=5)
    for other in (ca.ones(100, "f4"), ca.ones(200, "f4"), ca.ones(10, "i4")):
        with pytest.raises(ca.LaunchError, match=r"numbers can be replaced, .* but no tensors; write into"):
            node.set_arguments({X: ca.read(other.sync())})
    np.testing.assert_allclose(graph.launch().to_host().sync(), expected(0, 100))


def test_the_tensors_that_it_has_are_taken(device):
    x, out = ca.from_host(np.arange(400, dtype="f4")).sync()[:100], ca.zeros(16).sync()
    graph = part(out.partition(16), x, 0, 100, 1.0).map(lambda _: None).graph().sync()
    graph.nodes[0].set_arguments({OUT: ca.mut(out), X: ca.read(x), SCALE: 2.0})
    graph.launch().sync()
    np.testing.assert_allclose(out.to_host().sync(), expected(0, 100, 2.0))
    with pytest.raises(TypeError, match=r"argument 4 .*: i32\) was given a Read"):
        graph.nodes[0].set_arguments({LOW: ca.read(x)})


def test_of_a_bound_launch_too(device):
    x, out = ca.ones(100, "f4").sync(), ca.zeros(16, "f4").sync()
    bound = part.bind(out.partition(16), x, 0, 100, 1.0, device=device)
    graph = bound.launch().map(lambda _: None).graph().sync()
    (node,) = graph.nodes
    with pytest.raises(ca.LaunchError, match="slice"):
        node.set_arguments({HIGH: 300})
    graph.launch().sync()
    assert out.to_host().sync()[0] == 7.0


@tk.kernel
def doubled(out: tk.Pointer[tk.float32], x: tk.Pointer[tk.float32]):
    i = tk.arange(16, dtype=tk.int32)
    (out + i).store((x + i).load() * 2.0)


def test_what_a_pointer_points_to_is_replaced(device):
    x, y, out = (ca.full(16, value).sync() for value in (1.0, 5.0, 0.0))
    graph = doubled(ca.mut(out), ca.read(x)).grid(1).map(lambda _: None).graph().sync()
    graph.nodes[0].set_arguments({1: ca.read(y)})
    graph.launch().sync()
    assert out.to_host().sync()[0] == 10.0
