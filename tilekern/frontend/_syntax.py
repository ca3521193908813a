"""Questions about syntax trees: which names a piece of code assigns, how it can be left."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

__all__ = ["assigned_names", "breaks_out", "continues", "returns"]

_INNER = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),  # their variables are their own
)
_LOOPS = (ast.For, ast.While, ast.AsyncFor)


def _own_nodes(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """`nodes` and all below them, in order, without what is inside of functions and comprehensions."""
    waiting = list(nodes)[::-1]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _INNER):
            waiting += list(ast.iter_child_nodes(node))[::-1]


def assigned_names(nodes: Iterable[ast.AST]) -> list[str]:
    """Names the code binds, in order of appearance; those of functions inside do not count."""
    found: dict[str, None] = {}
    for node in _own_nodes(nodes):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            found[node.id] = None
        elif isinstance(node, ast.FunctionDef):
            found[node.name] = None
    return list(found)


def returns(nodes: Iterable[ast.AST]) -> bool:
    """True when the code has a `return` of its own function."""
    return any(isinstance(node, ast.Return) for node in _own_nodes(nodes))


def breaks_out(nodes: Iterable[ast.AST]) -> bool:
    """True when the code, a loop's body, has a `break` of that loop."""
    return _has_of_this_loop(nodes, ast.Break)


def continues(nodes: Iterable[ast.AST]) -> bool:
    """True when the code, a loop's body, has a `continue` of that loop."""
    return _has_of_this_loop(nodes, ast.Continue)


def _has_of_this_loop(nodes: Iterable[ast.AST], kind: type[ast.AST]) -> bool:
    for node in nodes:
        if isinstance(node, kind):
            return True
        if isinstance(node, _LOOPS):
            inner: Iterable[ast.AST] = node.orelse  # a break there is of the loop around
        else:
            inner = () if isinstance(node, _INNER) else ast.iter_child_nodes(node)
        if _has_of_this_loop(inner, kind):
            return True
    return False
