"""DLPack on the host device: the structures byte for byte, NumPy both ways, owners, refusals.

Codes and layouts are those of dlpack.h 1.1, written down here a second time.
"""

from __future__ import annotations

import ctypes
import gc
import weakref
from typing import ClassVar

import ml_dtypes
import numpy as np
import pytest

import cuda_async as ca
from cuda_async.memory import import_capsule
from cuda_async.ops import ExecutionContext
from cuda_async.scheduling import SingleStream
from cuda_async.testing import stepped_device

CODES = {
    **{f"int{n}": (0, n) for n in (8, 16, 32, 64)},
    **{f"uint{n}": (1, n) for n in (8, 16, 32, 64)},
    **{f"float{n}": (2, n) for n in (16, 32, 64)},
    "bfloat16": (4, 16),
    "bool": (6, 8),
    "float8_e4m3fn": (10, 8),
    "float8_e5m2": (12, 8),
    "float8_e8m0fnu": (14, 8),
}
NUMPY_KNOWS = [name for name in CODES if not name.startswith(("bfloat", "float8"))]
SHAPES = [(), (1,), (7,), (2, 3), (2, 1, 4), (0,), (0, 3), (3, 0)]

api = ctypes.pythonapi
get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", api)
)
get_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", api))
new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", api)
)


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Legacy(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    ]


def opened(capsule):
    """(name, structure) of a capsule."""
    name = get_name(capsule)
    layout = Versioned if name == b"dltensor_versioned" else Legacy
    return name, layout.from_address(get_pointer(capsule, name))


