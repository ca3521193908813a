"""Memory that a program reads and writes, in the order of its statements.

Of `c`, a tensor of rank 1 or 2, and of what `q` points to, each tile of the program has 16 elements of its own, which
it loads, stores and changes in many ways, one after the other and in loops: what a load gives hangs on all
stores before it. `m` is shared by all, and takes atomic updates of one kind a program, in whatever order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .exact import converted
from .geometry import TILE, Array
from .program import OPERATIONS, Memory, Program, Value, numpy_type, operation

ATOMIC_INTEGERS = ["int32", "int64", "uint32", "uint64"]
SHARED = 67
"""Elements of `m`."""


def tensor(p: Program, name: str = "c") -> Memory:
    """`c` or `q`, which appear in a program when something asks for them."""
    if name not in p.memories:
        dtype = p.random.choice(ATOMIC_INTEGERS)
        rank = p.random.choice([1, 2]) if name == "c" else 1
        more = p.random.choice([0, 3])
        shape = (
            (TILE * p.blocks + more,) if rank == 1 else (4 * p.blocks + more, 4 + p.random.choice([0, 4, 1]))
        )
        before = p.numbers.integers(0, 30, shape).astype(numpy_type(dtype))
        annotation = f"tk.Tensor{rank}D" if name == "c" else f"tk.Pointer[tk.{dtype}]"
        p.memories[name] = Memory(name, dtype, before, before.copy(), annotation)
    return p.memories[name]


def cells(p: Program, memory: Memory) -> Array:
    """A tile's own elements, a row each."""
    if memory.now.ndim == 1:
        return memory.now[: TILE * p.blocks].reshape(p.blocks, TILE).copy()
    return memory.now[: 4 * p.blocks, :4].reshape(p.blocks, TILE).copy()


def keep(p: Program, memory: Memory, array: Array) -> None:
    memory.is_written = True
    if memory.now.ndim == 1:
        memory.now[: TILE * p.blocks] = array.reshape(-1)
    else:
        memory.now[: 4 * p.blocks, :4] = array.reshape(-1, 4)


def _order(p: Program) -> tuple[str, Array]:
    """The numbers 0 to 15 in some order, as the name of a tile."""
    factor, start = p.random.choice([1, 3, 5, 7, 15]), p.random.randrange(TILE)
    numbers = ((np.arange(TILE) * factor + start) % TILE).astype(np.int32)
    text = f"(tk.arange({TILE}, dtype=tk.int32) * {factor} + {start}) % {TILE}"
    return p.add("int32", text, np.tile(numbers, (p.blocks, 1))).name, numbers


def _indices(memory: Memory, order: str) -> str:
    if memory.now.ndim == 1:
        return f"b * {TILE} + {order}"
    return f"(b * 4 + {order} // 4, {order} % 4)"


def _offset(memory: Memory, order: str) -> str:
    if memory.now.ndim == 1:
        return f"b * {TILE} + {order}"
    return f"(b * 4 + {order} // 4) * {memory.now.shape[1]} + {order} % 4"


def _tile(memory: Memory) -> tuple[str, str]:
    """Index and shape of a tile's own elements."""
    return ("(b,)", "(16,)") if memory.now.ndim == 1 else ("(b, 0)", "(4, 4)")


def _update(p: Program, memory: Memory) -> Value:
    return p.pick([memory.dtype])


def _shaped(memory: Memory, text: str) -> str:
    return text if memory.now.ndim == 1 else f"{text}.reshape((4, 4))"


def _flat(memory: Memory, text: str) -> str:
    return text if memory.now.ndim == 1 else f"{text}.reshape((16,))"


def _options(p: Program, orders: list[str]) -> str:
    """Order and scope between blocks, which this block's own statements do not notice."""
    if p.random.random() < 0.7:
        return ""
    return f", memory_order=tk.MemoryOrder.{p.random.choice(orders)}, memory_scope=tk.MemoryScope.DEVICE"


