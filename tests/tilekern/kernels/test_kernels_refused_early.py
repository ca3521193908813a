"""What a kernel refuses of memory, the functions of the library refuse themselves: earlier, and by their own names."""

import math

import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk
from cuda_async.testing import checked_device

k = tk.kernels

INTS = ("ids", "lengths", "positions", "counters", "labels")

# The call, the shapes of operands by parameter, and options; where sizes decide, also those that take two kernels.
CALLS = {
    "add": (k.add, {"x": (4, 6), "y": (4, 6), "out": (4, 6)}, {}),
    "mul": (k.mul, {"x": (4, 6), "y": (4, 6), "out": (4, 6)}, {}),
    "gelu": (k.gelu, {"x": (4, 6), "out": (4, 6)}, {}),
    "silu_mul": (k.silu_mul, {"gate": (4, 6), "up": (4, 6), "out": (4, 6)}, {}),
    "dropout": (k.dropout, {"x": (4, 6), "out": (4, 6)}, {"share": 0.5, "seed": 1}),
    "softmax": (k.softmax, {"x": (4, 6), "out": (4, 6)}, {}),
    "softmax of few long rows": (k.softmax, {"x": (2, 8200), "out": (2, 8200)}, {}),
    "rms_norm": (k.rms_norm, {"x": (4, 6), "weight": (6,), "out": (4, 6)}, {}),
    "layer_norm": (k.layer_norm, {"x": (4, 6), "weight": (6,), "bias": (6,), "out": (4, 6)}, {}),
    "add_rms_norm": (
        k.add_rms_norm,
        {"x": (4, 6), "residual": (4, 6), "weight": (6,), "out": (4, 6), "total": (4, 6)},
        {},
    ),
    "add_layer_norm": (
        k.add_layer_norm,
        {"x": (4, 6), "residual": (4, 6), "weight": (6,), "bias": (6,), "out": (4, 6)},
        {},
    ),
    "embedding": (k.embedding, {"ids": (4,), "table": (5, 6), "out": (4, 6)}, {}),
    "transpose": (k.transpose, {"x": (4, 6), "out": (6, 4)}, {}),
    "mean_pool": (k.mean_pool, {"x": (2, 4, 6), "lengths": (2,), "out": (2, 6)}, {}),
    "matmul": (k.matmul, {"a": (4, 8), "b": (8, 6), "bias": (6,), "residual": (4, 6), "out": (4, 6)}, {}),
    "matmul in parts": (
        k.matmul,
        {"a": (4, 512), "b": (512, 6), "bias": (6,), "residual": (4, 6), "out": (4, 6)},
        {"splits": 2},
    ),
    "linear": (
        k.linear,
        {"x": (8, 512), "weight": (6, 512), "bias": (6,), "residual": (8, 6), "out": (8, 6)},
        {},
    ),
    "linear of few rows": (
        k.linear,
        {"x": (2, 8), "weight": (6, 8), "bias": (6,), "residual": (2, 6), "out": (2, 6)},
        {},
    ),
    "matvec": (k.matvec, {"weight": (6, 8), "x": (8,), "bias": (6,), "out": (6,)}, {}),
    "batched_matmul": (k.batched_matmul, {"a": (2, 4, 8), "b": (2, 8, 6), "out": (2, 4, 6)}, {}),
    "attention": (
        k.attention,
        {"q": (2, 2, 4, 8), "k": (2, 2, 4, 8), "v": (2, 2, 4, 8), "lengths": (2,), "out": (2, 2, 4, 8)},
        {},
    ),
    "attention_decode": (
        k.attention_decode,
        {"q": (2, 2, 8), "keys": (2, 2, 4, 8), "values": (2, 2, 4, 8), "positions": (2,), "out": (2, 2, 8)},
        {},
    ),
    "update_cache": (
        k.update_cache,
        {
            "keys": (2, 2, 4, 8),
            "values": (2, 2, 4, 8),
            "k": (2, 2, 1, 8),
            "v": (2, 2, 1, 8),
            "positions": (2,),
        },
        {},
    ),
    "rotary": (
        k.rotary,
        {"x": (3, 2, 8), "cosine": (5, 4), "sine": (5, 4), "positions": (3,), "out": (3, 2, 8)},
        {},
    ),
    "rotary in place": (
        k.rotary,
        {"x": (3, 2, 8), "cosine": (5, 4), "sine": (5, 4), "positions": (3,)},
        {"in_place": True},
    ),
    "argmax": (k.argmax, {"x": (4, 6), "out": (4,)}, {}),
    "argmax of long rows": (k.argmax, {"x": (4, 3000), "out": (4,)}, {}),
    "sample_top_k": (k.sample_top_k, {"logits": (4, 6), "counters": (4,), "out": (4,)}, {"k": 2}),
    "cross_entropy": (k.cross_entropy, {"logits": (4, 6), "labels": (4,)}, {}),
}