class Producer:
    """An array of our own making, which counts what happens to it, and lives until the deleter is called."""

    lent: ClassVar[set] = set()

    def __init__(self, array, *, versioned=True, null_strides=False, byte_offset=0, **changes):
        self.array = array
        self.deleted = 0
        self.name = b"dltensor_versioned" if versioned else b"dltensor"
        self.managed = managed = (Versioned if versioned else Legacy)()
        self.deleter = DELETER(self.delete)
        managed.deleter = self.deleter
        if versioned:
            managed.major, managed.minor = changes.pop("version", (1, 1))
            managed.flags = changes.pop("flags", 0)
        self.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self.strides = (ctypes.c_int64 * array.ndim)(*(s // array.itemsize for s in array.strides))
        tensor = managed.tensor
        tensor.data = array.ctypes.data - byte_offset
        tensor.byte_offset = byte_offset
        tensor.device_type, tensor.device_id = changes.pop("device", (1, 0))
        tensor.ndim = array.ndim
        tensor.code, tensor.bits, tensor.lanes = 2, 8 * array.itemsize, 1
        tensor.shape = self.shape
        tensor.strides = None if null_strides else self.strides
        for field, value in changes.items():
            setattr(tensor, field, value)
        self.capsule = None
        self.asked = []

    def delete(self, address):
        assert address == ctypes.addressof(self.managed)
        self.deleted += 1
        self.lent.discard(self)

    def __dlpack_device__(self):
        return self.managed.tensor.device_type, self.managed.tensor.device_id

    def __dlpack__(self, **arguments):
        self.asked.append(arguments)
        self.lent.add(self)
        self.capsule = new_capsule(ctypes.addressof(self.managed), self.name, None)
        return self.capsule


class OldProducer(Producer):
    """From before DLPack 1.0."""

    def __dlpack__(self):
        return super().__dlpack__()


class Through:
    """A NumPy array that is not taken for one."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **arguments):
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.fixture(autouse=True)
def on_host():
    with ca.use_device("host:0") as device:
        yield device


def used_bytes() -> int:
    gc.collect()
    return ca.Device("host:0").memory_stats().used_bytes


# ---------------------------------------------------------------------------------- what is exported


@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize("max_version", [None, (0, 8), (1, 0), (1, 1), (7, 3)], ids=str)
def test_capsule_says_what_the_tensor_is(name, max_version):
    t = ca.zeros((4, 6), name).sync()[1:, ::2]
    capsule = t.__dlpack__(max_version=max_version)
    kind, managed = opened(capsule)
    modern = max_version is not None and max_version[0] >= 1
    assert kind == (b"dltensor_versioned" if modern else b"dltensor")
    tensor = managed.tensor
    assert (tensor.device_type, tensor.device_id) == t.__dlpack_device__() == (1, 0)
    assert (tensor.code, tensor.bits, tensor.lanes) == (*CODES[name], 1)
    assert (tensor.data + tensor.byte_offset, tensor.ndim) == (t._address, 2)
    assert tensor.shape[:2] == [3, 3]
    assert tensor.strides[:2] == [6, 2]
    if modern:
        assert managed.major == 1
        assert managed.minor >= (1 if "float8" in name else 0)
        assert managed.flags == 0


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_numpy_takes_every_shape(shape):
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    t = ca.from_host(array).sync()
    found = np.from_dlpack(t)
    assert (found.shape, found.dtype) == (shape, array.dtype)
    np.testing.assert_array_equal(found, array)
    if array.size:
        assert found.ctypes.data == t._address
    else:
        capsule = t.__dlpack__()
        assert opened(capsule)[1].tensor.data is None


@pytest.mark.parametrize("name", NUMPY_KNOWS)
def test_numpy_takes_every_type_it_has(name):
    array = np.array([[0, 1, 2], [3, 4, 5]]).astype(name)
    t = ca.from_host(array).sync()
    found = np.from_dlpack(t)
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


def test_numpy_takes_views():
    array = np.arange(24, dtype=np.int64).reshape(4, 6)
    t = ca.from_host(array).sync()
    np.testing.assert_array_equal(np.from_dlpack(t[1::2, ::3]), array[1::2, ::3])
    np.testing.assert_array_equal(np.from_dlpack(t.T), array.T)
    np.testing.assert_array_equal(np.from_dlpack(t[2, None]), array[2, None])


def test_consumer_shares_the_memory():
    t = ca.zeros((3,), "int32").sync()
    array = np.from_dlpack(t)
    array[1] = 7
    assert t.to_host().sync().tolist() == [0, 7, 0]
    ca.fill(t, 5).sync()
    assert array.tolist() == [5, 5, 5]


def test_consumer_keeps_the_memory_alive():
    before = used_bytes()
    t = ca.full((1000,), 3, "int32").sync()
    array = np.from_dlpack(t[10:])
    del t
    assert used_bytes() == before + 4000
    assert (array == 3).all()
    view = array[5:]
    del array
    assert used_bytes() == before + 4000
    del view
    assert used_bytes() == before


@pytest.mark.parametrize("max_version", [None, (1, 1)], ids=str)
def test_capsule_that_nobody_takes_frees_itself(max_version):
    before = used_bytes()
    capsule = ca.zeros((1000,), "int32").sync().__dlpack__(max_version=max_version)
    assert used_bytes() == before + 4000
    del capsule
    assert used_bytes() == before


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_consumer_that_refuses_keeps_its_own_error(name):
    """The capsule dies while NumPy's exception is in flight."""
    before = used_bytes()
    t = ca.zeros((4,), name).sync()
    with pytest.raises((BufferError, RuntimeError), match="dtype"):  # NumPy before 2.5: RuntimeError
        np.from_dlpack(t)
    del t
    assert used_bytes() == before


def test_consumer_dropped_while_an_error_is_in_flight():
    t = ca.zeros((4,), "int32").sync()
    with pytest.raises(TypeError, match="integer"):
        np.ones(3).reshape(np.from_dlpack(t), "not a shape")
    gc.collect()
    assert not t._buffer.holders
    t.free()


def test_memory_held_by_a_consumer_is_not_freed():
    t = ca.zeros((4,), "int32").sync()
    first, second = np.from_dlpack(t), np.from_dlpack(t)
    with pytest.raises(BufferError, match=r"in use by 2 other array\(s\)"):
        t.free()
    del first, second
    gc.collect()
    t.free()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stream": 1}, "stream is 1, but host:0 has none that others could use; pass None"),
        ({"stream": -1}, "stream is -1"),
        ({"copy": True}, r"exporting never copies; copy first with ca\.copy"),
        ({"dl_device": (2, 0)}, r"on device \(1, 0\) of DLPack's numbering, not on \(2, 0\)"),
    ],
)
def test_export_refuses(arguments, message):
    t = ca.zeros((4,), "int32").sync()
    with pytest.raises(BufferError, match=message):
        t.__dlpack__(**arguments)
    assert not t._buffer.holders


