"""Writes data/reference.npz: what the NumPy model says to the 200 sentences of data/sentences.txt. Takes seconds.

python examples/embeddings/make_reference.py
python examples/embeddings/make_reference.py --check-with-transformers     # compares, writes nothing
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from encoder_file import MissingModel, ModelFile, find_model
from encoder_reference import Reference, word_pieces

DATA = Path(__file__).parent / "data"


def vocabulary(folder: Path) -> dict[str, int]:
    """Words and pieces of words, a line each."""
    lines = (folder / "vocab.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    return {word: number for number, word in enumerate(lines)}


def check_with_transformers(folder: Path, sentences: list[str], tokens: list[Any], ours: Any) -> int:
    """Compare tokens and embeddings with those of the same files in `transformers`, on the CPU in float32."""
    try:
        import torch
        from transformers import AutoTokenizer, BertModel
    except ImportError as error:
        raise MissingModel(f"--check-with-transformers needs torch and transformers: {error}") from error

    model = BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    largest, least = 0.0, 1.0
    for sentence, ids, embedding in zip(sentences, tokens, ours):
        inputs = tokenizer(sentence, truncation=True, max_length=256, return_tensors="pt")
        assert inputs["input_ids"][0].tolist() == ids, sentence
        with torch.no_grad():
            mean = model(**inputs).last_hidden_state[0].mean(dim=0)
        theirs = (mean / mean.norm()).numpy()
        largest = max(largest, float(np.abs(theirs - embedding).max()))
        least = min(least, float(theirs.astype(np.float64) @ embedding / np.linalg.norm(theirs)))
    print(
        f"{len(sentences)} sentences: the same tokens, embeddings differ by at most {largest:.1e}, "
        f"smallest cosine similarity {least:.9f}"
    )
    return 0


def run(options: argparse.Namespace) -> int:
    file = ModelFile(find_model())
    words = vocabulary(file.folder)
    sentences = (DATA / "sentences.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    limit = file.config.max_tokens
    tokens = [word_pieces(sentence, words) for sentence in sentences]
    tokens = [t if len(t) <= limit else [*t[: limit - 1], t[-1]] for t in tokens]
    model = Reference(file.config, file.weights())
    embeddings = np.stack([model.embed(t) for t in tokens])
    if options.check_with_transformers:
        return check_with_transformers(file.folder, sentences, tokens, embeddings)
    out = DATA / "reference.npz"
    np.savez_compressed(
        out,
        embeddings=embeddings.astype(np.float32),
        tokens=np.concatenate(tokens).astype(np.int32),
        lengths=np.array([len(t) for t in tokens], np.int32),
    )
    print(f"{out.name}: {len(sentences)} sentences, {out.stat().st_size} bytes")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check-with-transformers", action="store_true")
    try:
        return run(parser.parse_args())
    except (MissingModel, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
