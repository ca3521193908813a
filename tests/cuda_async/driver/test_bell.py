"""What threads wait for and ring: a thread that is interrupted in either keeps nobody else from it."""

from __future__ import annotations

import queue
import signal
import sys
import threading
import time

import pytest

from cuda_async.driver._bell import Bell, call_each


def test_ring_before_the_wait_counts_once():
    bell = Bell()
    assert not bell.is_rung
    for _ in range(3):
        bell.ring()
    assert bell.is_rung
    assert bell.wait()
    assert not bell.is_rung
    assert not bell.wait(0)
    assert not bell.wait(0.001)


def test_wait_without_a_time_does_not_take_what_is_raised_for_its_end():
    """A signal handler may raise what the queue inside says when its time is over."""
    bell = Bell()

    class Rings:
        def get(self):
            raise queue.Empty("of the handler")

    bell._rings = Rings()
    with pytest.raises(queue.Empty, match="of the handler"):
        bell.wait()


def test_ring_ends_a_wait():
    bell = Bell()
    heard = []
    thread = threading.Thread(target=lambda: heard.append(bell.wait(10)))
    thread.start()
    bell.ring()
    thread.join(10)
    assert heard == [True]


class Interrupt(Exception):
    pass


def interrupted_at(work):
    """Runs `work(n)` with an interrupt at its n-th place, for each n; yields behind each."""
    n = 0
    while True:
        n += 1
        left = n

        def at(frame, event, _):
            nonlocal left
            if event in ("call", "c_return"):
                left -= 1
                if left == 0:
                    sys.setprofile(None)
                    raise Interrupt

        before = sys.getprofile()
        sys.setprofile(at)
        try:
            work(n)
        except Interrupt:
            pass
        finally:
            sys.setprofile(before)
        if left > 0:
            return
        yield n


def test_interrupted_wait_leaves_it_to_be_rung():
    bell = Bell()

    def rings_and_waits(_):
        bell.ring()
        bell.wait(10)

    places = 0
    for _ in interrupted_at(rings_and_waits):
        places += 1
        ringing = threading.Thread(target=bell.ring, daemon=True)
        ringing.start()
        ringing.join(10)
        assert not ringing.is_alive()
        assert bell.wait(10)
    assert places > 3


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs signals")
def test_signal_ends_a_wait():
    def interrupt(*_):
        raise Interrupt

    bell = Bell()
    before = signal.signal(signal.SIGALRM, interrupt)
    began = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        with pytest.raises(Interrupt):
            bell.wait(10)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - began < 5
    bell.ring()
    assert bell.wait(10)


def test_interrupted_calls_go_on_with_who_is_left():
    called = [[] for _ in range(50)]
    callbacks = [[lambda found=found, i=i: found.append(i) for i in range(3)] for found in called]

    def calls(n):
        try:
            call_each(callbacks[n])
        finally:
            call_each(callbacks[n])

    places = list(interrupted_at(calls))
    assert len(places) > 6
    for n in places[1:]:  # the first is before all
        assert sorted(set(called[n])) == [0, 1, 2]
    assert called[places[-1] + 1] == [0, 1, 2]
