"""Which tiles are chosen: those that sweeps on an H200 (132 multiprocessors) found to be the fastest, or close."""

import pytest

from tilekern.kernels import _plans


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((512, 960, 576), (64, 64)),
        ((512, 3072, 576), (64, 64)),
        ((512, 576, 1536), (64, 64)),
        ((4096, 1152, 384), (128, 128)),
        ((4096, 1536, 384), (128, 128)),
        ((4096, 384, 1536), (128, 128)),
        ((4096, 4096, 4096), (256, 256)),
        ((8192, 8192, 8192), (256, 256)),
        ((4, 3072, 576), (16, 32)),
        ((4, 4096, 4096), (16, 32)),
        ((2, 49152, 576), (16, 128)),
        ((3, 5, 7), (16, 16)),
    ],
)
def test_tiles_of_products(shape, tile):
    plan = _plans._product_plan(False, False, 9, 132, *shape)
    assert (plan.rows, plan.columns) == tile
    assert plan.form == ("persistent" if tile[0] >= 128 else "blocks")


@pytest.mark.parametrize(
    ("shape", "form", "tile"),
    [
        ((512, 576, 1536), "blocks", (64, 64)),
        ((512, 3072, 576), "pair", (64, 128)),
        ((4096, 384, 1536), "pair", (64, 128)),
        ((2048, 768, 768), "pair", (64, 128)),
        ((4096, 384, 512), "stationary", (64, 64)),
        ((4096, 576, 384), "stationary", (64, 64)),
        ((4096, 768, 3072), "pair", (128, 128)),
        ((4096, 1152, 384), "stationary", (64, 128)),
        ((4096, 1536, 384), "stationary", (64, 128)),
        ((16384, 1152, 384), "stationary", (64, 128)),
        ((4096, 2304, 768), "persistent", (128, 128)),
        ((16384, 384, 1536), "persistent", (128, 128)),
        ((4096, 4096, 4096), "persistent", (256, 256)),
        ((4, 3072, 576), "blocks", (16, 32)),
    ],
)
def test_forms_of_products(shape, form, tile):
    plan = _plans._product_plan(False, False, 9, 132, *shape, _plans.ALL_FORMS)
    assert (plan.form, plan.rows, plan.columns) == (form, *tile)


def test_tiles_of_batches():
    plan = _plans._product_plan(False, False, 9, 132, 512, 512, 512, count=64)
    assert (plan.form, plan.rows, plan.columns) == ("persistent", 128, 128)
    plan = _plans._product_plan(False, False, 9, 132, 49, 32, 49, count=512)
    assert (plan.form, plan.rows, plan.columns) == ("blocks", 64, 32)


def test_few_tiles_are_deep_and_loaded_far_ahead():
    """10.0 us against 10.5 and torch's 11.1 for 512 x 576 x 1536."""
    plan = _plans._product_plan(False, False, 9, 132, 512, 576, 1536, _plans.ALL_FORMS)
    assert (plan.depth, plan.latency) == (128, 4)
    plan = _plans._product_plan(False, False, 9, 132, 1024, 2048, 1536, _plans.ALL_FORMS)
    assert plan.latency != 4


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((49152, 576), (64, 64)),
        ((3072, 576), (4, 1024)),
        ((960, 576), (4, 1024)),
        ((576, 576), (4, 1024)),
        ((576, 1536), (1, 2048)),
        ((4096, 4096), (4, 1024)),
        ((14336, 4096), (4, 1024)),
        ((1, 1), (1, 1)),
        ((3, 70), (4, 128)),
    ],
)
def test_tiles_of_matrix_times_vector(shape, tile):
    assert _plans.matvec_tile(1, *shape, 132) == tile


@pytest.mark.parametrize("m", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [1, 7, 132, 1056, 5000, 200_000])
@pytest.mark.parametrize("k", [1, 63, 65, 1000, 1025, 30_000])
@pytest.mark.parametrize("enough", [1, 16, 132])
def test_matrix_times_vector_fits_the_registers(m, n, k, enough):
    columns, depth = _plans.matvec_tile(m, n, k, enough)
    for side in (columns, depth):
        assert side & (side - 1) == 0
    assert columns * depth * m <= 4096
