"""Which event loop library the caller runs in, while another thread is importing one."""

from __future__ import annotations

import asyncio
import sys
import types

import pytest

import cuda_async as ca
from cuda_async.scheduling import running_library


@pytest.mark.parametrize("partial", ["trio", "trio.lowlevel"])
def test_another_thread_is_importing_trio(host, monkeypatch, partial):
    """Its modules are in `sys.modules` before they define anything."""
    for name in ("trio", "trio.lowlevel"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "trio", types.ModuleType("trio"))
    if partial == "trio.lowlevel":
        monkeypatch.setitem(sys.modules, partial, types.ModuleType(partial))

    async def main():
        assert running_library() == "asyncio"
        return await ca.full(3, 2.0).to_host()

    assert asyncio.run(main()).tolist() == [2, 2, 2]


def test_another_thread_is_importing_asyncio(monkeypatch):
    monkeypatch.setitem(sys.modules, "asyncio", types.ModuleType("asyncio"))
    assert running_library() is None
