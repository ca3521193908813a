"""A wave: some blocks of a launch, run side by side in lanes. The scheduler of groups.

One group runs at a time, block of instructions by block, until it ends, waits, or reaches a block that comes
after one where another group waits: the group that is furthest behind runs, so that threads which took
different ways meet again as early as the code allows (see `_control_flow`). Groups inside a call come before
those that wait behind it.

That rule alone would let a thread that waits for another spin forever. So a group that has gone round a loop
often enough while others could run makes way for the one that has run least recently, which then runs
regardless of its place for a while.
"""

from __future__ import annotations

from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ....errors import CudaAsyncError, MemoryFault
from ._barriers import Barriers
from ._errors import KernelError, KernelMemoryFault, Place
from ._lanes import CallRecord, Frame, Group, Lanes, ParameterBytes, expand_mask, merge
from ._ops_warp import pack_warps
from ._special_registers import special_register
from ._syntax import Variable
from ._translate import Source

if TYPE_CHECKING:
    from ..check import PtxWatch, Shadow
    from ._code import Code, CodeBlock
    from ._lanes import Array
    from ._launch import Launch
    from ._syntax import Instruction

__all__ = ["Wave"]

_TURNS_SPINNING = 2
"""Turns of a loop that may wait for others, before others run."""
_TURNS = 4096
"""Turns of any other loop: it ends by itself unless something is wrong."""
_FAVOUR = 256
"""Blocks for which a group that was let in runs regardless of its place."""
_SPINS_PER_STEP = 32
_MOST_LOCAL_BYTES = 512 << 10
_MOST_LOCAL_TOTAL = 1 << 30
_MOST_CALLS = 2048


