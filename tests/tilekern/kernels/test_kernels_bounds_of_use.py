"""The ends of what the functions take: nothing along any axis, and what is no operand at all."""

import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk
from cuda_async.testing import checked_device

k = tk.kernels


def zeros(*shape, dtype="float32"):
    return ca.zeros(shape, dtype).sync()


def places(count):
    return zeros(count, dtype="int32")


EMPTY = {
    "matmul, persistent, no row": (
        lambda: k.matmul(zeros(0, 3), zeros(3, 4), persistent=True),
        (0, 4),
    ),
    "matmul, persistent, no column": (
        lambda: k.matmul(zeros(5, 3), zeros(3, 0), persistent=True),
        (5, 0),
    ),
    "matvec of nothing": (lambda: k.matvec(zeros(3, 0), zeros(0)), (3,)),
    "linear of nothing": (lambda: k.linear(zeros(2, 5, 0), zeros(3, 0)), (2, 5, 3)),
    "softmax of rows of nothing": (lambda: k.softmax(zeros(2, 3, 0)), (2, 3, 0)),
    "rms_norm of rows of nothing": (lambda: k.rms_norm(zeros(2, 3, 0), zeros(0)), (2, 3, 0)),
    "attention without heads": (
        lambda: k.attention(zeros(1, 0, 3, 16), zeros(1, 1, 3, 16), zeros(1, 1, 3, 16)),
        (1, 0, 3, 16),
    ),
    "attention without any heads": (
        lambda: k.attention(zeros(1, 0, 3, 16), zeros(1, 0, 3, 16), zeros(1, 0, 3, 16)),
        (1, 0, 3, 16),
    ),
    "attention_decode without heads": (
        lambda: k.attention_decode(zeros(1, 0, 16), zeros(1, 1, 3, 16), zeros(1, 1, 3, 16), places(1)),
        (1, 0, 16),
    ),
    "attention_decode without any heads": (
        lambda: k.attention_decode(zeros(1, 0, 16), zeros(1, 0, 3, 16), zeros(1, 0, 3, 16), places(1)),
        (1, 0, 16),
    ),
    "rotary without heads": (
        lambda: k.rotary(zeros(3, 0, 4), zeros(5, 2), zeros(5, 2), places(3)),
        (3, 0, 4),
    ),
    "rotary of heads of nothing": (
        lambda: k.rotary(zeros(3, 2, 0), zeros(5, 0), zeros(5, 0), places(3)),
        (3, 2, 0),
    ),
    "rotary in place without heads": (
        lambda: k.rotary(zeros(3, 0, 4), zeros(5, 2), zeros(5, 2), places(3), in_place=True),
        (3, 0, 4),
    ),
    "update_cache without heads": (
        lambda: k.update_cache(zeros(1, 0, 5, 4), zeros(1, 0, 5, 4), *[zeros(1, 0, 2, 4)] * 2, places(1)).map(
            lambda made: made[0]
        ),
        (1, 0, 5, 4),
    ),
    "update_cache of heads of nothing": (
        lambda: k.update_cache(zeros(1, 2, 5, 0), zeros(1, 2, 5, 0), *[zeros(1, 2, 2, 0)] * 2, places(1)).map(
            lambda made: made[1]
        ),
        (1, 2, 5, 0),
    ),
}


@pytest.mark.parametrize("case", EMPTY)
def test_axes_of_nothing(device, case):
    """The result has the shape it should have, and what sums over nothing is 0."""
    op, shape = EMPTY[case]
    found = op().to_host().sync()
    assert found.shape == shape
    assert not found.any()


def test_more_splits_than_there_is_to_sum(host):
    """They are taken down to one for each step along the common axis: a share of nothing costs memory and time."""
    a, b = ca.ones((3, 50)).sync(), ca.ones((50, 4)).sync()
    assert (k.matmul(a, b, splits=10**9).to_host().sync() == 50.0).all()