_LOADS, _STORES = ["RELAXED", "ACQUIRE"], ["RELAXED", "RELEASE"]
_ATOMICS = ["RELAXED", "ACQUIRE", "RELEASE", "ACQ_REL"]

# -- loads and stores, in whatever way


@operation
def load(p: Program) -> None:
    c = tensor(p)
    index, shape = _tile(c)
    text = f"tk.load(c, {index}, {shape}{_options(p, _LOADS)})"
    if p.random.random() < 0.4:
        text = f"c.tiled_view({shape}).load({index})"
    p.add(c.dtype, _flat(c, text), cells(p, c))


@operation
def gather_back(p: Program) -> None:
    c = tensor(p)
    order, numbers = _order(p)
    if p.random.random() < 0.5:
        text = f"tk.gather(c, {_indices(c, order)}{_options(p, _LOADS)})"
    else:
        text = f"c.get_raw_memory().load_offset({_offset(c, order)})"
    p.add(c.dtype, text, cells(p, c)[:, numbers])


@operation
def rows_back(p: Program) -> None:
    c = tensor(p)
    if c.now.ndim == 1:
        return
    rows = (np.arange(4) * 3 + 1) % 4
    array = cells(p, c).reshape(p.blocks, 4, 4)[:, rows].reshape(p.blocks, TILE)
    ids = "b * 4 + (tk.arange(4, dtype=tk.int32) * 3 + 1) % 4"
    p.add(c.dtype, f"tk.load_advanced_indexing(c, ({ids}, tk.Slice(0, 4))).reshape((16,))", array)


@operation
def store(p: Program) -> None:
    c = tensor(p)
    a, (index, shape) = _update(p, c), _tile(c)
    if p.random.random() < 0.4:
        p.say(f"c.tiled_view({shape}).store({index}, {_shaped(c, a.name)})", writes=True)
    else:
        p.say(f"tk.store(c, {index}, {_shaped(c, a.name)}{_options(p, _STORES)})", writes=True)
    keep(p, c, a.array)


def _scattered(p: Program, memory: Memory, a: Value, numbers: Array, mask: Array | None) -> None:
    own = cells(p, memory)
    new = own.copy()
    new[:, numbers] = a.array
    if mask is not None:
        chosen = np.zeros(own.shape, bool)
        chosen[:, numbers] = mask
        new = np.where(chosen, new, own)
    keep(p, memory, new)


def _masked(p: Program) -> tuple[str, Array | None]:
    if p.random.random() < 0.5:
        return "", None
    mask = p.pick(["bool_"])
    return f", mask={mask.name}", mask.array


@operation
def scatter(p: Program) -> None:
    c = tensor(p)
    a, (order, numbers), (masked, mask) = _update(p, c), _order(p), _masked(p)
    options = masked + p.random.choice(["", "", ", check_bounds=False"]) + _options(p, _STORES)
    p.say(f"tk.scatter(c, {_indices(c, order)}, {a.name}{options})", writes=True)
    _scattered(p, c, a, numbers, mask)


@operation
def store_offset(p: Program) -> None:
    c = tensor(p)
    a, (order, numbers), (masked, mask) = _update(p, c), _order(p), _masked(p)
    p.say(f"c.get_raw_memory().store_offset({_offset(c, order)}, {a.name}{masked})", writes=True)
    _scattered(p, c, a, numbers, mask)


@operation
def store_advanced_indexing(p: Program) -> None:
    c = tensor(p)
    if c.now.ndim == 1:
        return
    a = _update(p, c)
    rows = (np.arange(4) * 3 + 2) % 4
    ids = "b * 4 + (tk.arange(4, dtype=tk.int32) * 3 + 2) % 4"
    text = f"tk.store_advanced_indexing(c, ({ids}, tk.Slice(0, 4)), {a.name}.reshape((4, 4)))"
    p.say(text, writes=True)
    new = cells(p, c).reshape(p.blocks, 4, 4)
    new[:, rows] = a.array.reshape(p.blocks, 4, 4)
    keep(p, c, new)


