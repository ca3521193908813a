"""The words of findings: who did what where, and how to order it."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from ._clocks import PROGRAM, Work
from ._reports import ReportedAccess

if TYPE_CHECKING:
    from .._entries import Entry
    from ._shadow import Shadow

__all__ = ["Place", "advice", "line_of_program", "name_of", "parties", "reported", "where"]

Place = Any
"""Where a kernel accesses memory: an operation of a tile kernel, an instruction of PTX, or words."""

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
_OWN = (_PACKAGE + os.sep, os.path.join(os.path.dirname(_PACKAGE), "tilekern") + os.sep)
_WRITTEN = ("<launch of", "<bound launch of", "<call of", "<frozen ")
"""Sources of functions that this package writes, and of Python's own."""
_LIBRARY = os.path.dirname(threading.__file__) + os.sep


def advice(work: Work, other: Work, access: str, who: int, earlier_who: int) -> str:
    if work is other:
        assert work.order is not None
        if work.order.lanes == 1:
            return (
                "blocks run in any order: give each its own tiles (x.partition(tile) makes sure of it), "
                "use atomics, or make it two launches"
            )
        mine, theirs = work.order.block_and_thread(who)[0], work.order.block_and_thread(earlier_who)[0]
        if mine is not None and mine == theirs:
            return "put a barrier between the two (__syncthreads(), bar.sync), or use atomics"
        return "blocks run in any order: use atomics, or make it two launches"
    if access == "free":
        return "free the memory behind its last use: on that stream, or after an event recorded there"
    if other.actor == PROGRAM:
        return "touch the memory before the work is enqueued"
    if work.actor == PROGRAM:
        return "await the work, or synchronize with its stream, before the memory is touched here"
    if work.name.endswith("of a graph") and work.stream == other.stream:
        return (
            "pass both the tensor, so that the graph gets an edge between them, or record them on one branch"
        )
    return (
        "pass the tensor to both operations, which orders them (an operation of your own asks with ctx.write(t) for "
        "what it writes); or record an event behind the first and have the second's stream wait for it"
    )


def parties(work: Work, other: Work, who: int, earlier_who: int) -> str:
    """Between whom a race is."""
    if work is not other or work.order is None:
        return "two accesses"
    block, other_block = (work.order.block_and_thread(one)[0] for one in (who, earlier_who))
    return (
        "two threads of one block"
        if block is not None and block == other_block
        else "two blocks of one launch"
    )


def reported(access: str, work: Work, place: Place, who: int | None) -> ReportedAccess:
    block = thread = None
    if work.order is not None and who is not None:
        block, thread = work.order.block_and_thread(who)
    return ReportedAccess(
        access=access,
        work=work.name,
        place=text_of(place, work.module),
        block=block,
        thread=thread,
        stream=work.stream,
        device=work.device,
        enqueued=work.enqueued,
    )


def text_of(place: Place, module: str) -> str:
    if not place or isinstance(place, str):
        return place or ""
    if module:  # an instruction of PTX
        return str(place.describe(module))
    location = getattr(place, "location", None)
    return f"{location} ({place.mnemonic})" if location is not None else str(place.mnemonic)


def where(shadow: Shadow, cell: int | None) -> str:
    return shadow.describe(None if cell is None else cell * shadow.unit)


def name_of(entry: Entry) -> str:
    if entry.kernel:
        return f"kernel {entry.kernel}"
    name = type(entry).__name__.removesuffix("Entry")
    words = {
        "StridedCopy": "strided copy",
        "Convert": "conversion",
        "Allocate": "allocation",
        "Graph": "graph",
    }
    return words.get(name, name.lower())


def line_of_program() -> str:
    """The innermost line outside of this package and the standard library."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((*_OWN, _LIBRARY, *_WRITTEN)):
            return f"{name}:{frame.f_lineno}, in {frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]  # None at the end
    return ""