def test_counts_may_be_numbers_of_numpy(host):
    two, x = np.int64(2), ca.ones((3, 40)).sync()
    q, cache = ca.ones((1, 2, 16)).sync(), ca.ones((1, 2, 40, 16)).sync()
    found = [
        k.matmul(x, x.T, splits=two),
        k.sample_top_k(x, places(3), k=two),
        k.attention(cache, cache, cache, causal=True, window=two),
        k.attention_decode(q, cache, cache, places(1), window=two, splits=two),
    ]
    assert [op.to_host().sync().shape for op in found] == [(3, 3), (3,), (1, 2, 40, 16), (1, 2, 16)]
    for wrong in (np.int64(0), True, 2.0, "2"):
        with pytest.raises(ValueError, match="splits is a whole number from 1 on"):
            k.matmul(x, x.T, splits=wrong)


def test_matvec_takes_a_bias_by_position(host):
    found = k.matvec(ca.ones((3, 4)).sync(), ca.ones(4).sync(), ca.ones(3).sync())
    assert found.to_host().sync().tolist() == [5.0, 5.0, 5.0]


REFUSED = {
    "None for an operand": (lambda x: k.softmax(None), TypeError, "operands are tensors .* got NoneType"),
    "None for the second": (lambda x: k.rms_norm(x, None), TypeError, "got NoneType"),
    "an array for the result": (
        lambda x: k.add(x, x, out=np.ones((4, 4), "f4")),
        TypeError,
        "add: out is a tensor that exists, got ndarray",
    ),
    "an operation for the result": (
        lambda x: k.add(x, x, out=ca.zeros((4, 4))),
        TypeError,
        "add: out is a tensor that exists, got Full",
    ),
    "no axis, softmax": (lambda x: k.softmax(zeros()), ValueError, r"softmax: takes \(\.\.\., columns\)"),
    "no axis, rms_norm": (lambda x: k.rms_norm(zeros(), zeros(1)), ValueError, r"rms_norm: takes \(\.\.\."),
    "no axis, layer_norm": (lambda x: k.layer_norm(zeros(), zeros(1)), ValueError, r"layer_norm: takes"),
    "no axis, silu_mul": (lambda x: k.silu_mul(zeros()), ValueError, r"silu_mul: takes"),
    "no axis, add_rms_norm": (
        lambda x: k.add_rms_norm(zeros(), zeros(), zeros()),
        ValueError,
        r"add_rms_norm: takes",
    ),
    "eps below 0": (
        lambda x: k.rms_norm(x, zeros(4), eps=-1),
        ValueError,
        "eps is a number from 0 on, got -1",
    ),
    "eps that is no number": (lambda x: k.layer_norm(x, zeros(4), eps="a"), ValueError, "eps is a number"),
    "no eps": (
        lambda x: k.add_rms_norm(x, x, zeros(4), eps=float("nan")),
        ValueError,
        "add_rms_norm: eps is a number from 0 on, got nan",
    ),
    "a share that is no number": (
        lambda x: k.dropout(x, "a", 0),
        ValueError,
        "share is a number from 0 to below 1, got 'a'",
    ),
    "a scale that is no number": (
        lambda x: k.attention(*[zeros(1, 1, 2, 16)] * 3, scale="x"),
        TypeError,
        "attention: scale is a number, got 'x'",
    ),
    "a temperature that is no number": (
        lambda x: k.sample_top_k(x, places(4), k=2, temperature=None),
        ValueError,
        "temperature is a float32 from 0 on, got None",
    ),
    "a window beyond int32": (
        lambda x: k.attention(*[zeros(1, 1, 2, 16)] * 3, causal=True, window=2**31),
        ValueError,
        "attention: a window is a whole number from 1 on",
    ),
    "an ignored label that labels cannot be": (
        lambda x: k.cross_entropy(x, places(4), ignore=2**31),
        ValueError,
        "cross_entropy: ignore is a whole number of int32, got 2147483648",
    ),
    "blocks that are neither persistent nor not": (
        lambda x: k.matmul(x, x, persistent="x"),
        TypeError,
        "matmul: persistent is True or False, got 'x'",
    ),
    "no flag, attention": (
        lambda x: k.attention(*[zeros(1, 1, 2, 16)] * 3, causal=np.zeros(2)),
        TypeError,
        "attention: causal is True or False, got array",
    ),
    "no flag, rotary": (
        lambda x: k.rotary(zeros(3, 2, 4), zeros(5, 2), zeros(5, 2), places(3), interleaved="no"),
        TypeError,
        "rotary: interleaved is True or False, got 'no'",
    ),
    "no flag, linear": (
        lambda x: k.linear(x, x, tf32=[]),
        TypeError,
        r"linear: tf32 is True or False, got \[\]",
    ),
    "no word, gelu": (
        lambda x: k.gelu(x, approximate=np.zeros(2)),
        ValueError,
        'gelu: approximate is "none" or "tanh", got array',
    ),
    "no word, matmul": (
        lambda x: k.matmul(x, x, activation=np.zeros(2)),
        ValueError,
        'matmul: activation is "none", "relu", .* or "silu", got array',
    ),
    "an eps that no float holds": (
        lambda x: k.rms_norm(x, zeros(4), eps=10**400),
        ValueError,
        "rms_norm: eps is a number from 0 on",
    ),
    "a scale that is no float32": (
        lambda x: k.attention(*[zeros(1, 1, 2, 16)] * 3, scale=1e39),
        ValueError,
        "attention: scale is a finite float32, got 1e\\+39",
    ),
    "no scale": (
        lambda x: k.attention_decode(
            zeros(1, 1, 16), *[zeros(1, 1, 2, 16)] * 2, places(1), scale=float("nan")
        ),
        ValueError,
        "attention_decode: scale is a finite float32, got nan",
    ),
    "out of sample_top_k": (
        lambda x: k.sample_top_k(x, places(4), k=2, out=np.zeros(4, "i4")),
        TypeError,
        "sample_top_k: out is a tensor that exists, got ndarray",
    ),
    "out of argmax within long rows": (
        lambda x: k.argmax(y := zeros(2, 3000), out=same_memory(y)),
        ca.AliasError,
        "argmax: the same memory is exclusive",
    ),
    "matvec of a wrong length": (
        lambda x: k.matvec(x, zeros(5)),
        ValueError,
        r"matvec: these shapes do not go together: x \(5,\), weight \(4, 4\); x is \(..., k\) and weight is "
        r"\(n, k\), but k is 5 in x and 4 in weight$",
    ),
    "matvec of a matrix": (
        lambda x: k.matvec(x, x),
        ValueError,
        r"x \(4, 4\); weight is \(n, k\) and x is \(k\), but x has 2 axes$",
    ),
    "a factor that is not transposed": (
        lambda x: k.matmul(zeros(4, 6), zeros(4, 6)),
        ValueError,
        r"b \(4, 6\); a is \(m, k\) and b is \(k, n\), but k is 6 in a and 4 in b$",
    ),
    "batches of two sizes": (
        lambda x: k.batched_matmul(zeros(2, 3, 4), zeros(1, 4, 5)),
        ValueError,
        r"a is \(batch, m, k\) and b is \(batch, k, n\), but batch is 2 in a and 1 in b$",
    ),
    "a vector in a linear layer": (
        lambda x: k.linear(zeros(2, 4), zeros(4)),
        ValueError,
        r"x is \(..., k\) and weight is \(n, k\), but weight has 1 axis$",
    ),
    "queries of another size": (
        lambda x: k.attention(zeros(1, 2, 5, 8), *[zeros(1, 2, 5, 16)] * 2),
        ValueError,
        r"k is \(batch, key heads, keys, size\), but size is 8 in q and 16 in k$",
    ),
    "a row that is a vector": (
        lambda x: k.argmax(zeros(5)),
        ValueError,
        r"argmax: x has the shape \(5,\), it must be \(rows, columns\); pass x.reshape\(\(1, 5\)\)$",
    ),
    "rows in batches": (
        lambda x: k.cross_entropy(zeros(2, 3, 5), places(6)),
        ValueError,
        r"logits has the shape \(2, 3, 5\), it must be \(rows, columns\); pass logits.reshape\(\(6, 5\)\)$",
    ),
    "tokens that are no batch": (
        lambda x: k.mean_pool(x),
        ValueError,
        r"x has the shape \(4, 4\), it must be \(batch, tokens, columns\); pass x.reshape\(\(1, 4, 4\)\)$",
    ),
    "a bias with an axis of its own": (
        lambda x: k.matmul(x, x, bias=zeros(1, 4)),
        ValueError,
        r"bias has the shape \(1, 4\), it must be \(4,\); pass bias.reshape\(\(4,\)\)$",
    ),
    "a bias of another length": (
        lambda x: k.matmul(x, x, bias=zeros(1, 5)),
        ValueError,
        r"bias has the shape \(1, 5\), it must be \(4,\)$",
    ),
    "a transposed vector": (
        lambda x: k.transpose(zeros(4)),
        ValueError,
        r"transpose: x has the shape \(4,\), it must be \(m, n\) or \(batch, m, n\)$",
    ),
    "more of the likeliest than there are": (
        lambda x: k.sample_top_k(x, places(4)),
        ValueError,
        "sample_top_k: k is 50, a row has 4 elements; pass k=4 or less$",
    ),
    "matvec of two types": (
        lambda x: k.matvec(x, zeros(4, dtype="float16")),
        TypeError,
        "matvec: weight is float32; it takes float16",
    ),
    "a cache of another shape": (
        lambda x: k.attention_decode(zeros(1, 2, 16), zeros(1, 2, 5, 16), zeros(1, 2, 6, 16), places(1)),
        ValueError,
        r"attention_decode: values has the shape \(1, 2, 6, 16\), it must be \(1, 2, 5, 16\)",
    ),
    "a cache of another type": (
        lambda x: k.attention_decode(zeros(1, 2, 16), *[zeros(1, 2, 5, 16, dtype="float16")] * 2, places(1)),
        TypeError,
        "attention_decode: keys is float16; it takes float32",
    ),
    "a cache of other heads": (
        lambda x: k.attention_decode(zeros(1, 2, 16), *[zeros(1, 2, 5, 8)] * 2, places(1)),
        ValueError,
        r"attention_decode: these shapes do not go together: q \(1, 2, 16\), keys \(1, 2, 5, 8\)",
    ),
    "a total of another shape": (
        lambda x: k.add_rms_norm(x, x, zeros(4), total=zeros(4)),
        ValueError,
        r"add_rms_norm: total is float32 \(4,\), the result is float32 \(4, 4\)",
    ),
    "an operation for a cache": (
        lambda x: k.update_cache(
            zeros(1, 1, 2, 2), ca.zeros((1, 1, 2, 2)), *[zeros(1, 1, 1, 2)] * 2, places(1)
        ),
        TypeError,
        "update_cache: values is a tensor that exists, as it is changed in place, got Full",
    ),
    "positions that are no number": (
        lambda x: k.rotary_tables("a", 4),
        ValueError,
        "a number of positions is from 0 on, got 'a'",
    ),
    "half a head": (lambda x: k.rotary_tables(3, 4.5), ValueError, "an even number of elements, got 4.5"),
    "theta of 0": (lambda x: k.rotary_tables(3, 4, theta=0), ValueError, "theta is a number above 0, got 0"),
    "positions below 0": (lambda x: k.rotary_tables(-3, 4), ValueError, "from 0 on, got -3"),
}


