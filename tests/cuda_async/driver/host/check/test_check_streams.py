"""The checking mode between streams, graphs and the program: what is a race, and what is not."""

from __future__ import annotations

import numpy as np
import pytest

from cuda_async.driver.graph import ChildNode, CopyNode, EmptyNode, FillNode
from cuda_async.driver.host import HostDriver
from cuda_async.driver.host.check import graph_steps, process_checker
from cuda_async.errors import CheckError, MemoryFault

BYTE = b"\x07"
SIZE = 4096


@pytest.fixture
def driver():
    """A stepped device that collects what it finds."""
    process_checker().take_reports()
    driver = HostDriver(stepped=True, memory_bytes=1 << 20, check="collect")
    yield driver
    driver.close()
    process_checker().take_reports()


def found() -> list[str]:
    return [report.kind for report in process_checker().take_reports()]


def filled(driver, stream) -> int:
    address = driver.memory_alloc_async(SIZE, stream)
    driver.fill_async(address, BYTE, SIZE, stream)
    return address


def ordered(driver, first, second) -> None:
    event = driver.event_create()
    driver.event_record(event, first)
    driver.stream_wait_event(second, event)


def test_unordered_write_and_read(driver):
    one, two = driver.stream_create(), driver.stream_create()
    source, target = filled(driver, one), filled(driver, two)
    driver.advance_all()
    driver.stream_synchronize(one)
    driver.stream_synchronize(two)
    driver.fill_async(source, BYTE, SIZE, one)
    driver.copy_device_to_device_async(target, source, SIZE, two)
    driver.advance_all()
    (report,) = process_checker().take_reports()
    assert report.kind == "race"
    assert (report.first.work, report.second.work) == ("fill", "copy")
    assert report.first.stream != report.second.stream
    assert "test_check_streams.py" in report.first.enqueued
    assert "record an event" in report.advice


@pytest.mark.parametrize("how", ["event", "query", "synchronize", "same stream", "third stream"])
def test_ordered_write_and_read(driver, how):
    one = driver.stream_create()
    two = one if how == "same stream" else driver.stream_create()
    source, target = filled(driver, one), filled(driver, two)
    match how:
        case "event":
            ordered(driver, one, two)
        case "query":
            event = driver.event_create()
            driver.event_record(event, one)
            driver.advance_all()
            assert driver.event_query(event)
        case "synchronize":
            driver.advance_all()
            driver.stream_synchronize(one)
        case "third stream":
            three = driver.stream_create()
            ordered(driver, one, three)
            ordered(driver, three, two)
    driver.copy_device_to_device_async(target, source, SIZE, two)
    driver.advance_all()
    assert found() == []


def test_done_but_not_looked_at_is_no_order(driver):
    """That a stream was faster this time says nothing about the next."""
    one, two = driver.stream_create(), driver.stream_create()
    source, target = filled(driver, one), filled(driver, two)
    event = driver.event_create()
    driver.event_record(event, one)
    driver.advance_all()
    driver.copy_device_to_device_async(target, source, SIZE, two)
    driver.advance_all()
    assert "race" in found()


def test_reads_need_no_order_among_each_other(driver):
    one, two = driver.stream_create(), driver.stream_create()
    source = filled(driver, one)
    ordered(driver, one, two)
    targets = [filled(driver, stream) for stream in (one, two)]
    for stream, target in zip((one, two), targets, strict=True):
        driver.copy_device_to_device_async(target, source, SIZE, stream)
    driver.advance_all()
    assert found() == []


@pytest.mark.parametrize("waits_for", [0, 1, 2])
def test_write_waits_for_every_read(driver, waits_for):
    streams = [driver.stream_create() for _ in range(3)]
    source = filled(driver, streams[0])
    for stream in streams[1:]:
        ordered(driver, streams[0], stream)
        driver.copy_device_to_device_async(filled(driver, stream), source, SIZE, stream)
    for stream in streams[1 : 1 + waits_for]:
        ordered(driver, stream, streams[0])
    driver.fill_async(source, BYTE, SIZE, streams[0])
    driver.advance_all()
    assert found() == (["race"] if waits_for < 2 else [])


