"""Writes data/reference.npz: what the NumPy model says to 20 prompts, 32 greedy tokens each.

Of every step it keeps the chosen token, the largest logits with their tokens, and the logits of some fixed tokens: all
49152 of 640 steps would be 120 MB. Takes about five minutes.

    python examples/llm/make_reference.py
    python examples/llm/make_reference.py --check-with-transformers     # compares, writes nothing
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from model_file import Config, MissingModel, ModelFile, Weights, chat_prompt, find_model
from reference import Reference

PROMPTS = [
    "What is the capital of France?",
    "Name three primary colours.",
    "How many legs does a spider have?",
    "Write one sentence about the sea.",
    "What is 7 times 6?",
    "Explain gravity to a child.",
    "Give me a synonym for happy.",
    "Who wrote Romeo and Juliet?",
    "List two uses of copper.",
    "What do bees make?",
    "Translate 'good morning' into Spanish.",
    "Why is the sky blue?",
    "What is the boiling point of water in Celsius?",
    "Suggest a name for a grey cat.",
    "What comes after Tuesday?",
    "Write a haiku about snow.",
    "What is a kernel in an operating system?",
    "How do plants make food?",
    "Tell me a fact about the Moon.",
    "What is the opposite of cold?",
]
STEPS = 32
LARGEST = 16
SAMPLED = 48
OUT = Path(__file__).parent / "data" / "reference.npz"


def sampled_tokens(vocabulary: int) -> np.ndarray[Any, Any]:
    """The tokens whose logits are kept at every step."""
    return np.sort(np.random.default_rng(0).choice(vocabulary, SAMPLED, replace=False)).astype(np.int32)


def greedy(config: Config, weights: Weights, prompt: list[int]) -> dict[str, np.ndarray[Any, Any]]:
    model = Reference(config, weights)
    logits = model.feed(prompt)
    fixed = sampled_tokens(config.vocabulary)
    kept: dict[str, list[Any]] = {"tokens": [], "top_ids": [], "top_logits": [], "fixed_logits": []}
    for step in range(STEPS):
        order = np.argsort(-logits, kind="stable")[:LARGEST]
        kept["tokens"].append(order[0])
        kept["top_ids"].append(order)
        kept["top_logits"].append(logits[order])
        kept["fixed_logits"].append(logits[fixed])
        if step + 1 < STEPS:
            logits = model.feed([int(order[0])])
    kinds = {"tokens": np.int32, "top_ids": np.int32, "top_logits": np.float32, "fixed_logits": np.float32}
    return {name: np.asarray(values, kinds[name]) for name, values in kept.items()}


def check_with_transformers(config: Config, weights: Weights, prompts: list[list[int]]) -> int:
    """Compare with the same weights in `transformers`, on the CPU in float32."""
    try:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        raise MissingModel(f"--check-with-transformers needs torch and transformers: {error}") from error

    theirs = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocabulary,
            hidden_size=config.hidden,
            intermediate_size=config.intermediate,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            rms_norm_eps=config.norm_epsilon,
            rope_theta=config.rope_base,
            max_position_embeddings=config.context,
            tie_word_embeddings=True,
        )
    ).eval()

    def halves(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
        """Rows in the order of `transformers`, whose rotary embedding pairs element i with i + half."""
        n, k = weight.shape
        return weight.reshape(heads, n // heads // 2, 2, k).swapaxes(1, 2).reshape(n, k)

    state = {"model.embed_tokens.weight": weights.embedding, "model.norm.weight": weights.norm}
    state["lm_head.weight"] = weights.embedding
    for i, layer in enumerate(weights.layers):
        state |= {
            f"model.layers.{i}.{name}.weight": value
            for name, value in {
                "input_layernorm": layer.attention_norm,
                "self_attn.q_proj": halves(layer.query, config.heads),
                "self_attn.k_proj": halves(layer.key, config.kv_heads),
                "self_attn.v_proj": layer.value,
                "self_attn.o_proj": layer.output,
                "post_attention_layernorm": layer.mlp_norm,
                "mlp.gate_proj": layer.gate,
                "mlp.up_proj": layer.up,
                "mlp.down_proj": layer.down,
            }.items()
        }
    missing = theirs.load_state_dict(
        {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in state.items()}, strict=False
    )
    assert not missing.missing_keys, missing
    assert not missing.unexpected_keys, missing
    worst = 0.0
    for prompt in prompts[:5]:
        tokens = list(prompt)
        model = Reference(config, weights)
        ours = model.feed(prompt)
        for _ in range(8):
            with torch.no_grad():
                logits = theirs(torch.tensor([tokens])).logits[0, -1].numpy()
            worst = max(worst, float(np.abs(logits - ours).max()))
            assert int(logits.argmax()) == int(ours.argmax())
            tokens.append(int(ours.argmax()))
            ours = model.feed(tokens[-1:])
    print(f"5 prompts, 8 tokens each: the same tokens, logits differ by at most {worst:.2e}")
    return 0


def run(options: argparse.Namespace) -> int:
    file = ModelFile(find_model())
    tokenizer = file.tokenizer()
    weights = file.weights()
    prompts = [tokenizer.encode(chat_prompt(p), add_special_tokens=False).ids for p in PROMPTS]
    if options.check_with_transformers:
        return check_with_transformers(file.config, weights, prompts)
    answers = [greedy(file.config, weights, prompt) for prompt in prompts]
    lengths = np.asarray([len(p) for p in prompts], np.int32)
    OUT.parent.mkdir(exist_ok=True)
    np.savez_compressed(
        OUT,
        prompt_lengths=lengths,
        prompt_tokens=np.concatenate([np.asarray(p, np.int32) for p in prompts]),
        fixed_tokens=sampled_tokens(file.config.vocabulary),
        **{name: np.stack([a[name] for a in answers]) for name in answers[0]},
    )
    print(f"{OUT.name}: {len(prompts)} prompts, {STEPS} steps each, {OUT.stat().st_size} bytes")
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