def same_memory(x):
    """int32 (2,) at the beginning of x."""
    array = np.from_dlpack(x).reshape(-1)[:2].view(np.int32)
    return ca.from_dlpack(array)


FAR = {
    "matmul in parts": lambda far: k.matmul(zeros(4, 64), zeros(64, 4), bias=far(4), splits=2),
    "matmul in parts, out": lambda far: k.matmul(zeros(4, 64), zeros(64, 4), splits=2, out=far(4, 4)),
    "attention_decode, out": lambda far: k.attention_decode(
        zeros(1, 1, 16), *[zeros(1, 1, 2, 16)] * 2, places(1), out=far(1, 1, 16)
    ),
    "softmax of few long rows, out": lambda far: k.softmax(zeros(2, 8200), out=far(2, 8200)),
    "argmax of long rows, out": lambda far: k.argmax(zeros(2, 3000), out=far(2, dtype="int32")),
    "sample_top_k": lambda far: k.sample_top_k(zeros(2, 9), far(2, dtype="int32"), k=2),
    "cross_entropy": lambda far: k.cross_entropy(zeros(2, 9), far(2, dtype="int32")),
}


@pytest.mark.parametrize("case", FAR)
def test_operands_of_two_kernels_are_on_one_device(host, case):
    """What only the second one takes too: nothing was enqueued."""
    another = checked_device()

    def far(*shape, dtype="float32"):
        with ca.use_device(another):
            return zeros(*shape, dtype=dtype)

    with pytest.raises(ca.ContextError, match=r"is on .*, .* on .*; copy one over") as caught:
        FAR[case](far)
    assert str(caught.value).startswith(case.split()[0].rstrip(","))
    another.close()


