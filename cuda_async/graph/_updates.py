"""What `CudaGraph.update()` was given, and launches that run it first.

An update is run as shared operations are: once, and where it has begun it ends, whatever becomes of the launch. It is
the launch's that begins next, of those made behind it; what that one has not run in the end goes back to its place
among the others.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..ops import DeviceOp
from ..ops._shared import NO_OUTCOME, Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ..ops._execution import Execution
    from ._graph import GraphLaunch

__all__ = ["UpdatedGraphLaunch", "Updates"]

T = TypeVar("T")


class _Update(NamedTuple):
    number: int
    gate: Gate


class Updates:
    """Those that no launch has, in the order in which they were given.

    Attributes:
        last: the number of the newest that was ever given, from 1 on, or 0.
    """

    __slots__ = ("_is_closed", "_lock", "_recorded", "_waiting", "last")

    def __init__(self) -> None:
        self._waiting: tuple[_Update, ...] = ()
        self._recorded: tuple[tuple[_Update, Callable[[], bool]], ...] = ()
        self._is_closed = False
        self._lock = threading.Lock()  # nothing is made while it is held, which could run anybody's finalizer
        self.last = 0

    def add(self, op: DeviceOp[Any]) -> None:
        """One more; consumes it."""
        gate = Gate(op._take())
        with self._lock:
            self.last = number = self.last + 1
        self.put_back([_Update(number, gate)])

    def put_back(self, updates: Iterable[_Update]) -> None:
        """Of a launch that does not run them; some may be there still."""
        given = set(updates)
        while given and not self._is_closed:
            before = self._waiting
            is_newer = not before or before[-1] < min(given)
            after = (*before, *sorted(given)) if is_newer else tuple(sorted({*before, *given}))
            if self._replace(before, after):
                return

    def note_recorded(self, updates: Iterable[_Update], has_ended: Callable[[], bool]) -> None:
        """They are part of a graph, and run when that is launched. `has_ended`: whether it never will be."""
        more = tuple((update, has_ended) for update in updates)
        while more:
            before = self._recorded
            after = (*before, *more)
            with self._lock:
                if self._recorded is before:
                    self._recorded = after
                    return

    def _take_back(self) -> None:
        """Those of graphs that have ended without a launch."""
        while self._recorded:
            before = self._recorded
            ended = [update for update, has_ended in before if has_ended()]
            after = tuple([one for one in before if one[0] not in ended and not one[0].gate.has_run])
            self.put_back(ended)
            with self._lock:
                if self._recorded is before:
                    self._recorded = after
                    return

    def take(self, launch: UpdatedGraphLaunch[Any], last: int, running: Gate | None) -> None:
        """Give the launch all up to number `last`, but for those that wait for `running`, which it is part of."""
        self._take_back()
        while True:
            before = self._waiting
            taken: deque[_Update] = deque()
            left: list[_Update] = []
            for update in before:
                is_behind = running is not None and update.gate.is_behind(running)
                (left if is_behind or update.number > last else taken).append(update)
            launch.ahead = taken
            if self._replace(before, tuple(left)) or self._is_closed:
                return

    def close(self) -> None:
        """The graph is closed: there is no next launch."""
        with self._lock:
            self._is_closed = True
            dropped = self._waiting, self._recorded
            self._waiting = self._recorded = ()
        del dropped  # with no lock held

    def _replace(self, before: tuple[_Update, ...], after: tuple[_Update, ...]) -> bool:
        with self._lock:
            if self._waiting is not before or self._is_closed:
                return False
            self._waiting = after
            return True


class UpdatedGraphLaunch(DeviceOp[T]):
    """A launch of a graph, behind what `CudaGraph.update()` was given before it was made, and nobody has run.

    Recorded, the updates are part of the recording, and of what comes of it. A shared launch may be recorded in a graph
    that ends without running, and then comes here again.

    Attributes:
        ahead: updates that it has to run still. recorded: those that are in a recording with it.
    """

    _composite = True
    _is_recorded = False

    def __init__(self, updates: Updates, last: int, launch: GraphLaunch[T]) -> None:
        self._updates = updates
        self._last = last
        self._launch = launch
        self.recorded: list[_Update] = []
        self.ahead: deque[_Update] = deque()

    def _parts(self) -> Sequence[DeviceOp[Any]]:
        return (self._launch,)

    def __del__(self) -> None:
        ahead = getattr(self, "ahead", None)
        if ahead:  # an interrupt kept it from `give_back`
            self._updates.put_back(ahead)

    def _enter(self, execution: Execution) -> DeviceOp[Any] | None:
        self._launch._graph._check_device(execution.ctx)  # it would fail behind the updates
        recorder: Any = execution.ctx.stream._recorder
        self._is_recorded = recorder is not None
        try:
            self.give_back()  # of an earlier run, where this launch is shared
            self._updates.take(self, self._last, execution.owner)
            if recorder is not None and self.ahead:
                recorder.note_updated(execution.ctx.stream, self)
        except BaseException:  # an interrupt
            self.give_back()
            raise
        try:
            return self._go_on(execution, is_back=False)
        except BaseException:
            self.given_up()
            raise

    def _resume(self, execution: Execution, value: Any) -> DeviceOp[Any] | None:
        try:
            return self._go_on(execution, is_back=True)
        except BaseException:
            self.given_up()
            raise

    def _go_on(self, execution: Execution, *, is_back: bool) -> DeviceOp[Any] | None:
        ahead = self.ahead  # another thread may give them back
        while ahead:
            gate = ahead[0].gate
            if not gate.enter(execution, self, is_back=is_back):
                return None
            is_back = False
            try:
                gate.deliver(execution)
            except Exception as error:
                recorder: Any = execution.ctx.stream._recorder
                is_given_up = recorder is not None and recorder.has_failed
                is_outcome = gate.error is not None or not isinstance(error, NO_OUTCOME)
                if is_outcome and not is_given_up:
                    ahead.popleft()  # this launch has it
                raise
            if self._is_recorded:
                self.recorded.append(ahead[0])
            ahead.popleft()
        return self._launch

    def given_up(self) -> None:
        """The launch was cancelled or has failed; the recorder knows when a recording is no more."""
        if not self._is_recorded:
            self.give_back()

    def keep(self, has_ended: Callable[[], bool]) -> None:
        """The recording has become a graph, which has them from now on."""
        self._updates.note_recorded(self.recorded, has_ended)
        self.recorded = []

    def give_back(self) -> None:
        """What was not run before a launch is the next one's; where an interrupt comes, twice, which is run once."""
        self._updates.put_back([*self.recorded, *self.ahead])
        self.ahead = deque()
        self.recorded = []
