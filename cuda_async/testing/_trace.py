"""Traces as text: who went on, decision by decision.

`h` the program, `c` a completion is told, `w` slow host work, `t` a timer, `s0` the stream made first, `b2` the third
of the blocks that could go on. `3s0` is three times `s0`.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from ..driver.host import CALLBACK, FIRST_QUEUE, HOST, TIMER, WORKER

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["format_trace", "parse_trace"]

_LETTERS = {HOST: "h", CALLBACK: "c", WORKER: "w", TIMER: "t"}
_ACTORS = {letter: actor for actor, letter in _LETTERS.items()}
_PART = re.compile(r"([1-9]\d{0,8})?(?:([hcwt])|([sb])(\d{1,9}))")

MAX_DECISIONS = 10_000_000
"""Of one run, by far: what asks for more is no trace, and need not fill the memory."""


def format_trace(trace: Sequence[int]) -> str:
    """A trace as one line of text."""
    parts = []
    for actor, run in itertools.groupby(trace):
        count = len(list(run))
        numbered = f"b{-1 - actor}" if actor < 0 else f"s{actor - FIRST_QUEUE}"
        name = _LETTERS.get(actor, numbered)
        parts.append(name if count == 1 else f"{count}{name}")
    return " ".join(parts)


def parse_trace(text: str) -> tuple[int, ...]:
    """The trace that `format_trace` wrote.

    Raises:
        ValueError: a part that is none of a trace, or more decisions than a run has.
    """
    trace: list[int] = []
    for part in text.split():
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r} is no part of a trace; parts look like 3h, c, s0, 2s1 or b1")
        count, letter, kind, number = match.groups()
        if letter:
            actor = _ACTORS[letter]
        elif kind == "b":
            actor = -1 - int(number)
        else:
            actor = FIRST_QUEUE + int(number)
        times = int(count or 1)
        if len(trace) + times > MAX_DECISIONS:
            raise ValueError(
                f"{part!r} is no part of a trace: no run has more than {MAX_DECISIONS} decisions"
            )
        trace += [actor] * times
    return tuple(trace)