@operation
def store_in_a_branch(p: Program) -> None:
    c = tensor(p)
    a, (index, shape) = _update(p, c), _tile(c)
    limit = p.random.randrange(2)
    result = p.new(c.dtype, cells(p, c))
    taken = (np.arange(p.blocks) > limit)[:, None]
    new = np.where(taken, a.array, cells(p, c))
    lines = [f"{result.name} = {_flat(c, f'tk.load(c, {index}, {shape})')}", f"if b > {limit}:"]
    lines.append(f"    tk.store(c, {index}, {_shaped(c, a.name)})")
    if p.random.random() < 0.5:
        other = new + 1 * (~taken).astype(new.dtype)
        lines += ["else:", f"    tk.store(c, {index}, {_shaped(c, f'({result.name} + 1)')})"]
        new = np.where(taken, new, other).astype(new.dtype)
    p.say(*lines, makes=(result,), writes=True)
    keep(p, c, new)


# -- loops over memory


@operation
def turns_on_one_tile(p: Program) -> None:
    """Each turn loads what the one before stored."""
    c = tensor(p)
    index, shape = _tile(c)
    name, new = p.name(), cells(p, c)
    for i in range(p.number):
        new = (new * 3 + np.array(i, new.dtype)).astype(new.dtype)
    p.say(
        "for i in range(n):",
        f"    {name} = tk.load(c, {index}, {shape})",
        f"    tk.store(c, {index}, {name} * 3 + i.astype(tk.{c.dtype}))",
        writes=True,
    )
    keep(p, c, new)


def _part(memory: Memory, k: str) -> tuple[str, str]:
    """Index and shape of the k-th four of a tile's own elements."""
    return (f"(b * 4 + {k},)", "(4,)") if memory.now.ndim == 1 else (f"(b * 4 + {k}, 0)", "(1, 4)")


@operation
def turns_on_their_own(p: Program) -> None:
    """Each turn has elements of its own, and what follows sees all of them."""
    c = tensor(p)
    (index, shape), (whole, whole_shape) = _part(c, "k"), _tile(c)
    name = p.name()
    new = (cells(p, c) * 2 + np.repeat(np.arange(4), 4).astype(c.now.dtype)).astype(c.now.dtype)
    result = p.new(c.dtype, new)
    p.say(
        "for k in range(4):",
        f"    {name} = tk.load(c, {index}, {shape})",
        f"    tk.store(c, {index}, {name} * 2 + k.astype(tk.{c.dtype}))",
        f"{result.name} = {_flat(c, f'tk.load(c, {whole}, {whole_shape})')}",
        makes=(result,),
        writes=True,
    )
    keep(p, c, new)


@operation
def turns_on_neighbours(p: Program) -> None:
    """Each turn loads what another one stores: the next or the one before."""
    c = tensor(p)
    name, new = p.name(), cells(p, c).reshape(p.blocks, 4, 4)
    ahead = p.random.random() < 0.5
    for k in range(3):
        source, target = (k, k + 1) if ahead else (k + 1, k)
        new[:, target] = (new[:, source] + 1).astype(new.dtype)
    source_text, target_text = ("k", "k + 1") if ahead else ("k + 1", "k")
    (load_index, shape), (store_index, _) = _part(c, source_text), _part(c, target_text)
    p.say(
        "for k in range(3):",
        f"    {name} = tk.load(c, {load_index}, {shape})",
        f"    tk.store(c, {store_index}, {name} + 1)",
        writes=True,
    )
    keep(p, c, new)