EACH = [(case, parameter) for case, (_, shapes, _) in CALLS.items() for parameter in shapes]


def written_by(case):
    if case == "rotary in place":
        return ("x",)
    return ("keys", "values") if case == "update_cache" else ("out", "total")


WRITTEN = [(case, parameter) for case, parameter in EACH if parameter in written_by(case)]
READ = [(case, parameter) for case, parameter in EACH if parameter not in written_by(case)]
TWICE = [(case, result, parameter) for case, parameter in READ for other, result in WRITTEN if other == case]


def type_of(case, parameter):
    is_place = parameter == "out" and case.split()[0] in ("argmax", "sample_top_k")
    return np.dtype("int32" if parameter in INTS or is_place else "float32")


def zeros(case, parameter):
    return ca.zeros(CALLS[case][1][parameter], type_of(case, parameter)).sync()


def called(case, **others):
    """The call with operands of zeros, but for those that are given."""
    function, shapes, options = CALLS[case]
    operands = {name: others[name] if name in others else zeros(case, name) for name in shapes}
    return function(**operands, **options)


def about(case, parameter):
    return rf"^{case.split()[0]}: {parameter} "


@pytest.mark.parametrize(("case", "parameter"), EACH)
def test_negative_strides_are_refused_at_the_call(host, case, parameter):
    with pytest.raises(
        tk.KernelArgumentError, match=about(case, parameter) + "has a negative stride along axis 0;"
    ):
        called(case, **{parameter: zeros(case, parameter)[::-1]})


@pytest.mark.parametrize(("case", "parameter"), [each for each in EACH if each not in WRITTEN])
def test_operands_that_come_later_are_refused_before_anything_is_enqueued(host, case, parameter):
    """`ca.value` yields its tensor and enqueues nothing."""
    op = called(case, **{parameter: ca.value(zeros(case, parameter)[::-1])})
    stream = host.create_stream()
    before = stream._next
    with pytest.raises(
        tk.KernelArgumentError, match=about(case, parameter) + "has a negative stride along axis 0;"
    ):
        op.sync_on(stream)
    assert stream._next == before


def test_operands_that_are_there_are_refused_at_the_call(host):
    """Also where others are yet to come."""
    for case, late, parameter in (("linear", "x", "weight"), ("sample_top_k", "logits", "out")):
        with pytest.raises(tk.KernelArgumentError, match=about(case, parameter)):
            called(case, **{late: ca.value(zeros(case, late)), parameter: zeros(case, parameter)[::-1]})
    with pytest.raises(TypeError, match="sample_top_k: out is a tensor that exists, got ndarray"):
        called("sample_top_k", logits=ca.value(zeros("sample_top_k", "logits")), out=np.zeros(4, "i4"))


@pytest.mark.parametrize(("case", "parameter"), WRITTEN)
def test_results_whose_elements_overlap_are_refused_at_the_call(host, case, parameter):
    shape, dtype = CALLS[case][1][parameter], type_of(case, parameter)
    array = np.lib.stride_tricks.as_strided(
        np.zeros(shape[1:], dtype), shape, (0, *np.zeros(shape[1:], dtype).strides)
    )
    with pytest.raises(
        tk.KernelArgumentError, match=about(case, parameter) + "is stored to, .* same memory;"
    ):
        called(case, **{parameter: ca.from_dlpack(array)})


@pytest.mark.parametrize(("case", "parameter"), WRITTEN)
def test_results_in_read_only_memory_are_refused_at_the_call(host, case, parameter):
    array = np.zeros(CALLS[case][1][parameter], type_of(case, parameter))
    array.setflags(write=False)
    with pytest.raises(ValueError, match=about(case, parameter) + "is over read-only memory"):
        called(case, **{parameter: ca.from_dlpack(array)})


