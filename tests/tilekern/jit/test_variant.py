"""Compiling for CUDA targets, which needs no GPU: the disk cache, errors at the user's line, single flight."""

import threading

import pytest

import tilekern as tk
from tilekern import tileir
from tilekern.jit import KernelOptions
from tilekern.jit._compile import compile_variant
from tilekern.jit._disk_cache import DiskCache
from tilekern.jit._single_flight import SingleFlight
from tilekern.jit._specialize import specialize
from tilekern.jit._variant import target_of
from tilekern.kernels.raw import add, row_softmax

OPTIONS = KernelOptions()


def variant(kernel, args, cache, target="sm_90", options=OPTIONS):
    specs = specialize(kernel.name, kernel.parameters, args, options.max_divisibility)
    return compile_variant(kernel.source, specs, options, target, cache)


SOFTMAX = (tk.meta((64, 128), "f4").partition((1, 128)), tk.meta((64, 128), "f4"))


def test_cubin_comes_from_the_disk_the_second_time(disassemble, tmp_path, monkeypatch):
    cache = DiskCache(tmp_path)
    variant(row_softmax, SOFTMAX, cache)
    assert (cache.info().stored, cache.info().hits) == (1, 0)

    def refuse(*args, **more):
        raise AssertionError("assembled again")

    monkeypatch.setattr(tileir, "assemble", refuse)
    found = variant(row_softmax, SOFTMAX, DiskCache(tmp_path))
    assert found.target == "sm_90"
    assert found.function.name == "row_softmax"


def test_each_target_and_level_has_its_own_cubin(disassemble, tmp_path):
    cache = DiskCache(tmp_path)
    for target, options in (
        ("sm_90", OPTIONS),
        ("sm_80", OPTIONS),
        ("sm_90", KernelOptions(opt_level=0)),
        ("sm_90", KernelOptions(occupancy=2)),
    ):
        variant(row_softmax, SOFTMAX, cache, target, options)
    assert cache.info().stored == 4


def test_helper_edited_between_processes_is_compiled_anew(disassemble, tmp_path, monkeypatch):
    """The key is the bytecode: whatever the kernel reaches is in it, wherever it comes from."""
    text = (
        "import tilekern as tk\n"
        "def helper(t):\n    return t * {}\n"
        "@tk.kernel\ndef k(out: tk.Tile1D):\n    out.store(helper(out.load()))\n"
    )
    cache = DiskCache(tmp_path / "cache")
    for factor, stored in ((2, 1), (3, 2), (3, 2)):
        file = tmp_path / f"helpers_{factor}.py"
        file.write_text(text.format(factor))
        names = {"__name__": file.stem}
        exec(compile(file.read_text(), str(file), "exec"), names)
        variant(names["k"], (tk.meta(64, "f4").partition(16),), cache)
        assert cache.info().stored == stored


def test_damaged_entry_is_compiled_anew(disassemble, tmp_path):
    cache = DiskCache(tmp_path)
    variant(row_softmax, SOFTMAX, cache)
    for file in tmp_path.rglob("*.entry"):
        file.write_bytes(file.read_bytes()[:-100])
    variant(row_softmax, SOFTMAX, cache)
    assert cache.info().damaged == 1
    assert cache.info().stored == 2


def test_refusal_of_an_architecture_names_the_users_line(disassemble, tmp_path):
    @tk.kernel
    def eight_bits(out, x):
        t = tk.load_like(x, out)
        out.store(t.astype(tk.float32))

    args = (tk.meta(64, "f4").partition(16), tk.meta(64, tk.float8_e4m3fn))
    with pytest.raises(tk.KernelTypeError, match="float8_e4m3fn needs sm_89 or later, not sm_80") as caught:
        variant(eight_bits, args, DiskCache(tmp_path), "sm_80")
    location = caught.value.location
    node = eight_bits.source.node
    assert location.file == __file__
    assert node.lineno <= location.line <= node.end_lineno


def test_unknown_architecture(disassemble, tmp_path):
    with pytest.raises(tileir.errors.UnknownArchitectureError, match="no target 'sm_75'"):
        variant(row_softmax, SOFTMAX, DiskCache(tmp_path), "sm_75")


