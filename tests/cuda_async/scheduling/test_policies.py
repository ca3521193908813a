"""Which stream an operation runs on."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import cuda_async as ca
from cuda_async.testing import checked_device


def streams_of(policy, count):
    return [policy.next_stream() for _ in range(count)]


def test_round_robin_takes_turns(device):
    first = streams_of(ca.StreamPoolRoundRobin(3, device=device), 6)
    assert first[:3] == first[3:]
    assert len(set(first)) == 3


def test_default_policy_has_four_streams(device):
    assert len(set(streams_of(device.policy, 12))) == 4


def test_single_stream_is_always_the_same(device):
    stream = device.create_stream()
    assert set(streams_of(ca.SingleStream(stream), 3)) == {stream}
    assert len(set(streams_of(ca.SingleStream(device=device), 3))) == 1


def test_least_loaded_avoids_busy_streams(stepped):
    policy = ca.LeastLoaded(3, device=stepped)
    busy = policy.next_stream()
    futures = [ca.zeros(4).start(ca.SingleStream(busy)) for _ in range(3)]
    assert busy not in streams_of(policy, 6)
    stepped.driver.advance_all()
    assert all(f.done for f in futures)
    assert busy in streams_of(policy, 3)


def test_priority_streams_use_the_devices_range(device):
    policy = ca.PriorityStreams(2, device=device)
    least, greatest = device.limits.stream_priorities
    assert {s.priority for s in streams_of(policy.high(), 4)} == {greatest}
    assert {s.priority for s in streams_of(policy, 4)} == {least}
    assert float(ca.ones(8).to_host().schedule(policy.high()).sync().sum()) == 8


def test_policy_of_another_device_within_a_chain(host, stepped):
    policy = ca.SingleStream(host.create_stream())
    with ca.use_device(stepped):
        for op in (ca.ones(3).schedule(policy).to_host(), ca.ones(3).schedule(policy).then(ca.copy)):
            with pytest.raises(
                ca.SchedulingError, match=r"a chain runs on one device: .* \.schedule\(\) at its end"
            ):
                op.sync()
        assert ca.ones(3).to_host().schedule(policy).sync().tolist() == [1, 1, 1]


def test_priority_outside_the_range_is_refused(device):
    with pytest.raises(ca.SchedulingError, match=r"stream priority is 7; .* takes -?\d+ \(first\) to 0"):
        device.create_stream(priority=7)
    with pytest.raises(TypeError, match="priority is an int, got 'high'"):
        device.create_stream(priority="high")
    with pytest.raises(TypeError, match=r"priority is an int, got array\(\[0, 0\]\)"):
        device.create_stream(priority=np.array([0, 0]))
    for name in (5, np.array([1, 2])):
        with pytest.raises(TypeError, match="a stream's name is a str, got"):
            device.create_stream(name=name)


def test_empty_pool_is_refused():
    with pytest.raises(ca.SchedulingError, match="at least 1, got 0"):
        ca.StreamPoolRoundRobin(0)


def test_use_policy_holds_in_this_context_only(device):
    stream = device.create_stream()
    seen = []

    def where():
        return ca.with_context(lambda ctx: ca.value(ctx.stream)).sync()

    with ca.use_policy(ca.SingleStream(stream)):
        assert where() is stream
        thread = threading.Thread(target=lambda: seen.append(where()))
        thread.start()
        thread.join()
    assert seen[0] is not stream
    assert where() is not stream


def test_schedule_chooses_for_the_whole_run(device):
    stream = device.create_stream()
    op = ca.with_context(lambda ctx: ca.value(ctx.stream)).schedule(ca.SingleStream(stream))
    assert op.sync() is stream


def test_policy_that_returns_rubbish_is_named(device):
    class Rubbish:
        def next_stream(self):
            return 7

    with pytest.raises(ca.SchedulingError, match=r"Rubbish\.next_stream\(\) returned int, expected a Stream"):
        ca.value(1).schedule(Rubbish()).sync()


class Runs:
    """A policy that runs operations, for each of which it would be asked."""

    def next_stream(self):
        return ca.zeros(4).sync()


@pytest.mark.parametrize("make", [lambda: ca.ones(4), lambda: ca.zip(ca.ones(4))], ids=["one", "several"])
def test_policy_that_runs_operations_is_refused(host, make):
    message = r"inside Runs\.next_stream\(\): a policy only chooses a stream"
    with ca.use_policy(Runs()), pytest.raises(ca.ReentrancyError, match=message):
        make().sync()
    with ca.use_policy(Runs()), pytest.raises(ca.ReentrancyError, match=message):
        make().start()


def test_context_that_was_not_entered(host):
    with pytest.raises(RuntimeError, match="not entered; write `with use_device"):
        ca.use_device(host).__exit__(None, None, None)


@pytest.mark.parametrize("name", ["use_device", "use_policy"])
def test_contexts_are_for_one_with(host, name):
    value = host if name == "use_device" else ca.SingleStream(host.create_stream())
    context = getattr(ca, name)(value)
    with context as given, pytest.raises(RuntimeError, match=rf"call {name}\(\) for each"), context:
        pass
    assert given is value
    with pytest.raises(RuntimeError, match=rf"call {name}\(\) for each"), context:
        pass
    assert context(lambda: 7)() == context(lambda: 7)() == 7  # a decorator, which makes one for each call


def test_closed_stream_is_refused(device):
    stream = device.create_stream()
    stream.close()
    stream.close()
    with pytest.raises(ca.ClosedError, match="is closed"):
        ca.value(1).sync_on(stream)


def test_pool_is_made_once_by_many_threads(device):
    policy = ca.StreamPoolRoundRobin(4, device=device)
    found = []
    barrier = threading.Barrier(8)

    def take():
        barrier.wait()
        found.append(policy.next_stream())

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 4


def test_the_inner_of_use_policy_and_use_device_counts(device):
    """A pool of one device outside does not win over a device that is named inside."""
    other = checked_device()
    policy = ca.SingleStream(other.create_stream())

    def where():
        return ca.with_context(lambda ctx: ca.value(ctx.stream)).sync()

    with ca.use_policy(policy):
        assert where() is policy.next_stream()
        with ca.use_device(device):
            assert where().device is device is ca.current_device()
            with ca.use_policy(policy):
                assert where() is policy.next_stream()
            assert where().device is device
        assert where() is policy.next_stream()
    assert where().device is device


@pytest.mark.parametrize("use", [ca.use_device, ca.use_policy])
def test_what_is_no_device_or_policy_is_refused_at_once(use):
    with pytest.raises(TypeError, match="got 3"):
        use(3)


def test_a_policy_counts_for_operands_on_its_device(device):
    """Which is not the current one. What is bound to the current one goes by that one's policy."""
    other = checked_device()
    stream = other.create_stream()
    there = ca.ones(4).sync_on(stream)
    here = ca.ones(4).sync()

    def where(tensor):
        return ca.copy(tensor).then_with_context(lambda ctx, _: ca.value(ctx.stream)).sync()

    with ca.use_policy(ca.SingleStream(stream)):
        assert where(there) is stream
        assert where(here).device is device
        both = ca.parallel(ca.copy(here), ca.copy(here)).sync()
        assert all(tensor.device is device for tensor in both)
        assert all(t.device is other for t in ca.parallel(ca.copy(there), ca.copy(there)).sync())
    assert where(there) is not stream
    assert where(there).device is other