def test_export_takes_what_changes_nothing():
    t = ca.zeros((4,), "int32").sync()
    assert np.from_dlpack(t, device="cpu", copy=False).shape == (4,)
    with pytest.raises(BufferError, match="never copies"):
        np.from_dlpack(t, copy=True)


def test_reversed_view_is_not_exported():
    t = ca.zeros((4, 1), "int32").sync()
    with pytest.raises(BufferError, match=r"strides \(-1, 1\) are negative"):
        t[::-1].__dlpack__()
    assert np.from_dlpack(t[:, ::-1]).shape == (4, 1)
    assert np.from_dlpack(t[0:0, ::-1]).shape == (0, 1)


def test_freed_tensor_is_not_exported():
    t = ca.zeros((4,), "int32").sync()
    t.free()
    with pytest.raises(ca.ClosedError, match="memory was freed"):
        t.__dlpack__()


def test_tensor_in_flight_is_not_exported():
    """A consumer on the host would read at once."""
    device, controls = stepped_device()
    policy = SingleStream(device.create_stream())
    t = ExecutionContext(device, policy.next_stream()).empty((4,), "int32")
    with pytest.raises(BufferError, match=r"still being written.*await the operation that writes it first"):
        np.from_dlpack(t)
    controls.advance_all()
    ca.fill(t, 3).start(policy)
    with pytest.raises(BufferError, match="still being written"):
        np.from_dlpack(t)
    controls.advance_all()
    assert np.from_dlpack(t).tolist() == [3, 3, 3, 3]
    ca.copy(t).start(policy)
    assert np.from_dlpack(t).tolist() == [3, 3, 3, 3], "reads in flight do not matter"
    controls.advance_all()


# ---------------------------------------------------------------------------------- what is imported


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("wrap", [Through, lambda a: a], ids=["dlpack", "numpy"])
def test_numpy_gives_every_shape(shape, wrap):
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    t = ca.from_dlpack(wrap(array))
    assert (t.shape, t.dtype, t.device) == (shape, array.dtype, ca.Device("host:0"))
    assert t.is_contiguous
    np.testing.assert_array_equal(t.to_host().sync(), array)


@pytest.mark.parametrize("name", NUMPY_KNOWS)
def test_numpy_gives_every_type_it_has(name):
    array = np.array([[0, 1, 2], [3, 4, 5]]).astype(name)
    t = ca.from_dlpack(Through(array))
    assert (t.dtype, t._address) == (array.dtype, array.ctypes.data)
    np.testing.assert_array_equal(t.to_host().sync(), array)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_types_numpy_lacks_come_in_without_dlpack(name):
    array = np.array([0.5, -1.5, 3.0]).astype(getattr(ml_dtypes, name))
    t = ca.from_dlpack(array)
    assert t.dtype.name == name
    np.testing.assert_array_equal(t.to_host().sync(), array)


