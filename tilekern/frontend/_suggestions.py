"""What somebody may have meant by a name that is not there: names of other systems, and names nearly right."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable

__all__ = ["instead", "parameters_shown"]

_ELSEWHERE = {
    # Triton, Numba, CUDA C++, NumPy and PyTorch -> here
    "program_id": "tk.bid(axis)",
    "num_programs": "tk.num_blocks(axis)",
    "blockIdx": "tk.bid(axis)",
    "gridDim": "tk.num_blocks(axis)",
    "threadIdx": "operations on whole tiles: there are no threads in a tile kernel",
    "thread_id": "operations on whole tiles: there are no threads in a tile kernel",
    "syncthreads": "nothing: a block's operations run in program order",
    "dot": "tk.mma(x, y, acc), or x @ y",
    "matmul_accumulate": "tk.mma(x, y, acc)",
    "concatenate": "tk.cat",
    "concat": "tk.cat",
    "stack": "tk.cat of tiles with a new axis (x[None])",
    "cast": "tk.astype",
    "to": "x.astype(dtype)",
    "float": "x.astype(tk.float32)",
    "int": "x.astype(tk.int32)",
    "half": "x.astype(tk.float16)",
    "view": "tk.bitcast",
    "T": "x.transpose()",
    "mean": "tk.sum(x, axis) / x.shape[axis]",
    "softmax": "tk.exp(x - tk.max(x)) divided by its tk.sum",
    "sigmoid": "1 / (1 + tk.exp(-x))",
    "relu": "tk.maximum(x, 0)",
    "gelu": "0.5 * x * (1 + tk.tanh(0.79788456 * (x + 0.044715 * x * x * x)))",
    "silu": "x / (1 + tk.exp(-x))",
    "log1p": "tk.log(1 + x)",
    "expm1": "tk.exp(x) - 1",
    "log10": "tk.log2(x) * 0.30103",
    "square": "x * x",
    "reciprocal": "1 / x",
    "sign": "tk.where(x > 0, 1, tk.where(x < 0, -1, 0))",
    "isinf": "abs(x) == float('inf')",
    "isfinite": "abs(x) < float('inf')",
    "round": "tk.floor(x + 0.5), which rounds halves up",
    "rint": "tk.floor(x + 0.5), which rounds halves up",
    "trunc": "x.astype(tk.int32)",
    "var": "tk.sum of the squared differences from the mean",
    "std": "tk.sqrt of the mean of the squared differences from the mean",
    "erf": "an approximation: there is no error function",
    "sort": "compare-and-exchange steps of tk.where, tk.cat and x.extract: there is no sorting",
    "argsort": "compare-and-exchange steps of tk.where, tk.cat and x.extract: there is no sorting",
    "topk": "tk.argmax in a loop: there is no sorting",
    "flip": "tk.gather with indices that count down",
    "roll": "tk.gather with indices modulo the extent",
    "static_range": "tk.static_iter(range(n))",
    "multiple_of": "tk.assume_divisible_by(x, divisor)",
    "max_contiguous": "nothing: what is contiguous is seen by itself",
    "device_print": "print",
    "debug_barrier": "nothing: a block's operations run in program order",
    "inline_asm_elementwise": "a raw kernel of CUDA C++ or PTX: there is no inline assembly",
    "make_block_ptr": "tk.load(x, index, shape), or x.tiled_view(shape)",
    "swizzle2d": "a mapped partition: t.partition(tile).map(map_shape, blocks)",
    "inf": "float('inf')",
    "nan": "float('nan')",
    "pi": "math.pi",
    "empty": "tk.zeros: a tile always has values",
    "zeros_like": "tk.zeros(x.shape, x.dtype)",
    "ones_like": "tk.ones(x.shape, x.dtype)",
    "full_like": "tk.full(x.shape, value, x.dtype)",
    "select": "tk.where",
    "clamp": "tk.minimum(tk.maximum(x, low), high)",
    "clip": "tk.minimum(tk.maximum(x, low), high)",
    "constexpr": "tk.Constant[int] as the parameter's annotation",
    "dim": "x.ndim",
    "flatten": "x.reshape(-1)",
    "ravel": "x.reshape(-1)",
    "squeeze": "x.reshape(shape)",
    "unsqueeze": "tk.expand_dims(x, axis)",
    "expand": "tk.broadcast_to(x, shape)",
    "any": "tk.max(x) of a tile of bools",
    "all": "tk.min(x) of a tile of bools",
    "swapaxes": "x.transpose(axis0, axis1)",
    "store": "out.store(tile), out being a partition parameter, or tk.store(x, index, tile)",
    "load": "it as it is: it has been loaded",
    "tolist": "an output: store the tile there, and copy it to the host",
    "cpu": "an output: store the tile there, and copy it to the host",
    "numpy": "an output: store the tile there, and copy it to the host",
    "to_host": "an output: store the tile there, and copy it to the host",
}


def instead(name: str, candidates: Iterable[str], prefix: str = "") -> str:
    """The end of a message about a name that is not there: what to use instead; empty if nothing is near."""
    if name in _ELSEWHERE:
        return f"; use {_ELSEWHERE[name]}"
    import difflib

    close = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.7)
    return f"; is {prefix}{close[0]} meant?" if close else ""


def parameters_shown(function: Callable[..., object], *, is_method: bool) -> str:
    """The parameters of a function as a message shows them: `(x, axis=, *, keepdims=)`."""
    shown: list[str] = []
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters[is_method:]:
        if parameter.kind is parameter.VAR_POSITIONAL:
            shown.append(f"*{parameter.name}")
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not any(text.startswith("*") for text in shown):
            shown.append("*")
        shown.append(parameter.name + ("=" if parameter.default is not parameter.empty else ""))
    return f"({', '.join(shown)})"
