"""The order of basic blocks and the loops among them, against what defines them; and what finding them costs."""

from __future__ import annotations

import itertools
import random
import sys

import pytest

from cuda_async.driver.host.ptx._control_flow import build_flow_graph
from cuda_async.driver.host.ptx._loops import nest_loops
from cuda_async.driver.host.ptx._parser import parse_text

HEADER = ".version 8.0\n.target sm_80\n.address_size 64\n"


def drawn_graphs(count):
    """Graphs of a dozen nodes: any edges, or chains with jumps in both directions."""
    draw = random.Random(7)
    for _ in range(count):
        size = draw.randint(1, 12)
        yield [[draw.randrange(size) for _ in range(draw.choice([0, 1, 1, 2, 3]))] for _ in range(size)]
        yield [
            [min(node + 1, size - 1), *(draw.randrange(size) for _ in range(draw.randint(0, 1)))]
            for node in range(size)
        ]


def reached(successors, start, among):
    """All that `start` leads to, inside of `among`."""
    found, work = set(), [start]
    while work:
        for target in successors[work.pop()]:
            if target in among and target not in found:
                found.add(target)
                work.append(target)
    return found


def test_only_edges_to_the_head_of_a_loop_lead_backwards():
    for graph in drawn_graphs(3000):
        ordered, ends = nest_loops(graph)
        assert sorted(ordered) == list(range(len(graph)))
        place = {node: position for position, node in enumerate(ordered)}
        for node, targets in enumerate(graph):
            for target in targets:
                assert place[node] < place[target] or place[node] < ends.get(target, 0)


def test_nodes_of_a_loop_lead_to_each_other():
    for graph in drawn_graphs(3000):
        ordered, ends = nest_loops(graph)
        for head, end in ends.items():
            loop = set(ordered[ordered.index(head) : end])
            assert all(reached(graph, node, loop) == loop for node in loop)


def test_loops_lie_inside_one_another_or_apart():
    for graph in drawn_graphs(1000):
        ordered, ends = nest_loops(graph)
        spans = [(ordered.index(head), end) for head, end in ends.items()]
        for (start, end), (other, last) in itertools.combinations(sorted(spans), 2):
            assert start < other
            assert last <= end or end <= other


@pytest.mark.parametrize(
    ("graph", "ordered", "ends"),
    [
        pytest.param([[2, 1], [3], [3], []], [0, 1, 2, 3], {}, id="if and else, as the text has them"),
        pytest.param([[1], [4, 2], [3], [1], []], [0, 1, 2, 3, 4], {1: 4}, id="what comes after a loop"),
        pytest.param([[3], [2], [], [1, 4], [3, 3]], [0, 3, 4, 1, 2], {3: 3}, id="a body out of line"),
        pytest.param([[1], [2], [2, 3], [1, 4], []], [0, 1, 2, 3, 4], {1: 4, 2: 3}, id="a loop in a loop"),
        pytest.param([[1, 2], [2], [1, 3], []], [0, 1, 2, 3], {1: 3}, id="a loop with two entries"),
        pytest.param([[2], [1], []], [0, 1, 2], {1: 2}, id="a loop that nothing leads to"),
    ],
)
def test_order_of_known_shapes(graph, ordered, ends):
    assert nest_loops(graph) == (ordered, ends)


def calls_to_build(branches):
    """How many functions are called to analyse that many conditional branches, most of them into a loop in a loop."""
    text = HEADER + ".entry k() {.reg .pred %p; .reg .b32 %r; mov.u32 %r, 0;\n"
    for number in range(branches):
        text += f"N{number}: setp.eq.u32 %p, %r, {number}; @%p bra N{number * 7 % branches};\n"
    function = parse_text(text + "ret; }", "branches.ptx").functions["k"]
    calls = 0

    def count(*_):
        nonlocal calls
        calls += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        build_flow_graph(function)
    finally:
        sys.setprofile(before)
    return calls


def test_work_grows_with_the_branches_and_not_with_their_nesting():
    assert calls_to_build(1600) < 2.5 * calls_to_build(800)