@operation
def loads_in_a_loop(p: Program) -> None:
    """A loop that only loads, between what stored before and what stores next."""
    c = tensor(p)
    a, (index, shape), (whole, _) = _update(p, c), _part(c, "k"), _tile(c)
    parts = cells(p, c).reshape(p.blocks, 4, 4)
    total = np.zeros((p.blocks, 4), c.now.dtype)
    for k in range(4):
        total = (total * 3 + parts[:, k]).astype(total.dtype)
    result = p.new(c.dtype, np.repeat(total, 4, axis=1))
    p.say(
        f"{result.name} = tk.zeros((4,), tk.{c.dtype})",
        "for k in range(4):",
        f"    {result.name} = {result.name} * 3 + tk.load(c, {index}, {shape}).reshape((4,))",
        f"tk.store(c, {whole}, {_shaped(c, a.name)})",
        f"{result.name} = tk.broadcast_to({result.name}.reshape((4, 1)), (4, 4)).reshape((16,))",
        makes=(result,),
        writes=True,
    )
    keep(p, c, a.array)


@operation
def loads_around_a_store(p: Program) -> None:
    """The same load before a store and behind it."""
    c = tensor(p)
    a, (index, shape) = _update(p, c), _tile(c)
    first, second = p.new(c.dtype, cells(p, c)), p.new(c.dtype, a.array)
    p.say(
        f"{first.name} = {_flat(c, f'tk.load(c, {index}, {shape})')}",
        f"tk.store(c, {index}, {_shaped(c, a.name)})",
        f"{second.name} = {_flat(c, f'tk.load(c, {index}, {shape})')} - {first.name}",
        makes=(first, second),
        writes=True,
    )
    second.array = (a.array - first.array).astype(first.array.dtype)
    keep(p, c, a.array)


# -- atomics

_COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "xchg": lambda old, new: new,
}


def _own_atomic(p: Program, kind: str) -> None:
    """An atomic update of a tile's own elements, whose old values go on."""
    c = tensor(p)
    a, (order, numbers) = _update(p, c), _order(p)
    own = cells(p, c)
    old = own[:, numbers]
    method = p.random.random() < 0.4
    places = _offset(c, order) if method else _indices(c, order)
    options = _options(p, _ATOMICS)
    if kind == "cas":
        b = _update(p, c)
        choice = np.where(b.array > 4, old, b.array)
        swap = p.add(c.dtype, f"tk.where({b.name} > 4, {_gathered(c, order)}, {b.name})", choice)
        operands = f"{swap.name}, {a.name}"
        new = np.where(choice == old, a.array, old)
    else:
        operands, new = a.name, _COMBINE[kind](old, a.array).astype(old.dtype)
    head = f"c.get_raw_memory().atomic_{kind}_offset(" if method else f"tk.atomic_{kind}(c, "
    result = p.new(c.dtype, old)
    p.say(f"{result.name} = {head}{places}, {operands}{options})", makes=(result,), writes=True)
    own[:, numbers] = new
    keep(p, c, own)


@operation
def own_atomic(p: Program) -> None:
    _own_atomic(p, p.random.choice(list(_UFUNCS)))


@operation
def atomic_xchg(p: Program) -> None:
    _own_atomic(p, "xchg")


@operation
def atomic_cas(p: Program) -> None:
    _own_atomic(p, "cas")


def _gathered(memory: Memory, order: str) -> str:
    return f"tk.gather(c, {_indices(memory, order)})"


def _shared(p: Program, kind: str) -> Memory | None:
    """`m`, if it takes updates of such a kind in this program."""
    if "m" not in p.memories:
        dtype = p.random.choice(
            [*ATOMIC_INTEGERS, "float32", "float64"] if kind == "add" else ATOMIC_INTEGERS
        )
        before = np.full(SHARED, 9, numpy_type(dtype))
        p.memories["m"] = Memory("m", dtype, before, before.copy(), "tk.Tensor1D")
        p.notes["kind"] = kind
    return p.memories["m"] if p.notes["kind"] == kind else None


def _whole(p: Program, dtype: str) -> Value:
    """A tile whose sums are exact."""
    if dtype in ATOMIC_INTEGERS:
        return p.pick([dtype])
    a = p.pick(["int8"])
    return p.add(
        dtype, f"({a.name} % 8).astype(tk.{dtype})", converted(np.mod(a.array, 8), dtype, numpy_type(dtype))
    )


