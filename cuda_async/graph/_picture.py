"""Pictures of graphs: Graphviz's language, and SVG drawn here.

The drawing is in layers: a node stands below all it depends on, branches side by side, each as near below what it
comes from as room allows. Children and the bodies of conditional nodes are boxes with their own drawing inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..driver.graph import ChildNode, ConditionalNode, ConditionKind, Node
from ._nodes import kind_of, label_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["graph_to_dot", "graph_to_svg"]

COLOURS = {
    "kernel": "#d7e8d4",
    "copy": "#d5e3f5",
    "upload": "#d5e3f5",
    "fill": "#f3e6c8",
    "convert": "#d5e3f5",
    "foreign": "#ead8ee",
}
PLAIN = "#ececec"
ROW, GAP, PAD, HEIGHT, LETTER = 26, 24, 14, 28, 7.0
"""Pixels: between layers, between neighbours, around a box, of a node; and width of a letter."""


def _parts(node: Node) -> list[tuple[str, list[Node]]]:
    """Lists of nodes inside a node, and what they are called."""
    if isinstance(node, ChildNode):
        return [(label_of(node), node.nodes)]
    if isinstance(node, ConditionalNode):
        names = ("while",) if node.kind is ConditionKind.WHILE else ("if", "else")
        return list(zip(names, node.bodies))
    return []


# ---------------------------------------------------------------------------------------- dot


def graph_to_dot(nodes: Sequence[Node]) -> str:
    """The graph in Graphviz's language."""
    lines = ["digraph graph_of_work {", "  rankdir=TB; node [shape=box, style=filled, fontname=Helvetica];"]
    _dot(nodes, lines, "n", "  ")
    lines.append("}")
    return "\n".join(lines) + "\n"


def _dot(nodes: Sequence[Node], lines: list[str], prefix: str, indent: str) -> None:
    names = {node: f"{prefix}{i}" for i, node in enumerate(nodes)}
    for node, name in names.items():
        label = label_of(node).replace("\\", "\\\\").replace('"', '\\"')
        colour = COLOURS.get(kind_of(node), PLAIN)
        lines.append(f'{indent}{name} [label="{label}", fillcolor="{colour}"];')
        for number, (title, inner) in enumerate(_parts(node)):
            lines.append(f"{indent}subgraph cluster_{name}_{number} {{")
            lines.append(f'{indent}  label="{title}";')
            _dot(inner, lines, f"{name}_{number}_", indent + "  ")
            lines.append(f"{indent}}}")
            if inner:
                lines.append(f"{indent}{name} -> {name}_{number}_0 [style=dashed];")
        lines += [f"{indent}{names[d]} -> {name};" for d in node.dependencies]


# ---------------------------------------------------------------------------------------- svg


@dataclass
class _Box:
    """A drawn node, or a list of nodes: its size, and the SVG of it with the corner at (0, 0)."""

    width: float
    height: float
    svg: list[str]


def graph_to_svg(nodes: Sequence[Node]) -> str:
    """The graph as an SVG document."""
    drawn = _draw(nodes)
    width, height = drawn.width + 2 * PAD, drawn.height + 2 * PAD
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="Helvetica, Arial, sans-serif" font-size="12">'
    )
    arrow = (
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>'
    )
    body = [f'<g transform="translate({PAD} {PAD})">', *drawn.svg, "</g>"]
    return "\n".join([head, arrow, *body, "</svg>"]) + "\n"


def _draw(nodes: Sequence[Node]) -> _Box:
    """Nodes in layers, with their edges."""
    boxes = {node: _draw_node(node) for node in nodes}
    level: dict[Node, int] = {}
    rows: list[list[Node]] = []
    for node in nodes:
        level[node] = 1 + max((level[d] for d in node.dependencies), default=-1)
        if level[node] == len(rows):
            rows.append([])
        rows[level[node]].append(node)
    centre: dict[Node, float] = {}
    top: dict[Node, float] = {}
    y = 0.0
    for row in rows:
        wanted = {node: _mean([centre[d] for d in node.dependencies]) for node in row}
        row.sort(key=lambda node: wanted[node])
        left = 0.0
        for node in row:
            half = boxes[node].width / 2
            centre[node] = max(left + half, wanted[node])
            top[node] = y
            left = centre[node] + half + GAP
        y += max(boxes[node].height for node in row) + ROW
    shift = min((centre[n] - boxes[n].width / 2 for n in nodes), default=0.0)
    svg: list[str] = []
    for node in nodes:
        for dependency in node.dependencies:
            x0, y0 = centre[dependency] - shift, top[dependency] + boxes[dependency].height
            x1, y1 = centre[node] - shift, top[node]
            bend = (y1 - y0) / 2
            svg.append(
                f'<path d="M{x0:.1f} {y0:.1f}C{x0:.1f} {y0 + bend:.1f} {x1:.1f} {y1 - bend:.1f} {x1:.1f} {y1:.1f}" '
                'fill="none" stroke="#555" marker-end="url(#arrow)"/>'
            )
    for node in nodes:
        box = boxes[node]
        x = centre[node] - shift - box.width / 2
        svg += [f'<g transform="translate({x:.1f} {top[node]:.1f})">', *box.svg, "</g>"]
    width = max((centre[n] - shift + boxes[n].width / 2 for n in nodes), default=0.0)
    return _Box(width, max(0.0, y - ROW), svg)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _draw_node(node: Node) -> _Box:
    parts = _parts(node)
    if not parts:
        label = label_of(node)
        width = max(60.0, len(label) * LETTER + 2 * PAD)
        return _Box(
            width, HEIGHT, [_rectangle(width, HEIGHT, COLOURS.get(kind_of(node), PLAIN)), _text(label)]
        )
    inner = [(title, _draw(nodes)) for title, nodes in parts]
    width = PAD + sum(max(box.width, len(title) * LETTER) + PAD for title, box in inner)
    height = HEIGHT + max(box.height for _, box in inner) + PAD
    svg = [_rectangle(width, height, "#fafafa")]
    x = float(PAD)
    for title, box in inner:
        svg += [f'<g transform="translate({x:.1f} 0)">', _text(title, 0), "</g>"]
        svg += [f'<g transform="translate({x:.1f} {HEIGHT})">', *box.svg, "</g>"]
        x += max(box.width, len(title) * LETTER) + PAD
    return _Box(width, height, svg)


def _rectangle(width: float, height: float, colour: str) -> str:
    return f'<rect width="{width:.1f}" height="{height:.1f}" rx="4" fill="{colour}" stroke="#777"/>'


def _text(text: str, x: float = PAD) -> str:
    shown = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f'<text x="{x:.1f}" y="18">{shown}</text>'
