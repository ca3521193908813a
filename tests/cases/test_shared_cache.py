"""One cache folder for many processes and threads, damaged, read-only and on a full disk: results stay right.

The code is compiled for an architecture, which needs no GPU; the last test launches it on one.
"""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk
from tilekern.jit import _disk_cache, _kernel
from tilekern.jit._disk_cache import DiskCache
from tilekern.tileir import find_toolchain
from tilekern.tileir.errors import CompilerNotFoundError

M = tk.meta
NUMBERS = range(6)
DEVICE = SimpleNamespace(kind="cuda", compute_capability=(9, 0))

KERNELS = """
import tilekern as tk
def make():
    @tk.kernel
    def scaled(out: tk.Tile1D, x: tk.Tensor1D, n: tk.Constant[int]):
        out.store(tk.load_like(x, out) * n + n)
    return scaled
"""

WORKER = """
import json, sys, threading
from types import SimpleNamespace
import tilekern as tk
from tilekern.jit._kernel import disk_cache
from tilekern.jit._specialize import specialize
sys.path.insert(0, sys.argv[1])
count = int(sys.argv[2])
import cache_kernels
kernel = cache_kernels.make()
device = SimpleNamespace(kind="cuda", compute_capability=(9, 0))
found, failed = {}, []
start = threading.Barrier(4)
def work(shift):
    start.wait()
    try:
        for i in range(count):
            n = (i + shift) % count
            args = tk.meta(64, "f4").partition(16), tk.meta(64, "f4"), n
            specs = specialize("scaled", kernel.parameters, args, 16)
            found.setdefault(n, set()).add(kernel._variant(specs, device, kernel.options).cubin_name)
    except BaseException as error:
        failed.append(repr(error))
threads = [threading.Thread(target=work, args=(shift,)) for shift in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
info = disk_cache().info()
print(json.dumps([{n: sorted(names) for n, names in found.items()}, failed, len(kernel.timings), info.damaged]))
"""


@pytest.fixture
def folder(tmp_path):
    try:
        find_toolchain()
    except CompilerNotFoundError as error:
        pytest.skip(str(error))
    (tmp_path / "cache_kernels.py").write_text(KERNELS)
    return tmp_path


def run_processes(folder, cache, processes, variants):
    environment = {**os.environ, "TILEKERN_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", WORKER, str(folder), str(variants)]
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    results = [json.loads(process.communicate(timeout=300)[0]) for process in running]
    assert [process.returncode for process in running] == [0] * processes
    return results


def check_round(results, cache, variants):
    """Every process has the same variants, whole and different ones, each compiled once in it."""
    first = results[0][0]
    assert sorted(first) == [str(n) for n in range(variants)]
    assert all(len(names) == 1 for names in first.values())
    assert len({names[0] for names in first.values()}) == variants
    for found, failed, compilations, damaged in results:
        assert failed == []
        assert found == first
        assert compilations == variants
        assert damaged == 0
    store = DiskCache(cache)
    codes = {store.get_named(names[0]) for names in first.values()}
    assert len(codes) == variants
    assert all(code[:4] == b"\x7fELF" for code in codes)


def test_processes_and_threads_compile_at_once(folder, tmp_path):
    check_round(run_processes(folder, tmp_path / "cache", 3, 3), tmp_path / "cache", 3)


@pytest.mark.slow
def test_eight_processes_twenty_times(folder, tmp_path):
    for number in range(20):
        cache = tmp_path / f"cache{number}"
        check_round(run_processes(folder, cache, 8, 6), cache, 6)


def compile_all(monkeypatch, cache, folder, device=DEVICE):
    """The variants as a new process gets them: where each came from."""
    monkeypatch.setattr(_kernel, "_disk_cache", cache)
    names = {}
    file = folder / "cache_kernels.py"
    exec(compile(KERNELS, str(file), "exec"), names)
    kernel = names["make"]()
    for n in NUMBERS:
        args = M(64, "f4").partition(16), M(64, "f4"), n
        specs = kernel._specs(args, {})
        assert kernel._variant(specs, device, kernel.options).function.name == "scaled"
    return [timing.origin for timing in kernel.timings]


