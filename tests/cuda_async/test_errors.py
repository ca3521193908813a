"""Errors as values: copies, and what comes out of another process."""

from __future__ import annotations

import copy
import inspect
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

import cuda_async as ca
import tilekern.errors
import tilekern.tileir.errors
from cuda_async import errors
from cuda_async.driver.host.ptx import _errors as of_ptx

FACTS = {
    "address": 4096,
    "block": (1, 2, 3),
    "code": 700,
    "code_name": "CUDA_ERROR_ILLEGAL_ADDRESS",
    "kernel": "scale",
    "kernels": ("scale", "copy"),
    "log": "what it printed",
    "requested_bytes": 5,
}
"""Whatever an error is made of, in place of what it is about."""
CLASSES = sorted(
    {
        found
        for module in (errors, tilekern.errors, tilekern.tileir.errors, of_ptx)
        for found in vars(module).values()
        if inspect.isclass(found) and issubclass(found, errors.CudaAsyncError)
    },
    key=lambda found: f"{found.__module__}.{found.__qualname__}",
)


def made(kind):
    """An error as its class leaves it, with facts and a note, whatever the class wants to be made with."""
    error = BaseException.__new__(kind, "what went wrong")
    error.__dict__.update(
        FACTS, access="read", size_bytes=4, reason="freed", place="block 1", function="", op=""
    )
    error.add_note("a note")
    return error


class OfACaller(errors.CudaAsyncError, OSError):
    """Also one that Python makes in its own way."""

    def __init__(self, one, two):
        super().__init__(one + two)


def test_an_error_of_a_callers_class_is_copied():
    error = OfACaller("one, ", "two")
    assert copy.copy(error).args == error.args == ("one, two",)


@pytest.mark.parametrize(
    "again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))], ids=["copy", "pickle"]
)
@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: f"{kind.__module__}.{kind.__qualname__}")
def test_an_error_is_the_same_again(kind, again):
    error = made(kind)
    found = again(error)
    assert type(found) is kind
    assert str(found) == str(error)
    assert vars(found) == vars(error)
    found.add_note("another")
    assert error.__notes__ == ["a note"]


def out_of_memory():
    ca.current_device().memory_limit = 100
    ca.zeros(1000).sync()


WRITES = r"""
.version 8.0
.target sm_80
.address_size 64
.visible .entry writes(.param .u64 x)
{
    .reg .u64 %a;
    ld.param.u64 %a, [x];
    st.global.u32 [%a + 1048576], 1;
    ret;
}
"""


def out_of_bounds():
    writes = ca.Module.from_ptx(WRITES).function("writes")
    writes.launch(1, 1, ca.mut(ca.zeros(4).sync())).sync()


def in_a_call():
    def work(_):
        raise LookupError("as planned")

    ca.foreign(work).sync()


def freed():
    tensor = ca.zeros(4).sync()
    tensor.free()
    tensor.to_host().sync()


WORK = {
    out_of_memory: (errors.OutOfMemoryError, {"requested_bytes": 4000, "limit_bytes": 100}),
    out_of_bounds: (errors.MemoryFault, {"kernel": "writes", "access": "write", "size_bytes": 4}),
    in_a_call: (errors.KernelError, {"kernel": "ca.foreign"}),
    freed: (errors.ClosedError, {}),
}


@pytest.mark.timeout(120)
def test_errors_come_out_of_worker_processes(host):
    """A pool whose worker's error cannot be brought over is broken for all later work."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for work, (kind, facts) in WORK.items():
            with pytest.raises(kind) as caught:
                pool.submit(work).result()
            assert {name: getattr(caught.value, name) for name in facts} == facts
