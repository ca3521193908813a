"""`Buffer`: a piece of device memory with an owner, an address and its last uses.

Ownership. Owned memory is freed behind its last use when the buffer's last reference goes: the finalizer,
which may run on any thread at any moment, only appends a note to the device's reaper. Borrowed memory keeps
its owner alive, and every submission that uses it keeps the buffer alive until the device has passed it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ClosedError
from ._usage import Usage

if TYPE_CHECKING:
    from collections import deque

    from ..scheduling import Device

__all__ = ["Buffer", "FreeNote"]


class FreeNote:
    """What a finalizer leaves behind: the memory to free, or the owner to let go, and what must come first."""

    __slots__ = ("address", "owner", "size_bytes", "usage")

    def __init__(self, address: int, size_bytes: int, usage: Usage, owner: Any = None) -> None:
        self.address = address
        self.size_bytes = size_bytes
        self.usage = usage
        self.owner = owner  # any object at all: it is only kept


class Buffer:
    """`size_bytes` of device memory at `address`.

    Attributes:
        device: where the memory is.
        owner: what keeps borrowed memory alive; None for memory of the device's own pool.
        plain_on: the device, while the memory is its own, live and known to nobody else; None otherwise. One look for
            the fast path of a launch.
        retained_on_use: other libraries know this memory, because it is borrowed or was lent. Submissions keep this
            object alive until the device has passed them, and other buffers may be over the same bytes.
        read_only: the owner does not allow writing.
        holders: who has this memory on loan now (`_dlpack`), in any form; None before the first.
        is_recorded: a graph that is still being recorded will fill it.
    """

    is_recorded = False
    _note = FreeNote  # a free-threaded Python may finalize this after the names of modules are gone

    __slots__ = (
        "__weakref__",
        "_notes",
        "address",
        "device",
        "holders",
        "owner",
        "plain_on",
        "read_only",
        "retained_on_use",
        "size_bytes",
        "usage",
    )

    def __init__(
        self,
        device: Device,
        address: int,
        size_bytes: int,
        usage: Usage,
        *,
        notes: deque[FreeNote] | None = None,
        owner: Any = None,  # any object at all: it is only kept
        read_only: bool = False,
    ) -> None:
        self.device = device
        self.address = address
        self.size_bytes = size_bytes
        self.usage = usage
        self.owner = owner
        self.read_only = read_only
        self.retained_on_use = owner is not None
        self.plain_on = device if owner is None else None
        self.holders: set[int] | None = None
        self._notes = notes

    def note_shared(self) -> None:
        """Another library knows this memory from now on."""
        self.retained_on_use = True
        self.plain_on = None

    @property
    def start(self) -> int:
        """Where it is, or was before `free()`."""
        return self.address if self.address >= 0 else ~self.address

    @property
    def is_freed(self) -> bool:
        """True after `free()`."""
        return self.address < 0

    def check_filled(self) -> None:
        """`check_usable`, for work that is enqueued now and not recorded."""
        self.check_usable()

    def check_usable(self) -> None:
        """Raises `ClosedError` when the memory was freed explicitly."""
        if self.address < 0:
            raise ClosedError("this tensor's memory was freed; keep the tensor, or allocate a new one")

    def free(self) -> None:
        """Free now, in stream order behind the last use, whoever else of ours still refers to this buffer.

        Raises:
            BufferError: another library still holds the memory.
        """
        start = self.start
        note = FreeNote(start, self.size_bytes if self.owner is None else 0, self.usage, self.owner)
        # Marked before it is noted: who finds it live, under the lock, is in `usage` before the note is dealt with.
        # From here to the note is no call, behind which an interrupt or another thread could come.
        if self.holders and self.owner is None:
            raise BufferError(
                f"the memory is in use by {len(self.holders)} other array(s) that were made of it through DLPack; "
                "drop them first"
            )
        self.owner = self.plain_on = None
        self.address = ~start  # negative; what it was is still looked for (`start`, graphs' nodes)
        notes, self._notes = self._notes, None
        if notes is not None:
            notes.append(note)

    def __del__(self) -> None:
        # Borrowed memory is let go with its owner: no submission that uses it is left, for they hold this object.
        try:
            notes = self._notes
        except AttributeError:  # an interrupt came before it was made
            return
        if notes is not None and self.owner is None:
            notes.append(self._note(self.address, self.size_bytes, self.usage))
