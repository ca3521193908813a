"""Every operation on a tensor waits for what another stream does with it, and what comes after waits for it."""

import numpy as np
import pytest

import cuda_async as ca
from cuda_async.driver._inline import set_runner

N = 8


def strided(tensor):
    return tensor[::2]


def upload(tensor):
    return ca.memcpy(tensor, np.arange(tensor.size, dtype="i4"))


READS = {
    "copy": ca.copy,
    "copy of a strided one": lambda t: ca.copy(strided(t)),
    "convert": lambda t: ca.astype(t, "f4"),
    "convert a strided one": lambda t: ca.astype(strided(t), "f4"),
    "to the host": lambda t: t.to_host(),
    "a strided one to the host": lambda t: strided(t).to_host(),
}
WRITES = {
    "fill": lambda t: ca.fill(t, 5),
    "fill a strided one": lambda t: ca.fill(strided(t), 5),
    "from the host": upload,
    "a strided one from the host": lambda t: upload(strided(t)),
    "copy onto itself": lambda t: ca.memcpy(t[1:], t[:-1]),
}
MAKES = {
    "zeros": lambda t: ca.zeros(N, "i4"),
    "full": lambda t: ca.full(N, 3, "i4"),
    "from_host": lambda t: ca.from_host(np.arange(N, dtype="i4")),
    **{name: READS[name] for name in list(READS)[:4]},
}


class AtOnce:
    """Runs what worker threads would: all is enqueued when `start` returns."""

    def defer(self, work):
        work()

    def wait_until(self, condition):
        assert condition()


@pytest.fixture(autouse=True)
def without_workers():
    before = set_runner(AtOnce())
    yield
    set_runner(before)


@pytest.fixture
def streams(stepped):
    return [ca.SingleStream(stepped.create_stream()) for _ in range(2)]


@pytest.fixture
def tensor(stepped, streams):
    made = ca.zeros(N, "i4").start(streams[0])
    stepped.driver.advance_all()
    return made.result()


def run_to_a_stop(driver, policy):
    """Whether a stream comes to a wait for another one."""
    handle = policy.next_stream().handle
    while driver.advance(handle):
        pass
    return driver.is_blocked(handle)


@pytest.mark.parametrize("name", [*READS, *WRITES])
def test_waits_for_an_earlier_write(stepped, streams, tensor, name):
    first, second = streams
    ca.fill(tensor, 1).start(first)
    later = {**READS, **WRITES}[name](tensor).start(second)
    assert run_to_a_stop(stepped.driver, second)
    stepped.driver.advance_all()
    later.result()


@pytest.mark.parametrize("name", WRITES)
def test_a_write_waits_for_an_earlier_read(stepped, streams, tensor, name):
    first, second = streams
    ca.copy(tensor).start(first)
    WRITES[name](tensor).start(second)
    assert run_to_a_stop(stepped.driver, second)
    stepped.driver.advance_all()


@pytest.mark.parametrize("name", [*READS, *WRITES])
def test_a_later_write_waits_for_it(stepped, streams, tensor, name):
    first, second = streams
    {**READS, **WRITES}[name](tensor).start(second)
    ca.fill(tensor, 2).start(first)
    assert run_to_a_stop(stepped.driver, first)
    stepped.driver.advance_all()


@pytest.mark.parametrize("name", WRITES)
def test_a_later_read_waits_for_a_write(stepped, streams, tensor, name):
    first, second = streams
    WRITES[name](tensor).start(second)
    ca.copy(tensor).start(first)
    assert run_to_a_stop(stepped.driver, first)
    stepped.driver.advance_all()


@pytest.mark.parametrize("name", MAKES)
def test_who_uses_what_it_makes_waits_for_it(stepped, streams, tensor, name):
    first, second = streams
    made = []
    MAKES[name](tensor).then(lambda result: made.append(result) or ca.value(None)).start(second)
    ca.copy(made[0]).start(first)
    assert run_to_a_stop(stepped.driver, first)
    stepped.driver.advance_all()


@pytest.mark.parametrize("name", ["to the host", "a strided one to the host"])
def test_staged_bytes_are_kept(stepped, streams, tensor, name):
    """What is on its way from or to the host stays until it is there."""
    first, _ = streams
    value = np.arange(N, dtype="i4")
    up = ca.memcpy(tensor, value).then(lambda t: READS[name](t)).start(first)
    for _ in range(20):
        stepped.pinned.take(4 * N)
    stepped.driver.advance_all()
    np.testing.assert_array_equal(up.result(), value if name == "to the host" else value[::2])
