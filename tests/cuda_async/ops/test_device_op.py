"""Building and composing operations: laziness, single use, values, errors."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import cuda_async as ca


def test_building_touches_no_device(stepped):
    op = ca.zip(ca.zeros((4,)), ca.full(3, 1.5)).map(lambda pair: pair[1]).to_host()
    assert op is not None
    assert not stepped.driver.calls


def test_sync_returns_value(device):
    assert ca.value(42).sync() == 42


def test_map_changes_value(device):
    assert ca.value(20).map(lambda x: x + 1).map(str).sync() == "21"


def test_then_continues_with_returned_op(device):
    assert ca.value(2).then(lambda x: ca.full(x, 3.0).to_host()).sync().tolist() == [3.0, 3.0]


def test_then_refuses_plain_value(device):
    with pytest.raises(TypeError, match=r"must return a DeviceOp.*use \.map\(\)"):
        ca.value(1).then(lambda x: x).sync()


def test_map_refuses_device_op(device):
    with pytest.raises(TypeError, match=r"would never run; use \.then\(\)"):
        ca.value(1).map(ca.value).sync()


def test_inspect_passes_value_on(device):
    seen = []
    assert ca.value(5).inspect(seen.append).sync() == 5
    assert seen == [5]


def test_with_context_sees_stream_and_device(device):
    stream = device.create_stream()
    assert ca.with_context(lambda ctx: ca.value((ctx.device, ctx.stream))).sync_on(stream) == (device, stream)


def test_then_with_context_gets_both(device):
    result = ca.value(7).then_with_context(lambda ctx, x: ca.value((ctx.device is device, x))).sync()
    assert result == (True, 7)


@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_zip_yields_tuple_in_order(device, count):
    assert ca.zip(*(ca.value(i) for i in range(count))).sync() == tuple(range(count))


def test_collect_yields_list(device):
    assert ca.collect(ca.value(i) for i in range(3)).sync() == [0, 1, 2]
    assert ca.collect([]).sync() == []


def test_zip_refuses_plain_value():
    with pytest.raises(TypeError, match=r"expected a DeviceOp, got int; wrap a plain value with value"):
        ca.zip(ca.value(1), 2)


def test_first_last_and_index(device):
    assert ca.zip(ca.value("a"), ca.value("b"), ca.value("c")).first().sync() == "a"
    assert ca.zip(ca.value("a"), ca.value("b"), ca.value("c")).last().sync() == "c"
    assert ca.zip(ca.value("a"), ca.value("b"), ca.value("c"))[1].sync() == "b"


def test_op_is_not_iterable():
    with pytest.raises(TypeError, match="not iterable"):
        iter(ca.value((1, 2)))


def test_running_consumes(device):
    op = ca.value(1)
    op.sync()
    with pytest.raises(ca.ConsumedError, match=r"\.shared\(\)"):
        op.sync()


def test_composing_consumes(device):
    op = ca.value(1)
    op.map(str)
    for use in (lambda: op.sync(), lambda: op.then(ca.value), lambda: ca.zip(op), lambda: op.start()):
        with pytest.raises(ca.ConsumedError):
            use()


def test_zip_with_itself_is_refused():
    op = ca.value(1)
    with pytest.raises(ca.ConsumedError):
        ca.zip(op, op)


def test_callback_may_not_return_used_op(device):
    used = ca.value(1)
    used.sync()
    with pytest.raises(ca.ConsumedError):
        ca.value(0).then(lambda _: used).sync()


def test_long_chain_needs_no_recursion(device):
    op = ca.value(0)
    for _ in range(20_000):
        op = op.then(lambda x: ca.value(x + 1))
    assert op.sync() == 20_000


def test_nested_thens_need_no_recursion(device):
    def count(x):
        return ca.value(x) if x == 5000 else ca.value(x + 1).then(count)

    assert ca.value(0).then(count).sync() == 5000


def test_first_error_stops_chain_and_keeps_traceback(device):
    later = []

    def user_function(_):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as info:
        ca.value(1).then(user_function).map(later.append).sync()
    assert later == []
    assert "user_function" in [entry.name for entry in info.traceback]


def test_error_in_zip_stops_later_operands(device):
    ran = []
    op = ca.zip(
        ca.value(1).inspect(ran.append),
        ca.value(2).map(lambda _: 1 / 0),
        ca.value(3).inspect(ran.append),
    )
    with pytest.raises(ZeroDivisionError):
        op.sync()
    assert ran == [1]


def test_custom_op_prepares_once_then_executes(device):
    log = []

    class Doubled(ca.DeviceOp):
        def __init__(self, tensor):
            self.tensor = tensor

        def prepare(self, ctx):
            log.append("prepare")

        def execute(self, ctx):
            log.append("execute")
            assert ctx.read(self.tensor) > 0
            return self.tensor

    tensor = ca.ones(4).sync()
    assert Doubled(tensor).sync() is tensor
    assert log == ["prepare", "execute"]


def test_error_in_prepare_comes_out(device):
    class Broken(ca.DeviceOp):
        def prepare(self, ctx):
            raise OSError("no file")

        def execute(self, ctx):
            raise AssertionError("not reached")

    with pytest.raises(OSError, match="no file"):
        ca.value(1).then(lambda _: Broken()).sync()


def test_op_without_execute_says_so(device):
    class Empty(ca.DeviceOp):
        pass

    with pytest.raises(TypeError, match=r"Empty does not define execute\(ctx\)"):
        Empty().sync()


def test_method_on_wrong_value_names_it(device):
    with pytest.raises(TypeError, match=r"\.reshape\(\) was asked of an operation that yields a tuple of 2"):
        ca.zip(ca.value(1), ca.value(2)).reshape(2).sync()


def test_host_data_is_there_before_callbacks(device):
    """A chain that goes on after to_host() waits for the bytes."""
    expected = float(np.arange(300_000, dtype=np.float64).sum())
    op = ca.from_host(np.arange(300_000, dtype=np.float64)).to_host().map(lambda a: float(a.sum()))
    assert op.sync() == expected


def test_host_data_in_zip_is_there_before_callbacks(device):
    op = ca.zip(ca.full(100_000, 2.0).to_host(), ca.full(10, 3.0).to_host()).map(
        lambda pair: (float(pair[0].sum()), float(pair[1].sum()))
    )
    assert op.sync() == (200_000.0, 30.0)


def test_unsupported_instruction_is_refused_before_anything_is_enqueued(stepped):
    ptx = """.version 8.0
