"""Graphs as text and as pictures."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

import cuda_async as ca

pytestmark = pytest.mark.anyio


@pytest.fixture
async def graph(host, kernels):
    x, flag = await ca.zip(ca.ones(8), ca.ones(1, "int32"))
    inner = await kernels.scale(x, 2.0, 0.0).graph()
    op = ca.parallel(kernels.scaled(x, 1.0, 0.0), kernels.scaled(x, 2.0, 0.0)).then(
        lambda pair: ca.if_else(flag, lambda: kernels.scale(pair[0], 1.0, 0.0), lambda: inner.launch())
    )
    return await op.graph()


async def test_dot_names_nodes_and_edges(graph):
    text = graph.to_dot()
    assert text.startswith("digraph graph_of_work {")
    assert text.count("affine_to (1) x (8)") == 2
    assert "n0 -> n2;" in text
    assert "n1 -> n2;" in text
    assert 'label="else";' in text
    assert text.count("{") == text.count("}")


async def test_svg_is_a_document_with_every_node(graph):
    root = ET.fromstring(graph.to_svg())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("affine_to (1) x (8)") == 2
    assert texts.count("affine (1) x (8)") == 2
    assert {"if", "else", "graph of 1 nodes"} <= set(texts)
    paths = [p for p in root.iter("{http://www.w3.org/2000/svg}path") if p.get("marker-end")]
    assert len(paths) == 2
    assert graph._repr_svg_() == graph.to_svg()


async def test_branches_stand_side_by_side(graph):
    root = ET.fromstring(graph.to_svg())
    places = [g.get("transform") for g in root[1] if g.tag.endswith("}g")]
    (x0, y0), (x1, y1), (_, y2) = [map(float, p[len("translate(") : -1].split()) for p in places]
    assert y0 == y1 < y2
    assert x0 < x1


async def test_empty_graph_has_a_picture(host):
    graph = await ca.value(3).graph()
    assert graph.nodes == ()
    assert await graph.launch() == 3
    ET.fromstring(graph.to_svg())
    assert graph.to_dot().count("->") == 0