def test_only_the_bytes_that_overlap_conflict(driver):
    one, two = driver.stream_create(), driver.stream_create()
    source = filled(driver, one)
    ordered(driver, one, two)
    driver.fill_async(source, BYTE, 100, one)
    driver.fill_async(source + 100, BYTE, 100, two)
    driver.advance_all()
    assert found() == []
    driver.fill_async(source + 199, BYTE, 2, one)
    driver.advance_all()
    (report,) = process_checker().take_reports()
    assert report.address == source + 199


def test_strided_copies_conflict_where_they_meet(driver):
    one, two = driver.stream_create(), driver.stream_create()
    source = filled(driver, one)
    target = filled(driver, one)
    ordered(driver, one, two)
    for stream, column in ((one, 0), (two, 4)):
        driver.copy_strided_async(target + column, (64, 8), source, (64, 8), (8, 4), 4, stream)
    driver.advance_all()
    assert found() == []
    driver.copy_strided_async(target + 8, (64, 8), source, (64, 8), (8, 4), 4, two)
    driver.advance_all()
    assert found() == ["race"]


def test_free_while_in_use(driver):
    one, two = driver.stream_create(), driver.stream_create()
    memory = filled(driver, one)
    ordered(driver, one, two)
    target = filled(driver, two)
    driver.copy_device_to_device_async(target, memory, SIZE, two)
    while driver.pending(two):
        driver.advance(one)
        driver.advance(two)
    driver.memory_free_async(memory, one)
    driver.advance_all()
    (report,) = process_checker().take_reports()
    assert report.second.access == "free"
    assert "last use" in report.advice


def test_use_before_the_allocation_is_ordered(driver):
    one, two = driver.stream_create(), driver.stream_create()
    memory = driver.memory_alloc_async(SIZE, one)
    driver.advance_all()
    driver.fill_async(memory, BYTE, SIZE, two)
    driver.advance_all()
    assert found() == ["race"]


def test_memory_that_is_given_out_again(driver):
    """The pool orders what had the memory before and what has it now."""
    one, two = driver.stream_create(), driver.stream_create()
    big = driver.memory_alloc_async(900 << 10, one)
    driver.fill_async(big, BYTE, 900 << 10, one)
    driver.memory_free_async(big, one)
    again = driver.memory_alloc_async(900 << 10, two)
    assert again == big
    driver.fill_async(again, BYTE, 900 << 10, two)
    driver.advance_all()
    assert found() == []


def test_read_of_what_was_never_written(driver):
    stream = driver.stream_create()
    source, target = driver.memory_alloc_async(SIZE, stream), driver.memory_alloc_async(SIZE, stream)
    driver.fill_async(source, BYTE, SIZE - 1, stream)
    driver.copy_device_to_device_async(target, source, SIZE - 1, stream)
    driver.advance_all()
    assert found() == []
    driver.copy_device_to_device_async(target, source, SIZE, stream)
    driver.advance_all()
    (report,) = process_checker().take_reports()
    assert report.kind == "never written"
    assert str(report.first).startswith("allocation, on stream ")
    assert str(report.second).startswith("read by copy, on stream ")
    assert report.address == source + SIZE - 1


def look_and_wait(driver, address, stream):
    driver.memory.view(address, SIZE)
    driver.stream_synchronize(stream)


def test_program_looks_too_early():
    """Whichever of the two comes first this time."""
    driver = HostDriver(memory_bytes=1 << 20, check="raise")
    stream = driver.stream_create()
    source = filled(driver, stream)
    driver.stream_synchronize(stream)
    driver.memory.view(source, SIZE)
    assert found() == []
    driver.fill_async(source, BYTE, SIZE, stream)
    with pytest.raises(CheckError) as caught:
        look_and_wait(driver, source, stream)
    (report,) = caught.value.reports
    assert {report.first.work, report.second.work} == {"fill", "the program"}
    driver.close()


