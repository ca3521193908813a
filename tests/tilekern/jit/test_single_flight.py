"""Values are made once, by one thread at a time, and by the next one where that was interrupted."""

from __future__ import annotations

import contextlib
import sys
import threading

import pytest

from cuda_async.scheduling import WaitElsewhere, waiting_elsewhere
from tilekern.jit import _single_flight
from tilekern.jit._single_flight import SingleFlight

FILES = {_single_flight.__file__, contextlib.__file__, threading.__file__, __file__}


class Interrupter:
    """Raises where the interpreter looks for signals, in the module or what it calls, at the n-th such place."""

    def __init__(self, n, error):
        self.left = n
        self.error = error

    def __call__(self, frame, event, _):
        if event in ("call", "c_return") and frame.f_code.co_filename in FILES:
            while frame is not None and frame.f_code.co_filename != _single_flight.__file__:
                frame = frame.f_back
            if frame is not None:
                self.left -= 1
                if self.left == 0:
                    sys.setprofile(None)
                    raise self.error

    @contextlib.contextmanager
    def at_work(self):
        before = sys.getprofile()
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(before)


def in_time(work):
    found = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    thread.join(10)
    assert found, "the other thread hangs"
    return found[0]


def ask_elsewhere(flights, told):
    """Ask as work on a worker thread does, which is put off while another one makes the value."""
    with waiting_elsewhere(True):
        try:
            flights.get("key", int)
        except WaitElsewhere as waiting:
            waiting.subscribe(lambda: told.append(1))


ERRORS = [KeyboardInterrupt, TimeoutError]


@pytest.mark.parametrize("error", ERRORS)
def test_interrupted_making_is_taken_over(error):
    n = 0
    while True:
        n += 1
        flights, told = SingleFlight(), []

        def make(flights=flights, told=told):
            ask_elsewhere(flights, told)
            return "made"

        interrupter = Interrupter(n, error)
        try:
            with interrupter.at_work():
                assert flights.get("key", make) == "made"
        except error:
            pass
        if interrupter.left > 0:
            break
        assert in_time(lambda flights=flights: flights.get("key", lambda: "made")) == "made"
        assert not told or told in ([1], [1, 1])
    assert n > 15
    assert told == [1]


@pytest.mark.parametrize("error", ERRORS)
def test_who_was_put_off_is_told_wherever_the_making_is_interrupted(error):
    n = 0
    while True:
        n += 1
        flights, told = SingleFlight(), []
        interrupter = Interrupter(n, error)

        def make(flights=flights, told=told, interrupter=interrupter):
            thread = threading.Thread(target=ask_elsewhere, args=(flights, told))
            thread.start()
            thread.join()
            sys.setprofile(interrupter)
            return "made"

        before = sys.getprofile()
        try:
            flights.get("key", make)
        except error:
            pass
        finally:
            sys.setprofile(before)
        assert told in ([1], [1, 1])
        if interrupter.left > 0:
            break
    assert n > 8


@pytest.mark.parametrize("error", ERRORS)
def test_interrupted_wait_holds_up_nobody(error):
    n = 0
    while True:
        n += 1
        flights, begun, gate = SingleFlight(), threading.Event(), threading.Event()

        def make(begun=begun, gate=gate):
            begun.set()
            assert gate.wait(10)
            return "made"

        found = []
        threads = [
            threading.Thread(
                target=lambda flights=flights, found=found, make=make: found.append(flights.get("key", make)),
                daemon=True,
            )
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        assert begun.wait(10)
        release = threading.Timer(0.01, gate.set)
        release.start()
        interrupter = Interrupter(n, error)
        try:
            with interrupter.at_work():
                assert flights.get("key", make) == "made"
        except error:
            pass
        for thread in threads:
            thread.join(10)
        assert found == ["made"] * 2
        release.join()
        if interrupter.left > 0:
            break
    assert n > 5


def test_failure_is_the_makers_alone():
    flights, begun, gate = SingleFlight(), threading.Event(), threading.Event()

    def fails():
        begun.set()
        assert gate.wait(10)
        raise ZeroDivisionError

    def first():
        with pytest.raises(ZeroDivisionError):
            flights.get("key", fails)
        return True

    found = []
    threads = [threading.Thread(target=lambda: found.append(first()))]
    threads[0].start()
    assert begun.wait(10)
    made = []
    threads += [
        threading.Thread(target=lambda: found.append(flights.get("key", lambda: made.append(1) or 7)))
        for _ in range(3)
    ]
    for thread in threads[1:]:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join(10)
    assert sorted(found) == [True, 7, 7, 7]
    assert made == [1]
    assert not flights._making
