"""Buffers' ends, and the facts a `Usage` keeps."""

from __future__ import annotations

from collections import deque

import pytest

from cuda_async.memory import Buffer, Usage


class Key:
    """Stands for a stream: this layer only keeps it."""


def uses(usage: Usage) -> set[tuple[Key, int]]:
    return set(usage.uses())


def test_nothing_was_used_yet():
    assert uses(Usage()) == set()


def test_allocation_counts_as_a_write():
    a = Key()
    assert uses(Usage(a, 3)) == {(a, 3)}


def test_latest_read_of_each_stream_is_kept():
    a, b, c = Key(), Key(), Key()
    usage = Usage(a, 1)
    for stream, number in [(a, 2), (b, 5), (a, 3), (c, 1), (b, 6)]:
        usage.add_read(stream, number)
    assert uses(usage) == {(a, 1), (a, 3), (b, 6), (c, 1)}


def test_write_forgets_what_it_is_ordered_behind():
    a, b, c = Key(), Key(), Key()
    usage = Usage(a, 1)
    usage.add_read(b, 5)
    usage.add_read(c, 6)
    usage.set_write(b, 7)
    assert uses(usage) == {(b, 7)}
    usage.add_read(a, 2)
    assert uses(usage) == {(b, 7), (a, 2)}


def test_dropped_buffer_leaves_one_note():
    notes = deque()
    usage = Usage(Key(), 1)
    buffer = Buffer(object(), 4096, 64, usage, notes=notes)
    assert not buffer.retained_on_use
    del buffer
    (note,) = notes
    assert (note.address, note.size_bytes, note.usage, note.owner) == (4096, 64, usage, None)


def test_explicit_free_is_the_only_free():
    notes = deque()
    buffer = Buffer(object(), 4096, 64, Usage(), notes=notes)
    buffer.free()
    buffer.free()
    assert buffer.is_freed
    del buffer
    assert len(notes) == 1


def test_memory_is_marked_before_its_note_can_be_found():
    """Another thread may deal with the note at once: from then on nobody may take the buffer for live."""

    class Notes(deque):
        def append(self, note):
            assert buffer.is_freed
            assert buffer.plain_on is None
            super().append(note)

    notes = Notes()
    buffer = Buffer(object(), 4096, 64, Usage(), notes=notes)
    buffer.free()
    (note,) = notes
    assert (note.address, note.size_bytes) == (4096, 64)


def test_borrowed_memory_is_never_freed():
    notes = deque()
    buffer = Buffer(object(), 4096, 64, Usage(), notes=notes, owner=object())
    assert buffer.retained_on_use
    del buffer
    assert not notes


def test_explicit_free_of_borrowed_memory_hands_its_owner_on():
    """Work in flight may still use the memory, so the owner is let go behind it."""
    notes, owner, usage = deque(), object(), Usage(Key(), 1)
    buffer = Buffer(object(), 4096, 64, usage, notes=notes, owner=owner)
    buffer.free()
    (note,) = notes
    assert (note.size_bytes, note.usage, note.owner) == (0, usage, owner)
    assert buffer.owner is None


def test_lent_memory_is_not_freed_under_its_holder():
    buffer = Buffer(object(), 4096, 64, Usage(), notes=deque())
    buffer.holders = {1}
    with pytest.raises(BufferError, match=r"in use by 1 other array\(s\)"):
        buffer.free()
    buffer.holders.clear()
    buffer.free()
    assert buffer.is_freed