def test_freed_memory_says_who_freed_it(driver):
    stream = driver.stream_create()
    memory = filled(driver, stream)
    driver.memory_free_async(memory, stream)
    driver.fill_async(memory, BYTE, SIZE, stream)
    driver.advance_all()
    with pytest.raises(MemoryFault, match=r"freed.*what freed it: free, on stream.*test_check_streams\.py"):
        driver.stream_synchronize(stream)
    (report,) = process_checker().take_reports()
    assert report.kind == "freed"


def test_what_a_closed_device_freed_is_not_taken_for_the_next_ones():
    """The next one may get the same addresses."""
    for _ in range(2):
        driver = HostDriver(stepped=True, memory_bytes=1 << 20, check="collect")
        stream = driver.stream_create()
        address = driver.memory_alloc_async(SIZE, stream)
        checker = process_checker()
        driver.memory_free_async(address, stream)
        driver.advance_all()
        base, end = driver.memory.base, driver.memory.base + driver.memory.size_bytes
        assert [freed for freed in checker._freed if base <= freed[0] < end]
        driver.close()
        assert not [freed for freed in checker._freed if base <= freed[0] < end]


def test_work_with_findings_fails_where_it_is_awaited():
    driver = HostDriver(stepped=True, memory_bytes=1 << 20, check="raise")
    stream = driver.stream_create()
    source, target = driver.memory_alloc_async(SIZE, stream), driver.memory_alloc_async(SIZE, stream)
    driver.copy_device_to_device_async(target, source, SIZE, stream)
    event = driver.event_create()
    driver.event_record(event, stream)
    driver.advance_all()
    with pytest.raises(CheckError, match="never written") as caught:
        driver.event_query(event)
    assert caught.value.reports[0].kind == "never written"
    driver.close()


def test_leaks_name_the_allocation(driver):
    stream = driver.stream_create()
    kept, dropped = filled(driver, stream), filled(driver, stream)
    driver.memory_free_async(dropped, stream)
    driver.advance_all()
    (leak,) = driver.leaks()
    assert (leak.kind, leak.address) == ("leak", kept)
    assert "test_check_streams.py" in leak.first.enqueued


# ---------------------------------------------------------------------------------- graphs


def test_branches_of_a_graph(driver):
    stream = driver.stream_create()
    a, b = filled(driver, stream), filled(driver, stream)
    first = FillNode(dst=a, pattern=BYTE, count=SIZE)
    left = CopyNode(dst=b, src=a, size_bytes=100, dependencies=(first,))
    right = CopyNode(dst=b + 100, src=a, size_bytes=100, dependencies=(first,))
    last = FillNode(dst=b, pattern=BYTE, count=SIZE, dependencies=(left, right))
    graph = driver.graph_create([first, left, right, last])
    driver.graph_launch(graph, stream)
    driver.graph_launch(graph, stream)
    driver.fill_async(a, BYTE, SIZE, stream)
    driver.advance_all()
    assert found() == []


def test_branches_that_touch_the_same(driver):
    stream = driver.stream_create()
    a, b = filled(driver, stream), filled(driver, stream)
    first = FillNode(dst=a, pattern=BYTE, count=SIZE)
    left = CopyNode(dst=b, src=a, size_bytes=101, dependencies=(first,))
    right = CopyNode(dst=b + 100, src=a, size_bytes=100, dependencies=(first,))
    graph = driver.graph_create([first, left, right])
    driver.graph_launch(graph, stream)
    driver.advance_all()
    (report,) = process_checker().take_reports()
    assert report.kind == "race"
    assert "of a graph" in report.second.work
    assert "edge" in report.advice


def test_graph_is_ordered_with_its_streams_neighbours(driver):
    one, two = driver.stream_create(), driver.stream_create()
    a = filled(driver, one)
    node = FillNode(dst=a, pattern=BYTE, count=SIZE)
    graph = driver.graph_create([node])
    driver.graph_launch(graph, one)
    ordered(driver, one, two)
    driver.fill_async(a, BYTE, SIZE, two)
    driver.advance_all()
    assert found() == []
    driver.graph_launch(graph, one)
    driver.advance_all()
    assert found() == ["race"]