@pytest.mark.parametrize("wrap", [Through, lambda a: a], ids=["dlpack", "numpy"])
def test_views_come_in_as_they_lie(wrap):
    base = np.arange(24, dtype=np.int32).reshape(4, 6)
    for view in (base[1:, ::2], base.T, base[::-1, ::-2], np.broadcast_to(base[0], (3, 6))):
        t = ca.from_dlpack(wrap(view))
        assert t.strides == tuple(s // 4 for s in view.strides)
        np.testing.assert_array_equal(t.to_host().sync(), view)


def test_import_shares_the_memory():
    array = np.zeros((4, 6), np.int32)
    t = ca.from_dlpack(array[::-1, 1::2])
    ca.fill(t[0], 7).sync()
    expected = np.zeros((4, 6), np.int32)
    expected[3, 1::2] = 7
    np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("make", [Producer, lambda a: Producer(a, versioned=False), OldProducer])
def test_capsule_is_marked_and_deleted_once(make):
    producer = make(np.arange(6, dtype=np.float32).reshape(2, 3))
    t = ca.from_dlpack(producer)
    assert get_name(producer.capsule) == b"used_" + producer.name
    if type(producer) is Producer:
        assert producer.asked == [{"max_version": (1, 1)}]
    view = t[1]
    assert view.to_host().sync().tolist() == [3, 4, 5]
    del t
    gc.collect()
    assert producer.deleted == 0
    del view
    gc.collect()
    assert producer.deleted == 1


def test_capsule_without_deleter():
    producer = Producer(np.arange(3, dtype=np.float32))
    producer.managed.deleter = DELETER()
    t = ca.from_dlpack(producer)
    del t
    gc.collect()
    assert producer.deleted == 0


def test_offset_and_missing_strides_are_understood():
    array = np.arange(6, dtype=np.float64).reshape(2, 3)
    t = ca.from_dlpack(Producer(array, null_strides=True, byte_offset=16))
    assert (t._address, t.strides) == (array.ctypes.data, (3, 1))
    np.testing.assert_array_equal(t.to_host().sync(), array)


def test_work_in_flight_keeps_the_producers_memory():
    device, controls = stepped_device()
    producer = Producer(np.zeros(4, np.float32))
    t = ca.from_dlpack(producer, device=device)
    ca.fill(t, 5).start(SingleStream(device.create_stream()))
    del t
    gc.collect()
    assert producer.deleted == 0
    controls.advance_all()
    device.collect()
    gc.collect()
    assert producer.deleted == 1
    assert producer.array.tolist() == [5, 5, 5, 5]


def test_explicit_free_waits_for_work_in_flight():
    device, controls = stepped_device()
    producer = Producer(np.zeros(4, np.float32))
    t = ca.from_dlpack(producer, device=device)
    ca.fill(t, 5).start(SingleStream(device.create_stream()))
    t.free()
    device.collect()
    gc.collect()
    assert producer.deleted == 0
    with pytest.raises(ca.ClosedError, match="memory was freed"):
        t._buffer.check_usable()
    controls.advance_all()
    device.collect()
    assert producer.deleted == 1


@pytest.mark.parametrize(
    ("changes", "described"),
    [
        ({"code": 5, "bits": 64}, r"code 5 \(complex\), 64 bits, 1 lanes"),
        ({"code": 3, "bits": 64}, r"code 3 \(opaque handle\), 64 bits, 1 lanes"),
        ({"code": 17, "bits": 4}, r"code 17 \(float4_e2m1fn\), 4 bits, 1 lanes"),
        ({"code": 15, "bits": 8}, r"code 15 \(float6_e2m3fn\), 8 bits, 1 lanes"),
        ({"code": 200, "bits": 8}, r"code 200 \(unknown\), 8 bits, 1 lanes"),
        ({"code": 0, "bits": 128}, r"code 0 \(int\), 128 bits, 1 lanes"),
        ({"lanes": 4}, r"code 2 \(float\), 32 bits, 4 lanes"),
    ],
)
def test_unknown_type_is_named(changes, described):
    producer = Producer(np.zeros(4, np.float32), **changes)
    with pytest.raises(
        TypeError, match=rf"{described} is not supported; these are, with 1 lane: bool, int8,.*float8_e5m2"
    ):
        ca.from_dlpack(producer)
    assert get_name(producer.capsule) == b"dltensor_versioned", "it is still its owner's to delete"


def test_unknown_numpy_type_is_named():
    with pytest.raises(TypeError, match=r"complex64.*not a supported element type; these are"):
        ca.from_dlpack(np.zeros(4, np.complex64))
    with pytest.raises(TypeError, match=r"code 5 \(complex\), 64 bits"):
        ca.from_dlpack(Through(np.zeros(4, np.complex64)))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: [1, 2], TypeError, r"takes an array with __dlpack__ and __dlpack_device__, got list"),
        (
            lambda: np.ma.array([1.0, 2.0], mask=[0, 1]),
            TypeError,
            r"from_dlpack\(\) was given a masked array",
        ),
        (lambda: np.zeros(3).__dlpack__(), TypeError, "got PyCapsule"),
        (lambda: Producer(np.zeros(3), device=(10, 0)), ca.ContextError, "device of DLPack's type 10"),
        (lambda: Producer(np.zeros(3), version=(2, 0)), BufferError, r"the producer speaks DLPack 2\.0"),
        (
            lambda: Producer(np.zeros(9, np.uint8)[1:].view(np.float64), null_strides=True),
            BufferError,
            "not aligned for float64",
        ),
        (lambda: np.zeros(9, np.uint8)[1:].view(np.float64), BufferError, "not aligned for float64"),
        (lambda: np.zeros(3, "i4,i8")["f1"], BufferError, "are not whole elements of int64"),
        (lambda: np.zeros(3, ">f4"), TypeError, "byte order"),
    ],
    ids=[
        "list",
        "masked",
        "capsule",
        "device",
        "version",
        "misaligned",
        "numpy misaligned",
        "numpy field",
        "byte order",
    ],
)
def test_import_refuses(make, error, message):
    with pytest.raises(error, match=message):
        ca.from_dlpack(make())


