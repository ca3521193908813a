"""Every operation on a tensor waits for what another stream does with it, and what comes after waits for it."""

import gc

import numpy as np
import pytest

import cuda_async as ca
from cuda_async.ops import ExecutionContext

pytestmark = pytest.mark.usefixtures("without_workers")

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


@pytest.fixture
def tensor(make_tensor):
    return make_tensor(N)


def values(device, tensor):
    return device.driver.memory.view(tensor._address, tensor.nbytes).view("i4").tolist()


@pytest.mark.parametrize("name", [*READS, *WRITES])
def test_waits_for_an_earlier_write(stepped, streams, tensor, name, run_to_a_stop):
    first, second = streams[:2]
    upload(tensor).start(first)
    later = {**READS, **WRITES}[name](tensor).start(second)
    assert run_to_a_stop(second)
    stepped.driver.advance_all()
    later.result()
    if name == "copy onto itself":  # it reads first, and waits once more before it writes
        assert values(stepped, tensor) == [0, *range(N - 1)]


@pytest.mark.parametrize("name", WRITES)
def test_a_write_waits_for_an_earlier_read(stepped, streams, tensor, name, run_to_a_stop):
    first, second = streams[:2]
    ca.copy(tensor).start(first)
    WRITES[name](tensor).start(second)
    assert run_to_a_stop(second)
    stepped.driver.advance_all()


@pytest.mark.parametrize("name", [*READS, *WRITES])
def test_a_later_write_waits_for_it(stepped, streams, tensor, name, run_to_a_stop):
    first, second = streams[:2]
    {**READS, **WRITES}[name](tensor).start(second)
    ca.fill(tensor, 2).start(first)
    assert run_to_a_stop(first)
    stepped.driver.advance_all()


@pytest.mark.parametrize("name", WRITES)
def test_a_later_read_waits_for_a_write(stepped, streams, tensor, name, run_to_a_stop):
    first, second = streams[:2]
    WRITES[name](tensor).start(second)
    ca.copy(tensor).start(first)
    assert run_to_a_stop(first)
    stepped.driver.advance_all()


@pytest.mark.parametrize("name", MAKES)
def test_who_uses_what_it_makes_waits_for_it(stepped, streams, tensor, name, run_to_a_stop):
    first, second = streams[:2]
    made = []
    MAKES[name](tensor).then(lambda result: made.append(result) or ca.value(None)).start(second)
    ca.copy(made[0]).start(first)
    assert run_to_a_stop(first)
    stepped.driver.advance_all()


@pytest.mark.parametrize("name", MAKES)
def test_who_uses_what_is_made_in_two_numbers_waits_for_it(
    stepped, streams, tensor, name, monkeypatch, run_to_a_stop
):
    """Another thread closes the number of the stream between the allocation and the writing."""
    empty = ExecutionContext._empty

    def closed_behind(ctx, *args):
        made = empty(ctx, *args)
        with ctx.device._lock:
            ctx.stream._record()
        return made

    monkeypatch.setattr(ExecutionContext, "_empty", closed_behind)
    first, second = streams[:2]
    made = []
    upload(tensor).start(second)
    stepped.driver.advance_all()
    MAKES[name](tensor).then(lambda result: made.append(result) or ca.value(None)).start(second)
    monkeypatch.undo()
    ca.copy(made[0]).start(first)
    handle = second.next_stream().handle
    while stepped.driver.advance(handle):
        if not run_to_a_stop(first):
            break
    view = stepped.driver.memory.view(made[0]._address, made[0].nbytes)
    when_it_went_on = view.tobytes()
    stepped.driver.advance_all()
    assert view.tobytes() == when_it_went_on
    assert name == "zeros" or any(when_it_went_on)


def others_blocks(device):
    """Staging memory as another operation would take and fill it."""
    blocks = [device.pinned.take(4 * N) for _ in range(4)]
    arrays = [block.array((N,), np.dtype("i4")) for block in blocks]
    for array in arrays:
        array[:] = -1
    return blocks, arrays


@pytest.mark.parametrize("name", ["memcpy", "from_host"])
def test_bytes_on_their_way_to_the_device_are_kept(stepped, streams, tensor, name):
    first = streams[0]
    made = [tensor]
    array = np.arange(N, dtype="i4")
    op = upload(tensor) if name == "memcpy" else ca.from_host(array).map(lambda t: made.insert(0, t))
    op.start(first)
    blocks, _ = others_blocks(stepped)
    stepped.driver.advance_all()
    assert values(stepped, made[0]) == array.tolist()
    del blocks


def test_bytes_on_their_way_to_the_host_are_kept(stepped, streams, tensor):
    """Also where nobody wants them any more."""
    first = streams[0]
    future = tensor.to_host().start(first)
    del future
    gc.collect()
    blocks, arrays = others_blocks(stepped)
    stepped.driver.advance_all()
    assert all((array == -1).all() for array in arrays)
    del blocks