@pytest.mark.parametrize("case", REFUSED)
def test_refused(host, case):
    """At the call, and by a message that says what was given."""
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call(zeros(4, 4))


def across(*shape, dtype="float32"):
    """With the first two axes swapped in memory."""
    return zeros(shape[1], shape[0], *shape[2:], dtype=dtype).permute(1, 0, *range(2, len(shape)))


STRIDED = {
    "add": ("y", lambda: k.add(zeros(3, 4), across(3, 4))),
    "add, out": ("out", lambda: k.add(zeros(3, 4), zeros(3, 4), out=across(3, 4))),
    "gelu": ("x", lambda: k.gelu(across(3, 4))),
    "dropout": ("x", lambda: k.dropout(across(3, 4), 0.5, 0)),
    "silu_mul": ("up", lambda: k.silu_mul(zeros(3, 4, 2), across(3, 4, 2))),
    "softmax": ("x", lambda: k.softmax(across(3, 4, 2))),
    "softmax of few long rows": ("x", lambda: k.softmax(across(3, 2, 8200))),
    "softmax, out": ("out", lambda: k.softmax(zeros(3, 4, 2), out=across(3, 4, 2))),
    "rms_norm": ("x", lambda: k.rms_norm(across(3, 4, 2), zeros(2))),
    "add_rms_norm": ("residual", lambda: k.add_rms_norm(zeros(3, 4, 2), across(3, 4, 2), zeros(2))),
    "add_rms_norm, total": (
        "total",
        lambda: k.add_rms_norm(*[zeros(3, 4, 2)] * 2, zeros(2), total=across(3, 4, 2)),
    ),
    "add_layer_norm": ("x", lambda: k.add_layer_norm(across(3, 4, 2), zeros(3, 4, 2), zeros(2))),
    "embedding": ("ids", lambda: k.embedding(across(3, 4, dtype="int32"), zeros(5, 2))),
    "linear": ("x", lambda: k.linear(across(3, 4, 2), zeros(5, 2))),
    "linear, out": ("out", lambda: k.linear(zeros(3, 4, 2), zeros(5, 2), out=across(3, 4, 5))),
    "linear, residual": ("residual", lambda: k.linear(zeros(3, 4, 2), zeros(5, 2), residual=across(3, 4, 5))),
}