_UFUNCS = {
    "add": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def _shared_atomic(kind: str) -> None:
    def drawn(p: Program) -> None:
        m = _shared(p, kind)
        if m is None:
            return
        a, b = p.pick(["int32"]), _whole(p, m.dtype)
        places = (np.mod(a.array, np.int32(SHARED + 3)) - 3).astype(np.int32)
        index = p.add("int32", f"{a.name} % {SHARED + 3} - 3", places)
        inside = (places >= 0) & (places < SHARED)
        masked, mask = _masked(p)
        if mask is not None:
            inside &= mask
        p.say(f"tk.atomic_{kind}(m, {index.name}, {b.name}{masked})", writes=True)
        _UFUNCS[kind].at(m.now, places[inside], b.array[inside])

    OPERATIONS[f"atomic_{kind}"] = drawn

    def tiles(p: Program) -> None:
        m = _shared(p, kind)
        if m is None:
            return
        b = _whole(p, m.dtype)
        start, part = p.random.randrange(17), p.random.randrange(4)
        for row in range(p.blocks):
            first = (row + start) % 17 * 4
            update = b.array[row, part * 4 : part * 4 + 4][: SHARED - first]
            _UFUNCS[kind].at(m.now, np.arange(first, first + len(update)), update)
        tile = f"tk.extract({b.name}, ({part},), (4,))"
        p.say(f"m.tiled_view((4,)).atomic_store_{kind}(((b + {start}) % 17,), {tile})", writes=True)

    OPERATIONS[f"atomic_store_{kind}"] = tiles


for _kind in _UFUNCS:
    _shared_atomic(_kind)


# -- by address


@operation
def pointer_load(p: Program) -> None:
    q = tensor(p, "q")
    order, numbers = _order(p)
    array, options = cells(p, q)[:, numbers], ""
    if p.random.random() < 0.5:
        mask = p.pick(["bool_"])
        array, options = (
            np.where(mask.array, array, np.array(4, array.dtype)),
            f"mask={mask.name}, padding_value=4",
        )
    p.add(q.dtype, f"(q + b * {TILE} + {order}).load({options})", array)


@operation
def pointer_store(p: Program) -> None:
    q = tensor(p, "q")
    a, (order, numbers), (masked, mask) = _update(p, q), _order(p), _masked(p)
    if p.random.random() < 0.5:
        p.say(f"(q + (b * {TILE} + {order})).store({a.name}{masked})", writes=True)
    else:
        name = p.name()
        p.say(f"{name} = q + b * {TILE}", f"({name} + {order}).store({a.name}{masked})", writes=True)
    _scattered(p, q, a, numbers, mask)


@operation
def pointer_atomic(p: Program) -> None:
    q = tensor(p, "q")
    a, (order, numbers) = _update(p, q), _order(p)
    kind = p.random.choice([*_COMBINE])
    own = cells(p, q)
    result = p.new(q.dtype, own[:, numbers])
    p.say(
        f"{result.name} = tk.atomic_{kind}(q, b * {TILE} + {order}, {a.name})", makes=(result,), writes=True
    )
    own[:, numbers] = _COMBINE[kind](own[:, numbers], a.array).astype(own.dtype)
    keep(p, q, own)


@operation
def make_tensor(p: Program) -> None:
    """What a pointer points to as a matrix, loaded and stored."""
    q = tensor(p, "q")
    a = _update(p, q)
    rows, name = f"4 * {p.blocks}", p.name()
    result = p.new(q.dtype, cells(p, q))
    shape = p.random.choice([f"({rows}, 4)", f"(tk.num_tiles(x0, 0, {p.tile()}) * 0 + {rows}, 4), (4, 1)"])
    p.say(
        f"{name} = tk.make_tensor(q, {shape})",
        f"{result.name} = tk.load({name}, (b, 0), (4, 4)).reshape((16,))",
        f"tk.store({name}, (b, 0), {a.name}.reshape((4, 4)))",
        makes=(result,),
        writes=True,
    )
    keep(p, q, a.array)
