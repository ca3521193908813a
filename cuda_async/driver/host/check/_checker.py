"""The checker of a process: what the host device tells it, and what it finds.

The engine says which work runs (`enter`, `leave`) and what is done (`finished`, `observed`); memory says what comes and
goes (`activated`, `deactivated`); copies, fills and kernels say what they touch (`touch_*`). Everything else follows.

A finding is made at the later of two accesses. Work that had findings fails with a `CheckError`, after it has run to
its end, so that who awaits it is told; on a device that only collects, it does not. One finding per pair of places.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from ....errors import CheckError
from .._entries import EventRecord, WaitEntry
from .._fork import Level, fork_safe_lock
from ._clocks import PROGRAM, Branch, Clock, GraphStep, Track, Work, merged
from ._records import Access, Stamp, stamp_of
from ._reports import CheckReport, Kind
from ._shadow import Cells, Picked, Shadow, distinct
from ._threads import SEVERAL_BLOCKS
from ._words import Place, advice, line_of_program, name_of, parties, reported, where

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ....errors import CudaAsyncError
    from .._blocks import Block
    from .._entries import Entry
    from .._memory import HostMemory
    from .._queue import Queue
    from ._threads import LaunchOrder
    from ._watch import Stored, TileWatch

__all__ = ["Checker", "process_checker", "shadow_of"]

_GUESSED = frozenset((("read", "compare and swap"), ("compare and swap", "read")))
"""A plain read may well be the guess that a compare and swap then checks: CUDA's guide writes atomics of its own so."""
_MOST_READERS = 8
"""Reads that nothing orders, remembered of one cell."""
_MOST_FREED = 4096
_MOST_FREED_BYTES = 1 << 30
"""Size of an allocation up to which all of its cells are looked at: beyond, most was never touched."""
_FORGET_EVERY = 1 << 16
"""Accesses after which those are forgotten that no shadow has any more."""
_MOST_REPORTS = 1000


class _Current(threading.local):
    entry: Entry | None = None
    queue: Queue | None = None
    thread: int = 0  # of the kernel, that frees memory


