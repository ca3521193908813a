"""Strided views, bfloat16, empty tensors."""

from __future__ import annotations

import itertools
import random

import ml_dtypes
import numpy as np
import pytest

import cuda_async as ca

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[("asyncio", {"use_uvloop": False})], ids=["asyncio"])
def anyio_backend(request):
    """One loop: what a copy does has nothing to do with it."""
    return request.param


# ------------------------------------------------------ Case C18: writing into a strided view

SLICES = {
    "every second column": np.s_[:, ::2],
    "odd columns": np.s_[:, 1::2],
    "last column": np.s_[:, -1],
    "rows backwards": np.s_[::-1],
    "columns backwards": np.s_[:, ::-1],
    "both backwards": np.s_[::-2, ::-3],
    "one row": np.s_[2],
    "one element": np.s_[3, 4],
    "inner box": np.s_[1:3, 2:5],
    "new axis": np.s_[:, None, 1::3],
    "all": np.s_[...],
    "none": np.s_[2:2, ::2],
}


@pytest.mark.parametrize("where", SLICES)
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "int64", "bfloat16"])
@pytest.mark.parametrize("source", ["array", "tensor", "strided tensor", "one value"])
async def test_writing_into_a_view(device, where, dtype, source):
    """Case C18: a 4x6 tensor; what the view covers holds the data, and nothing else changes. NumPy is the judge."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    expected = np.zeros((4, 6), kind)
    key = SLICES[where]
    values = np.arange(1, expected[key].size + 1).reshape(expected[key].shape).astype(kind)
    tensor = await ca.zeros((4, 6), dtype)
    view = tensor[key]
    if source == "one value":
        expected[key] = 5
        result = await ca.fill(view, 5)
    else:
        expected[key] = values
        if source == "array":
            data = values
        elif source == "tensor":
            data = await ca.from_host(values)
        else:
            data = (await ca.from_host(np.repeat(values[..., None], 3, -1)))[..., 1]
        result = await ca.memcpy(view, data)
    assert result is view
    assert (await tensor.to_host()).tobytes() == expected.tobytes()
    assert (await view.to_host()).tobytes() == expected[key].tobytes()


async def test_numbers_into_every_second_column(device):
    """Case C18, word for word."""
    tensor = await ca.zeros((4, 6))
    await ca.memcpy(tensor[:, ::2], np.arange(1, 13, dtype=np.float32).reshape(4, 3))
    result = await tensor.to_host()
    assert result[:, ::2].tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]]
    assert result[:, 1::2].tolist() == [[0, 0, 0]] * 4


@pytest.mark.parametrize("seed", range(20))
async def test_views_of_views(device, seed):
    """Case C18 for tensors of up to five axes that were sliced, permuted and sliced again."""
    chance = random.Random(seed)
    shape = [chance.choice([1, 2, 3, 5]) for _ in range(chance.randint(1, 5))]
    array = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    tensor = await ca.from_host(array)
    view, mirror = tensor, array
    for _ in range(3):
        key = tuple(
            slice(chance.choice([None, 0, 1]), None, chance.choice([None, 1, 2, -1, -2]))
            for _ in range(view.ndim)
        )
        view, mirror = view[key], mirror[key]
        axes = list(range(view.ndim))
        chance.shuffle(axes)
        view, mirror = view.permute(*axes), mirror.transpose(axes)
        assert (await view.to_host()).tobytes() == np.ascontiguousarray(mirror).tobytes()
    new = np.arange(mirror.size, dtype=np.int32).reshape(mirror.shape) - 1000
    mirror[...] = new
    await ca.memcpy(view, new)
    assert (await tensor.to_host() == array).all()


@pytest.mark.parametrize(
    ("shape", "error", "message"),
    [
        ((4, 4), ValueError, r"\(4, 4\) to \(4, 3\)"),
        ((12,), ValueError, r"\(12,\) to \(4, 3\)"),
        ((3,), ValueError, r"\(3,\) to \(4, 3\)"),
    ],
)
async def test_wrong_shape_leaves_the_tensor_untouched(device, shape, error, message):
    """Case C18: nothing is broadcast or cut."""
    tensor = await ca.zeros((4, 6))
    with pytest.raises(error, match=message):
        await ca.memcpy(tensor[:, ::2], np.ones(shape, np.float32))
    assert not (await tensor.to_host()).any()


# ------------------------------------------------------------------------ Case C19: bfloat16


async def test_bfloat16_bits(device):
    """Case C19: 257 lies between 256 and 258 and goes to the even one."""
    values = np.array([0.5, -1.5, 3.0, 257.0], np.float32)
    expected = [0x3F00, 0xBFC0, 0x4040, 0x4380]
    for op in (
        ca.from_host(values, "bfloat16"),
        ca.from_host(values.astype(ml_dtypes.bfloat16)),
        ca.from_host(values).astype("bfloat16"),
        ca.from_host(values.astype(np.float64)).astype(ca.bfloat16),
        ca.from_host(values.astype(np.float16)).astype("bfloat16"),
    ):
        back = await op.to_host()
        assert back.dtype == ml_dtypes.bfloat16
        assert back.view(np.uint16).tolist() == expected


async def test_every_bfloat16_survives(device):
    """Case C19: all 65536 patterns, NaNs with their payload too."""
    patterns = np.arange(1 << 16, dtype=np.uint16)
    tensor = await ca.from_host(patterns.view(ml_dtypes.bfloat16))
    assert (await tensor.to_host()).view(np.uint16).tobytes() == patterns.tobytes()
    wide = await tensor.astype("float32").to_host()
    with np.errstate(invalid="ignore"):
        expected = (patterns.astype(np.uint32) << 16).view(np.float32)
    finite = ~np.isnan(expected)
    assert wide[finite].tobytes() == expected[finite].tobytes()
    assert np.isnan(wide[~finite]).all()


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32", "int8", "int64", "bool", "float8_e4m3fn"])
async def test_torch_round_trip_is_exact(device, name):
    """Case C19: through DLPack, both ways."""
    torch = pytest.importorskip("torch")
    if device.kind == "cuda" and not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    values = (np.arange(64) % 2).astype(ca.zeros(1, name).sync().dtype)
    tensor = await ca.from_host(values)
    theirs = torch.from_dlpack(tensor)
    assert str(theirs.dtype) == f"torch.{name}"
    ours = ca.from_dlpack(theirs)
    assert ours.dtype == tensor.dtype
    assert (await ours.to_host()).tobytes() == values.tobytes()
    theirs.fill_(1)
    if device.kind == "cuda":
        torch.cuda.synchronize()
    assert (await tensor.to_host()).tobytes() == np.ones(64, tensor.dtype).tobytes()


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(3, np.complex64),
        np.zeros(3, np.complex128),
        np.array(["a", "b"]),
        np.array([b"a"]),
        np.array([object()]),
        np.zeros(3, "M8[s]"),
        np.zeros(3, "m8[s]"),
        np.zeros(3, [("x", "f4")]),
        np.zeros(3, ">f4"),
        np.zeros(3, ">i2"),
        np.zeros(3, np.longdouble),
        np.zeros(3, ml_dtypes.int4),
        np.zeros(3, ml_dtypes.float8_e3m4),
    ],
    ids=lambda a: str(a.dtype),
)
async def test_unknown_element_types_are_errors(device, array):
    """Case C19: at once, and before anything is allocated."""
    used = device.memory_stats().used_bytes
    for make in (lambda: ca.from_host(array), lambda: ca.empty(3, array.dtype)):
        with pytest.raises(TypeError, match=r"element type|byte order"):
            await make()
    assert device.memory_stats().used_bytes == used


# ------------------------------------------------------------------- Case C20: empty tensors

EMPTY = [(0,), (0, 3), (3, 0), (0, 0), (2, 0, 5), (1, 1, 0)]


@pytest.mark.parametrize("shape", EMPTY, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "int8", "bfloat16", "bool"])
async def test_empty_tensors_everywhere(device, memory_is_back, shape, dtype):
    """Case C20: shape and type are kept through everything."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    array = np.empty(shape, kind)
    made = [
        await ca.empty(shape, dtype),
        await ca.zeros(shape, dtype),
        await ca.full(shape, 1, dtype),
        await ca.from_host(array),
    ]
    tensor = made[0]
    made += [
        await ca.copy(tensor),
        await ca.fill(tensor, 1),
        await ca.memcpy(tensor, array),
        await ca.memcpy(tensor, made[1]),
        await tensor.astype("int32").astype(dtype),
        tensor[...],
        tensor.T.T,
        tensor.reshape(shape),
        tensor.reshape(*shape),
        (await ca.zeros((4, *shape), dtype))[1],
    ]
    for one in made:
        assert (one.shape, one.dtype, one.size, one.nbytes) == (shape, kind, 0, 0)
        back = await one.to_host()
        assert (back.shape, back.dtype) == (shape, kind)


