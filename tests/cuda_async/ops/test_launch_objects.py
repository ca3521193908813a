"""What launches are made of, as Python objects: copies, representations, and what is remembered of them."""

from __future__ import annotations

import copy
import ctypes
import pickle
from pathlib import Path

import pytest

import cuda_async as ca
from cuda_async.ops import _module

SAXPY = Path(__file__).resolve().parents[3] / "examples" / "simt" / "saxpy.ptx"


@pytest.fixture
def saxpy():
    return ca.Module.from_file(SAXPY).function("saxpy_f32")


@pytest.mark.parametrize("what", ["Module", "Function", "BoundLaunch"])
@pytest.mark.parametrize("made", [copy.copy, copy.deepcopy, pickle.dumps])
def test_kernels_are_not_copied(device, saxpy, what, made):
    """Another process makes its own; a message about a lock inside would not say so."""
    x, y, out = ca.zip(ca.ones(4), ca.ones(4), ca.empty(4)).sync()
    thing = {
        "Module": lambda: saxpy.module,
        "Function": lambda: saxpy,
        "BoundLaunch": lambda: saxpy.bind(1, 4, 4, 2.0, ca.read(x), ca.read(y), ca.mut(out), device=device),
    }[what]()
    with pytest.raises(TypeError, match=f"a {what} cannot be copied or pickled; "):
        made(thing)


def test_an_operand_without_a_tensor_can_be_shown():
    """`read()` and `mut()` make these; a debugger that shows one made by hand must not fail."""
    assert (repr(ca.Read()), repr(ca.Mut())) == ("read(None)", "mut(None)")
    with pytest.raises(
        AttributeError, match=r"Read\(\) holds no tensor; such operands are made by read\(tensor\)"
    ):
        ca.Read().tensor  # noqa: B018  # what a launch does
    with pytest.raises(AttributeError, match="'Mut' object has no attribute 'what'"):
        ca.Mut().what  # noqa: B018


def test_classes_made_anew_are_forgotten(device, saxpy, monkeypatch):
    """Each class of an argument is planned for once; a program that makes one per launch keeps no memory for it."""
    monkeypatch.setattr(_module, "MAX_CONFIGS", 8)
    x, y, out = ca.zip(ca.ones(4), ca.ones(4), ca.empty(4)).sync()
    loaded = saxpy.load(device)
    for n in range(1, 30):

        class Count(ctypes.Structure):
            _fields_ = (("n", ctypes.c_int),)

        ca.fill(out, 0.0).sync()
        saxpy.launch(1, 32, Count(n % 4 + 1), 2.0, ca.read(x), ca.read(y), ca.mut(out)).sync()
        assert out.to_host().sync().tolist() == [3.0] * (n % 4 + 1) + [0.0] * (3 - n % 4)
        assert len(loaded.plans) <= 8
        assert len(loaded.launchers) <= 8


MANY_STATIC = """
.version 9.3
.target sm_90
.address_size 64
.visible .entry wide(.param .u64 out)
.reqntid 128
.language 7
{
    .shared .align 4 .b8 own[99999999];
    ret;
}
"""


@pytest.mark.parametrize("size_bytes", [0, 64])
def test_more_static_shared_memory_than_a_block_has_is_refused(host, size_bytes):
    x = ca.zeros(4).sync()
    wide = ca.Module.from_ptx(MANY_STATIC).function("wide")
    with pytest.raises(
        ca.LaunchError,
        match=r"wide: the kernel declares 99999999 bytes of static shared memory, a block has at most 232448 on host:0",
    ):
        wide.launch(1, 1, ca.mut(x), shared_mem_bytes=size_bytes).sync()


@pytest.mark.parametrize(
    ("size_bytes", "message"),
    [
        (300_000, r"asked for 300000 bytes of dynamic shared memory, the limit on host:0 is 232448$"),
        (-1, "shared_mem_bytes is -1; it cannot be negative"),
    ],
)
def test_dynamic_shared_memory_beyond_the_limit_is_refused(host, saxpy, size_bytes, message):
    x, y, out = ca.zip(ca.ones(4), ca.ones(4), ca.empty(4)).sync()
    arguments = (4, 2.0, ca.read(x), ca.read(y), ca.mut(out))
    with pytest.raises(ca.LaunchError, match=f"saxpy_f32: {message}"):
        saxpy.launch(1, 4, *arguments, shared_mem_bytes=size_bytes).sync()
    node = saxpy.launch(1, 4, *arguments).graph().sync().nodes[0]
    with pytest.raises(ca.CaptureError, match=f"saxpy_f32: {message}"):
        node.set_launch(shared_mem_bytes=size_bytes)
