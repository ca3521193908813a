"""Random tile kernels, with what NumPy says they give: the other two sides of the interpreter and the compiler.

A program is drawn from a seed: a few inputs, a chain of statements over tiles of 16 elements, up to five outputs. Each
statement is drawn together with its value in NumPy, for all blocks at once, written from the language's documentation
and not from the interpreter. A value is exact, or has an absolute tolerance per element; what is not exact is stored
and used no further, so that no branch or rounding hangs on its last bits.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from . import arithmetic as arithmetic
from . import memory as memory
from . import tiles as tiles
from .program import FLOATS, INTEGERS, OPERATIONS, TILE, Array, Program, wide

__all__ = ["OPERATIONS", "TILE", "Drawn", "draw", "wide"]


@dataclass
class Drawn:
    """A program: source text of the kernel `drawn`, inputs by parameter, a number, and what to expect of each output.

    `shared` and `cells` are what the tensors `m` (zeros before) and `c` (fives) hold afterwards.
    """

    seed: int
    source: str
    inputs: list[Array]
    number: int
    length: int
    outputs: list[tuple[str, Array, Array | None]]
    shared: Array
    cells: Array
    used: Counter[str] = field(default_factory=Counter)


# ------------------------------------------------------------------------------- drawing

HEADER = """import tilekern as tk


def twice_less(a, b):
    return a * 2 - b


"""


def draw(seed: int, statements: int = 12, first: str | None = None) -> Drawn:
    """The program of a seed, of about so many operations; `first` is drawn for certain."""
    p = Program(seed)
    with np.errstate(all="ignore"):
        types = [
            p.random.choice(INTEGERS),
            p.random.choice(FLOATS),
            p.random.choice([*INTEGERS, *FLOATS, "bool_"]),
        ]
        for dtype in types:
            p.input(dtype)
        names = list(OPERATIONS)
        chosen = ([first] if first else []) + [p.random.choice(names) for _ in range(statements)]
        p.random.shuffle(chosen)
        for name in chosen:
            OPERATIONS[name](p)
            p.used[name] += 1
        for missing, group in ((p.shared_kind is None, memory.ATOMICS), (not p.has_cells, memory.CELLS)):
            if missing:  # what is given to be written has to be
                name = p.random.choice(group)
                OPERATIONS[name](p)
                p.used[name] += 1
    outputs = [v for v in [*p.kept, *reversed(p.values)] if v.shape == (TILE,)][:5]
    parameters = [f"o{i}: tk.Tile1D" for i in range(len(outputs))] + [f"x{i}: tk.Tensor1D" for i in range(3)]
    parameters += ["m: tk.Tensor1D", "c: tk.Tensor1D"]
    body = [f"    {line}" for line in p.lines]
    for i, value in enumerate(outputs):
        body.append(f"    o{i}.store({value.name})")
        p.used["store"] += 1
    source = f"{HEADER}@tk.kernel\ndef drawn({', '.join(parameters)}, n: int):\n" + "\n".join(body) + "\n"
    expected = [
        (
            v.dtype,
            v.array.reshape(-1)[: p.length],
            None if v.tolerance is None else v.tolerance.reshape(-1)[: p.length],
        )
        for v in outputs
    ]
    return Drawn(seed, source, p.inputs, p.number, p.length, expected, p.shared, p.cells, p.used)
