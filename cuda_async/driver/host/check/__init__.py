"""The checking mode: races, unwritten reads and misuse of memory, found while programs run.

- `_clocks.py`: what comes before what, among streams, branches of graphs and the program;
- `_threads.py`: the same inside of a kernel, among blocks and threads;
- `_shadow.py`: who touched each place of memory last;
- `_checker.py`: puts the two together; `_reports.py` is what it finds;
- `_watch.py`: a kernel's accesses, as the interpreters of PTX and tile kernels tell them.

Nothing here is imported by a device that does not check.
"""

from ._checker import Checker, process_checker
from ._clocks import GraphStep, Track, graph_steps
from ._reports import CheckReport, ReportedAccess
from ._shadow import Shadow
from ._threads import LaunchOrder
from ._watch import PtxWatch, TileWatch

__all__ = [
    "CheckReport",
    "Checker",
    "GraphStep",
    "LaunchOrder",
    "PtxWatch",
    "ReportedAccess",
    "Shadow",
    "TileWatch",
    "Track",
    "graph_steps",
    "process_checker",
]
