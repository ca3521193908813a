"""Files of caches, logs and models, and arrays of other libraries: damaged, hostile, or in places that are not ours."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import re
import struct
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from damage import FAST, LONG, NUMBERS, damaged_bytes, damaged_text, survives
from hypothesis import given
from hypothesis import strategies as st

from cuda_async.memory._array_interface import parse_cuda_array_interface
from cuda_async.memory._dlpack import _managed_of, import_capsule
from cuda_async.memory._layout import extent
from tilekern.jit._disk_cache import DiskCache, name_of
from tilekern.jit._portable import NotPortable, from_portable
from tilekern.jit._recall import recall, remember
from tilekern.tune import Space, TuneLogError
from tilekern.tune._log import TrialLog

ROOT = Path(__file__).parents[2]
EFFORTS = pytest.mark.parametrize(
    "effort", [pytest.param(FAST, id="fast"), pytest.param(LONG, id="long", marks=pytest.mark.slow)]
)

# ------------------------------------------------------------------------------------------ caches


@EFFORTS
def test_damaged_cache_entries_are_misses(tmp_path, effort):
    """What comes out is what went in, or nothing."""
    cache = DiskCache(tmp_path)
    cache.put(b"key", b"value" * 20, {"kernel": "k"})
    (path,) = tmp_path.rglob("*.entry")
    whole = path.read_bytes()

    @effort
    @given(damaged_bytes([whole]))
    def check(data):
        path.write_bytes(data)
        assert cache.entries() is not None
        assert cache.get(b"key") in (None, b"value" * 20)

    check()


def test_entry_that_promises_more_than_it_has(tmp_path):
    cache = DiskCache(tmp_path)
    cache.put(b"key", b"value")
    (path,) = tmp_path.rglob("*.entry")
    data = bytearray(path.read_bytes())
    data[12:20] = (2**40).to_bytes(8, "little")
    path.write_bytes(data)
    assert cache.get(b"key") is None
    assert cache.info().damaged == 1


@pytest.mark.parametrize(
    "name", ["../../outside", "/etc/passwd", "0" * 63, "0" * 63 + "/", "A" * 64, "", 7, None]
)
def test_names_that_are_no_names(tmp_path, name):
    """They come from other entries, and become paths."""
    cache = DiskCache(tmp_path / "cache")
    (tmp_path / "outside.entry").write_bytes(b"x")
    assert cache.get_named(name) is None
    assert (tmp_path / "outside.entry").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_pipes_in_the_cache_are_not_waited_for(tmp_path):
    """Opening one waits until somebody writes."""
    cache = DiskCache(tmp_path)
    cache.put(b"key", b"value")
    (path,) = tmp_path.rglob("*.entry")
    path.unlink()
    os.mkfifo(path)
    assert cache.get(b"key") is None
    assert cache.entries() == []


def test_cache_files_are_private(tmp_path):
    cache = DiskCache(tmp_path)
    cache.put(b"key", b"value")
    for path in (tmp_path / "v1").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)


def test_cache_folder_of_another_user_is_not_used(tmp_path, monkeypatch):
    """`lstat` says whose it is; here everything belongs to somebody else."""
    cache = DiskCache(tmp_path)
    user = os.getuid() + 1
    monkeypatch.setattr("tilekern.jit._disk_cache._user", lambda: user)
    assert cache.put(b"key", b"value") is False
    assert cache.get(b"key") is None
    assert "belongs to user" in cache.info().reason


def recalled(a, b=3):
    return a + b


def test_damaged_recollections_are_forgotten():
    """Whatever JSON an entry holds: nothing is recalled, and remembering writes over it."""
    kept = {
        "name": "k",
        "signature": [1, 2],
        "cubin": name_of(b"x"),
        "checks": [["tuple", 1, ["float", "0x1p0"], ["dtype", "f32"]]],
        "captures": [["global", ["kernel"], "np", ["module", "numpy"]]],
    }
    samples = [json.dumps([kept, kept])]
    hostile = [
        "[" * 100_000,
        "{}",
        "[1]",
        '[{"captures": 3}]',
        '[{"captures": [], "checks": [["object", "os:system", {}]]}]',
    ]

    def use(text):
        cache = SimpleNamespace(get=lambda key: text.encode("utf-8", "replace"), get_named=lambda name: None)
        assert recall(recalled, (), "sm_90", b"key", cache) is None
        stored = []
        cache.put = lambda *args: stored.append(args) or True
        variant = SimpleNamespace(
            function=SimpleNamespace(name="k"),
            signature=(),
            cubin_name="c",
            checks=(),
            captures=(),
            target="t",
        )
        assert remember(recalled, variant, b"key", cache)
        assert stored

    @FAST
    @given(damaged_text(samples))
    def check(text):
        survives(use, text, ())

    check()
    for text in hostile:
        survives(use, text, ())


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(["tuple", "float", "1e9999999"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(
            st.sampled_from(["object", "enum", "dtype", "bytes", "float", "tuple"]), inner, inner
        ).map(list)
        | st.tuples(
            st.just("object"),
            st.sampled_from(
                ["tilekern.dtypes:os", "tilekern.ir._types:TileType", "os:system", "tilekern.jit:x"]
            ),
            st.dictionaries(st.text(max_size=5), inner, max_size=2),
        ).map(list)
    ),
    max_leaves=12,
)


@FAST
@given(JSON)
def test_stored_values_are_made_of_nothing_else(value):
    survives(lambda v: from_portable(v, later=False), value, NotPortable)


# -------------------------------------------------------------------------------------------- logs


@EFFORTS
def test_damaged_logs_of_searches(tmp_path, effort):
    path = tmp_path / "log"
    space = Space(tile=[1, 2], name=["a", ("b", 1)])
    log = TrialLog(path, space, "host:0", "problem")
    about = path.read_text()
    lines = '{"config": {"tile": 1, "name": ["tuple", "b", 1]}, "status": "ok", "ms": 1.5}\n'
    lines += '{"config": {"tile": 2, "name": "a"}, "status": "invalid", "error": "no"}\n'
    assert log.trials == {}

    def read(text):
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        for trial in TrialLog(path, space, "host:0", "problem").trials.values():
            assert trial.ms is None or trial.ms >= 0

    @effort
    @given(damaged_text([about + lines, about, lines]))
    def check(text):
        survives(read, text, TuneLogError)

    check()
    for hostile in (b"\xff\xfe\n", b"[" * 100_000 + b"\n", b"3\n", about.encode() + b"[]\n", b"{}\n{}\n"):
        path.write_bytes(hostile)
        with pytest.raises(TuneLogError):
            TrialLog(path, space, "host:0", "problem")
    with pytest.raises(TuneLogError, match="is no file"):
        TrialLog(tmp_path, space, "host:0", "problem")


# ------------------------------------------------------------------------------------------ arrays

SIZE = st.sampled_from([*NUMBERS, -1, -(2**63), 3, 5])


def check_reach(found):
    """No address of an array that was taken is impossible."""
    assert all(size >= 0 for size in found.shape)
    if 0 not in found.shape:
        low, high = extent(found.shape, found.strides)
        assert found.address > 0
        assert found.address + low * found.dtype.itemsize >= 0
        assert found.address + high * found.dtype.itemsize <= 2**63
        assert found.address % found.dtype.itemsize == 0


@FAST
@given(
    st.lists(SIZE.map(lambda n: n if n < 2**63 else -1), max_size=4),
    st.none() | st.lists(SIZE.map(lambda n: n if n < 2**63 else -1), min_size=4, max_size=4),
    st.sampled_from([None, -1, 65, 2**31 - 1]),
    st.sampled_from([None, 0, 1, 64, 2**63 - 8, 2**63, 2**64 - 64]),
    st.sampled_from([0, 1, 4, 2**63, 2**64 - 4]),
    st.tuples(
        st.integers(0, 255), st.sampled_from([0, 1, 8, 16, 32, 64, 255]), st.sampled_from([0, 1, 2, 65535])
    ),
    st.booleans(),
)
def test_capsules_of_other_libraries(shape, strides, rank, data, offset, element, is_float):
    source = np.zeros(4, np.float32)
    capsule = source.__dlpack__()
    inner = _managed_of(capsule).tensor
    kept = {name: getattr(inner, name) for name in ("data", "ndim", "code", "bits", "lanes", "byte_offset")}
    pointers = (inner.shape, inner.strides)
    inner.shape = (ctypes.c_int64 * 4)(*shape)
    inner.strides = None if strides is None else (ctypes.c_int64 * 4)(*strides)
    inner.ndim = len(shape) if rank is None else rank
    if data is not None:
        inner.data = data
    inner.byte_offset = offset
    inner.code, inner.bits, inner.lanes = (2, 32, 1) if is_float else element
    found = []
    try:
        survives(lambda c: found.append(import_capsule(c, (1, 0))), capsule, (TypeError, BufferError))
    finally:
        for name, value in kept.items():
            setattr(inner, name, value)
        inner.shape, inner.strides = pointers
    for array in found:
        check_reach(array)


_ANY = st.none() | SIZE | st.text(max_size=3) | st.floats() | st.lists(SIZE, max_size=3)


@FAST
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "shape": st.lists(SIZE, max_size=4).map(tuple) | _ANY,
            "typestr": st.sampled_from(
                ["<f4", "|u1", ">f8", "O", "f4,f4", "(2147483648,)f4", "V" + "9" * 20, "<f2"]
            )
            | st.text(max_size=6)
            | _ANY,
            "data": st.tuples(SIZE, st.booleans()) | _ANY,
            "strides": st.lists(SIZE, max_size=4).map(tuple) | _ANY,
            "version": st.sampled_from([2, 3]) | _ANY,
            "stream": _ANY,
            "mask": st.sampled_from([None, None, 1]),
        },
    )
)
def test_array_interfaces_of_other_libraries(interface):
    found = []
    array = SimpleNamespace(__cuda_array_interface__=interface)
    survives(lambda a: found.append(parse_cuda_array_interface(a)), array, (TypeError, BufferError))
    for taken, stream in found:
        check_reach(taken)
        assert stream is None or 0 < stream < 2**64


# ------------------------------------------------------------------------------------ model files


def imported(folder, *names):
    sys.path.insert(0, str(ROOT / folder))
    try:
        return [importlib.import_module(name) for name in names]
    finally:
        sys.path.remove(str(ROOT / folder))
        for name in names:
            sys.modules.pop(name, None)


@EFFORTS
def test_damaged_npy_files(tmp_path, effort):
    (example,) = imported("examples", "tile_simt_interop")
    path = tmp_path / "scores.npy"
    np.save(path, np.ones((3, 4), np.float32))
    samples = [path.read_bytes()]
    np.savez(tmp_path / "many.npz", a=np.ones(3))
    samples.append((tmp_path / "many.npz").read_bytes())

    def read(data):
        path.write_bytes(data)
        example.read_scores(path)

    @effort
    @given(damaged_bytes(samples))
    def check(data):
        survives(read, data, example.BadInput)

    check()
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 4), }"
    huge = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
    with pytest.raises(example.BadInput, match="not a readable"):
        read(huge)


def text(value):
    return struct.pack("<Q", len(value)) + value


GGUF = (
    b"GGUF"
    + struct.pack("<IQQ", 3, 1, 3)
    + (text(b"general.architecture") + struct.pack("<I", 8) + text(b"llama"))
    + (text(b"tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + text(b"a") + text(b"bc"))
    + (text(b"numbers") + struct.pack("<IIQ3I", 9, 4, 3, 1, 2, 3))
    + (text(b"token_embd.weight") + struct.pack("<IQQIQ", 2, 4, 2, 0, 0))
    + bytes(64)
)


@EFFORTS
def test_damaged_gguf_files(tmp_path, effort):
    """This one has no sizes of a model, so every outcome is a `ValueError`, and none a loop over 2**60 elements."""
    pytest.importorskip("gguf")
    model_file, _ = imported("examples/llm", "model_file", "gguf_header")
    path = tmp_path / "model.gguf"

    def read(data):
        path.write_bytes(data)
        model_file.ModelFile(path)

    with pytest.raises(ValueError, match=r"has no field llama\.attention\.head_count"):
        read(GGUF)

    @effort
    @given(damaged_bytes([GGUF]))
    def check(data):
        survives(read, data, ValueError)

    check()
    at = GGUF.index(b"numbers") + 7 + 8
    with pytest.raises(ValueError, match="counts more than its"):
        read(GGUF[:at] + struct.pack("<Q", 2**60) + GGUF[at + 8 :])


# ----------------------------------------------------------------------------------- nothing is run

UNSAFE = re.compile(
    r"^\s*(?:import|from)\s+(?:pickle|marshal|shelve|dill|cloudpickle|joblib)\b|\bpickle\.loads?\(|\bmarshal\.loads?\("
    r"|allow_pickle\s*=\s*True|\byaml\.load\(|\bnp\.load\((?!.*allow_pickle=False)",
    re.MULTILINE,
)


def test_no_file_is_unpickled():
    """Nothing that is read from a file can run code: no pickles, in any form, here or through NumPy."""
    for folder in ("cuda_async", "tilekern", "examples", "benchmarks", "tools"):
        for path in (ROOT / folder).rglob("*.py"):
            found = UNSAFE.search(path.read_text(encoding="utf-8"))
            assert found is None, f"{path.relative_to(ROOT)}: {found and found[0].strip()}"


ALLOWED_EVAL = {
    "cuda_async/ops/_written.py",
    "tilekern/frontend/_register.py",  # its docstring
    "tilekern/frontend/_source.py",  # a message
    "tilekern/frontend/_static_eval.py",
    "tilekern/jit/_parameters.py",
    "tilekern/jit/_written.py",
}


def test_eval_and_exec_are_of_source_only():
    """Where text is compiled and run, it is a kernel's own source or a name written in this project."""
    known = set()
    for folder in ("cuda_async", "tilekern"):
        for path in (ROOT / folder).rglob("*.py"):
            if re.search(r"(?<![\w.])(?:eval|exec)\(", path.read_text(encoding="utf-8")):
                known.add(str(path.relative_to(ROOT)))
    assert known <= ALLOWED_EVAL, known - ALLOWED_EVAL