@pytest.mark.parametrize("case", STRIDED)
def test_strides_that_are_not_taken(host, case):
    """The message names the function, the operand, and what to do."""
    parameter, call = STRIDED[case]
    function = case.split(",")[0].split(" ")[0]
    advice = (
        "pass a contiguous one"
        if parameter in ("out", "total")
        else rf"copy it first: ca\.copy\({parameter}\)"
    )
    with pytest.raises(ValueError, match=rf"^{function}: {parameter}, \(.*\) with the strides .*; {advice}$"):
        call()


def test_rows_with_gaps_are_taken(host):
    """A view is refused only where the way over it needs one that there is not."""
    gaps = ca.ones((3, 4, 10)).sync()[..., :5]
    assert k.softmax(gaps).to_host().sync().shape == (3, 4, 5)
    place = ca.zeros((3, 4, 10)).sync()
    k.softmax(gaps, out=place[..., 2:7]).sync()
    found = place.to_host().sync()
    assert np.allclose(found[..., 2:7], 0.2)
    assert not found[..., :2].any()
    assert not found[..., 7:].any()


def test_results_have_memory_of_their_own(device):
    """Also where only the first of two kernels reads an operand, and whatever the size chooses."""
    square = zeros(64, 64)
    for splits in (1, 2):
        with pytest.raises(ca.AliasError, match=r"matmul: .* out, .* and a, "):
            k.matmul(square, zeros(64, 64), splits=splits, out=square)
        with pytest.raises(ca.AliasError, match=r"matmul: .* out, .* and residual, "):
            k.matmul(zeros(64, 64), zeros(64, 64), residual=square, splits=splits, out=square)
    with pytest.raises(ca.AliasError, match=r"linear: .* out, .* and weight, "):
        k.linear(zeros(64, 64), square, out=square)
    row = zeros(2, 60_000)
    with pytest.raises(ca.AliasError, match="softmax"):
        k.softmax(row, out=row)
    q, keys = zeros(1, 4, 16), zeros(1, 2, 256, 16)
    with pytest.raises(ca.AliasError, match=r"attention_decode: .* out, .* and q, "):
        k.attention_decode(q, keys, keys, places(1), out=q)
    assert not square.to_host().sync().any()


