"""Loops inside loops, and the order of nodes that follows from them.

A weak topological order (Bourdoncle, "Efficient chaotic iteration strategies with widenings", 1993) has a node behind
all that lead to it, except by edges back to the head of a loop around them, and the nodes of a loop side by side, its
head first. Taking heads off and looking for loops in what is left costs time for every depth of nesting. One pass
over the edges does it too (Kim, Venet and Thakur, "Deterministic parallel fixpoint computation", 2020):

Heads are taken from the last that a depth-first search met to the first, so inner loops come before outer ones. The
loop of a head is what leads to an edge back to it, seen backwards; then it counts as one node, its head. An edge
between two branches of the search is left out until their common ancestor is taken: with it a loop that is entered at
several places is found, and has the one that the search met first for a head.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["LoopNest", "nest_loops"]


class LoopNest(NamedTuple):
    """The nodes of a graph in weak topological order.

    Attributes:
        ordered: all nodes. Those that no edge orders stand as they are numbered.
        ends: by the head of a loop, the position in `ordered` behind the loop's last node.
    """

    ordered: list[int]
    ends: dict[int, int]


class _Search(NamedTuple):
    """What a depth-first search from a root above all nodes has met; the root's number is that of nodes.

    Attributes:
        met: nodes in the order in which they were met, the root first.
        into: for each node, where the edge comes from by which it was met.
        back: for each node, where edges come from that lead back to it.
        across: all other edges, by the last node that is above both of their ends.
    """

    met: list[int]
    into: list[list[int]]
    back: list[list[int]]
    across: list[list[tuple[int, int]]]


def nest_loops(successors: Sequence[Iterable[int]]) -> LoopNest:
    """Find the loops of a graph; a node's number is its position in `successors`."""
    root = len(successors)
    met, into, back, across = _search(successors)
    back[root] = list(range(root))  # all nodes make one more loop
    outermost = list(range(root + 1))
    lowest = list(range(root + 1))
    bodies: dict[int, list[int]] = {}
    for head in reversed(met):
        for source, target in across[head]:
            into[_find(outermost, target)].append(source)
        if not back[head]:
            continue
        body: dict[int, set[int]] = {}
        work = back[head]
        while work:
            member = _find(outermost, work.pop())
            if member != head and member not in body:
                body[member] = {_find(outermost, source) for source in into[member]} - {head}
                work.extend(body[member])
        bodies[head] = _topological(body, lowest)
        for member in body:
            outermost[member] = head
            lowest[head] = min(lowest[head], lowest[member])
    return _flatten(bodies, root)


def _search(successors: Sequence[Iterable[int]]) -> _Search:
    root = len(successors)
    nodes = range(root + 1)
    found = _Search([root], [[] for _ in nodes], [[] for _ in nodes], [[] for _ in nodes])
    is_open = [False] * root + [True]
    seen = is_open.copy()
    above = list(nodes)  # leads to the last node above that is still open
    work = [(root, iter(range(root)))]
    while work:
        node, rest = work[-1]
        for target in rest:
            if not seen[target]:
                seen[target] = is_open[target] = True
                found.met.append(target)
                found.into[target].append(node)
                work.append((target, iter(sorted(set(successors[target])))))
                break
            if is_open[target]:
                found.back[target].append(node)
            else:
                found.across[_find(above, target)].append((node, target))
        else:
            work.pop()
            is_open[node] = False
            if work:
                above[node] = work[-1][0]
    return found


def _find(parents: list[int], node: int) -> int:
    """The end of the way upwards, which gets shorter by it."""
    while parents[node] != node:
        parents[node] = parents[parents[node]]
        node = parents[node]
    return node


def _topological(sources: dict[int, set[int]], lowest: list[int]) -> list[int]:
    """Nodes so that each comes after its sources; among equals the one with the lowest number in its loop."""
    targets: dict[int, list[int]] = {node: [] for node in sources}
    for node, before in sources.items():
        for source in before:
            targets[source].append(node)
    waiting = {node: len(before) for node, before in sources.items()}
    ready = [(lowest[node], node) for node, count in waiting.items() if not count]
    heapq.heapify(ready)
    ordered = []
    while ready:
        _, node = heapq.heappop(ready)
        ordered.append(node)
        for target in targets[node]:
            waiting[target] -= 1
            if not waiting[target]:
                heapq.heappush(ready, (lowest[target], target))
    return ordered


def _flatten(bodies: dict[int, list[int]], root: int) -> LoopNest:
    nest = LoopNest([], {})
    work = bodies[root][::-1]
    while work:
        node = work.pop()
        if node < 0:  # all of a loop has been taken
            nest.ends[~node] = len(nest.ordered)
            continue
        nest.ordered.append(node)
        if node in bodies:
            work.append(~node)
            work.extend(reversed(bodies[node]))
    return nest
