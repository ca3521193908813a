"""Plans: programs as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ACTIONS", "CELLS", "STREAMS", "VIEWS", "Node", "Plan", "draw_action", "draw_plan"]

CELLS = 3
"""Tensors that all tasks use."""
STREAMS = 3
VIEWS = ((None, None, None), (0, 12, None), (12, 24, None), (0, 24, 2), (6, 18, None), (1, 24, 2))
"""Slices of a tensor of 24 elements: the first has all, the others 12."""

# A node is a tuple: what to do, and with what; strings, numbers and nodes.
Node = tuple[Any, ...]

LEAVES = ("fill", "affine", "copy", "into", "read", "upload", "look", "cast", "scratch")
INNER = ("zip", "parallel", "chain", "on", "shared", "collect")
ACTIONS = (
    ("run", 6),
    ("start", 4),
    ("join", 2),
    ("cancel", 3),
    ("give up", 1),
    ("timeout", 1),
    ("thread", 1),
    ("raise", 1),
    ("share", 2),
    ("use", 3),
    ("graph", 2),
    ("replay", 4),
    ("replace", 2),
    ("free", 1),
    ("device", 1),
)


@dataclass(frozen=True)
class Plan:
    """What each task does, action by action."""

    tasks: tuple[tuple[Node, ...], ...]

    @property
    def size(self) -> int:
        """How many actions."""
        return sum(len(task) for task in self.tasks)


def draw_plan(draw: Callable[[int], int], *, tasks: int = 3, actions: int = 4, depth: int = 2) -> Plan:
    """A plan of up to so many tasks with up to so many actions each, of operations up to so deep.

    Args:
        draw: a number from 0 to below its argument; small ones make simple programs.
    """
    count = 1 + draw(tasks)
    return Plan(tuple(tuple(_action(draw, depth) for _ in range(1 + draw(actions))) for _ in range(count)))


def _action(draw: Callable[[int], int], depth: int) -> Node:
    names = [name for name, weight in ACTIONS for _ in range(weight)]
    return draw_action(draw, names[draw(len(names))], depth)


def draw_action(draw: Callable[[int], int], name: str, depth: int = 2) -> Node:
    """An action by its name, one of `ACTIONS`, and the rest drawn."""
    match name:
        case "run" | "start" | "give up" | "timeout" | "thread" | "raise":
            return name, _tree(draw, depth)
        case "cancel":
            return name, _tree(draw, depth), draw(8)
        case "share" | "use" | "replay":
            return name, draw(CELLS), draw(4)
        case "graph":
            return name, tuple(_leaf(draw, captured=True) for _ in range(1 + draw(3))), draw(2)
        case "replace":
            return name, draw(CELLS), draw(5)
        case _:
            return (name,)


def _tree(draw: Callable[[int], int], depth: int) -> Node:
    kind = draw(len(LEAVES) + (len(INNER) if depth else 0))
    if kind < len(LEAVES):
        return _leaf(draw)
    name = INNER[kind - len(LEAVES)]
    if name == "on":
        return name, draw(STREAMS), _tree(draw, depth - 1)
    if name == "shared":
        return name, _tree(draw, depth - 1)
    return name, tuple(_tree(draw, depth - 1) for _ in range(1 + draw(3)))


def _leaf(draw: Callable[[int], int], *, captured: bool = False) -> Node:
    """An operation on cells; inside a graph one that allocates nothing and reads nothing back."""
    name = LEAVES[draw(4 if captured else len(LEAVES))]
    cell, other = draw(CELLS), draw(CELLS)
    match name:
        case "fill":
            return name, cell, 0 if captured else draw(len(VIEWS)), draw(5)
        case "affine":
            return name, cell, draw(3) - 1, draw(4)
        case "into":
            return name, cell, (cell + 1) % CELLS if other == cell else other, draw(3) - 1, draw(4)
        case "copy":
            if captured:
                return name, cell, 0, (cell + 1) % CELLS if other == cell else other, 0
            return name, cell, 1 + draw(len(VIEWS) - 1), other, 1 + draw(len(VIEWS) - 1)
        case "read" | "look":
            return name, cell, draw(len(VIEWS))
        case "upload":
            return name, cell, draw(len(VIEWS)), draw(5)
        case _:
            return name, cell, draw(4)
