"""Streams of a stepped device, and running them to where they wait."""

import pytest

import cuda_async as ca
from cuda_async.driver._inline import set_runner


class AtOnce:
    """Runs what worker threads would: all is enqueued when `start` returns."""

    def defer(self, work):
        work()

    def wait_until(self, condition):
        assert condition()


@pytest.fixture
def without_workers():
    before = set_runner(AtOnce())
    yield
    set_runner(before)


@pytest.fixture
def streams(stepped):
    """Four policies of one stream each, of the stepped device."""
    return [ca.SingleStream(stepped.create_stream()) for _ in range(4)]


@pytest.fixture
def make_tensor(stepped, streams):
    """`make_tensor(n)`: n zeros that the device is done with."""

    def make(size):
        made = ca.zeros(size, "i4").start(streams[0])
        stepped.driver.advance_all()
        return made.result()

    return make


@pytest.fixture
def run_to_a_stop(stepped):
    """Runs a policy's one stream as far as it goes; tells whether it waits for another one then."""

    def run(policy):
        handle = policy.next_stream().handle
        while stepped.driver.advance(handle):
            pass
        return stepped.driver.is_blocked(handle)

    return run
