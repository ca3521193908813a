"""PTX and cubins that cannot be loaded: the error says why."""

from __future__ import annotations

import numpy as np
import pytest

import cuda_async as ca

pytestmark = pytest.mark.anyio

GOOD = """.version 7.8
.target sm_80
.address_size 64
.visible .entry first(.param .u32 n) { ret; }
.visible .entry second(.param .u32 n) { ret; }
"""


@pytest.fixture(params=[("asyncio", {"use_uvloop": False})], ids=["asyncio"])
def anyio_backend(request):
    """One loop: what the driver says has nothing to do with it."""
    return request.param


async def load(module, name="first"):
    await module.function(name).launch(1, 1, 0)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (3, ".address_size sixty"),
        (4, ".visible .entry first(.param .u32 n) { rett; }"),
        (4, ".visible .entry first(.param .u32 n) { add.s32 %r1, %r2; ret; }"),
        (4, ".visible .entry first(.param .u32 n) { bra missing; ret; }"),
        (4, ".visible .entry first(.param .u32 n { ret; }"),
        (5, "this is not PTX"),
    ],
)
async def test_syntax_error_in_ptx(device, line, text):
    """Case C36: with the driver's log and the line; the same module fails again, and another one works."""
    lines = GOOD.splitlines()
    lines[line - 1] = text
    module = ca.Module.from_ptx("\n".join(lines) + "\n", name="broken.ptx")
    for _ in range(2):
        with pytest.raises(ca.CompileError, match=r"broken\.ptx") as info:
            await load(module)
        message = str(info.value)
        assert f"line {line}" in message or f":{line}:" in message, message
        assert info.value.log or device.kind == "host"
    await load(ca.Module.from_ptx(GOOD))


async def test_ptx_of_a_version_to_come(device):
    """Case C36: both versions."""
    module = ca.Module.from_ptx(GOOD.replace(".version 7.8", ".version 99.0"), name="future.ptx")
    with pytest.raises(ca.CompileError, match=r"future\.ptx.*99\.0.*\d+\.\d") as info:
        await load(module)
    assert str(info.value).count("99.0") >= 1


async def test_ptx_for_a_newer_architecture(device):
    """Case C36: both architectures, where the device is older. The host device runs PTX for any."""
    module = ca.Module.from_ptx(GOOD.replace("sm_80", "sm_120").replace("7.8", "8.7"), name="newer.ptx")
    major, minor = device.compute_capability
    if device.kind == "host":
        await load(module)
        return
    if (major, minor) >= (12, 0):
        pytest.skip("the device is not older")
    with pytest.raises(ca.CompileError, match=r"newer\.ptx") as info:
        await load(module)
    assert "sm_120" in str(info.value)
    assert f"sm_{major}{minor}" in str(info.value)


async def test_cubin_for_another_architecture(device, kernels_can_be_compiled):
    """Case C36: both architectures. The host device runs no cubin at all, and says what it runs."""
    from cuda_async.driver.cuda import compile_cuda_source

    major, minor = device.compute_capability
    other = "sm_80" if major != 8 else "sm_90"
    source = 'extern "C" __global__ void first(int n) {}'
    module = ca.Module.from_cubin(
        compile_cuda_source(source, "f.cu", arch=other, output="cubin"), name="other.cubin"
    )
    with pytest.raises(ca.CompileError, match=r"other\.cubin") as info:
        await load(module)
    if device.kind == "cuda":
        assert other in str(info.value)
        assert f"sm_{major}{minor}" in str(info.value)
    else:
        assert "PTX" in str(info.value)


@pytest.mark.parametrize("image", [b"", b"\0", b"\0\0\0\0", b" \n\t"])
def test_empty_image(image):
    """Case C36: said at once."""
    with pytest.raises(ca.CompileError, match="empty"):
        ca.Module.from_ptx(image)
    with pytest.raises(ca.CompileError, match=r"empty|no cubin"):
        ca.Module.from_cubin(image)
    with pytest.raises(ca.CompileError, match="empty"):
        ca.Module.from_cubin(b"")
    with pytest.raises(ca.CompileError, match="empty"):
        ca.Module.from_cuda_source("  ")


@pytest.mark.parametrize("contents", [b"", b"   "])
def test_empty_file(tmp_path, contents):
    """Case C36."""
    path = tmp_path / "empty.ptx"
    path.write_bytes(contents)
    with pytest.raises(ca.CompileError, match=r"empty\.ptx"):
        ca.Module.from_file(path)


def test_missing_file(tmp_path):
    """Case C36."""
    with pytest.raises(FileNotFoundError, match="missing"):
        ca.Module.from_file(tmp_path / "missing.ptx")


async def test_image_that_is_cut_short(device, kernels_can_be_compiled):
    """Case C36: damaged images are refused, and the device works on."""
    from cuda_async.driver.cuda import compile_cuda_source

    major, minor = device.compute_capability
    image = compile_cuda_source(
        'extern "C" __global__ void first(int n) {}', "f.cu", arch=f"sm_{major}{minor}", output="cubin"
    )
    for damaged in (image[: len(image) // 2], image[:8], image[:64] + bytes(200)):
        with pytest.raises(ca.CompileError, match=r"cut\.cubin"):
            await load(ca.Module.from_cubin(damaged, name="cut.cubin"))
    with pytest.raises(ca.CompileError, match=r"cut\.ptx"):
        await load(ca.Module.from_ptx(GOOD[: GOOD.index("second") + 10], name="cut.ptx"))
    assert (await ca.ones(3).to_host()).tolist() == [1, 1, 1]


async def test_kernel_that_is_not_in_the_module(device):
    """Case C36: with the list of those there are."""
    module = ca.Module.from_ptx(GOOD, name="two.ptx")
    for name in ("third", "", "First"):
        with pytest.raises(ca.CompileError, match=rf"two\.ptx has no kernel '{name}'; it has: ") as info:
            await load(module, name)
        assert {"first", "second"} == set(str(info.value).partition("it has: ")[2].split(", "))
    await load(module, "second")


async def test_cuda_source_that_does_not_compile(device, kernels_can_be_compiled):
    """Case C36 for CUDA C++: NVRTC's log with the line."""
    module = ca.Module.from_cuda_source(
        'extern "C" __global__ void first(int n) {\n  x = 1;\n}\n', name="bad.cu"
    )
    with pytest.raises(ca.CompileError, match=r"bad\.cu") as info:
        await load(module)
    assert "bad.cu(2)" in info.value.log
    assert "x" in info.value.log


@pytest.mark.parametrize("image", [b"\x7fELF" + bytes(100), np.arange(100, dtype=np.uint8).tobytes()])
async def test_rubbish(device, image):
    """Case C36."""
    with pytest.raises(ca.CompileError):
        await load(ca.Module.from_cubin(image, name="rubbish"))