class Checker:
    """Finds races and misuse on the host devices of a process. Any thread may call anything.

    Attributes:
        reports: what was found, on all devices.
        program_raises: findings about what the program itself touches are raised there.
    """

    def __init__(self) -> None:
        self.reports: list[CheckReport] = []
        self.program_raises = True
        self._lock = fork_safe_lock(Level.CHECK)
        self._accesses: list[Access] = [Access(None, "", "", False)]
        self._sets: dict[frozenset[int], int] = {}
        self._shadows: weakref.WeakSet[Shadow] = weakref.WeakSet()
        self._forget_at = _FORGET_EVERY
        self._kept: list[int] = [0]
        self._kept_from = 1
        self._actors = PROGRAM
        self._idle_actors: list[tuple[int, int]] = []
        """Actors that do nothing any more, and how much they did: for new streams, so that clocks stay short."""
        self._streams: dict[str, int] = {}
        self._program: Clock = {PROGRAM: 1}
        self._seen: set[tuple[object, ...]] = set()
        self._freed: list[tuple[int, int, Work]] = []
        self._current = _Current()

    # ---------------------------------------------------------------------------- what the engine says

    def enqueued(self, queue: Queue, entry: Entry) -> None:
        """The program puts this into a stream."""
        with self._lock:
            entry.stamp = Stamp(self._program, line_of_program())

    def enter(self, queue: Queue, entry: Entry) -> tuple[Queue | None, Entry | None]:
        """This thread runs a step of an entry; `leave` takes what this returns."""
        current = self._current
        before = (current.queue, current.entry)
        current.queue, current.entry = queue, entry
        return before

    def leave(self, before: tuple[Queue | None, Entry | None]) -> None:
        """The step is over."""
        self._current.queue, self._current.entry = before

    def finished(self, queue: Queue, entry: Entry, error: CudaAsyncError | None) -> CudaAsyncError | None:
        """An entry is done. Gives the error it fails with: `error`, or that of what was found."""
        with self._lock:
            track = self._track(queue)
            stamp = stamp_of(entry)
            track.clock = merged(track.clock, stamp.clock)
            if isinstance(entry, WaitEntry):
                end = stamp_of(entry.record).end
                if end is not None:
                    track.clock = merged(track.clock, end)
            if stamp.base:  # a graph: what follows comes behind all of its branches
                track.clock = merged(track.clock, {b.actor: b.count for b in track.branches})
            record = entry.completes
            if record is not None:
                stamp_of(record).end = track.now()
                if record.callbacks:
                    self._program = merged(self._program, track.now())
            if stamp.found and error is None and getattr(queue.owner, "check_raises", True):
                return CheckError("\n".join(str(report) for report in stamp.found), tuple(stamp.found))
        return error

    def observed(self, record: EventRecord) -> None:
        """The program has learned that a record is done."""
        with self._lock:
            end = stamp_of(record).end
            if end is not None:
                self._program = merged(self._program, end)

    def observed_queue(self, queue: Queue) -> None:
        """The program has learned that all of a stream is done."""
        with self._lock:
            self._program = merged(self._program, self._track(queue).now())

    def released(self, queue: Queue, *, is_over: bool = False) -> None:
        """No more will be put into a stream.

        Args:
            is_over: what it did not finish will never be done, as its device is closed.
        """
        with self._lock:
            track: Track | None = queue.track
            if track is None or (queue.entries and not is_over):
                return
            actors = [(track.actor, track.count), *((b.actor, b.count) for b in track.branches)]
            if is_over or all(self._program.get(actor, 0) >= count for actor, count in actors):
                # What another stream does in their name is enqueued from now on, so it comes behind all of that.
                self._idle_actors += actors
                queue.track = None

    def graph_step(self, step: GraphStep | None, entry: Entry) -> None:
        """The graph that runs in this thread goes on with this entry of it."""
        current = self._current
        if current.queue is None or current.entry is None:
            return
        with self._lock:
            track = self._track(current.queue)
            stamp = stamp_of(current.entry)
            whole = stamp.work if stamp.base else self._work_of(current.queue, current.entry)
            assert whole is not None
            if step is None:  # in a conditional body: after what the branch did before
                stamp.work = Work(
                    whole.actor,
                    whole.count,
                    whole.clock,
                    name_of(entry),
                    stream=track.stream,
                    device=track.device,
                    enqueued=stamp.enqueued,
                )
                stamp.work.declared = getattr(entry, "declared", None)
                return
            if not stamp.base:
                stamp.base = {-1: whole.count}
                stamp.base.update((b.actor, b.count) for b in track.branches)
                stamp.clock = {**whole.clock, whole.actor: whole.count}
            while len(track.branches) <= max((step.branch, *step.known)):
                new = Branch(*self._new_actor())
                track.branches.append(new)
                stamp.base[new.actor] = new.count
            clock = dict(stamp.clock)
            for branch, place in step.known.items():
                actor = track.branches[branch].actor
                clock[actor] = stamp.base.get(actor, 0) + place
            mine = track.branches[step.branch]
            actor = mine.actor
            count = stamp.base.get(actor, 0) + step.place
            mine.count = max(mine.count, count)
            work = stamp.work = Work(
                actor,
                count,
                clock,
                f"{name_of(entry)} of a graph",
                stream=track.stream,
                device=track.device,
                enqueued=stamp.enqueued,
            )
            work.declared = getattr(entry, "declared", None)

    # ---------------------------------------------------------------------------- what memory says

    def activated(self, block: Block, *, is_pool: bool) -> None:
        """Memory exists from here on; nobody has written it."""
        with self._lock:
            block.shadow = Shadow(
                block.start,
                block.end - block.start,
                block.what,
                given=False,
                born=self.work(),
                is_pool=is_pool,
            )

    def deactivated(self, block: Block) -> None:
        """Memory exists up to here: a use that is not ordered before is a use too late."""
        with self._lock:
            work = self.work()
            shadow = block.shadow
            if shadow is not None:
                cells = shadow.everything() if shadow.size_bytes <= _MOST_FREED_BYTES else None
                if cells is not None:
                    place = "the memory is freed"
                    who, self._current.thread = self._current.thread, 0
                    self._compare_all(work, shadow, cells, cells.get(shadow.write), who, place, "free")
                    self._compare_all(work, shadow, cells, cells.get(shadow.read), who, place, "free")
                block.shadow = None
            self._freed.append((block.start, block.end, work))
            if len(self._freed) > _MOST_FREED:
                del self._freed[: _MOST_FREED // 2]

    def note_thread(self, number: int) -> None:
        """Which thread of the kernel frees memory next."""
        self._current.thread = number

    def retired(self, start: int, end: int) -> None:
        """A device is closed that had these addresses: another may get them."""
        with self._lock:
            self._freed = [freed for freed in self._freed if not start <= freed[0] < end]

    def faulted(self, address: int, size_bytes: int, access: str, reason: str) -> str:
        """An access is refused; gives the reason with what is known of freed memory there."""
        with self._lock:
            work = self.work()
            kind: Kind = "out of bounds"
            first = None
            if reason.startswith("freed") or "out of bounds" in reason:
                for start, end, free in reversed(self._freed):
                    if start <= address < end:
                        kind = "freed"
                        first = reported("free", free, "", None)
                        reason += f"; what freed it: {first}"
                        break
            self._report(
                work,
                CheckReport(
                    kind=kind,
                    what=f"{access} of {size_bytes} bytes at {address:#x}: {reason}",
                    address=address,
                    size_bytes=size_bytes,
                    first=first,
                    second=reported(access, work, "", None),
                    advice="keep the tensor until the work that uses it is done, and pass it to the launch, "
                    "which then does that"
                    if kind == "freed"
                    else "",
                ),
                (kind, address, work),
                raises=False,  # the fault itself is raised
            )
            return reason

    def renewed(self, block: Block, address: int, size_bytes: int) -> None:
        """Part of an allocation is another tensor's from here on, which comes behind all earlier uses."""
        with self._lock:
            shadow = shadow_of(block)
            cells = shadow.range(address, size_bytes)
            cells.put(shadow.write, 0)
            cells.put(shadow.read, 0)

    # ---------------------------------------------------------------------------- what work touches

    def work(self) -> Work:
        """What runs in this thread: the entry's work, or the program."""
        entry, queue = self._current.entry, self._current.queue
        if entry is None or queue is None:
            return self._of_program()
        return self._work_of(queue, entry)

    def is_program(self) -> bool:
        """Whether no work of a device runs in this thread."""
        return self._current.entry is None

    def begin_launch(self, order: LaunchOrder, module: str = "") -> Work:
        """The kernel that runs in this thread has these blocks and threads, and is of this PTX."""
        with self._lock:
            work = self.work()
            work.order = order
            work.module = module
            return work

    def watch_tiles(self, memory: HostMemory, grid: tuple[int, int, int]) -> TileWatch:
        """The tile kernel that runs in this thread has this grid; gives what is told of its accesses."""
        from ._watch import TileWatch

        return TileWatch(self, memory, grid)

    def time(self, work: Work) -> int:
        """A number above those of all accesses so far. Accesses of `work` get new numbers from now on."""
        time = len(self._accesses)
        work.fresh = time
        return time

    def touch_range(self, block: Block, address: int, size_bytes: int, access: str) -> None:
        """The work of this thread reads or writes a range."""
        if size_bytes:
            with self._lock:
                shadow = shadow_of(block)
                self.touch(self.work(), shadow, shadow.range(address, size_bytes), 0, access, "")

    def touch_by_program(
        self, block: Block, address: int, size_bytes: int, access: str, *, knows_all: bool
    ) -> None:
        """The program looks at memory, or writes it, between its calls."""
        if not knows_all:
            self.touch_range(block, address, size_bytes, access)
        elif access == "write":
            with self._lock:
                shadow_of(block).given = True

    def touch_array(
        self,
        block: Block,
        address: int,
        shape: Sequence[int],
        strides_bytes: Sequence[int],
        item: int,
        access: str,
        *,
        who: int = 0,
        place: Place = "",
        is_atomic: bool = False,
        work: Work | None = None,
    ) -> None:
        """A strided array is read, written or updated."""
        if 0 in shape:
            return
        with self._lock:
            shadow = shadow_of(block)
            cells = shadow.strip(address, shape, strides_bytes, item)
            self.touch(work or self.work(), shadow, cells, who, access, place, is_atomic=is_atomic)

    def touch_elements(
        self,
        shadow: Shadow,
        offsets: NDArray[np.int64],
        item: int,
        access: str,
        who: Any,
        place: Place,
        work: Work,
        *,
        is_atomic: bool = False,
        stored: Stored | None = None,
    ) -> None:
        """Elements of `item` bytes at byte offsets are read, written or updated.

        Args:
            who: of the kernel's threads, one for each or one for all.
            stored: what is written, where two may write the same.
        """
        if not offsets.size:
            return
        with self._lock:
            cells, each = shadow.picked(offsets, item)
            if each > 1 and isinstance(who, np.ndarray):
                who = np.repeat(who.reshape(-1), each)
            if stored is not None:
                stored.with_cells(each)
            self.touch(work, shadow, cells, who, access, place, is_atomic=is_atomic, stored=stored)

    def touch(
        self,
        work: Work,
        shadow: Shadow,
        cells: Cells,
        who: Any,
        access: str,
        place: Place,
        *,
        is_atomic: bool = False,
        stored: Stored | None = None,
    ) -> None:
        """Lock held. Some cells are read, written or updated: compare with what was before, and note it."""
        number = self._number(work, place, access, is_atomic)
        self._shadows.add(shadow)
        if shadow.born is not None and not shadow.born.before(work):
            self._report_unborn(work, shadow, access, place)
        if work.declared is not None and shadow.is_pool:
            self._check_declared(work, shadow, cells, who, access, place)
        written = cells.get(shadow.write)
        if access != "write" and not shadow.given:
            self._check_written(work, shadow, cells, written, who, access, place)
        self._compare_all(work, shadow, cells, written, who, place, access, is_atomic, stored)
        if access == "read":
            self._note_read(work, shadow, cells, number, who)
            return
        reads = cells.get(shadow.read)
        self._compare_all(work, shadow, cells, reads, who, place, access, is_atomic)
        if work.order is not None and isinstance(who, np.ndarray):
            self._note_writers(work, shadow, cells, number, who, place, access, is_atomic, written, stored)
        elif is_atomic and work.order is not None:
            mine = self._own(work, written)
            earlier = cells.get(shadow.write_who)
            together = work.order.together(earlier, who)
            cells.put(shadow.write_who, np.where(mine, together, who))
        else:
            cells.put(shadow.write_who, who)
        cells.put(shadow.write, number)
        cells.put(shadow.read, 0)

    # ---------------------------------------------------------------------------- the end

    def leaked(self, device: str, blocks: Sequence[Block]) -> list[CheckReport]:
        """Memory that is still allocated."""
        found = []
        with self._lock:
            for block in blocks:
                born = block.shadow.born if block.shadow is not None else None
                size = block.end - block.start
                report = CheckReport(
                    kind="leak",
                    what=f"{size} bytes at {block.start:#x} on {device} are still allocated",
                    address=block.start,
                    size_bytes=size,
                    first=reported("allocation", born, "", None) if born is not None else None,
                    advice="drop the tensors, graphs and futures that hold it, or close what owns them",
                )
                found.append(report)
                self.reports.append(report)
        return found

    def take_reports(self) -> list[CheckReport]:
        """What was found since the last call; all of it may be found again."""
        with self._lock:
            found, self.reports = self.reports, []
            self._seen.clear()
            return found

    # ---------------------------------------------------------------------------- inside

    def _track(self, queue: Queue) -> Track:
        track: Track | None = queue.track
        if track is None:
            owner: Any = queue.owner
            device = f"host:{getattr(owner, 'ordinal', 0)}"
            number = self._streams.get(device, 0)
            self._streams[device] = number + 1
            track = queue.track = Track(*self._new_actor(), number, device)
        return track

    def _new_actor(self) -> tuple[int, int]:
        """Its number, and how much it has done."""
        if self._idle_actors:
            return self._idle_actors.pop()
        self._actors += 1
        return self._actors, 0

    def _work_of(self, queue: Queue, entry: Entry) -> Work:
        """Lock held, or in the engine's step."""
        stamp = stamp_of(entry)
        work = stamp.work
        if work is None:
            track = self._track(queue)
            track.clock = merged(track.clock, stamp.clock)
            track.count += 1
            work = stamp.work = Work(
                track.actor,
                track.count,
                track.clock,
                name_of(entry),
                stream=track.stream,
                device=track.device,
                enqueued=stamp.enqueued,
            )
            work.declared = getattr(entry, "declared", None)
        return work

    def _of_program(self) -> Work:
        clock = self._program
        count = clock[PROGRAM]
        # What is enqueued from now on comes behind this; what was enqueued before does not know of it.
        self._program = {**clock, PROGRAM: count + 1}
        return Work(PROGRAM, count + 1, clock, "the program", enqueued=line_of_program())

    def _number(self, work: Work, place: Place, access: str, is_atomic: bool) -> int:
        key = (id(place), access, is_atomic)  # an instruction may read and write
        number = work.ids.get(key)
        if number is None or number < work.fresh:
            if len(self._accesses) >= self._forget_at:
                self._forget()
            number = work.ids[key] = len(self._accesses)
            self._accesses.append(Access(work, place, access, is_atomic))
        return number

    def _forget(self) -> None:
        """Lock held. Let go what accesses are of that no shadow remembers; their numbers are not used again."""
        used: set[int] = set()
        for shadow in list(self._shadows):
            if shadow.size_bytes > _MOST_FREED_BYTES:
                return self._forget_later()
            used.update(distinct(shadow.write), distinct(shadow.read))
        for number in list(used):
            used.update(self._members(number))
        first, nothing = self._kept_from, self._accesses[0]
        kept = []
        for number in (*self._kept, *range(first, len(self._accesses))):
            access = self._accesses[number]
            if number in used:
                kept.append(number)
                continue
            if access.work is not None:
                access.work.ids = {key: n for key, n in access.work.ids.items() if n != number}
            self._accesses[number] = nothing
        self._kept, self._kept_from = kept, len(self._accesses)
        self._sets = {members: n for members, n in self._sets.items() if n in used}
        self._forget_at = len(self._accesses) + _FORGET_EVERY

    def _forget_later(self) -> None:
        self._forget_at = len(self._accesses) + _FORGET_EVERY

    def _own(self, work: Work, numbers: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Which of these are accesses of `work`."""
        found = np.zeros(numbers.shape, np.bool_)
        for one in distinct(numbers):
            if one and any(self._accesses[m].work is work for m in self._members(one)):
                found |= numbers == one
        return found

    def _members(self, number: int) -> tuple[int, ...]:
        return self._accesses[number].members or (number,)

    def _compare_all(
        self,
        work: Work,
        shadow: Shadow,
        cells: Cells,
        numbers: NDArray[np.uint32],
        who: Any,
        place: Place,
        access: str,
        is_atomic: bool = False,
        stored: Stored | None = None,
    ) -> None:
        """Lock held. Report where an earlier access is not ordered before this one."""
        for one in distinct(numbers):
            if not one:
                continue
            for member in self._members(one):
                earlier = self._accesses[member]
                if earlier.is_atomic and is_atomic:
                    continue
                if (earlier.sort, access) in _GUESSED:
                    continue
                other = earlier.work
                assert other is not None
                if other is work:
                    if work.order is None:
                        continue
                    was_read = earlier.sort == "read"
                    whos = cells.get(shadow.read_who if was_read else shadow.write_who)
                    bad = work.order.unordered(member, whos, who) & (numbers == one)
                    # Not beside an atomic: what that makes, or gives, depends on the order.
                    if stored is not None and earlier.sort == access == "write" and bad.any():
                        bad &= ~stored.unchanged().reshape(bad.shape)
                    if not bad.any():
                        continue
                    index = int(bad.reshape(-1).argmax())
                    first_who = int(whos.reshape(-1)[index])
                elif other.before(work):
                    continue
                else:
                    bad = numbers == one
                    index = int(bad.reshape(-1).argmax())
                    whos = cells.get(shadow.read_who if earlier.sort == "read" else shadow.write_who)
                    first_who = int(whos.reshape(-1)[index])
                self._report_race(
                    work, shadow, cells.place(index), earlier, first_who, access, place, _at(who, index)
                )

    def _note_read(self, work: Work, shadow: Shadow, cells: Cells, number: int, who: Any) -> None:
        numbers = cells.get(shadow.read)
        there = distinct(numbers)
        order = work.order
        if order is not None:
            now: Any = who
            earlier = cells.get(shadow.read_who)
            if (
                there == [number]
                and order.has_no_order
                and int(earlier.max()) == SEVERAL_BLOCKS == int(earlier.min())
            ):
                return  # read by many blocks, and nobody can make that less
            for one in there:
                if one == 0 or not any(self._accesses[m].work is work for m in self._members(one)):
                    continue
                last = max(m for m in self._members(one) if self._accesses[m].work is work)
                both = order.unordered(last, earlier, who) & (numbers == one)
                if both.any():
                    now = np.where(both, order.together(earlier, who), now)
            cells.put(shadow.read_who, now)
            if isinstance(now, np.ndarray) and isinstance(cells, Picked):
                # Where a place is given twice, the last one stays; if that is not us, there are several.
                stays = cells.get(shadow.read_who)
                twice = stays != now
                if twice.any():
                    index = np.flatnonzero(twice.reshape(-1))
                    places = cells.numbers.reshape(-1)[index]
                    several = order.together(stays.reshape(-1)[index], now.reshape(-1)[index])
                    in_order = order.coarsest_last(several)
                    shadow.read_who[places[in_order]] = several[in_order]
        else:
            cells.put(shadow.read_who, 0)
        if len(there) == 1:
            cells.put(shadow.read, self._joined(there[0], number, work))
            return
        updated = np.full(numbers.shape, number, np.uint32)
        for one in there:
            joined = self._joined(one, number, work)
            if joined != number:
                updated[numbers == one] = joined
        cells.put(shadow.read, updated)

    def _joined(self, one: int, number: int, work: Work) -> int:
        """The number for the reads `one` and `number` together, without those that come before."""
        if not one:
            return number
        keep = []
        for member in self._members(one):
            other = self._accesses[member].work
            assert other is not None
            if other is not work and not other.before(work):
                keep.append(member)
        if not keep:
            return number
        members = frozenset([*keep[-_MOST_READERS:], number])
        found = self._sets.get(members)
        if found is None:
            found = self._sets[members] = len(self._accesses)
            several = Access(work, "", "read", False)
            several.members = tuple(sorted(members))
            self._accesses.append(several)
        return found

    def _note_writers(
        self,
        work: Work,
        shadow: Shadow,
        cells: Cells,
        number: int,
        who: NDArray[np.int32],
        place: Place,
        access: str,
        is_atomic: bool,
        written: NDArray[np.uint32],
        stored: Stored | None,
    ) -> None:
        """Lock held. Several threads write at once: two of them to one place are a race, unless atomic."""
        order = work.order
        assert order is not None
        now = who
        if is_atomic:
            mine = self._own(work, written)
            if mine.any():
                now = np.where(mine, order.together(cells.get(shadow.write_who), who), who)
        cells.put(shadow.write_who, now)
        stays = cells.get(shadow.write_who)
        twice = stays != now
        if not twice.any():
            return
        assert isinstance(cells, Picked)  # a strip has no cell twice
        index = np.flatnonzero(twice.reshape(-1))
        places = cells.numbers.reshape(-1)[index]
        flat, kept = now.reshape(-1), stays.reshape(-1)[index]
        if not is_atomic:
            by_who = np.argsort(flat, kind="stable")
            others = by_who[np.searchsorted(flat, kept, sorter=by_who)]
            if stored is None or not stored.are_equal(index, others):
                earlier = Access(work, place, access, is_atomic)
                one, other = int(flat[index[0]]), int(kept[0])
                self._report_race(work, shadow, int(places[0]), earlier, other, access, place, one)
        several = order.together(kept, flat[index])
        in_order = order.coarsest_last(several)
        shadow.write_who[places[in_order]] = several[in_order]

    # ---------------------------------------------------------------------------- findings

    def _check_written(
        self,
        work: Work,
        shadow: Shadow,
        cells: Cells,
        written: NDArray[np.uint32],
        who: Any,
        access: str,
        place: Place,
    ) -> None:
        if written.all():
            return
        index = int((written == 0).reshape(-1).argmax())
        cell = cells.place(index)
        address = shadow.start + cell * shadow.unit
        self._report(
            work,
            CheckReport(
                kind="never written",
                what=f"memory is read that nothing has written: {where(shadow, cell)}",
                address=address,
                size_bytes=shadow.unit,
                first=reported("allocation", shadow.born, "", None) if shadow.born is not None else None,
                second=reported(access, work, place, _at(who, index)),
                advice="write it first (zeros() and full() do), or read only what was written",
            ),
            ("never written", id(shadow), id(place) if place else work.name, work.name),
        )

    def _check_declared(
        self, work: Work, shadow: Shadow, cells: Cells, who: Any, access: str, place: Place
    ) -> None:
        declared = work.declared
        assert declared is not None
        start, end = shadow.start, shadow.start + shadow.size_bytes
        if not any(start < use.buffer[1] and use.buffer[0] < end for use in declared.uses):
            cell = cells.place(0)
            self._report(
                work,
                CheckReport(
                    kind="not given",
                    what=f"a kernel touches memory that its launch does not name: {where(shadow, cell)}",
                    address=start + cell * shadow.unit,
                    size_bytes=shadow.unit,
                    first=reported("allocation", shadow.born, "", None) if shadow.born is not None else None,
                    second=reported(access, work, place, _at(who, 0)),
                    advice="an index is out of bounds, or the launch needs uses=[read(t), mut(t)] for memory that "
                    "the kernel finds through pointers",
                ),
                ("not given", work.name, id(place), id(shadow)),
            )
            return
        if access == "read":
            return
        writable = [
            u.elements
            for u in declared.uses
            if u.is_written and u.elements[0] < end and start < u.elements[1]
        ]
        if any(a <= start and end <= b for a, b in writable):
            return
        every = np.arange(cells.get(shadow.write).size)
        numbers = (
            np.array([cells.place(int(i)) for i in every]) if every.size < 64 else _numbers(shadow, cells)
        )
        addresses = start + numbers * shadow.unit
        bad = np.zeros(addresses.shape, np.bool_)
        for use in declared.uses:
            if not use.is_written:
                bad |= (addresses >= use.elements[0]) & (addresses < use.elements[1])
        for a, b in writable:
            bad &= ~((addresses >= a) & (addresses < b))
        if not bad.any():
            return
        index = int(bad.argmax())
        self._report(
            work,
            CheckReport(
                kind="read only",
                what=f"a kernel writes what it was passed as read: {where(shadow, int(numbers[index]))}",
                address=int(addresses[index]),
                size_bytes=shadow.unit,
                second=reported(access, work, place, _at(who, index)),
                advice="pass it with mut(...), or as a partition; then launches that use it wait for this one",
            ),
            ("read only", work.name, id(place)),
        )

    def _report_unborn(self, work: Work, shadow: Shadow, access: str, place: Place) -> None:
        born = shadow.born
        assert born is not None
        self._report(
            work,
            CheckReport(
                kind="race",
                what=f"nothing orders this access behind the allocation of what it touches: {where(shadow, None)}",
                address=shadow.start,
                size_bytes=shadow.size_bytes,
                first=reported("allocation", born, "", None),
                second=reported(access, work, place, None),
                advice="have this stream wait for an event recorded behind the allocation; where the memory was "
                "another tensor's before, that one was freed too early",
            ),
            ("unborn", id(shadow), work.name, id(place) if place else 0),
        )

    def _report_race(
        self,
        work: Work,
        shadow: Shadow,
        cell: int,
        earlier: Access,
        earlier_who: int,
        access: str,
        place: Place,
        who: int,
    ) -> None:
        other = earlier.work
        assert other is not None
        address = shadow.start + cell * shadow.unit
        what = f"nothing orders {parties(work, other, who, earlier_who)}: {where(shadow, cell)}"
        self._report(
            work,
            CheckReport(
                kind="race",
                what=what,
                address=address,
                size_bytes=shadow.unit,
                first=reported(earlier.sort, other, earlier.place, earlier_who),
                second=reported(access, work, place, who),
                advice=advice(work, other, access, who, earlier_who),
            ),
            (
                "race",
                *sorted((_key(work, place), _key(other, earlier.place))),
                *sorted((access, earlier.sort)),
            ),
        )

    def _report(
        self, work: Work, report: CheckReport, key: tuple[object, ...], *, raises: bool = True
    ) -> None:
        entry = self._current.entry
        stamp = stamp_of(entry) if entry is not None else None
        if key in self._seen and (stamp is None or stamp.found):
            return
        if key not in self._seen and len(self.reports) < _MOST_REPORTS:
            self.reports.append(report)
        self._seen.add(key)
        if not raises:
            return
        if stamp is not None:
            stamp.found.append(report)
        elif (
            self.program_raises
            and work.actor == PROGRAM
            and report.second is not None
            and report.second.access != "free"
        ):
            raise CheckError(str(report), (report,))


def _key(work: Work, place: Place) -> tuple[str, int]:
    return work.name, id(place) if place and not isinstance(place, str) else 0


def _at(who: Any, index: int) -> int:
    if not isinstance(who, np.ndarray):
        return int(who)
    flat = who.reshape(-1)
    return int(flat[index if flat.size > 1 else 0])


def _numbers(shadow: Shadow, cells: Cells) -> NDArray[np.int64]:
    """The numbers of many cells."""
    return cells.get(np.arange(shadow.write.size)).reshape(-1)


def shadow_of(block: Block) -> Shadow:
    """A block's shadow. Memory that was there before the checker was written by somebody."""
    shadow: Shadow | None = block.shadow
    if shadow is None:
        shadow = block.shadow = Shadow(block.start, block.end - block.start, block.what, given=True)
    return shadow


_checker: Checker | None = None
_checker_lock = threading.Lock()


def process_checker() -> Checker:
    """The one of this process, made on first use."""
    global _checker
    with _checker_lock:
        if _checker is None:
            _checker = Checker()
        return _checker