def test_steps_of_nested_graphs():
    a = FillNode(dst=1, pattern=BYTE, count=1)
    inner = [FillNode(dst=2, pattern=BYTE, count=1)]
    inner.append(FillNode(dst=3, pattern=BYTE, count=1, dependencies=(inner[0],)))
    child = ChildNode(nodes=inner, dependencies=(a,))
    empty = EmptyNode(dependencies=(a,))
    b = FillNode(dst=4, pattern=BYTE, count=1, dependencies=(child, empty))
    other = FillNode(dst=5, pattern=BYTE, count=1, dependencies=(empty,))
    steps = graph_steps([a, child, empty, b, other])
    assert [(s.branch, s.place) for s in steps] == [(0, 1), (0, 2), (0, 3), (0, 4), (1, 1)]
    assert steps[3].known == {0: 3}
    assert steps[4].known == {0: 1}


def test_mode_is_off_by_default(monkeypatch):
    monkeypatch.delenv("CUDA_ASYNC_HOST_CHECK", raising=False)
    driver = HostDriver(stepped=True, memory_bytes=1 << 20)
    assert driver.checker is None
    stream = driver.stream_create()
    address = driver.memory_alloc_async(SIZE, stream)
    driver.copy_device_to_device_async(address, address, SIZE, stream)
    driver.advance_all()
    driver.stream_synchronize(stream)
    assert driver.leaks() == []
    assert not np.any(driver.memory.view(address, SIZE))
    driver.close()


def test_what_no_memory_remembers_is_forgotten(driver):
    """And nothing else: races are found across the places where it happens."""
    checker = driver.checker
    one, two = driver.stream_create(), driver.stream_create()
    source, kept = filled(driver, one), filled(driver, one)
    ordered(driver, one, two)
    driver.advance_all()
    checker._forget_at = 0  # now, at the next access
    for _ in range(50):
        driver.fill_async(source, BYTE, SIZE, one)
        driver.advance_all()
    checker._forget_at = 0
    driver.fill_async(source, BYTE, SIZE, one)
    driver.advance_all()
    streams = {driver._streams[stream].track.stream for stream in (one, two)}
    mine = [
        access for access in checker._accesses if access.work is not None and access.work.stream in streams
    ]
    assert len(mine) < 10
    driver.copy_device_to_device_async(source, kept, SIZE, two)
    driver.advance_all()
    (report,) = process_checker().take_reports()
    assert report.first.work == "fill"


@pytest.mark.parametrize("how", ["destroyed", "device closed"])
def test_clocks_stay_short(how):
    """Streams that come and go leave nothing behind in the clocks of what follows."""
    checker = process_checker()

    def once() -> None:
        driver = HostDriver(stepped=True, memory_bytes=1 << 20, check="collect")
        stream = driver.stream_create()
        driver.memory_free_async(filled(driver, stream), stream)
        driver.advance_all()
        if how == "destroyed":
            driver.stream_synchronize(stream)
            driver.stream_destroy(stream)
        driver.close()

    once()
    before = checker._actors
    for _ in range(20):
        once()
    assert checker._actors == before


@pytest.mark.parametrize("known", [True, False], ids=["all is known", "with work unknown"])
def test_races_of_streams_that_follow_closed_ones(driver, known):
    closed, other = driver.stream_create(), driver.stream_create()
    memory = filled(driver, other)
    driver.advance_all()
    driver.stream_synchronize(other)
    driver.fill_async(memory, BYTE, SIZE, closed)
    driver.advance_all()
    if known:
        driver.stream_synchronize(closed)
    driver.stream_destroy(closed)
    new = driver.stream_create()
    driver.fill_async(memory, BYTE, SIZE, new)
    driver.advance_all()
    assert found() == ([] if known else ["race"])
    driver.stream_synchronize(new)
    driver.fill_async(memory, BYTE, SIZE, new)
    driver.fill_async(memory, BYTE, SIZE, other)
    driver.advance_all()
    assert found() == ["race"]