@pytest.mark.parametrize("shape", EMPTY, ids=str)
async def test_empty_tensors_reshape_like_numpy(device, shape):
    """Case C20: to every other empty shape, also of views with gaps; and not to one with elements."""
    big = np.zeros([2 * n + 1 for n in shape], np.float32)
    key = tuple(slice(0, 2 * n, 2) for n in shape)
    array, view = big[key], (await ca.from_host(big))[key]
    assert view.shape == shape
    for other in EMPTY:
        assert array.reshape(other).shape == view.reshape(other).shape == other
    with pytest.raises(ValueError, match="cannot reshape"):
        view.reshape(1)


@pytest.mark.parametrize("shape", EMPTY, ids=str)
async def test_empty_tensors_through_dlpack(device, shape):
    """Case C20: NumPy on the host device; back through `from_dlpack` on both."""
    tensor = await ca.empty(shape, "int16")
    if device.kind == "host":
        array = np.from_dlpack(tensor)
        assert (array.shape, array.dtype) == (shape, np.int16)
    back = ca.from_dlpack(tensor)
    assert (back.shape, back.dtype) == (shape, np.int16)


@pytest.mark.parametrize("grid", [0, (0,), (0, 1), (1, 0), (4, 0, 4), (0, 0, 0), np.int64(0)], ids=str)
async def test_launch_with_an_empty_grid(device, kernels, grid):
    """Case C20: succeeds and does nothing, launched and bound."""
    out = await ca.full(8, -1, "int32")
    result = await kernels.fill_int.launch(grid, 32, ca.mut(out), 8, 5)
    assert result[0] is out
    bound = kernels.fill_int.bind(grid, 32, ca.mut(out), 8, 5, device=device)
    assert (await bound.launch())[0] is out
    assert (await out.to_host() == -1).all()


async def test_launch_on_an_empty_tensor(device, kernels):
    """Case C20: a kernel may be given one; it has nothing to touch."""
    tensor = await ca.empty((0, 3), "int32")
    for _ in range(2):
        result = await kernels.fill_int.launch(1, 32, ca.mut(tensor), 0, 5)
    assert result[0] is tensor


async def test_empty_tensors_never_alias(device, kernels):
    """Case C20: nothing can be written twice where nothing is."""
    tensor = await ca.empty(0)
    await kernels.copy_floats.launch(1, 32, ca.read(tensor), ca.mut(tensor), 0)
    for a, b in itertools.pairwise([tensor[:0], tensor.reshape(0), tensor]):
        await kernels.copy_floats.launch(1, 32, ca.read(a), ca.mut(b), 0)
