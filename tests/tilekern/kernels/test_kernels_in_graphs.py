"""Functions of the library recorded as graphs: a step of generation is one launch."""

import numpy as np
import pytest
from library_calls import CALLS, written_by, zeros

import cuda_async as ca
import tilekern as tk

k = tk.kernels


def upload(array):
    return ca.from_host(np.asarray(array)).sync()


def test_a_recorded_chain_takes_new_inputs(device):
    random = np.random.default_rng(0)
    x64, w64 = random.standard_normal((2, 32)), random.standard_normal((20, 32))
    x, weight = upload(np.zeros((2, 32), "f4")), upload(w64.astype("f4"))
    layer = k.softmax(k.linear(k.rms_norm(x, upload(np.ones(32, "f4"))), weight, activation="relu"))
    graph = layer.graph(inputs={"x": x}).sync()
    result = graph.replay(x=x64.astype("f4")).to_host().sync()
    e = np.exp(np.maximum(x64 / np.sqrt((x64**2).mean(1, keepdims=True) + 1e-5) @ w64.T, 0))
    np.testing.assert_allclose(result, e / e.sum(1, keepdims=True), rtol=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_step_of_generation_is_recorded_once(device, temperature):
    """Positions are read on the device, so that each launch of the graph does the next step."""
    random = np.random.default_rng(1)
    heads, size, capacity, vocabulary = 2, 16, 8, 50
    width = heads * size
    table = (random.standard_normal((vocabulary, width)) * 0.5).astype("f4")
    mixing = (random.standard_normal((3 * width, width)) * 0.3).astype("f4")
    keys, values = (upload(np.zeros((1, heads, capacity, size), "f4")) for _ in range(2))
    cosine, sine = map(upload, k.rotary_tables(capacity, size))
    token, position = upload(np.int32([7])), upload(np.int32([0]))
    embedding, weights = upload(table), upload(mixing)

    def step():
        def attend(x):
            qkv = x.reshape(1, 3, heads, size)
            turned = k.rotary(qkv[:, 0], cosine, sine, position)
            stored = k.rotary(qkv[:, 1], cosine, sine, position).then(
                lambda key: k.update_cache(keys, values, key[:, :, None], qkv[:, 2, :, None], position)
            )
            return ca.zip(turned, stored).then(
                lambda made: k.attention_decode(made[0], keys, values, position)
            )

        x = k.linear(k.embedding(token, embedding), weights).then(attend).reshape((1, width))
        logits = k.linear(x, embedding)
        return k.sample_top_k(logits, position, k=4, temperature=temperature, seed=3, out=token)

    def in_numpy(start, count):
        """Greedy, in float64."""
        t, ks, vs, found = start, [], [], []
        c, s = (a.astype("f8") for a in k.rotary_tables(capacity, size))
        for n in range(count):
            q, key, value = (table[t].astype("f8") @ mixing.T).reshape(3, heads, size)

            def turn(h, n=n):
                a, b = h[:, : size // 2], h[:, size // 2 :]
                return np.concatenate((a * c[n] - b * s[n], b * c[n] + a * s[n]), 1)

            ks.append(turn(key))
            vs.append(value)
            scores = np.einsum("hd,thd->ht", turn(q), np.stack(ks)) / np.sqrt(size)
            p = np.exp(scores - scores.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            t = int(np.argmax(np.einsum("ht,thd->hd", p, np.stack(vs)).reshape(-1) @ table.T))
            found.append(t)
        return found

    graph = step().graph().sync()
    tokens = []
    for n in range(5):
        ca.memcpy(position, np.int32([n])).sync()
        graph.launch().sync()
        tokens.append(int(token.to_host().sync()[0]))
    if temperature == 0.0:
        assert tokens == in_numpy(7, 5)
    else:
        assert len(set(tokens)) > 1


def arrays_of(made):
    return [tensor.to_host().sync() for tensor in (made if isinstance(made, tuple) else (made,))]


def check_that_it_runs_again(case, later):
    function, shapes, options = CALLS[case]

    def call():
        operands = {name: zeros(case, name) for name in shapes if name not in ("out", "total")}
        waited = {n: ca.value(t) for n, t in operands.items() if later and n not in written_by(case)}
        return function(**(operands | waited), **options)

    op = call().shared()
    with pytest.raises(ZeroDivisionError):
        op.then(lambda _: 1 / 0).graph().sync()
    np.testing.assert_array_equal(arrays_of(op.sync()), arrays_of(call().sync()))


@pytest.mark.parametrize("later", [False, True], ids=["there", "later"])
@pytest.mark.parametrize("case", CALLS)
def test_shared_calls_run_after_a_recording_that_failed(device, case, later):
    """With operands that are there, and that operations are to yield."""
    check_that_it_runs_again(case, later)


@pytest.mark.parametrize("case", ["matmul", "batched_matmul", "linear"])
def test_shared_products_of_copies_run_after_a_recording_that_failed(device, monkeypatch, case):
    monkeypatch.setattr("tilekern.kernels._matmul.copy_pays", lambda *_, **__: True)
    check_that_it_runs_again(case, later=False)
