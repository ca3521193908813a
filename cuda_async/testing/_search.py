"""Going through all schedules of a small program.

Theory. A schedule is a path in the tree of decisions. The search runs the program again and again: along the path it
has, then as the first choice goes, and turns back at the last decision that has choices left (stateless search;
Godefroid, "Model Checking for Programming Languages using VeriSoft", POPL 1997). Two paths that differ only in the
order of neighbours which touch nothing in common (`Footprint.meets`) end alike, and one of them is enough:

- *sleep sets*: once everything behind an actor's turn was searched, the actor sleeps in the other branches of that
  decision until something acts that meets what it would do. A run in which only sleepers could go on is redundant; it
  is run to its end, as it stands in the middle of a program, and not counted.
- *one is enough*: where the program's call meets nothing that any stream holds, all that follows may as well follow
  that call, so there is nothing to decide.

What this finds is complete for programs that depend on the schedule alone, up to what `_footprint` cannot see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..driver.host import FIRST_QUEUE, HOST, DrawnOrder, Footprint, FootprintBook
from ..driver.host._entries import Entry
from ..errors import SchedulingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..driver.host import HostDriver

__all__ = ["Search", "SearchOrder"]


class _Branch:
    """One decision of the path: what was chosen, what is left, and who sleeps."""

    __slots__ = ("actors", "chosen", "footprint", "left", "searched", "sleeping")

    def __init__(self, actors: tuple[int, ...], left: list[int], sleeping: dict[int, Footprint]) -> None:
        self.actors = actors
        self.chosen = left.pop(0)
        self.left = left
        self.sleeping = sleeping
        self.searched: dict[int, Footprint] = {}
        self.footprint: Footprint | None = None


class Search:
    """The tree, and the path that is searched next.

    Attributes:
        complete: every path was searched.
    """

    def __init__(self) -> None:
        self._path: list[_Branch] = []
        self.complete = False

    def order(self) -> SearchOrder:
        """For the next run."""
        return SearchOrder(self._path)

    def turn_back(self) -> None:
        """The run is over: go on with the last decision that has choices left."""
        path = self._path
        while path:
            branch = path[-1]
            if branch.footprint is not None:
                branch.searched[branch.chosen] = branch.footprint
            if branch.left:
                branch.chosen = branch.left.pop(0)
                branch.footprint = None
                return
            path.pop()
        self.complete = True


class SearchOrder(DrawnOrder):
    """Follows the path, and lengthens it.

    Attributes:
        redundant: the run is another one with neighbours exchanged.
    """

    watches = True
    picks_blocks = False

    def __init__(self, path: list[_Branch]) -> None:
        super().__init__()
        self._path = path
        self._depth = 0
        self._sleeping: dict[int, Footprint] = {}
        self._pending: _Branch | None = None
        self.redundant = False

    def decide(self, actors: Sequence[int]) -> int:
        return self._follow(tuple(actors), number=False)

    def decide_number(self, count: int) -> int:
        return self._follow(tuple(range(count)), number=True)

    def _follow(self, actors: tuple[int, ...], *, number: bool) -> int:
        if self._depth < len(self._path):
            branch = self._path[self._depth]
            if branch.actors != actors:
                raise SchedulingError(
                    f"decision {self._depth} was among {branch.actors} and is among {actors} now: the program depends "
                    "on more than the schedule (time, threads, random numbers), and cannot be searched"
                )
        elif self.redundant:
            return actors[-1]
        else:
            left = (
                list(actors) if number else [a for a in self._worth_trying(actors) if a not in self._sleeping]
            )
            if not left:
                self.redundant = True
                return actors[-1]
            branch = _Branch(actors, left, {} if number else dict(self._sleeping))
            self._path.append(branch)
        self._depth += 1
        if not number:
            self._sleeping = {**branch.sleeping, **branch.searched}
            self._pending = branch
        return branch.chosen

    def _worth_trying(self, actors: tuple[int, ...]) -> Sequence[int]:
        engine = self.engine
        if not engine.in_turn:
            call = self._book.call(engine.host_acts)
            entries = (entry for queue in engine.queues() for entry in list(queue.entries))
            if not any(call.meets(self._book.entry(entry)) for entry in entries):
                return (HOST,)
        return actors

    def begin(self, driver: HostDriver) -> None:
        self._book = FootprintBook(driver)

    def enqueued(self, entry: Entry) -> None:
        self._book.note(entry)

    def passed(self, actor: int, subject: object) -> None:
        if isinstance(subject, Entry) and actor >= FIRST_QUEUE:
            found = self._book.entry(subject)
        else:
            found = self._book.call(subject)
        if self._pending is not None:
            self._pending.footprint = found
            self._pending = None
        if actor in self._sleeping:
            self.redundant = True
        if self._sleeping:
            self._sleeping = {a: f for a, f in self._sleeping.items() if a != actor and not f.meets(found)}
