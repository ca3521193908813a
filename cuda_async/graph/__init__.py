"""Graphs: work that is recorded once and launched again and again.

`_recorder` takes notes of what operations do (`_driver` is the driver they see meanwhile, `_memory` what they
allocate); `_capture` and `_scope` are the two ways to start one; `_graph` is what comes of it; `_outputs`, `_nodes`,
`_updates`, `_picture`, `_conditionals` and `_cache` are what their names say.
"""

from ._cache import GraphCache
from ._capture import Capture, graph_input
from ._conditionals import if_else, while_loop
from ._graph import CudaGraph
from ._nodes import GraphNode
from ._scope import Scope

__all__ = [
    "Capture",
    "CudaGraph",
    "GraphCache",
    "GraphNode",
    "Scope",
    "graph_input",
    "if_else",
    "while_loop",
]