.target sm_80
.address_size 64
.visible .entry textured(.param .u64 out)
{
  .reg .f32 %f<5>; .reg .s32 %r<2>; .reg .u64 %t;
  tex.1d.v4.f32.s32 {%f1,%f2,%f3,%f4}, [%t, {%r1}];
  ret;
}
"""
    function = ca.Module.from_ptx(ptx).function("textured")
    function.load(stepped)
    stream = stepped.policy.next_stream()
    before = stepped.driver.pending()
    with pytest.raises(ca.CompileError, match=r"line 7 of PTX: .*tex\.1d"):
        function.launch(1, 1, np.uint64(0)).sync_on(stream)
    assert stepped.driver.pending() == before


def test_what_a_chain_is_made_of_has_no_dict():
    """A `__dict__` of each would cost a tenth of a launch."""
    op = ca.value(1)
    assert vars(op)  # as what users derive
    assert not hasattr(op.then(ca.value), "__dict__")
    kernel = ca.Module.from_ptx(".version 8.0\n.target sm_80\n.address_size 64\n").function("missing")
    assert not hasattr(kernel.launch(1, 1), "__dict__")


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: ca.from_host(np.ones(3)), "FromHost"),
        (lambda: ca.ones(3), "Full"),
        (lambda: ca.empty(3), "Empty"),
        (lambda: ca.ones(3).sync().to_host(), "ToHost"),
        (lambda: ca.ones(4).reshape(2, 2), "TensorMethod"),
        (lambda: ca.zip(ca.ones(3), ca.ones(3)), "Zip"),
        (lambda: ca.collect([ca.ones(3)]), "Zip"),
    ],
)
def test_what_is_asked_of_an_operation_instead_of_its_value(make, kind):
    with pytest.raises(AttributeError, match=f"a {kind} is an operation, which has no 'mean': await it"):
        make().mean()
    assert not hasattr(make(), "shape")
    assert not hasattr(make(), "_private")
    with pytest.raises(TypeError, match=f"a {kind} is an operation, and not iterable: await it first"):
        _, _ = make()


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: ca.ones(3).then(ca.copy), "a Then is an operation"),
        (lambda: ca.ones(3).map(lambda t: t), "a Map is an operation"),
        (lambda: ca.ones(3).shared(), "a SharedOp is an operation"),
        (lambda: ca.zip(ca.ones(3)).first(), "a Item is an operation"),
        (lambda: ca.parallel(ca.ones(3)), "a Parallel is an operation"),
        (lambda: ca.ones(3).graph().sync().launch(), "a GraphLaunch is an operation"),
        (lambda: ca.ones(3).start(), "a DeviceFuture has no"),
    ],
)
def test_what_arrays_have_is_asked_of_an_operation(host, make, kind):
    op = make()
    with pytest.raises(AttributeError, match=f"{kind}.*'shape': await it"):
        _ = op.shape
    assert not hasattr(op, "item")
    for compute in (lambda: op + 1, lambda: 2.0 * op, lambda: -op, lambda: float(op), lambda: op @ op):
        with pytest.raises(TypeError, match=f"{kind}.*arithmetic: await it"):
            compute()
    if "DeviceFuture" not in kind:
        assert bool(op), "as every awaitable: `op or other` is for None"
        for compute in (lambda: np.asarray(op), lambda: np.ones(3) + op, lambda: np.exp(op)):
            with pytest.raises(TypeError, match=f"{kind}, and no array: await it first"):
                compute()
        assert op is not None
        op.start()


def test_own_operations_may_have_what_arrays_have(host):
    @dataclasses.dataclass
    class Sized(ca.DeviceOp[tuple[int, ...]]):
        shape: tuple[int, ...]
        size: int = 6

        def execute(self, ctx):
            return (*self.shape, self.size)

        def sum(self):
            return sum(self.shape)

    assert Sized((2, 3)).sum() == 5
    assert Sized((2, 3)).sync() == (2, 3, 6)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'shape'"):
        Sized()


def test_what_arrays_have_is_asked_of_a_tensor(host):
    t = ca.ones(3).sync()
    for compute in (lambda: t + 1, lambda: 2 * t, lambda: t @ t, lambda: -t, lambda: float(t[0])):
        with pytest.raises(TypeError, match="tensors have no arithmetic: use a kernel"):
            compute()
    for name in ("item", "tolist", "numpy", "cpu"):
        with pytest.raises(AttributeError, match=f"a tensor has no '{name}'.*await t.to_host"):
            getattr(t, name)
    with pytest.raises(TypeError, match=r"await ca.fill\(t\[index\], value\)"):
        t[0] = 1.0
    same = t
    with pytest.raises(TypeError, match="no arithmetic"):
        t += 1
    assert t is same


def test_functions_are_launched(host):
    ptx = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry nothing() { ret; }\n"
    function = ca.Module.from_ptx(ptx).function("nothing")
    for call in (lambda: function(1, 2), lambda: function[1, 2](3)):
        with pytest.raises(TypeError, match=r"nothing is launched with function.launch\(grid, block"):
            call()


def test_two_extents_given_one_by_one():
    with pytest.raises(
        TypeError, match=r"3 is not a supported element type.*a shape of several extents is one"
    ):
        ca.ones(2, 3)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (lambda op: op[0], 1.0),
        (lambda op: op.last(), 4.0),
        (lambda op: op[np.array([True, False, False, True])], [1.0, 4.0]),
        (lambda op: op.reshape(2, 2)[1], [3.0, 4.0]),
    ],
    ids=["an-element", "the-last", "a-mask", "of-another-shape"],
)
def test_parts_of_host_data_wait_for_it(stepped, part, expected):
    """What an index takes out is a copy: it is taken when the data is there."""
    block = ca.zeros(4).to_host().start()  # its memory, full of zeros, is what comes next
    stepped.driver.advance_all()
    del block
    op = part(ca.from_host(np.arange(1.0, 5.0, dtype="f4")).to_host())
    future = op.start()
    while not future.done:
        stepped.driver.advance_all()
    np.testing.assert_array_equal(future.result(), expected)
