"""What a kernel refuses of memory, the functions of the library refuse themselves: earlier, and by their own names."""

import math

import numpy as np
import pytest
from library_calls import CALLS, called, type_of, written_by, zeros

import cuda_async as ca
import tilekern as tk
from cuda_async.testing import checked_device

k = tk.kernels

EACH = [(case, parameter) for case, (_, shapes, _) in CALLS.items() for parameter in shapes]
WRITTEN = [(case, parameter) for case, parameter in EACH if parameter in written_by(case)]
READ = [(case, parameter) for case, parameter in EACH if parameter not in written_by(case)]
TWICE = [(case, result, parameter) for case, parameter in READ for other, result in WRITTEN if other == case]


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


@pytest.mark.parametrize(("case", "parameter"), [each for each in EACH if each not in WRITTEN])
def test_operations_that_yield_nothing_are_refused_before_anything_is_enqueued(host, case, parameter):
    """Also where no operand at all is fine."""
    op = called(case, **{parameter: ca.value(None)})
    stream = host.create_stream()
    before = stream._next
    with pytest.raises(TypeError, match=rf"^{case.split()[0]}, {parameter}: .* yields NoneType; .map\("):
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