class Wave:
    """Blocks `first_block` to `first_block + blocks` of a launch.

    Attributes:
        size: lanes in all; each block has `lanes_per_block`, of which `threads_per_block` are threads.
        live: lanes whose thread has not exited.
        accessed: positions of the last memory access, to tell which thread was at fault.
        spins: turns of loops in which nobody but waiting threads ran.
        watch: is told of accesses and barriers, where the device checks; then `instruction` is the one that accesses
            memory, and `shared_shadow` what is known of shared memory.
    """

    size: int
    blocks_per_cluster: int

    def __init__(self, launch: Launch, first_block: int, blocks: int) -> None:
        self.launch = launch
        self.memory = launch.memory
        self.first_block = first_block
        self.blocks = blocks
        self.blocks_per_cluster = launch.blocks_per_cluster
        self.clusters = launch.has_clusters
        self.threads_per_block = launch.threads_per_block
        self.lanes_per_block = launch.lanes_per_block
        self.size = blocks * self.lanes_per_block
        self.accessed: Lanes | None = None
        self.spins = 0
        self.watch: PtxWatch | None = launch.watch
        self.instruction: Instruction | None = None
        self.shared_shadow: Shadow | None = None

        self.shared_bytes = launch.shared_bytes
        self.shared_stride = max(16, -(-launch.shared_bytes // 256) * 256)
        self._shared: NDArray[np.uint8] | None = None
        self._shared_views: dict[np.dtype[Any], Array] = {}
        self.local_bytes = 0
        self._local: NDArray[np.uint8] = np.zeros((self.size, 0), np.uint8)
        self._local_views: dict[np.dtype[Any], Array] = {}

        threads = self.threads_per_block
        if threads == self.lanes_per_block:
            self.live: NDArray[np.bool_] = np.ones(self.size, np.bool_)
            mask = None
        else:
            self.live = np.tile(np.arange(self.lanes_per_block) < threads, blocks)
            mask = self.live
        self.live_count = threads * blocks
        self.barriers = Barriers(self)
        self.runnable: list[Group] = []
        self._stalled: list[Group] = []
        self._ticket = 0
        self._favoured: Group | None = None
        self._favour_left = 0

        code = launch.code
        self.ensure_local(None, code.local_bytes)
        root = Frame(self, code, self.size, None, 0)
        group = Group(root, code.blocks[0], mask, self.live_count)
        root.members.append(group)
        self._current: Group | None = group

    # ------------------------------------------------------------------------------ running

    def step(self, deadline: float) -> bool:
        """Run until `deadline` (of `perf_counter`), or until all threads have ended: then True."""
        group: Group | None = self._current or self._pick()
        self._current = None
        spin_limit = self.spins + _SPINS_PER_STEP
        clock = perf_counter
        while group is not None:
            running: Group = group
            block = group.block
            steps = block.steps
            position = group.position
            group.position = 0
            end = len(steps)
            try:
                if position == 0 and block.gate is not None and group.count != self.live_count:
                    if not block.gate(group):
                        group = self._pick()
                        continue
                    steps = block.steps
                while position < end:
                    steps[position](group)
                    position += 1
                    if clock() > deadline:
                        group.position = position
                        self._current = group
                        return False
                following = block.finish(group)
            except CudaAsyncError as error:
                located = self._located(error, running, block, position)
                if located is error:
                    raise
                raise located from error
            except Exception as error:
                error.add_note(f"in {self._place(running, block, position, None)}")
                raise
            group = self._pick() if following is None else self._enter(running, following)
            if self.spins > spin_limit or (not end and clock() > deadline):
                self._current = group
                return group is None
        return True

    def _enter(self, group: Group, block: CodeBlock) -> Group:
        """The group moves on to `block`; gives the group that runs now."""
        back = block.order <= group.block.order and block.code is group.block.code
        group.block = block
        if not self.runnable and not self._stalled:
            if back and block.spins:
                self.spins += 1
            return group
        self._join(group)
        if not self.runnable:
            return group
        if back:
            group.turns += 1
            if group.turns >= (_TURNS_SPINNING if block.spins else _TURNS):
                return self._make_way(group)
        if group is self._favoured:
            self._favour_left -= 1
            if self._favour_left > 0:
                return group
            self._favoured = None
        key = (*group.frame.key, block.order)
        best = min(self.runnable, key=_key_of)
        if best.key < key:
            self.queue(group)
            return self._start(best)
        return group

    def _join(self, group: Group) -> None:
        """Unite with the groups that wait where this one is now."""
        frame, block = group.frame, group.block
        joined = False
        for waiting in (self.runnable, self._stalled):
            for other in waiting:
                if other.block is block and other.frame is frame and other.position == 0:
                    waiting.remove(other)
                    self._unite(group, other)
                    joined = True
                    break
        if joined:
            self._refresh(group)

    def _unite(self, group: Group, other: Group) -> None:
        frame = group.frame
        group.expand(group.block.live_in)
        assert group.mask is not None
        assert other.mask is not None
        group.attach(frame, group.mask | other.mask, group.count + other.count)
        group.turns = max(group.turns, other.turns)
        frame.members.remove(other)

    def _make_way(self, group: Group) -> Group:
        group.turns = 0
        self.spins += 1
        chosen = min(self.runnable, key=_ticket_of)
        self.queue(group)
        self._favoured = chosen
        self._favour_left = _FAVOUR
        return self._start(chosen)

    def _pick(self) -> Group | None:
        """The group that is furthest behind; None when all threads have ended."""
        if not self.runnable:
            if self._unfinished():
                self._fail_deadlocked()
            return None
        return self._start(min(self.runnable, key=_key_of))

    def _start(self, group: Group) -> Group:
        self.runnable.remove(group)
        self._ticket += 1
        group.ticket = self._ticket
        if group is not self._favoured:
            self._favoured = None
        self._refresh(group)
        return group

    def _refresh(self, group: Group) -> None:
        """What the others in the frame need has changed."""
        protect = 0
        members = group.frame.members
        if len(members) > 1:
            for member in members:
                if member is not group:
                    if isinstance(member, Group) and member.position:
                        protect = -1  # it waits inside a block: all may be needed
                        break
                    protect |= member.block.live_in
        if group.origin is None:
            group.protect = protect if group.mask is not None else 0
            group.compact()

    def _unfinished(self) -> bool:
        return bool(self.runnable or self._stalled or self.barriers.describe())

    # ------------------------------------------------------------------------------ waiting

    def queue(self, group: Group) -> None:
        """The group can run, at its block."""
        group.expand(group.block.live_in if group.position == 0 else -1)
        for other in self.runnable:
            if (
                other.block is group.block
                and other.frame is group.frame
                and other.position == group.position == 0
            ):
                self._unite(other, group)
                return
        for other in self._stalled:
            if other.block is group.block and other.frame is group.frame and group.position == 0:
                self._stalled.remove(other)
                self._unite(group, other)
                break
        group.key = (*group.frame.key, group.block.order)
        self.runnable.append(group)

    def park(self, group: Group, block: CodeBlock) -> None:
        """The group waits for something, then goes on with `block`."""
        group.expand(block.live_in)
        group.block = block
        group.position = 0

    def split(self, group: Group, chosen: NDArray[np.bool_], count: int) -> Group:
        """A new group of the lanes in `chosen`, taken from `group`, which is not compact."""
        frame = group.frame
        rest = ~chosen if group.mask is None else group.mask & ~chosen
        part = Group(frame, group.block, chosen, count)
        part.position = group.position
        part.outgoing = group.outgoing.copy()
        part.ticket = group.ticket
        part.turns = group.turns
        group.attach(frame, rest, group.count - count)
        frame.members.append(part)
        return part

    def _lifted(self, group: Group, chosen: NDArray[np.bool_], live: int) -> NDArray[np.bool_]:
        """Make the group an ordinary one; gives its `chosen` positions as the frame's."""
        origin = group.origin
        if origin is None:
            return chosen
        for holder in group.outgoing.values():
            for offset, value in holder.pieces.items():
                if value.size > 1:
                    wide = np.zeros(group.frame.size, value.dtype)
                    wide[origin] = value
                    holder.pieces[offset] = wide
        group.expand(live)
        return expand_mask(group.frame.size, origin[chosen])

    def diverge(
        self, group: Group, chosen: NDArray[np.bool_], count: int, taken: CodeBlock, other: CodeBlock
    ) -> CodeBlock:
        """Part of the group branches: gives the block that what is left of `group` goes on with."""
        chosen = self._lifted(group, chosen, taken.live_in | other.live_in)
        part = self.split(group, chosen, count)
        if taken.order < other.order:
            # The group that goes on keeps its identity, so the parts change places.
            rest = group.mask
            rest_count = group.count
            group.attach(group.frame, part.mask, part.count)
            part.attach(part.frame, rest, rest_count)
            part.block, following = other, taken
        else:
            part.block, following = taken, other
        self.queue(part)
        self._refresh(group)
        return following

    def diverge_many(self, group: Group, index: Array, targets: list[CodeBlock]) -> CodeBlock | None:
        """The group's lanes go to different targets."""
        live = 0
        for target in targets:
            live |= target.live_in
        active = group.active
        used = np.unique(index if active is None else index[active])
        if int(used[-1]) >= len(targets):
            self.fail(group, f"brx.idx with index {int(used[-1])}; there are {len(targets)} branch targets")
        by_target: dict[CodeBlock, list[int]] = {}
        for number in used.tolist():
            by_target.setdefault(targets[number], []).append(number)
        masks = {}
        for target, numbers in by_target.items():
            masks[target] = np.isin(index, numbers)
            if group.mask is not None:
                masks[target] &= group.mask
        lifted = {}
        origin = group.origin
        for target, mask in masks.items():
            lifted[target] = mask if origin is None else expand_mask(group.frame.size, origin[mask])
        group.expand(live)
        *others, last = sorted(by_target, key=lambda block: -block.order)
        for target in others:
            part = self.split(group, lifted[target], int(np.count_nonzero(lifted[target])))
            part.block = target
            part.position = 0
            self.queue(part)
        self._refresh(group)
        return last

    def diverge_here(self, group: Group, value: Array) -> None:
        """The end of the block cannot treat all lanes alike: those with the first value do it first."""
        active = group.active
        first = value[0 if active is None else active[0]]
        chosen = value == first
        if group.mask is not None:
            chosen &= group.mask
        count = int(np.count_nonzero(chosen))
        chosen = self._lifted(group, chosen, -1)
        group.position = len(group.block.steps)
        # Both wait inside their block, behind its last step.
        part = self.split(group, chosen, count)
        self.queue(part)
        self.queue(group)

    def warp_ready(self, group: Group, mask: Array) -> bool:
        """Whether all lanes are here that `mask` names; warps for which it is not so are left behind."""
        active = group.active_lanes()
        here = pack_warps(active)
        if mask.size == 1:
            wanted = np.where(here != 0, mask[0], np.uint32(0))
        else:
            masks = np.where(active, group.spread(mask), np.uint32(0)).reshape(-1, 32)
            wanted = np.bitwise_or.reduce(masks, axis=1)
        missing = (wanted & pack_warps(self.live) & ~here) != 0
        if not missing.any():
            return True
        lanes = np.repeat(missing, 32) & active
        count = int(np.count_nonzero(lanes))
        if count == group.count:
            group.expand(group.block.live_in)
            self._stalled.append(group)
            return False
        chosen = lanes if group.lanes is None else lanes[group.lanes]
        part = self.split(group, self._lifted(group, chosen, group.block.live_in), count)
        self._stalled.append(part)
        self._refresh(group)
        return True

    # ------------------------------------------------------------------------------ calls

    def call(
        self,
        group: Group,
        code: Code,
        arguments: list[Variable | Source],
        returns: tuple[Variable | int | None, ...],
        following: CodeBlock,
    ) -> CodeBlock:
        """The group calls a function: gives the function's first block."""
        caller = group.frame
        positions = group.origin if group.origin is not None else group.active
        values: list[ParameterBytes | Array] = []
        for argument in arguments:
            if isinstance(argument, Source):
                value = argument.read(group)
                inside = value.size > 1 and group.mask is not None
                values.append(value[group.active] if inside else value)
            else:
                holder = group.outgoing.get(argument) or ParameterBytes()
                values.append(holder if group.mask is None else holder.at(_not_none(group.active)))
        group.outgoing = {}
        group.expand(following.live_in)
        base = caller.local_end
        self.ensure_local(group, base + code.local_bytes)
        if len(caller.key) > _MOST_CALLS:
            self.fail(group, f"calls are nested more than {_MOST_CALLS} deep")
        record = CallRecord(group.block, following, returns)
        key = (*caller.key, group.block.order)
        size = caller.size if positions is None else int(positions.size)
        lanes = caller.lanes
        if positions is not None:
            lanes = positions if lanes is None else lanes[positions]
        frame = Frame(self, code, size, lanes, base, key, caller, positions, record)
        for parameter, given in zip(code.function.parameters, values):
            self._pass(frame, parameter, given)
        caller.members.remove(group)
        caller.members.append(record)
        frame.members.append(group)
        group.attach(frame, None, size)
        group.protect = 0
        return code.blocks[0]

    def _pass(self, frame: Frame, parameter: Variable, given: ParameterBytes | Array) -> None:
        if parameter.register is not None:
            if isinstance(given, ParameterBytes):
                given = given.read(0, frame.registers[parameter.register.index].dtype)
            frame.registers[parameter.register.index] = given
            return
        holder = given if isinstance(given, ParameterBytes) else ParameterBytes({0: given})
        frame.parameters[parameter] = holder
        offset = frame.code.local_offsets.get(parameter)
        if offset is not None:  # its address is taken
            start = frame.local_base + offset
            for place, value in holder.pieces.items():
                view = self.local_view(value.dtype)
                rows: Any = slice(None) if frame.lanes is None else frame.lanes
                view[rows, (start + place) // value.itemsize] = value

    def leave(self, group: Group) -> CodeBlock | None:
        """`ret`: back to the caller, or the end of the thread."""
        frame = group.frame
        caller, record = frame.parent, frame.record
        if caller is None or record is None:
            self.exit(group)
            return None
        chosen = group.origin if group.origin is not None else group.active
        positions = frame.positions
        if chosen is not None:
            positions = chosen if positions is None else positions[chosen]
        count = group.count
        mask = None if positions is None else expand_mask(caller.size, positions)
        values = [self._result(group, variable) for variable in frame.code.function.returns]
        frame.members.remove(group)
        if not frame.members:
            caller.members.remove(record)
        group.attach(caller, mask, count)
        caller.members.append(group)
        self._deliver(group, record.results, values, positions)
        group.block = record.site
        self._refresh(group)
        return record.block

    def _result(self, group: Group, variable: Variable) -> ParameterBytes:
        """A result's bytes, for the active lanes."""
        frame = group.frame
        if variable.register is not None:
            value = group.registers[variable.register.index]
            if group.mask is not None and value.size > 1:
                value = value[_not_none(group.active)]
            return ParameterBytes({0: value})
        holder = frame.results.get(variable) or ParameterBytes()
        chosen = group.origin if group.origin is not None else group.active
        return holder if chosen is None else holder.at(chosen)

    def deliver(
        self, group: Group, returns: tuple[Variable | int | None, ...], values: list[Array | None]
    ) -> None:
        """Results of a built-in function, with an element per position of the group."""
        holders = [ParameterBytes() if v is None else ParameterBytes({0: v}) for v in values]
        positions = group.origin
        if group.mask is not None:
            active = _not_none(group.active)
            holders = [holder.at(active) for holder in holders]
            positions = active
        self._deliver(group, returns, holders, positions)

    def _deliver(
        self,
        group: Group,
        returns: tuple[Variable | int | None, ...],
        values: list[ParameterBytes],
        positions: Lanes | None,
    ) -> None:
        """Hand results over to the caller's frame; `positions` there, None being all."""
        frame = group.frame
        mask = None if positions is None else expand_mask(frame.size, positions)
        for target, holder in zip(returns, values):
            if target is None:
                continue
            if isinstance(target, int):
                old = group.registers[target]
                value = holder.read(0, old.dtype)
                if mask is None:
                    group.registers[target] = value
                else:
                    group.registers[target] = merge(mask, _widened(value, frame.size, positions), old)
                continue
            if mask is None:
                frame.returned[target] = ParameterBytes(holder.pieces.copy())
                continue
            store = frame.returned.setdefault(target, ParameterBytes())
            for offset, value in holder.pieces.items():
                store.write(offset, _widened(value, frame.size, positions), mask)

    def exit(self, group: Group) -> None:
        """The group's threads end."""
        if group.count == self.live_count:
            self.live_count = 0
            self.live = np.zeros(self.size, np.bool_)
            group.frame.members.clear()
            return
        self.live = self.live & ~group.active_lanes()
        self.live_count -= group.count
        frame: Frame | None = group.frame
        member: Group | CallRecord | None = group
        while frame is not None and member is not None:
            frame.members.remove(member)
            if frame.members:
                break
            member = frame.record
            frame = frame.parent
        self.barriers.threads_left()
        stalled, self._stalled = self._stalled, []
        for waiting in stalled:
            self.queue(waiting)

    # ------------------------------------------------------------------------------ memory

    @cached_property
    def rows(self) -> Lanes:
        """Where the shared memory of each lane's block begins."""
        return np.repeat(np.arange(self.blocks) * self.shared_stride, self.lanes_per_block)

    def shared_view(self, dtype: np.dtype[Any]) -> Array:
        """Shared memory of all blocks as elements of `dtype`."""
        view = self._shared_views.get(dtype)
        if view is None:
            if self._shared is None:
                self._shared = np.zeros(self.blocks * self.shared_stride, np.uint8)
            view = self._shared_views[dtype] = self._shared.view(dtype)
        return view

    def local_view(self, dtype: np.dtype[Any]) -> Array:
        """Local memory as elements of `dtype`: a row per lane."""
        view = self._local_views.get(dtype)
        if view is None:
            view = self._local_views[dtype] = self._local.view(dtype)
        return view

    def ensure_local(self, group: Group | None, size: int) -> None:
        """Make local memory at least `size` bytes for each thread."""
        if size <= self.local_bytes:
            return
        if group is not None and (
            size > _MOST_LOCAL_BYTES or size * self.size > max(_MOST_LOCAL_TOTAL, self.size << 12)
        ):
            self.fail(group, f"stack overflow: the calls need {size} bytes of local memory in every thread")
        grown = -(-max(size, min(2 * self.local_bytes, size + 4096)) // 16) * 16
        memory = np.zeros((self.size, grown), np.uint8)
        memory[:, : self._local.shape[1]] = self._local
        self._local = memory
        self._local_views = {}
        self.local_bytes = size

    def block_of_rank(self, group: Group, rank: Lanes, where: Lanes | None) -> Lanes:
        """The wave's block that has a rank in each lane's cluster."""
        lanes = group.wave_lanes(where) if where is not None else group.lanes
        every = np.arange(self.size) if lanes is None else lanes
        own = every // self.lanes_per_block
        first = own - own % self.blocks_per_cluster
        return np.asarray(first + np.clip(rank, 0, self.blocks_per_cluster - 1), np.int64)

    # ------------------------------------------------------------------------------ values

    def special(self, name: str, part: str, lanes: Lanes | None) -> Array:
        """A special register, for some lanes."""
        value = special_register(self, name, part)
        return value if lanes is None or value.size == 1 else value[lanes]

    def first_value(self, group: Group, value: Array) -> int | None:
        """The value that all active lanes have; None where they differ."""
        if value.size == 1:
            return int(value[0])
        active = group.active
        used = value if active is None else value[active]
        first = used[0]
        return None if np.count_nonzero(used != first) else int(first)

    # ------------------------------------------------------------------------------ errors

    def fail(self, group: Group, what: str) -> NoReturn:
        """End the launch with an error; the place is added on the way out."""
        raise _Failure(what)

    def _fail_deadlocked(self) -> NoReturn:
        waiting = self.barriers.describe()
        waiting += [(group, "the rest of its warp") for group in self._stalled]
        group = waiting[0][0]
        shown = ", ".join(f"{g.count} threads wait for {w}" for g, w in waiting[:4])
        more = "" if len(waiting) <= 4 else f" (and {len(waiting) - 4} more groups)"
        raise KernelError(
            f"deadlock: no thread can go on; {shown}{more}", self._place(group, group.block, 0, None)
        )

    def _located(self, error: CudaAsyncError, group: Group, block: CodeBlock, position: int) -> Exception:
        if isinstance(error, KernelError | KernelMemoryFault):
            return error
        if isinstance(error, MemoryFault):
            where = self.accessed
            index = error.index or 0
            if where is not None and where.size:
                index = int(where[min(index, where.size - 1)])
            return KernelMemoryFault(error, self._place(group, block, position, index))
        if isinstance(error, _Failure):
            return KernelError(error.what, self._place(group, block, position, None))
        error.add_note(f"in {self._place(group, block, position, None)}")
        return error

    def _place(self, group: Group, block: CodeBlock, position: int, index: int | None) -> Place:
        instruction: Instruction | None = None
        if position < len(block.instructions):
            instruction = block.instructions[position]
        if index is None:
            active = group.active
            index = 0 if active is None or not active.size else int(active[0])
        lane = index if group.lanes is None else int(group.lanes[min(index, group.lanes.size - 1)])
        number, thread = divmod(lane, self.lanes_per_block)
        return Place(
            self.launch.name,
            self.launch.program.module_name,
            block.code.name,
            instruction,
            _axes(self.first_block + number, self.launch.grid),
            _axes(thread, self.launch.block),
        )


class _Failure(CudaAsyncError):
    """What a kernel did wrong, before the place is known."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(what)


def _axes(number: int, extents: tuple[int, int, int]) -> tuple[int, int, int]:
    rest, x = divmod(number, extents[0])
    z, y = divmod(rest, extents[1])
    return x, y, z


def _widened(value: Array, size: int, positions: Lanes | None) -> Array:
    if value.size == 1 or positions is None:
        return value
    wide = np.zeros(size, value.dtype)
    wide[positions] = value
    return wide


def _not_none(lanes: Lanes | None) -> Lanes:
    assert lanes is not None
    return lanes


def _key_of(group: Group) -> tuple[int, ...]:
    return group.key


def _ticket_of(group: Group) -> int:
    return group.ticket