@pytest.mark.parametrize(("case", "result", "parameter"), TWICE)
def test_results_over_operands_are_refused_at_the_call(host, case, result, parameter):
    memory = np.zeros(1 << 20, np.uint8)

    def over(name):
        shape, dtype = CALLS[case][1][name], type_of(case, name)
        return ca.from_dlpack(memory[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape))

    with pytest.raises(ca.AliasError, match=rf"^{case.split()[0]}: .* {result}, .* and {parameter}, "):
        called(case, **{result: over(result), parameter: over(parameter)})


def test_two_results_over_each_other_are_refused_at_the_call(host):
    x = zeros("add_rms_norm", "x")
    with pytest.raises(ca.AliasError, match=r"^add_rms_norm: .* exclusive too .* out, .* and total, "):
        called("add_rms_norm", out=x, total=x)
    cache = zeros("update_cache", "keys")
    with pytest.raises(ca.AliasError, match=r"^update_cache: .* exclusive too .* keys, .* and values, "):
        called("update_cache", keys=cache, values=cache)


@pytest.mark.parametrize(("case", "parameter"), [each for each in EACH if len(CALLS[each[0]][1]) > 1])
def test_operands_of_another_device_are_refused_at_the_call(host, case, parameter):
    another = checked_device()
    with ca.use_device(another):
        far = zeros(case, parameter)
    with pytest.raises(ca.ContextError, match=rf"^{case.split()[0]}: .* is on .*, .* on .*; copy one over"):
        called(case, **{parameter: far})
    another.close()


@pytest.mark.parametrize(("case", "parameter"), EACH)
def test_freed_operands_are_refused_at_the_call(host, case, parameter):
    freed = zeros(case, parameter)
    freed.free()
    with pytest.raises(ca.ClosedError, match=rf"^{case.split()[0]}: the memory of {parameter} was freed"):
        called(case, **{parameter: freed})


OF_THE_SECOND = {
    "softmax of few long rows": ["out"],
    "matmul in parts": ["bias", "residual", "out"],
    "attention_decode": ["out"],
    "argmax of long rows": ["out"],
    "sample_top_k": ["counters", "out"],
}


@pytest.mark.parametrize(
    ("case", "parameter"), [(case, p) for case, parameters in OF_THE_SECOND.items() for p in parameters]
)
def test_what_was_freed_since_is_refused_before_the_first_kernel(host, case, parameter):
    freed = zeros(case, parameter)
    op = called(case, **{parameter: freed})
    freed.free()
    stream = host.create_stream()
    before = stream._next
    with pytest.raises(ca.ClosedError, match=rf"^{case.split()[0]}: {parameter}: .* memory was freed"):
        op.sync_on(stream)
    assert stream._next == before


def test_a_stale_output_of_a_graph_is_refused_before_the_first_kernel(host):
    graph = ca.copy(zeros("matmul in parts", "bias")).graph().sync()
    bias = graph.launch().sync()
    op = called("matmul in parts", bias=bias)
    graph.launch().sync()
    stream = host.create_stream()
    before = stream._next
    with pytest.raises(ca.StaleOutputError, match=r"^matmul: bias: this output of a graph"):
        op.sync_on(stream)
    assert stream._next == before


@pytest.mark.parametrize("case", ["matmul", "batched_matmul", "linear"])
def test_what_comes_behind_copies_of_factors_is_refused_before_them(host, monkeypatch, case):
    """Where a factor is copied first, so that it lies along the common axis: then every operand comes later."""
    monkeypatch.setattr("tilekern.kernels._matmul.copy_pays", lambda *_, **__: True)
    assert not called(case).to_host().sync().any()
    for parameter in CALLS[case][1]:
        freed = zeros(case, parameter)
        op = called(case, **{parameter: freed})
        freed.free()
        stream = host.create_stream()
        before = stream._next
        with pytest.raises(ca.ClosedError, match=rf"^{case}: {parameter}: .* memory was freed"):
            op.sync_on(stream)
        assert stream._next == before


def test_products_in_parts_are_recorded_with_what_a_graph_makes(device):
    """Operands that hold nothing yet, and that the second kernel takes."""
    a, b = ca.ones((4, 512)).sync(), ca.ones((512, 6)).sync()
    op = ca.full((6,), 2.0).then(lambda bias: k.matmul(a, b, splits=2, bias=bias))
    graph = op.graph().sync()
    assert (graph.launch().sync().to_host().sync() == 514.0).all()
