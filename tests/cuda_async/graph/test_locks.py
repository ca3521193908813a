"""What graphs change of devices, streams and memory is changed under the locks of those."""

from __future__ import annotations

import gc

import cuda_async as ca
from cuda_async.memory import Usage


def test_what_was_dropped_is_destroyed_under_the_lock(host, monkeypatch):
    """By who makes a graph, or an event, next."""
    x, stream, held = ca.ones(4).sync(), host.create_stream(), []
    for name in ("graph_destroy", "event_destroy"):
        destroy = getattr(host.driver, name)

        def look(handle, destroy=destroy):
            held.append(host._lock.locked())
            destroy(handle)

        monkeypatch.setattr(host.driver, name, look)
    ca.fill(x, 1.0).graph().sync().close()
    gc.collect()
    kept = ca.fill(x, 2.0).graph().sync()
    stream.record().synchronize()
    gc.collect()
    stream.record().synchronize()
    assert held == [True, True]
    kept.close()


def test_who_writes_memory_is_noted_under_the_lock(host, monkeypatch):
    slot, held = Usage.written_by, []

    def write(usage, value):
        held.append(host._lock.locked())
        slot.__set__(usage, value)

    monkeypatch.setattr(Usage, "written_by", property(slot.__get__, write))
    ca.fill(ca.ones(4).sync(), 1.0).graph().sync()
    assert held == [True]


def test_number_of_the_stream_ends_under_the_lock_as_a_graph_is_recorded(stepped, monkeypatch):
    """Before its memory is allocated, and behind that."""
    stream, held = stepped.create_stream(), []
    record = ca.Stream._record

    def look(self):
        held.append(stepped._lock.locked())
        return record(self)

    ca.ones(4).start(ca.SingleStream(stream))
    with stepped._lock:
        stream._dirty = True
    monkeypatch.setattr(ca.Stream, "_record", look)
    ca.full(4, 2.0).graph_on(stream).sync()
    assert held[:2] == [True, True]