DAMAGE = {
    "cut short": lambda data: data[: len(data) // 2],
    "zeros": lambda data: bytes(len(data)),
    "scrambled": lambda data: np.random.default_rng(0).bytes(len(data)),
    "empty": lambda data: b"",
}


def test_damaged_entries_are_compiled_anew(folder, tmp_path, monkeypatch):
    cache = DiskCache(tmp_path / "cache")
    assert compile_all(monkeypatch, cache, folder) == ["assembled"] * 6
    assert compile_all(monkeypatch, cache, folder) == ["recalled"] * 6
    for position, file in enumerate(sorted(Path(cache.info().folder).rglob("*.entry"))):
        damage = list(DAMAGE.values())[position % len(DAMAGE)]
        file.write_bytes(damage(file.read_bytes()))
    assert "recalled" not in compile_all(monkeypatch, cache, folder)
    assert cache.info().damaged >= 6
    assert compile_all(monkeypatch, cache, folder) == ["recalled"] * 6


def test_read_only_folder(folder, tmp_path, monkeypatch):
    """Also where the user may write anyway, as root may: the file system refuses."""

    def refuse(path, data):
        raise OSError(errno.EROFS, "Read-only file system")

    cache = DiskCache(tmp_path / "cache")
    compile_all(monkeypatch, cache, folder)
    monkeypatch.setattr(_disk_cache, "_write_beside", refuse)
    monkeypatch.setattr(os, "utime", lambda path: refuse(path, b""))
    assert compile_all(monkeypatch, DiskCache(tmp_path / "cache"), folder) == ["recalled"] * 6
    empty = DiskCache(tmp_path / "empty")
    assert compile_all(monkeypatch, empty, folder) == ["assembled"] * 6
    assert empty.info().entries == 0
    assert empty.info().failures > 0


def test_full_disk(folder, tmp_path, monkeypatch):
    """Files can be begun and not finished: nothing half written stays."""
    cache = DiskCache(tmp_path / "cache")
    opened = open

    def full(file, mode="r", *args, **more):
        stream = opened(file, mode, *args, **more)
        if "w" in mode and isinstance(file, int):
            stream.close()
            raise OSError(errno.ENOSPC, "No space left on device")
        return stream

    monkeypatch.setattr(_disk_cache, "open", full, raising=False)
    assert compile_all(monkeypatch, cache, folder) == ["assembled"] * 6
    assert [f for f in (tmp_path / "cache").rglob("*") if f.is_file()] == []
    assert cache.info().failures > 0


def test_folder_that_cannot_be_made(folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    cache = DiskCache(tmp_path / "file")
    assert not cache.info().is_enabled
    assert compile_all(monkeypatch, cache, folder)[0] == "assembled"


@pytest.mark.gpu
def test_results_stay_right_on_a_gpu(folder, tmp_path, monkeypatch):
    """Cold, warm, damaged and without a cache."""
    device = ca.Device("cuda:0").open()
    cache = DiskCache(tmp_path / "cache")
    names = {}
    exec(compile(KERNELS, str(folder / "cache_kernels.py"), "exec"), names)
    x = np.arange(64, dtype="f4")

    def check(store):
        monkeypatch.setattr(_kernel, "_disk_cache", store)
        kernel = names["make"]()
        with ca.use_device(device):
            for n in NUMBERS:
                out = kernel(ca.zeros((64,), "f4").partition(16), ca.from_host(x), n)
                np.testing.assert_array_equal(out.first().unpartition().to_host().sync(), x * n + n)
        return {timing.origin for timing in kernel.timings}

    assert check(cache) == {"assembled"}
    assert check(cache) == {"recalled"}
    for file in Path(cache.info().folder).rglob("*.entry"):
        file.write_bytes(file.read_bytes()[:100])
    assert check(cache) == {"assembled"}
    assert check(DiskCache(tmp_path / "cache_kernels.py")) == {"assembled"}