@pytest.mark.parametrize(
    "make",
    [
        lambda device: ca.StreamPoolRoundRobin(2, device=device),
        lambda device: ca.SingleStream(device=device),
        lambda device: ca.LeastLoaded(2, device=device),
        lambda device: ca.PriorityStreams(2, device=device).high(),
    ],
    ids=["round robin", "single", "least loaded", "priorities"],
)
def test_pools_replace_streams_that_somebody_closed(device, make):
    policy = make(device)
    closed = policy.next_stream()
    closed.close()
    found = streams_of(policy, 8)
    assert closed not in found
    assert {stream.priority for stream in found} == {closed.priority}
    assert ca.ones(4).schedule(policy).to_host().sync().tolist() == [1.0] * 4


def test_a_pool_replaces_all_closed_streams_at_once(device):
    """Whoever finds one of them closed gets an open one, also where another thread was here first."""
    policy = ca.StreamPoolRoundRobin(2, device=device)
    first, second = streams_of(policy, 2)
    first.close()
    second.close()
    assert not any(stream._closed for stream in streams_of(policy, 2))
    for _ in range(2):
        assert not any(stream._closed for stream in policy._pool.renew())


def test_closed_streams_are_forgotten_by_least_loaded(device):
    policy = ca.LeastLoaded(2, device=device)
    for _ in range(20):
        policy.next_stream().close()
    policy.next_stream()
    assert len(policy._last_used) <= 3


def test_a_policy_does_not_depend_on_the_default_device(stepped):
    """Which may be lost; and a policy of a lost device does not keep operands on another from running."""
    other = checked_device()
    there = ca.SingleStream(other.create_stream())
    x = ca.ones(4).start(there).sync()
    lost = ca.SingleStream(stepped.create_stream())
    stepped.driver.fail_device(RuntimeError("unplugged"))
    with pytest.raises(ca.DeviceLostError):
        ca.ones(4).sync()
    with ca.use_policy(there):
        assert ca.ones(4).to_host().sync().tolist() == [1.0] * 4
    with ca.use_policy(lost):
        assert ca.copy(x).to_host().sync().tolist() == [1.0] * 4
        with pytest.raises(ca.DeviceLostError):
            ca.ones(4).sync()


def test_pools_and_single_streams_take_what_they_say(device):
    with pytest.raises(TypeError, match=r"SingleStream takes a Stream, got Device\(.*create_stream"):
        ca.SingleStream(device)
    for make in (ca.StreamPoolRoundRobin, ca.LeastLoaded, ca.SingleStream):
        with pytest.raises(TypeError, match=r"a stream pool is of a Device such as .*, got 'host:0'"):
            make(device="host:0")