class Says(Producer):
    """What `__dlpack_device__` returns is `says`, whatever the capsule has."""

    def __init__(self, says, **changes):
        super().__init__(np.zeros(3), **changes)
        self.says = says

    def __dlpack_device__(self):
        return self.says


@pytest.mark.parametrize("says", ["rubbish", "ab", None, 7, (1,), (1, 0, 0), ("a", 0), (1, None)], ids=repr)
def test_what_is_no_device_is_refused(says):
    producer = Says(says)
    with pytest.raises(TypeError) as caught:
        ca.from_dlpack(producer)
    assert str(caught.value).startswith(
        f"Says.__dlpack_device__() returned {says!r}; expected a pair of whole numbers"
    )
    assert producer.capsule is None
    t = ca.zeros(3).sync()
    if says is not None:
        with pytest.raises(TypeError, match=r"dl_device is .*; expected a pair of whole numbers"):
            t.__dlpack__(dl_device=says)


@pytest.mark.parametrize(
    ("says", "has"), [((1, 0), (2, 0)), ((1, 0), (13, 0)), ((3, 0), (2, 0)), ((1, 0), (10, 0))]
)
def test_capsule_of_an_array_elsewhere_is_refused(says, has):
    """Its address would be used as one of the host's memory."""
    producer = Says(says, device=has)
    with pytest.raises(BufferError) as caught:
        ca.from_dlpack(producer)
    assert f"__dlpack_device__() of the array says {says}, its capsule says {has}" in str(caught.value)
    assert get_name(producer.capsule) == b"dltensor_versioned", "it is still its owner's to delete"


@pytest.mark.parametrize(("says", "has"), [((3, 0), (1, 0)), ((1, 0), (3, 1)), ((1, 0), (1, 5))])
def test_pinned_memory_is_the_hosts_under_both_names(says, has):
    """Torch says that pinned memory is pinned, and makes capsules that say it is the CPU's."""
    assert ca.from_dlpack(Says(says, device=has)).shape == (3,)


@pytest.mark.parametrize(
    ("said", "capsule", "agrees"),
    [
        ((2, 0), (2, 0), True),
        ((2, 0), (2, 1), False),
        ((2, 0), (1, 0), False),
        ((13, 1), (2, 0), True),
        ((2, 1), (13, 0), True),
        ((13, 0), (3, 0), False),
    ],
)
def test_devices_of_capsules_of_cuda_memory(said, capsule, agrees):
    producer = Producer(np.zeros(3), device=capsule)
    if agrees:
        assert import_capsule(producer.__dlpack__(), said).shape == (3,)
    else:
        with pytest.raises(BufferError, match="its capsule says"):
            import_capsule(producer.__dlpack__(), said)