def test_too_much_shared_memory():
    """sm_90 has the 209 KiB that this takes, sm_89 has not."""

    @tk.kernel
    def scans(out, x):
        t = tk.load(x, (0, 0), (128, 32))

        def three(a, b, c, u, v, w):
            return a + u, b ^ v, tk.minimum(c, w)

        def last(a, b):
            return b + 0 // b if b != 0 else a

        mixed = tk.scan((t, t, t), 0, three, (0, 0, 100))[1]
        tk.store(out, (0, 0), tk.permute(tk.scan(mixed, 1, last, 0, reverse=True), (1, 0)))

    args = tk.meta((31, 126), "u8").mut(), tk.meta((11, 51), "u8")
    assert scans.cubin(*args, arch="sm_90")
    with pytest.raises(
        tileir.errors.CompilerFailedError, match="more shared memory than the architecture has"
    ):
        scans.cubin(*args, arch="sm_89")


def test_missing_assembler_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEKERN_TILEIRAS", str(tmp_path / "nowhere"))
    with pytest.raises(tileir.errors.CompilerNotFoundError, match="correct or unset it"):
        variant(row_softmax, SOFTMAX, DiskCache(tmp_path))


def test_bytecode_is_newer_only_where_the_kernel_needs_it(disassemble):
    @tk.kernel
    def plain(out: tk.Tile1D):
        out.store(1.0)

    @tk.kernel
    def waiting(out: tk.Tile1D):
        tk.grid_dependency_control_wait()
        out.store(1.0)

    args = (tk.meta(64, "f4").partition(16),)
    assert tuple(plain.bytecode(*args)[8:10]) == (13, 3)
    assert tuple(waiting.bytecode(*args)[8:10]) == (13, 4)
    assert waiting.cubin(*args, arch="sm_90")[:4] == b"\x7fELF"


def test_targets():
    assert target_of("host", (9, 0)) == "host"
    assert target_of("cuda", (9, 0)) == "sm_90"
    assert target_of("cuda", (12, 0)) == "sm_120"


# ------------------------------------------------------------------ specs


def spec_of(*args, divisibility=16, kernel=add):
    return specialize(kernel.name, kernel.parameters, args, divisibility)


def tensor_spec(tensor, divisibility=16):
    x = tk.meta(64, "f4")
    return spec_of(x.partition(16), tensor, x, divisibility=divisibility)[1]


@pytest.mark.parametrize(
    ("extent", "dtype", "divisor"),
    [
        (64, "f4", 16),
        (4, "f4", 4),
        (8, "f4", 4),
        (6, "f4", 1),
        (8, "f2", 8),
        (12, "f2", 1),
        (2, "f8", 2),
        (0, "f4", 16),
    ],
)
def test_divisibility_of_extents(extent, dtype, divisor):
    """16, or what makes 16 bytes, or nothing."""
    assert tensor_spec(tk.meta(extent, dtype)).shape_divisors == (divisor,)


def test_divisibility_is_capped():
    assert tensor_spec(tk.meta(64, "f4"), 4).shape_divisors == (4,)
    assert tensor_spec(tk.meta(64, "f4"), 1).shape_divisors == (1,)
    assert tensor_spec(tk.meta(64, "f4"), 1).alignment == 4


@pytest.mark.parametrize(("alignment", "known"), [(256, 16), (16, 16), (8, 8), (4, 4)])
def test_alignment_of_addresses(alignment, known):
    assert tensor_spec(tk.meta(64, "f4", alignment=alignment)).alignment == known


def test_unit_strides_are_compiled_in():
    @tk.kernel
    def any_rank(x):
        pass

    def strides(tensor):
        return spec_of(tensor, kernel=any_rank)[0].strides

    assert strides(tk.meta((4, 8), "f4")) == (None, 1)
    assert strides(tk.meta((4, 8), "f4", (1, 4))) == (1, None)
    assert strides(tk.meta((4, 8), "f4", (16, 2))) == (None, None)
    assert strides(tk.meta((4, 1), "f4")) == (1, 1)


def test_stride_of_zero_is_no_multiple():
    @tk.kernel
    def any_rank(x):
        pass

    assert spec_of(tk.meta((4, 8), "f4", (0, 1)), kernel=any_rank)[0].stride_divisors == (1, 1)


# ------------------------------------------------------------------ single flight


def test_single_flight_makes_a_value_once():
    made, start, flights = [], threading.Barrier(4), SingleFlight()

    def make():
        made.append(threading.get_ident())
        return object()

    def work(found):
        start.wait()
        found.append(flights.get("key", make))

    found = []
    threads = [threading.Thread(target=work, args=(found,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert len(set(map(id, found))) == 1
    assert flights.peek("key") is found[0]
    assert flights.peek("other") is None


def test_single_flight_forgets_failures():
    flights = SingleFlight()
    with pytest.raises(ZeroDivisionError):
        flights.get("key", lambda: 1 // 0)
    assert flights.get("key", lambda: 7) == 7
    assert len(flights) == 1