def test_a_result_may_lie_beside_an_operand(device):
    pair = ca.ones((64, 128)).sync()
    k.matmul(pair[:, :64], pair[:, :64], splits=2, out=pair[:, 64:]).sync()
    assert (pair.to_host().sync()[:, 64:] == 64).all()


def test_an_operand_that_yields_no_tensor_is_named(host):
    """As one that is none itself; with what makes a tensor of it."""
    x, w = ca.ones((4, 6)).sync(), ca.ones(6).sync()
    tiles = k.raw.row_softmax(ca.empty((4, 6)).partition((1, 8)), x)
    for operand, message in (
        (k.add_rms_norm(x, x, w), r"a tuple of 2; \.first\(\), \.last\(\) or \[i\] takes one"),
        (ca.copy(x).to_host(), r"ndarray; leave \.to_host\(\) out"),
        (tiles.first(), r"Partition; \.unpartition\(\) makes a tensor of it"),
        (ca.value(3), "int$"),
    ):
        with pytest.raises(TypeError, match=f"operands are tensors .* got one that yields {message}"):
            k.softmax(operand).sync()


def test_logits_are_called_by_their_name(host):
    places = ca.zeros(6, "int32").sync()
    for call in (lambda x: k.cross_entropy(x, places), lambda x: k.sample_top_k(x, places, k=2)):
        with pytest.raises(ValueError, match="logits has the shape"):
            call(ca.ones(6).sync())


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_a_result_over_the_counters_is_refused(host, temperature):
    counters = ca.zeros(4, "int32").sync()
    with pytest.raises(ca.AliasError, match=r"sample_top_k: the same memory .*out, .* and counters,"):
        k.sample_top_k(ca.ones((4, 6)).sync(), counters, k=2, temperature=temperature, out=counters)


BACKWARDS = {
    "add": lambda x: k.add(x, zeros(4, 4)),
    "softmax": lambda x: k.softmax(x),
    "transpose": lambda x: k.transpose(x),
    "matmul": lambda x: k.matmul(zeros(4, 4), x),
}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", BACKWARDS)
def test_negative_strides_are_refused_and_copies_taken(host, name, axis):
    """Also where the table says "any strides". An axis of one element has no next one to step to."""
    function, x = BACKWARDS[name], zeros(4, 4)
    view = x[::-1] if axis == 0 else x[:, ::-1]
    with pytest.raises((TypeError, ValueError), match=r"copy it first"):
        function(view).sync()
    assert function(ca.copy(view)).to_host().sync().shape == (4, 4)
    assert k.softmax(zeros(1, 4)[::-1]).to_host().sync().shape == (1, 4)