def test_consumed_capsule_is_refused():
    class Again(Through):
        def __dlpack__(self, **arguments):
            capsule = self.array.__dlpack__(**arguments)
            self.first = ca.from_dlpack(Given(capsule))
            return capsule

    class Given(Through):
        def __dlpack__(self, **_):
            return self.array

        def __dlpack_device__(self):
            return 1, 0

    with pytest.raises(BufferError, match="a DLPack capsule that was not consumed yet"):
        ca.from_dlpack(Again(np.zeros(3)))
    for nothing in (None, 5, np.zeros(3)):
        with pytest.raises(TypeError, match="expected a DLPack capsule"):
            ca.from_dlpack(Given(nothing))


def test_memory_of_the_host_is_not_a_cuda_devices():
    for array in (np.zeros(3), Through(np.zeros(3))):
        with pytest.raises(ca.ContextError, match=r"cuda:0 cannot use; copy it over with from_host\(\)"):
            ca.from_dlpack(array, device="cuda:0")


def test_device_memory_is_not_the_hosts():
    producer = Producer(np.zeros(3), device=(2, 1))
    with pytest.raises(ca.ContextError, match="the array is on cuda:1, not on host:0"):
        ca.from_dlpack(producer, device="host:0")
    assert producer.capsule is None


def test_our_own_tensor_gives_a_view():
    t = ca.zeros((4,), "int32").sync()
    v = ca.from_dlpack(t)
    assert v is not t
    assert (v._buffer, v.shape) == (t._buffer, (4,))
    with pytest.raises(ca.ContextError, match="the tensor is on host:0, not on host:1"):
        ca.from_dlpack(t, device="host:1")


# ------------------------------------------------------------------------------------- read-only


def test_read_only_memory_is_read_and_not_written():
    array = np.arange(4, dtype=np.float32)
    array.flags.writeable = False
    for t in (
        ca.from_dlpack(array),
        ca.from_dlpack(Through(array)),
        ca.from_dlpack(Producer(array, flags=1)),
    ):
        assert t.to_host().sync().tolist() == [0, 1, 2, 3]
        with pytest.raises(
            ValueError, match=r"read-only memory of another library.*copy it first with ca\.copy"
        ):
            ca.fill(t, 1).sync()
        assert ca.fill(ca.copy(t).sync(), 1).to_host().sync().tolist() == [1, 1, 1, 1]
    assert array.tolist() == [0, 1, 2, 3]


def test_read_only_memory_is_exported_as_such():
    array = np.arange(4, dtype=np.float32)
    array.flags.writeable = False
    t = ca.from_dlpack(array)
    assert opened(t.__dlpack__(max_version=(1, 0)))[1].flags == 1
    assert not np.from_dlpack(t).flags.writeable
    with pytest.raises(BufferError, match="readonly"):
        t.__dlpack__()


# ------------------------------------------------------------------- memory that comes in twice


def test_round_trip_comes_back_to_the_same_memory():
    before = used_bytes()
    t = ca.from_host(np.arange(4, dtype=np.float32)).sync()
    back = ca.from_dlpack(Through(np.from_dlpack(t)))
    assert (back._address, back.device) == (t._address, t.device)
    ca.fill(back[1:], 9).sync()
    assert t.to_host().sync().tolist() == [0, 9, 9, 9]
    del t
    gc.collect()
    assert back.to_host().sync().tolist() == [0, 9, 9, 9]
    del back
    assert used_bytes() == before


def test_imports_of_one_array_are_ordered_as_one():
    device, controls = stepped_device()
    array = np.zeros(8, np.float32)
    first, second = ca.from_dlpack(array, device=device), ca.from_dlpack(array[2:6], device=device)
    assert first._buffer is not second._buffer
    a, b = device.create_stream(), device.create_stream()
    ca.fill(first, 1).start(SingleStream(a))
    ca.fill(second, 2).start(SingleStream(b))
    assert controls.advance(b.handle) == 0, "the second fill waits for the first"
    controls.advance_all()
    assert array.tolist() == [1, 1, 2, 2, 2, 2, 1, 1]


def test_import_over_several_joins_their_order():
    device, controls = stepped_device()
    array = np.zeros(8, np.float32)
    a, b, c = (device.create_stream() for _ in range(3))
    low, high = ca.from_dlpack(array[:4], device=device), ca.from_dlpack(array[4:], device=device)
    ca.fill(low, 1).start(SingleStream(a))
    ca.fill(high, 2).start(SingleStream(b))
    whole = ca.from_dlpack(array, device=device)
    ca.fill(whole[3:5], 3).start(SingleStream(c))
    assert controls.advance(c.handle) == 0
    ca.fill(low[:1], 4).start(SingleStream(b))
    controls.advance_all()
    assert array.tolist() == [4, 1, 1, 3, 3, 2, 2, 2]


def test_import_over_several_joins_what_they_had_joined():
    """The part shares memory with `low`, `bridge` joins `low` and `high`: the part is ordered with all of them."""
    device, controls = stepped_device()
    array = np.zeros(8, np.float32)
    a, b = device.create_stream(), device.create_stream()
    low, part, high = (ca.from_dlpack(array[x:y], device=device) for x, y in [(0, 5), (1, 3), (7, 8)])
    bridge = ca.from_dlpack(array[4:], device=device)
    ca.fill(low, 1).start(SingleStream(a))
    ca.fill(part, 2).start(SingleStream(b))
    assert controls.advance(b.handle) == 0
    controls.advance_all()
    assert array.tolist() == [1, 2, 2, 1, 1, 0, 0, 0]
    assert bridge._buffer.usage is high._buffer.usage


def test_freed_import_is_ordered_with_the_next():
    device, controls = stepped_device()
    array = np.zeros(4, np.float32)
    a, b = device.create_stream(), device.create_stream()
    first = ca.from_dlpack(array, device=device)
    ca.fill(first, 1).start(SingleStream(a))
    first.free()
    ca.fill(ca.from_dlpack(array[1:], device=device), 2).start(SingleStream(b))
    assert controls.advance(b.handle) == 0
    controls.advance_all()
    assert array.tolist() == [1, 2, 2, 2]


def test_reimported_memory_is_ordered_with_the_original():
    device, controls = stepped_device()
    a, b = device.create_stream(), device.create_stream()
    t = ExecutionContext(device, a).empty((4,), "float32")
    a._submit()
    controls.advance_all()
    back = ca.from_dlpack(Through(np.from_dlpack(t)), device=device)
    ca.fill(t, 1).start(SingleStream(a))
    ca.fill(back[:2], 2).start(SingleStream(b))
    assert controls.advance(b.handle) == 0
    controls.advance_all()
    assert np.from_dlpack(t).tolist() == [2, 2, 1, 1]


def test_imports_are_forgotten_when_they_go():
    array = np.zeros(8, np.float32)
    device = ca.Device("host:0")
    known = len(device._outside)
    t = ca.from_dlpack(array)
    assert len(device._outside) == known + 1
    owner = weakref.ref(t._buffer.owner)
    del t
    gc.collect()
    assert len(device._outside) == known
    assert owner() is None


@pytest.mark.parametrize(
    ("address", "size"), [(0, 16), (-8, 16), (8, -1), (1 << 64, 16), ((1 << 64) - 8, 16), (1 << 70, 0)]
)
def test_memory_that_cannot_be_is_refused(address, size):
    with pytest.raises(ValueError, match=f"no memory can be of {size} bytes"):
        ca.from_foreign(None, address, (2,), "float32", size_bytes=size, device=ca.Device("host:0"))
